// Every mask size at once, over codebooks, examples and threads: the search of nested masks, and the walk through them.
#include <limits>
#include <numeric>

#include "engine.hpp"
#include "loops.hpp"

namespace excise {

namespace {

constexpr int32_t kNeverMasked = std::numeric_limits<int32_t>::max();

// Where the steps of a query in one codebook begin among those of its task, and how many they are.
struct Run {
    uint32_t start, count;
};

// Floats of scratch that so many queries take among so many blocks: their least scores in floats, or in whole numbers
// beside those of groups of blocks, the rounded queries, and the least scores in floats of a query that cannot be rounded.
int64_t climb_scratch(const Isa& isa, int64_t blocks, int d, int64_t queries) {
    const int64_t least = queries * blocks * isa.width;
    return isa.round_keys ? 2 * least + queries * (isa.width + d + 2) + blocks * (isa.width + 1) + 1 : least;
}

// Orders numbers by their upper halves, of which none exceeds `most`, by one digit after another: those that are equal stay
// in their order. Returns where they end up, which is either of the two.
uint64_t* sort(uint64_t* from, uint64_t* to, int64_t count, uint32_t most) {
    constexpr int kBits = 8;
    for (int shift = 0; shift < 32 && most >> shift; shift += kBits) {
        const auto digit = [&](uint64_t x) { return x >> (32 + shift) & ((1u << kBits) - 1); };
        uint32_t place[(1u << kBits) + 1] = {};
        for (int64_t i = 0; i < count; ++i) ++place[digit(from[i]) + 1];
        for (uint32_t i = 0; i < 1u << kBits; ++i) place[i + 1] += place[i];
        for (int64_t i = 0; i < count; ++i) to[place[digit(from[i])]++] = from[i];
        std::swap(from, to);
    }
    return from;
}

}  // namespace

PreparedStairs::Flight::Flight(const Isa& isa, const float* from, int m, int d, const int32_t* rank) {
    std::vector<uint64_t> order;
    for (int p = 0; p < m; ++p)
        if (rank[p] >= 0 && rank[p] < kNeverMasked)
            order.push_back(static_cast<uint64_t>(kNeverMasked - rank[p]) << 16 | static_cast<uint64_t>(p));
    std::sort(order.begin(), order.end());
    const int count = static_cast<int>(order.size()), block = isa.block;
    const int64_t size = round_up(count, block);
    keys = Buffer(size * d);
    std::fill(keys.data(), keys.data() + size * d, 0.0f);
    const Place place(block, d);
    for (int i = 0; i < count; ++i) {
        const size_t pair = order[static_cast<size_t>(i)] & 0xffff;
        pairs.push_back(static_cast<uint16_t>(pair));
        ranks.push_back(rank[pair]);
        float* to = keys.data() + place(i);
        for (int j = 0; j < d; ++j) to[j * block] = from[pair * static_cast<size_t>(d) + static_cast<size_t>(j)];
    }
    table = std::make_unique<SearchTable>(isa, size, d);
    table->fill(keys.data(), count);  // far keys too: the nearest may be one while the others are masked
}

PreparedStairs::PreparedStairs(const float* keys, int c, int m, int d, const int32_t* ranks, int threads)
    : isa_(isa()), c_(c), m_(m), d_(d), flights_(static_cast<size_t>(c)) {
    const int64_t count = static_cast<int64_t>(c) * m;
    BufferOf<bool> live(count);
    for (int64_t p = 0; p < count; ++p) live.data()[p] = ranks[p] == kNeverMasked;
    never_ = std::make_unique<PreparedKeys>(keys, c, m, d, live.data(), threads);
    FirstError error;
#pragma omp parallel for num_threads(team(threads, 100.0 * static_cast<double>(count))) schedule(dynamic)
    for (int64_t i = 0; i < c; ++i)
        error.keep([&] { flights_[static_cast<size_t>(i)] = Flight(isa_, keys + i * m * d, m, d, ranks + i * m); });
    error.rethrow();
}

struct PreparedStairs::Worker {
    PreparedKeys::Scratch search;
    Buffer tile, scores, climb;
    BufferOf<uint16_t> codes;
    BufferOf<Entered> entered;  // room for all pairs of all queries; mostly a few are touched
    BufferOf<int32_t> counts;
};

PreparedStairs::Steps PreparedStairs::steps(const float* z, int64_t n, int k, uint16_t* codes, int64_t* offsets,
                                            int threads) const {
    offsets[0] = 0;
    if (n == 0) return Steps(0);
    threads = team(threads, 2.0 * static_cast<double>(n) * c_ * m_ * d_);
    const Tasks tasks(n, c_, m_, d_);
    const int64_t queries = tasks.queries, most = std::min<int64_t>(never_->at_a_time(k), queries);
    int64_t longest = 0;
    int32_t highest = 0;
    for (const Flight& flight : flights_) {
        longest = std::max<int64_t>(longest, flight.table->packed().blocks);
        highest = flight.ranks.empty() ? highest : std::max(highest, flight.ranks.front());
    }
    auto each = of_each(threads, [&] {
        return Worker{never_->scratch(most, k), Buffer(tasks.books * queries * d_), Buffer(most * k),
                      Buffer(climb_scratch(isa_, longest, d_, most)), BufferOf<uint16_t>(most * k), BufferOf<Entered>(most * longest * isa_.block), BufferOf<int32_t>(most)};
    });
    std::vector<std::vector<Entered>> entered(static_cast<size_t>(tasks.count()));
    BufferOf<Run> runs(n * c_);  // [codebook][query]
    FirstError error;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t task = 0; task < tasks.count(); ++task)
        error.keep([&] {
            Worker& own = each[thread_number()];
            std::vector<Entered>& found = entered[static_cast<size_t>(task)];
            const int64_t from = task / tasks.columns * queries, count = std::min(queries, n - from);
            const int first = static_cast<int>(task % tasks.columns) * tasks.books, width = std::min(tasks.books, c_ - first);
            copy_tile(z + (from * c_ + first) * d_, c_, d_, count, width, queries, own.tile.data());
            for (int i = first; i < first + width; ++i)
                for (int64_t start = 0; start < count; start += most) {
                    const Flight& flight = flights_[static_cast<size_t>(i)];
                    const float* near = own.tile.data() + ((i - first) * queries + start) * d_;
                    const int some = static_cast<int>(std::min(most, count - start));
                    never_->search(i, near, some, k, own.search, own.codes.data(), k, own.scores.data());
                    for (int64_t e = 0; e < some; ++e)
                        std::memcpy(codes + ((from + start + e) * c_ + i) * k, own.codes.data() + e * k,
                                    sizeof(uint16_t) * static_cast<size_t>(k));
                    isa_.climb(near, some, d_, k, flight.table->packed(), own.climb.data(), flight.pairs.data(),
                               flight.ranks.data(), own.codes.data(), own.scores.data(), own.entered.data(), own.counts.data());
                    size_t at = found.size();
                    for (int e = 0; e < some; ++e) {
                        const uint32_t count = static_cast<uint32_t>(own.counts.data()[e]);
                        runs.data()[i * n + from + start + e] = {static_cast<uint32_t>(at), count};
                        at += count;
                    }
                    if (at > std::numeric_limits<uint32_t>::max()) throw std::bad_alloc();
                    found.insert(found.end(), own.entered.data(), own.entered.data() + (at - found.size()));
                }
        });
    error.rethrow();

