// Prints a digest of every kernel's output on the same made-up data, a line for each instruction set.
#include <cstdio>
#include <vector>

#include "engine.hpp"

using namespace excise;

namespace {

uint64_t state;

double uniform() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return static_cast<double>(state >> 11) / 9007199254740992.0;
}

void fill(std::vector<float>& data) {  // sums of twelve: near enough to normal, and free of libm
    for (float& x : data) {
        double sum = -6;
        for (int i = 0; i < 12; ++i) sum += uniform();
        x = static_cast<float>(sum);
    }
}

template <class T>
void print(const char* what, const std::vector<T>& data) {
    uint64_t digest = 1469598103934665603ull;
    const auto* bytes = reinterpret_cast<const unsigned char*>(data.data());
    for (size_t i = 0; i < data.size() * sizeof(T); ++i) digest = (digest ^ bytes[i]) * 1099511628211ull;
    std::printf(" %s %016llx", what, static_cast<unsigned long long>(digest));
}

void digests() {
    const int n = 300, f = 50, c = 5, m = 700, d = 8, v = 13;
    std::vector<float> x(n * f), projection(f * c * d), keys(c * m * d), z(n * c * d);
    state = 88172645463325252ull;
    fill(x);
    fill(projection);
    fill(keys);
    project(x.data(), n, f, projection.data(), c * d, z.data(), 1);
    print("z", z);
    KeyInitializer initializer(keys.data(), c, m, d, 7, 64);
    for (int pass = 0; pass < 2; ++pass) initializer.update(z.data(), n, 1);
    initializer.keys(keys.data());
    print("keys", keys);
    std::vector<int64_t> labels(n), order(n * 20);
    for (int i = 0; i < n; ++i) labels[i] = i % v;
    for (int i = 0; i < n * 20; ++i) order[i] = i * 7 % n;
    const PreparedKeys prepared(keys.data(), c, m, d, nullptr, 1);
    std::vector<int32_t> ranks(c * m);
    for (int p = 0; p < c * m; ++p) ranks[p] = p % 3 ? p * 7919 % 1000 - 20 : 2147483647;
    const PreparedStairs stairs(keys.data(), c, m, d, ranks.data(), 1);
    for (int k : {1, 3, 12}) {
        std::vector<uint16_t> codes(n * c * k);
        prepared.nearest(z.data(), n, k, codes.data(), 1);
        print("codes", codes);
        std::vector<float> values(c * m * v), scores(n * v), table(c * m * v);
        ValueTrainer trainer(values.data(), c, m, v, Options(), 1);
        trainer.train(codes.data(), n, k, labels.data(), order.data(), n * 20, 16, 1);
        trainer.values(values.data(), 1);
        print("values", values);
        logits(codes.data(), n, c, k, values.data(), m, v, true, scores.data(), 1);
        print("logits", scores);
        gradient(codes.data(), n, c, k, scores.data(), m, v, true, table.data(), 1);
        print("gradient", table);
        std::vector<int64_t> offsets(n + 1);
        const PreparedStairs::Steps steps = stairs.steps(z.data(), n, k, codes.data(), offsets.data(), 1);
        print("codes", codes);
        print("offsets", offsets);
        print("pairs", std::vector<uint16_t>(steps.pairs.data(), steps.pairs.data() + steps.count));
        print("places", std::vector<uint8_t>(steps.places.data(), steps.places.data() + steps.count));
        std::vector<int32_t> first_best(n), best(steps.count);
        std::vector<double> first_loss(n), loss(steps.count);  // not printed: logarithms are those of the system
        walk(codes.data(), n, c, k, offsets.data(),
             {steps.sizes.data(), steps.books.data(), steps.pairs.data(), steps.places.data()}, values.data(), m, v, true,
             labels.data(), first_best.data(), first_loss.data(), best.data(), loss.data(), 1);
        print("first", first_best);
        print("best", best);
    }
}

}  // namespace

int main() {
    for (const std::string& name : available()) {
        use(name);
        std::printf("%s:", name.c_str());
        digests();
        std::printf("\n");
    }
}
