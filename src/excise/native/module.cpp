// The Python door of the kernels: checks shapes, releases the lock, hands pointers on.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <stdexcept>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

#include "engine.hpp"

namespace nb = nanobind;
using namespace excise;

namespace {

template <class T, size_t Axes>
using In = nb::ndarray<const T, nb::ndim<Axes>, nb::c_contig, nb::device::cpu>;
template <class T>
using Out = nb::ndarray<nb::numpy, T>;

template <class T>
Out<T> hand_over(BufferOf<T>& buffer, int64_t count) {
    T* data = buffer.data();
    nb::capsule owner(data, [](void* p) noexcept { std::free(p); });
    buffer.release();
    return Out<T>(data, {static_cast<size_t>(count)}, owner);
}

template <class T>
Out<T> make(std::initializer_list<size_t> shape, T*& data) {
    size_t size = 1;
    for (size_t s : shape) size *= s;
    data = static_cast<T*>(allocate(size * sizeof(T)));
    nb::capsule owner(data, [](void* p) noexcept { std::free(p); });
    return Out<T>(data, shape, owner);
}

void require(bool right, const char* message) {
    if (!right) throw std::invalid_argument(message);
}

bool is_mean(const std::string& decoder) {
    require(decoder == "mean" || decoder == "sum", "decoder must be 'mean' or 'sum'");
    return decoder == "mean";
}

// The threads of OpenMP do not survive a fork: a child that asked for some would wait for ever, so it works alone.
std::atomic<bool> forked{false};

int allowed(int threads) { return threads < 1 || forked ? 1 : threads; }

template <class A>
void require_no_empty_axis(const A& array, const char* message) {
    for (size_t i = 0; i < array.ndim(); ++i) require(array.shape(i) > 0, message);
}

Out<float> py_project(In<float, 2> x, In<float, 2> projection, int threads) {
    require_no_empty_axis(projection, "projection (f, c*d) must have no axis of length 0");
    require(x.shape(1) == projection.shape(0), "x (n, f) and projection (f, c*d) differ in f");
    float* z;
    auto out = make<float>({x.shape(0), projection.shape(1)}, z);
    nb::gil_scoped_release release;
    project(x.data(), static_cast<int64_t>(x.shape(0)), static_cast<int>(x.shape(1)), projection.data(),
            static_cast<int64_t>(projection.shape(1)), z, allowed(threads));
    return out;
}

Out<uint16_t> py_nearest(const PreparedKeys& keys, In<float, 3> z, int k, int threads) {
    require(static_cast<int>(z.shape(1)) == keys.codebooks() && static_cast<int>(z.shape(2)) == keys.key_dim(),
            "z (n, c, d) does not fit the keys (c, m, d)");
    require(k >= 1 && k <= kMostRetrieved, "k must be from 1 to 32");
    uint16_t* codes;
    auto out = make<uint16_t>({z.shape(0), z.shape(1), static_cast<size_t>(k)}, codes);
    nb::gil_scoped_release release;
    keys.nearest(z.data(), static_cast<int64_t>(z.shape(0)), k, codes, allowed(threads));
    return out;
}

Out<float> py_logits(In<uint16_t, 3> codes, In<float, 3> values, const std::string& decoder, int threads) {
    const bool mean = is_mean(decoder);
    require_no_empty_axis(values, "values (c, m, v) must have no axis of length 0");
    require(codes.shape(1) == values.shape(0), "codes (n, c, k) and values (c, m, v) differ in c");
    float* data;
    auto out = make<float>({codes.shape(0), values.shape(2)}, data);
    const int m = static_cast<int>(values.shape(1));
    bool within;
    {
        nb::gil_scoped_release release;
        within = codes_within(codes.data(), static_cast<int64_t>(codes.size()), m, allowed(threads));
        if (within)
            logits(codes.data(), static_cast<int64_t>(codes.shape(0)), static_cast<int>(codes.shape(1)),
                   static_cast<int>(codes.shape(2)), values.data(), m, static_cast<int>(values.shape(2)), mean, data,
                   allowed(threads));
    }
    require(within, "a code names a pair that the table does not have");
    return out;
}

Out<float> py_gradient(In<uint16_t, 3> codes, In<float, 2> residuals, int pairs, const std::string& decoder,
                       int threads) {
    const bool mean = is_mean(decoder);
    require(codes.shape(0) == residuals.shape(0), "codes (n, c, k) and residuals (n, v) differ in n");
    require(pairs >= 1 && codes.shape(1) >= 1 && residuals.shape(1) >= 1, "pairs, codebooks and classes must be positive");
    float* table;
    auto out = make<float>({codes.shape(1), static_cast<size_t>(pairs), residuals.shape(1)}, table);
    bool within;
    {
        nb::gil_scoped_release release;
        within = codes_within(codes.data(), static_cast<int64_t>(codes.size()), pairs, allowed(threads));
        if (within)
            gradient(codes.data(), static_cast<int64_t>(codes.shape(0)), static_cast<int>(codes.shape(1)),
                     static_cast<int>(codes.shape(2)), residuals.data(), pairs, static_cast<int>(residuals.shape(1)),
                     mean, table, allowed(threads));
    }
    require(within, "a code names a pair that the table does not have");
    return out;
}

nb::tuple py_cross_entropy(In<float, 2> logits, In<int64_t, 1> labels, double smoothing) {
    const size_t n = logits.shape(0), v = logits.shape(1);
    require(labels.shape(0) == n, "logits (n, v) and labels (n) differ in n");
    for (size_t e = 0; e < n; ++e)
        require(labels.data()[e] >= 0 && labels.data()[e] < static_cast<int64_t>(v), "a label is not below v");
    float* residuals;
    double* losses;
    auto out = make<float>({n, v}, residuals);
    auto out_losses = make<double>({n}, losses);
    std::copy(logits.data(), logits.data() + n * v, residuals);
    cross_entropy(residuals, static_cast<int64_t>(v), static_cast<int64_t>(n), static_cast<int>(v), labels.data(),
                  smoothing, losses);
    return nb::make_tuple(out, out_losses);
}

nb::tuple py_steps(const PreparedStairs& stairs, In<float, 3> z, int k, int threads) {
    require(static_cast<int>(z.shape(1)) == stairs.codebooks() && static_cast<int>(z.shape(2)) == stairs.key_dim(),
            "z (n, c, d) does not fit the keys (c, m, d)");
    require(k >= 1 && k <= kMostRetrieved, "k must be from 1 to 32");
    uint16_t* codes;
    int64_t* offsets;
    auto out = make<uint16_t>({z.shape(0), z.shape(1), static_cast<size_t>(k)}, codes);
    auto out_offsets = make<int64_t>({z.shape(0) + 1}, offsets);
    PreparedStairs::Steps steps(0);
    {
        nb::gil_scoped_release release;
        steps = stairs.steps(z.data(), static_cast<int64_t>(z.shape(0)), k, codes, offsets, allowed(threads));
    }
    const int64_t count = steps.count;
    return nb::make_tuple(out, out_offsets, hand_over(steps.sizes, count), hand_over(steps.books, count),
                          hand_over(steps.pairs, count), hand_over(steps.places, count));
}

nb::tuple py_walk(In<uint16_t, 3> codes, In<int64_t, 1> offsets, In<int32_t, 1> sizes, In<int32_t, 1> books,
                  In<uint16_t, 1> pairs, In<uint8_t, 1> places, In<float, 3> values, In<int64_t, 1> labels,
                  const std::string& decoder, int threads) {
    const bool mean = is_mean(decoder);
    require_no_empty_axis(values, "values (c, m, v) must have no axis of length 0");
    require(codes.shape(1) == values.shape(0), "codes (n, c, k) and values (c, m, v) differ in c");
    require(codes.shape(2) >= 1, "codes (n, c, k) must have a slot");
    const size_t n = codes.shape(0), count = sizes.shape(0);
    require(labels.shape(0) == n, "codes (n, c, k) and labels (n) differ in n");
    require(offsets.shape(0) == n + 1 && offsets.data()[0] == 0 && offsets.data()[n] == static_cast<int64_t>(count),
            "offsets (n + 1) must lead from 0 to the number of steps");
    require(books.shape(0) == count && pairs.shape(0) == count && places.shape(0) == count,
            "sizes, books, pairs and places differ in length");
    const int c = static_cast<int>(values.shape(0)), m = static_cast<int>(values.shape(1)), v = static_cast<int>(values.shape(2));
    const int k = static_cast<int>(codes.shape(2));
    for (size_t q = 0; q < n; ++q) {
        require(offsets.data()[q] <= offsets.data()[q + 1], "offsets must not fall");
        require(labels.data()[q] >= 0 && labels.data()[q] < v, "a label is not below v");
    }
    int32_t *first_best, *best;
    double *first_loss, *loss;
    auto out_first_best = make<int32_t>({n}, first_best);
    auto out_first_loss = make<double>({n}, first_loss);
    auto out_best = make<int32_t>({count}, best);
    auto out_loss = make<double>({count}, loss);
    bool within = true;
    {
        nb::gil_scoped_release release;
        for (size_t e = 0; e < count; ++e)
            within &= books.data()[e] >= 0 && books.data()[e] < c && pairs.data()[e] < m && places.data()[e] < k;
        within = within && codes_within(codes.data(), static_cast<int64_t>(codes.size()), m, allowed(threads));
        if (within)
            walk(codes.data(), static_cast<int64_t>(n), c, k, offsets.data(),
                 {sizes.data(), books.data(), pairs.data(), places.data()}, values.data(), m, v, mean, labels.data(),
                 first_best, first_loss, best, loss, allowed(threads));
    }
    require(within, "a code or a step names what the table does not have");
    return nb::make_tuple(out_first_best, out_first_loss, out_best, out_loss);
}

Options read_options(nb::object o) {
    Options options;
    const auto number = [&](const char* name) { return nb::cast<double>(nb::float_(o.attr(name))); };
    options.adam = nb::cast<std::string>(o.attr("solver")) == "adam";
    options.mean = is_mean(nb::cast<std::string>(o.attr("decoder")));
    options.learning_rate = number("learning_rate");
    options.beta1 = number("beta1");
    options.beta2 = number("beta2");
    options.epsilon = number("epsilon");
    options.label_smoothing = number("label_smoothing");
    options.l2 = number("l2");
    options.gradient_clip = o.attr("gradient_clip").is_none() ? 0.0 : number("gradient_clip");
    return options;
}

double py_train(ValueTrainer& trainer, In<uint16_t, 3> codes, In<int64_t, 1> labels, In<int64_t, 1> order,
                int batch_size, int threads) {
    const int64_t n = static_cast<int64_t>(codes.shape(0)), count = static_cast<int64_t>(order.shape(0));
    require(static_cast<int>(codes.shape(1)) == trainer.codebooks(), "codes (n, c, k) do not fit the table (c, m, v)");
    require(labels.shape(0) == codes.shape(0), "codes (n, c, k) and labels (n) differ in n");
    require(batch_size >= 1, "batch_size must be positive");
    const int64_t width = static_cast<int64_t>(codes.shape(1) * codes.shape(2));
    for (int64_t i = 0; i < count; ++i) {
        const int64_t row = order.data()[i];
        require(row >= 0 && row < n, "order names an example that is not there");
        require(labels.data()[row] >= 0 && labels.data()[row] < trainer.classes(), "a label is not below v");
    }
    bool within = true;
    double loss = 0;
    {
        nb::gil_scoped_release release;
        for (int64_t i = 0; i < count && within; ++i)
            within = codes_within(codes.data() + order.data()[i] * width, width, trainer.pairs(), 1);
        if (within)
            loss = trainer.train(codes.data(), n, static_cast<int>(codes.shape(2)), labels.data(), order.data(), count,
                                 batch_size, allowed(threads));
    }
    require(within, "a code names a pair that the table does not have");
    return loss;
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Compiled kernels; excise.bottleneck.reference says in numpy what each of them computes.";
#if defined(__unix__) || defined(__APPLE__)
    pthread_atfork(nullptr, nullptr, [] { forked = true; });
#endif
    m.def("backend", [] { return std::string(isa().name); });
    m.def("available", &available);
    m.def("use", &use);
    m.def("fma_peak", [](int threads) { return multiply_add_peak(allowed(threads)); }, nb::arg("threads"),
          nb::call_guard<nb::gil_scoped_release>());
    m.def("project", &py_project, nb::arg("x"), nb::arg("projection"), nb::arg("threads") = 1);
    m.def("logits", &py_logits, nb::arg("codes"), nb::arg("values"), nb::arg("decoder"), nb::arg("threads") = 1);
    m.def("gradient", &py_gradient, nb::arg("codes"), nb::arg("residuals"), nb::arg("pairs"), nb::arg("decoder"),
          nb::arg("threads") = 1);
    m.def("walk", &py_walk, nb::arg("codes"), nb::arg("offsets"), nb::arg("sizes"), nb::arg("books"), nb::arg("pairs"),
          nb::arg("places"), nb::arg("values"), nb::arg("labels"), nb::arg("decoder"), nb::arg("threads") = 1);
    m.def("cross_entropy", &py_cross_entropy, nb::arg("logits"), nb::arg("labels"), nb::arg("smoothing"));
    nb::class_<PreparedKeys>(m, "PreparedKeys")
        .def(
            "__init__",
            [](PreparedKeys* self, In<float, 3> keys, std::optional<In<bool, 2>> live, int threads) {
                require_no_empty_axis(keys, "keys (c, m, d) must have no axis of length 0");
                require(!live || (live->shape(0) == keys.shape(0) && live->shape(1) == keys.shape(1)),
                        "live (c, m) does not fit the keys (c, m, d)");
                nb::gil_scoped_release release;
                new (self) PreparedKeys(keys.data(), static_cast<int>(keys.shape(0)), static_cast<int>(keys.shape(1)),
                                        static_cast<int>(keys.shape(2)), live ? live->data() : nullptr, allowed(threads));
            },
            nb::arg("keys"), nb::arg("live") = nb::none(), nb::arg("threads") = 1)
        .def("nearest", &py_nearest, nb::arg("z"), nb::arg("k"), nb::arg("threads") = 1);
    nb::class_<PreparedStairs>(m, "PreparedStairs")
        .def(
            "__init__",
            [](PreparedStairs* self, In<float, 3> keys, In<int32_t, 2> ranks, int threads) {
                require_no_empty_axis(keys, "keys (c, m, d) must have no axis of length 0");
                require(ranks.shape(0) == keys.shape(0) && ranks.shape(1) == keys.shape(1),
                        "ranks (c, m) do not fit the keys (c, m, d)");
                nb::gil_scoped_release release;
                new (self) PreparedStairs(keys.data(), static_cast<int>(keys.shape(0)), static_cast<int>(keys.shape(1)),
                                          static_cast<int>(keys.shape(2)), ranks.data(), allowed(threads));
            },
            nb::arg("keys"), nb::arg("ranks"), nb::arg("threads") = 1)
        .def("steps", &py_steps, nb::arg("z"), nb::arg("k"), nb::arg("threads") = 1);
    nb::class_<KeyInitializer>(m, "KeyInitializer")
        .def(
            "__init__",
            [](KeyInitializer* self, In<float, 3> keys, uint64_t seed, int batch_size) {
                require_no_empty_axis(keys, "keys (c, m, d) must have no axis of length 0");
                require(batch_size >= 1, "batch_size must be positive");
                new (self) KeyInitializer(keys.data(), static_cast<int>(keys.shape(0)), static_cast<int>(keys.shape(1)),
                                          static_cast<int>(keys.shape(2)), seed, batch_size);
            },
            nb::arg("keys"), nb::arg("seed"), nb::arg("batch_size"))
        .def(
            "update",
            [](KeyInitializer& self, In<float, 3> z, int threads) {
                require(static_cast<int>(z.shape(1)) == self.codebooks() &&
                            static_cast<int>(z.shape(2)) == self.key_dim(),
                        "z (n, c, d) does not fit the keys (c, m, d)");
                nb::gil_scoped_release release;
                self.update(z.data(), static_cast<int64_t>(z.shape(0)), allowed(threads));
            },
            nb::arg("z"), nb::arg("threads") = 1)
        .def("keys", [](const KeyInitializer& self) {
            float* data;
            auto out = make<float>({static_cast<size_t>(self.codebooks()), static_cast<size_t>(self.pairs()),
                                    static_cast<size_t>(self.key_dim())},
                                   data);
            self.keys(data);
            return out;
        });
    nb::class_<ValueTrainer>(m, "ValueTrainer")
        .def(
            "__init__",
            [](ValueTrainer* self, In<float, 3> values, nb::object options) {
                require_no_empty_axis(values, "values (c, m, v) must have no axis of length 0");
                new (self) ValueTrainer(values.data(), static_cast<int>(values.shape(0)),
                                        static_cast<int>(values.shape(1)), static_cast<int>(values.shape(2)),
                                        read_options(options), 1);
            },
            nb::arg("values"), nb::arg("options"))
        .def("train", &py_train, nb::arg("codes"), nb::arg("labels"), nb::arg("order"), nb::arg("batch_size"),
             nb::arg("threads") = 1)
        .def(
            "values",
            [](ValueTrainer& self, int threads) {
                float* data;
                auto out = make<float>({static_cast<size_t>(self.codebooks()), static_cast<size_t>(self.pairs()),
                                        static_cast<size_t>(self.classes())},
                                       data);
                nb::gil_scoped_release release;
                self.values(data, allowed(threads));
                return out;
            },
            nb::arg("threads") = 1);
}