    std::fill(offsets + 1, offsets + n + 1, int64_t{0});
    for (int64_t i = 0; i < c_; ++i)
        for (int64_t q = 0; q < n; ++q) offsets[q + 1] += runs.data()[i * n + q].count;
    const int64_t widest = *std::max_element(offsets + 1, offsets + n + 1);
    std::partial_sum(offsets, offsets + n + 1, offsets);
    Steps steps(offsets[n]);
    struct Sorter {
        BufferOf<uint64_t> order, other;
        BufferOf<Entered> entered;
        BufferOf<int32_t> books;
    };
    auto sorters = of_each(threads, [&] { return Sorter{BufferOf<uint64_t>(widest), BufferOf<uint64_t>(widest), BufferOf<Entered>(widest), BufferOf<int32_t>(widest)}; });
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t q = 0; q < n; ++q) {
        Sorter& own = sorters[thread_number()];
        uint64_t* order = own.order.data();
        int64_t count = 0;
        for (int i = 0; i < c_; ++i) {
            const Run run = runs.data()[i * n + q];
            const Entered* from = entered[static_cast<size_t>(q / queries * tasks.columns + i / tasks.books)].data() + run.start;
            for (uint32_t e = 0; e < run.count; ++e, ++count) {
                own.entered.data()[count] = from[e];
                own.books.data()[count] = i;
                order[count] = static_cast<uint64_t>(highest - from[e].size) << 32 | static_cast<uint64_t>(count);
            }
        }
        order = sort(order, own.other.data(), count, static_cast<uint32_t>(highest));
        for (int64_t e = 0; e < count; ++e) {
            const int64_t to = offsets[q] + e, at = static_cast<int64_t>(order[e] & 0xffffffff);
            const Entered& own_entered = own.entered.data()[at];
            steps.sizes.data()[to] = own_entered.size;
            steps.books.data()[to] = own.books.data()[at];
            steps.pairs.data()[to] = own_entered.pair;
            steps.places.data()[to] = own_entered.place;
        }
    }
    return steps;
}

void walk(const uint16_t* codes, int64_t n, int c, int k, const int64_t* offsets, const Course& course, const float* values,
          int m, int v, bool mean, const int64_t* labels, int32_t* first_best, double* first_loss, int32_t* best,
          double* loss, int threads) {
    if (n == 0) return;
    threads = team(threads, 4.0 * static_cast<double>(n) * c * k * v);
    const Isa& kernel = isa();
    const Lookup lookup{values, c, k, m, v, mean};
    const int64_t width = static_cast<int64_t>(c) * k;
    struct Scratch {
        Buffer sums;
        BufferOf<uint16_t> codes;
    };
    auto each = of_each(threads, [&] {
        return Scratch{Buffer(walk_scratch(c, k, round_up(v, kernel.width))), BufferOf<uint16_t>(width)};
    });
#pragma omp parallel for num_threads(threads) schedule(dynamic, 8)
    for (int64_t q = 0; q < n; ++q) {
        Scratch& own = each[thread_number()];
        const int64_t from = offsets[q];
        std::copy(codes + q * width, codes + (q + 1) * width, own.codes.data());
        const Course rest{course.sizes + from, course.books + from, course.pairs + from, course.places + from};
        kernel.walk(lookup, own.codes.data(), rest, offsets[q + 1] - from, labels[q], own.sums.data(), first_best + q,
                    first_loss + q, best + from, loss + from);
    }
}

}  // namespace excise
