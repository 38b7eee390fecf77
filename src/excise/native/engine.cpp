#include "engine.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "exponential.hpp"
#include "loops.hpp"

namespace excise {

namespace {

constexpr int kQueriesOfK = 32;   // fewer at a time, where k of each are looked for,
constexpr int kQueriesKept = 16;  // and fewer still, where all their scores are kept

std::vector<const Isa*> tables() {
    std::vector<const Isa*> all;
#ifdef EXCISE_BUILD_AVX512
    if (avx512vnni()) all.push_back(avx512vnni());
    if (avx512()) all.push_back(avx512());
#endif
#ifdef EXCISE_BUILD_AVX2
    if (avx2()) all.push_back(avx2());
#endif
#ifdef EXCISE_BUILD_NEON
    all.push_back(neon());
#endif
    all.push_back(plain());
    return all;
}

std::atomic<const Isa*> chosen{nullptr};

uint64_t mix(uint64_t x) {  // the finaliser of splitmix64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

}  // namespace

const Isa& isa() {
    if (!chosen) chosen = tables().front();
    return *chosen.load();
}

bool use(const std::string& name) {
    for (const Isa* table : tables())
        if (name == table->name) {
            chosen = table;
            return true;
        }
    return false;
}

std::vector<std::string> available() {
    std::vector<std::string> names;
    for (const Isa* table : tables()) names.push_back(table->name);
    return names;
}

void* allocate(size_t bytes) {
    const size_t page = bytes >= size_t{1} << 21 ? size_t{1} << 21 : 64;
    bytes = (std::max<size_t>(bytes, 1) + page - 1) / page * page;
    void* data = std::aligned_alloc(page, bytes);
    if (!data) throw std::bad_alloc();
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (page > 64) madvise(data, bytes, MADV_HUGEPAGE);
#endif
    return data;
}

// ---- projection -----------------------------------------------------------------------------------------------------

void project(const float* x, int64_t n, int f, const float* projection, int64_t columns, float* z, int threads) {
    const Isa& kernel = isa();
    threads = team(threads, 2.0 * static_cast<double>(n) * f * static_cast<double>(columns));
    const int width = kernel.panel;
    const int64_t panels = (columns + width - 1) / width;
    if (n < 32) {  // too few rows to pay for packing
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t p = 0; p < panels; ++p) {
            const int cols = static_cast<int>(std::min<int64_t>(width, columns - p * width));
            kernel.project(x, f, 1, static_cast<int>(n), f, projection + p * width, columns, cols, z + p * width, columns);
        }
        return;
    }
    Buffer packed(panels * f * width);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t p = 0; p < panels; ++p) {
        const int cols = static_cast<int>(std::min<int64_t>(width, columns - p * width));
        for (int i = 0; i < f; ++i)
            std::memcpy(packed.data() + (p * f + i) * width, projection + i * columns + p * width, 4u * cols);
    }
    const int64_t tile = kernel.tile, rows = 8 * tile, blocks = (n + rows - 1) / rows;
    auto each = of_each(threads, [&] { return Buffer(rows * f); });
#pragma omp parallel num_threads(threads)
    {
        Buffer& turned = each[thread_number()];  // a tile's values of one feature side by side
#pragma omp for schedule(dynamic)
        for (int64_t b = 0; b < blocks; ++b) {
            const int64_t first = b * rows, full = std::min(rows, n - first) / tile * tile;
            const int rest = static_cast<int>(std::min(rows, n - first) - full);
            for (int64_t r = 0; r < full; ++r)
                for (int i = 0; i < f; ++i) turned.data()[r / tile * tile * f + i * tile + r % tile] = x[(first + r) * f + i];
            for (int64_t p = 0; p < panels; ++p) {
                const int cols = static_cast<int>(std::min<int64_t>(width, columns - p * width));
                const float* panel = packed.data() + p * f * width;
                float* out = z + first * columns + p * width;
                for (int64_t r = 0; r < full; r += tile)
                    kernel.project(turned.data() + r * f, 1, tile, static_cast<int>(tile), f, panel, width, cols,
                                   out + r * columns, columns);
                kernel.project(x + (first + full) * f, f, 1, rest, f, panel, width, cols, out + full * columns, columns);
            }
        }
    }
}

// ---- search ---------------------------------------------------------------------------------------------------------

SearchTable::SearchTable(const Isa& isa, int64_t size, int d)
    : isa_(isa), d_(d), half_(size), rounded_(isa.round_keys ? size * ((d + 1) / 2) : 0), rounded_half_(isa.round_keys ? size : 0) {}

void SearchTable::fill(const float* packed_keys, int count) {
    const int blocks = (count + isa_.block - 1) / isa_.block;
    isa_.half_norms(packed_keys, d_, blocks, half_.data());
    std::fill(half_.data() + count, half_.data() + static_cast<int64_t>(blocks) * isa_.block, std::numeric_limits<float>::infinity());
    packed_ = {packed_keys, half_.data(), count, blocks, rounded_.data(), rounded_half_.data(), 0.0f, HUGE_VALF};
    round(std::numeric_limits<float>::max());
}

void SearchTable::round(float far) {
    if (isa_.round_keys)
        packed_.step = isa_.round_keys(packed_.keys, half_.data(), far, d_, packed_.blocks, rounded_.data(), rounded_half_.data());
}

// After little training most keys lie far from all examples, and would make the steps of whole numbers coarse for those that
// do not. A key longer than `far` is not among the k nearest of a query shorter than half of what `far` exceeds the k-th
// shortest key by; the rest of the half is for rounding.
void SearchTable::leave_out_far_keys() {
    if (!isa_.round_keys || packed_.count <= 16 * kMostRetrieved) return;
    std::vector<float> half(half_.data(), half_.data() + packed_.count);
    const auto usual = half.begin() + packed_.count / 16, near = half.begin() + kMostRetrieved - 1;
    std::nth_element(half.begin(), usual, half.end());
    std::nth_element(half.begin(), near, usual);
    const float far = 32 * std::sqrt(2 * *usual), half_far = 0.5f * far * far;
    const auto is_left_out = [&](float x) { return x > half_far && x < HUGE_VALF; };
    if (std::none_of(half.begin(), half.end(), is_left_out)) return;
    round(half_far);
    packed_.reach = 0.499f * (far - std::sqrt(2 * *near));
}

namespace {

// Floats of scratch that a search of so many queries among so many blocks takes at most.
int64_t search_scratch(const Isa& isa, int64_t blocks, int d, int64_t queries, int k) {
    const int64_t of_few = 4 * isa.width * std::max<int64_t>(queries, d);
    if (k == 1 && !isa.round_keys) return of_few;
    const int64_t rounded = isa.round_keys ? queries * (d + 2 * isa.width * (blocks + 1)) : 0;
    const int64_t kept = k > 1 ? (isa.block + isa.width) * blocks * (isa.round_keys ? 1 : queries) : 0;
    return of_few + rounded + kept + 2 * (blocks + 1);
}

// For each live pair the number of its key among the distinct ones, by their bits, in the order of their first pairs;
// -1 where masked. Returns their count.
int number_keys(const float* keys, int m, int d, const bool* live, std::vector<int32_t>& number) {
    size_t room = 64;
    while (room < 2 * static_cast<size_t>(m)) room *= 2;
    std::vector<int32_t> table(room, -1);  // a pair that has the key, for each place of a hash
    number.assign(static_cast<size_t>(m), -1);
    const size_t bytes = sizeof(float) * static_cast<size_t>(d);
    int count = 0;
    for (int p = 0; p < m; ++p) {
        if (live && !live[p]) continue;
        const float* key = keys + static_cast<int64_t>(p) * d;
        uint64_t hash = 0;
        for (int j = 0; j < d; ++j) {
            uint32_t bits;
            std::memcpy(&bits, key + j, 4);
            hash = (hash ^ bits) * 0x9E3779B97F4A7C15ull;
        }
        size_t place = static_cast<size_t>(mix(hash)) & (room - 1);
        while (table[place] >= 0 && std::memcmp(keys + static_cast<int64_t>(table[place]) * d, key, bytes))
            place = (place + 1) & (room - 1);
        const int32_t same = table[place];
        number[static_cast<size_t>(p)] = same < 0 ? count++ : number[static_cast<size_t>(same)];
        if (same < 0) table[place] = p;
    }
    return count;
}

}  // namespace

PreparedKeys::Codebook::Codebook(const Isa& isa, const float* from, int m, int d, const bool* live) {
    std::vector<int32_t> number;
    const int count = number_keys(from, m, d, live, number), block = isa.block;
    const int64_t size = round_up(count, block);
    first.assign(static_cast<size_t>(count) + 1, 0);
    for (int32_t key : number)
        if (key >= 0) ++first[static_cast<size_t>(key) + 1];
    for (size_t key = 0; key < static_cast<size_t>(count); ++key) first[key + 1] += first[key];
    pairs.resize(static_cast<size_t>(first.back()));
    keys = Buffer(size * d);
    std::fill(keys.data(), keys.data() + size * d, 0.0f);
    std::vector<int32_t> next(first);
    const Place place(block, d);
    for (int p = 0; p < m; ++p) {
        const int32_t key = number[static_cast<size_t>(p)];
        if (key < 0) continue;
        const size_t own = static_cast<size_t>(key);
        if (next[own] == first[own]) {
            float* to = keys.data() + place(key);
            for (int j = 0; j < d; ++j) to[j * block] = from[static_cast<int64_t>(p) * d + j];
        }
        pairs[static_cast<size_t>(next[own]++)] = static_cast<uint16_t>(p);
    }
    table = std::make_unique<SearchTable>(isa, size, d);
    table->fill(keys.data(), count);
    table->leave_out_far_keys();
}

// The k nearest pairs, from the k nearest keys: a nearer key's pairs first, and of keys equally near the lower pair.
void PreparedKeys::Codebook::spread(const int32_t* found, const float* scores, int k, uint16_t* codes,
                                    float* code_scores) const {
    int done = 0, from = 0;
    while (done < k && from < k && found[from] >= 0) {
        const int begin = done;
        const float score = scores[from];
        int end = from + 1;
        while (end < k && found[end] >= 0 && scores[end] == score) ++end;
        if (end == from + 1) {  // mostly
            const size_t key = static_cast<size_t>(found[from++]);
            int32_t p = first[key];
            const int32_t last = first[key + 1];
            do codes[done++] = pairs[static_cast<size_t>(p++)];
            while (p < last && done < k);
        } else {
            uint16_t tied[kMostRetrieved * kMostRetrieved];
            uint16_t* next = tied;
            for (; from < end; ++from) {
                const size_t key = static_cast<size_t>(found[from]);
                const int32_t last = std::min(first[key + 1], first[key] + k - done);
                for (int32_t p = first[key]; p < last; ++p) *next++ = pairs[static_cast<size_t>(p)];
            }
            std::sort(tied, next);
            for (const uint16_t* pair = tied; pair < next && done < k; ++pair) codes[done++] = *pair;
        }
        if (code_scores) std::fill(code_scores + begin, code_scores + done, score);
    }
    if (code_scores) std::fill(code_scores + done, code_scores + k, HUGE_VALF);
    std::fill(codes + done, codes + k, kNoPair);
}

PreparedKeys::PreparedKeys(const float* keys, int c, int m, int d, const bool* live, int threads)
    : isa_(isa()), c_(c), m_(m), d_(d), codebooks_(static_cast<size_t>(c)) {
    FirstError error;
#pragma omp parallel for num_threads(team(threads, 100.0 * c * m)) schedule(dynamic)
    for (int64_t i = 0; i < c; ++i)
        error.keep([&] {
            codebooks_[static_cast<size_t>(i)] = Codebook(isa_, keys + i * m * d, m, d, live ? live + i * m : nullptr);
        });
    error.rethrow();
    for (const Codebook& book : codebooks_) most_blocks_ = std::max(most_blocks_, book.table->packed().blocks);
}

int PreparedKeys::at_a_time(int k) const { return k == 1 ? kQueries : isa_.round_keys ? kQueriesOfK : kQueriesKept; }

PreparedKeys::Scratch PreparedKeys::scratch(int64_t queries, int k) const {
    return {Buffer(search_scratch(isa_, most_blocks_, d_, queries, k)), BufferOf<int32_t>(queries * k), Buffer(queries * k)};
}

void PreparedKeys::search(int codebook, const float* z, int count, int k, Scratch& scratch, uint16_t* codes, int64_t stride,
                          float* code_scores) const {
    const Codebook& book = codebooks_[static_cast<size_t>(codebook)];
    int32_t* found = scratch.found.data();
    float* scores = scratch.scores.data();
    if (k == 1) {
        isa_.nearest(z, count, d_, book.table->packed(), scratch.search.data(), found);
        for (int e = 0; e < count; ++e) codes[e * stride] = book.first_pair(found[e]);
        if (code_scores) isa_.scores(z, count, d_, book.table->packed(), found, code_scores);
        return;
    }
    isa_.nearest_k(z, count, d_, k, book.table->packed(), scratch.search.data(), found, scores);
    for (int64_t e = 0; e < count; ++e)
        book.spread(found + e * k, scores + e * k, k, codes + e * stride, code_scores ? code_scores + e * k : nullptr);
}

void PreparedKeys::nearest(const float* z, int64_t n, int k, uint16_t* codes, int threads) const {
    if (n == 0) return;
    threads = team(threads, 2.0 * static_cast<double>(n) * c_ * m_ * d_);
    const Tasks tasks(n, c_, m_, d_);
    const int64_t queries = tasks.queries, most = std::min<int64_t>(at_a_time(k), queries);
    struct Worker {
        Scratch search;
        Buffer tile;
        BufferOf<uint16_t> out;  // [query][codebook][k]
    };
    auto each = of_each(threads, [&] {
        return Worker{scratch(most, k), Buffer(tasks.books * queries * d_), BufferOf<uint16_t>(queries * tasks.books * k)};
    });
#pragma omp parallel num_threads(threads)
    {
        Worker& own = each[thread_number()];
        uint16_t* out = own.out.data();
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < tasks.count(); ++task) {
            const int64_t from = task / tasks.columns * queries, count = std::min(queries, n - from);
            const int first = static_cast<int>(task % tasks.columns) * tasks.books, width = std::min(tasks.books, c_ - first);
            copy_tile(z + (from * c_ + first) * d_, c_, d_, count, width, queries, own.tile.data());
            for (int i = 0; i < width; ++i)
                for (int64_t q = 0; q < count; q += most)
                    search(first + i, own.tile.data() + (i * queries + q) * d_, static_cast<int>(std::min(most, count - q)), k,
                           own.search, out + (q * width + i) * k, width * k, nullptr);
            for (int64_t q = 0; q < count; ++q) {
                fetch<1>(codes + ((from + std::min(q + kAhead, count - 1)) * c_ + first) * k, width * k);
                std::memcpy(codes + ((from + q) * c_ + first) * k, out + q * width * k,
                            sizeof(uint16_t) * static_cast<size_t>(width * k));
            }
        }
    }
}

// ---- key initialisation ---------------------------------------------------------------------------------------------

struct KeyInitializer::Scratch {
    Buffer turned;  // examples [codebook][example][d] of the codebooks in turn
    Buffer added, hits, half, rows, keys, search;
    SearchTable table;
    BufferOf<int32_t> pairs, found;
    BufferOf<uint16_t> drawn;  // first pair that takes an example of the batch
};

KeyInitializer::KeyInitializer(const float* keys, int c, int m, int d, uint64_t seed, int batch_size)
    : isa_(isa()), c_(c), m_(m), d_(d), blocks_((m + isa_.block - 1) / isa_.block), batch_size_(batch_size),
      seed_(seed) {
    const int block = isa_.block;
    const int64_t size = static_cast<int64_t>(blocks_) * block;
    const Place place(block, d);
    for (int i = 0; i < c; ++i) {
        Buffer packed(size * d), sums(size * d), counts(size);
        std::fill(packed.data(), packed.data() + size * d, 0.0f);
        for (int p = 0; p < m; ++p)
            for (int j = 0; j < d; ++j)
                packed.data()[place(p) + j * block] = keys[(static_cast<int64_t>(i) * m + p) * d + j];
        std::memcpy(sums.data(), packed.data(), static_cast<size_t>(size * d) * 4);
        std::fill(counts.data(), counts.data() + size, 0.0f);
        keys_.push_back(std::move(packed));
        sums_.push_back(std::move(sums));
        counts_.push_back(std::move(counts));
        copied_.emplace_back(static_cast<size_t>(m), kNoPair);
    }
}

void KeyInitializer::keys(float* out) const {
    const Place place(isa_.block, d_);
    for (int i = 0; i < c_; ++i)
        for (int p = 0; p < m_; ++p) {
            const uint16_t copied = copied_[static_cast<size_t>(i)][static_cast<size_t>(p)];
            const float* from = keys_[static_cast<size_t>(i)].data() + place(copied == kNoPair ? p : copied);
            for (int j = 0; j < d_; ++j) out[(static_cast<int64_t>(i) * m_ + p) * d_ + j] = from[j * isa_.block];
        }
}

void KeyInitializer::update(const float* z, int64_t n, int threads) {
    threads = team(threads, 2.0 * static_cast<double>(n) * c_ * m_ * d_);
    const int64_t batches = (n + batch_size_ - 1) / batch_size_;
    const int64_t size = static_cast<int64_t>(blocks_) * isa_.block;
    const int books = std::clamp(c_ / (4 * threads), 1, 8), tasks = (c_ + books - 1) / books;
    const int64_t most = std::min<int64_t>(batch_size_, n);
    threads = std::min(threads, tasks);
    auto each = of_each(threads, [&] {
        return Scratch{Buffer(books * n * d_), Buffer(size * d_), Buffer(size), Buffer(size),
                       Buffer(d_ * (isa_.block + isa_.width)), Buffer(size * d_),
                       Buffer(search_scratch(isa_, blocks_, d_, kQueries, 1)), SearchTable(isa_, size, d_),
                       BufferOf<int32_t>(size + isa_.width), BufferOf<int32_t>(most), BufferOf<uint16_t>(most)};
    });
    // A codebook's batches follow one another; codebooks know nothing of each other.
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int task = 0; task < tasks; ++task) {
        Scratch& own = each[thread_number()];
        const int first = task * books, width = std::min(books, c_ - first);
        for (int64_t e = 0; e < n; ++e) {
            fetch<0>(z + (std::min(e + kAhead, n - 1) * c_ + first) * d_, width * d_);
            for (int i = 0; i < width; ++i) copy_row(own.turned.data() + (i * n + e) * d_, z + (e * c_ + first + i) * d_, d_);
        }
        for (int i = 0; i < width; ++i)
            for (int64_t b = 0; b < batches; ++b) {
                const int count = static_cast<int>(std::min<int64_t>(batch_size_, n - b * batch_size_));
                update_codebook(first + i, own.turned.data() + (i * n + b * batch_size_) * d_, count, step_ + static_cast<uint64_t>(b), own);
            }
    }
    step_ += static_cast<uint64_t>(batches);
}

namespace {

// Half the squared length beyond which no key is nearest to any of these queries: a key longer than twice the longest query
// and the shortest key together is farther from each query than that shortest key. One in a thousand is for rounding, which
// moves half a squared distance by less than d + 2 times 2^-23 of the larger square: a fiftieth of that, for d = 64.
float winners_end(const float* half, int m, const float* z, int n, int d) {
    constexpr int lanes = 16;  // side by side, because one minimum after another would wait for itself
    float least[lanes], longest = 0.0f;
    for (float& x : least) x = half[0];
    int p = 0;
    for (; p + lanes <= m; p += lanes)
        for (int l = 0; l < lanes; ++l) least[l] = half[p + l] < least[l] ? half[p + l] : least[l];
    for (; p < m; ++p) least[0] = std::min(half[p], least[0]);
    const float shortest = *std::min_element(least, least + lanes);
    for (int q = 0; q < n; ++q) {
        float total = 0.0f;
        for (int j = 0; j < d; ++j) total += z[int64_t{q} * d + j] * z[int64_t{q} * d + j];
        longest = total <= longest ? longest : total;  // also where it is no number
    }
    const float end = 1.001f * (2 * std::sqrt(longest) + std::sqrt(2 * shortest));
    return end > 1e-15f && end < 1e15f ? 0.5f * end * end : std::numeric_limits<float>::max();
}

}  // namespace

// The nearest pair of each query, among the keys that can be nearest to any, each once.
void KeyInitializer::find(int i, const float* z, int n, Scratch& scratch) const {
    const int d = d_;
    const float* keys = keys_[static_cast<size_t>(i)].data();
    float* half = scratch.half.data();
    const uint16_t* copied = copied_[static_cast<size_t>(i)].data();
    const int32_t* pairs = scratch.pairs.data();
    isa_.half_norms(keys, d, blocks_, half);
    for (int p = 0; p < m_; ++p) half[p] = copied[p] == kNoPair ? half[p] : HUGE_VALF;
    std::fill(half + m_, half + static_cast<int64_t>(blocks_) * isa_.block, HUGE_VALF);
    const int count = isa_.pack_shorter(keys, half, winners_end(half, m_, z, n, d), d, blocks_, scratch.rows.data(),
                                        scratch.keys.data(), scratch.pairs.data());
    scratch.table.fill(scratch.keys.data(), count);
    int32_t* found = scratch.found.data();
    for (int q = 0; q < n; q += kQueries)
        isa_.nearest(z + int64_t{q} * d, std::min(kQueries, n - q), d, scratch.table.packed(), scratch.search.data(), found + q);
    for (int q = 0; q < n; ++q) found[q] = found[q] < 0 ? -1 : pairs[found[q]];
}

void KeyInitializer::update_codebook(int i, const float* z, int n, uint64_t step, Scratch& scratch) {
    const int block = isa_.block, d = d_;
    const int64_t size = static_cast<int64_t>(blocks_) * block;
    float* keys = keys_[static_cast<size_t>(i)].data();
    float* counts = counts_[static_cast<size_t>(i)].data();
    find(i, z, n, scratch);
    float* added = scratch.added.data();
    float* hits = scratch.hits.data();
    std::fill(added, added + size * d, 0.0f);
    std::fill(hits, hits + size, 0.0f);
    const Place place(block, d);
    for (int q = 0; q < n; ++q) {
        const int pair = scratch.found.data()[q];
        if (pair < 0) continue;
        hits[pair] += 1.0f;
        float* to = added + place(pair);
        for (int j = 0; j < d; ++j) to[j * block] += z[int64_t{q} * d + j];
    }
    isa_.average(keys, sums_[static_cast<size_t>(i)].data(), counts, added, hits, d, blocks_, m_);
    const float dead = static_cast<float>(0.1 * batch_size_ / m_);
    const uint64_t of_step = mix(seed_ + 0x9E3779B97F4A7C15ull * (step + 1));
    const uint64_t of_codebook = mix(of_step + 0xBF58476D1CE4E5B9ull * (static_cast<uint64_t>(i) + 1));
    uint16_t* copied = copied_[static_cast<size_t>(i)].data();
    std::fill(copied, copied + m_, kNoPair);
    uint16_t* drawn = scratch.drawn.data();
    std::fill(drawn, drawn + n, kNoPair);
    int32_t* pairs = scratch.pairs.data();  // listed first, because a branch on each would mostly be guessed wrong
    int listed = 0;
    for (int p = 0; p < m_; ++p) {
        pairs[listed] = p;
        listed += counts[p] < dead;
    }
    for (int l = 0; l < listed; ++l) {
        const int p = pairs[l];
        const uint64_t hash = mix(of_codebook + 0x94D049BB133111EBull * (static_cast<uint64_t>(p) + 1));
        const uint64_t example = ((hash >> 32) * static_cast<uint64_t>(n)) >> 32;
        copied[p] = drawn[example];
        if (copied[p] != kNoPair) continue;
        drawn[example] = static_cast<uint16_t>(p);
        float* to = keys + place(p);
        const float* from = z + static_cast<int64_t>(example) * d;
        for (int j = 0; j < d; ++j) to[j * block] = from[j];
    }
}

// ---- codes x values -------------------------------------------------------------------------------------------------

bool codes_within(const uint16_t* codes, int64_t count, int m, int threads) {
    int wrong = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(| : wrong)
    for (int64_t i = 0; i < count; ++i) wrong |= (codes[i] >= m) & (codes[i] != kNoPair);
    return !wrong;
}

// Codebooks that are walked together, so that their padded rows stay in the second cache.
int books_at_once(int64_t floats_of_one) {
    return static_cast<int>(std::clamp<int64_t>((1 << 18) / floats_of_one, 1, 8));
}

void logits(const uint16_t* codes, int64_t n, int c, int k, const float* values, int m, int v, bool mean, float* out,
            int threads) {
    threads = team(threads, 4.0 * static_cast<double>(n) * c * k * v);
    const Isa& kernel = isa();
    const int64_t ld = round_up(v, 16), table = static_cast<int64_t>(m) * v;
    const int groups = std::min(kSumGroups, c), books = books_at_once(m * ld);
    const int64_t rows = std::clamp<int64_t>((1 << 23) / (groups * ld), 16, std::max<int64_t>(n, 16));
    const bool pad = v < ld && n >= 2 * m;  // rows in whole vectors are worth a copy where each is read often
    const float share = 1.0f / static_cast<float>(c);
    Buffer parts(groups * rows * ld);
    auto each = of_each(threads, [&] { return Buffer(pad ? books * m * ld : 0); });
#pragma omp parallel num_threads(threads)
    {
        Buffer& padded = each[thread_number()];
        if (pad) std::fill(padded.data(), padded.data() + books * m * ld, 0.0f);
        for (int64_t start = 0; start < n; start += rows) {
            const int count = static_cast<int>(std::min(rows, n - start));
#pragma omp for schedule(dynamic)
            for (int g = 0; g < groups; ++g) {
                float* part = parts.data() + g * rows * ld;
                std::fill(part, part + count * ld, 0.0f);
                const int last = group_start(g + 1, groups, c);
                for (int i = group_start(g, groups, c); i < last; i += books) {
                    const int width = std::min(books, last - i);
                    const float* from = values + i * table;
                    for (int64_t r = 0; pad && r < static_cast<int64_t>(width) * m; ++r)
                        copy_row(padded.data() + r * ld, from + r * v, v);
                    kernel.gather(part, ld, codes + (start * c + i) * k, static_cast<int64_t>(c) * k, count, width, k,
                                  pad ? padded.data() : from, pad ? m * ld : table, pad ? ld : v,
                                  pad ? static_cast<int>(ld) : v, mean);
                }
            }
#pragma omp for schedule(static)
            for (int e = 0; e < count; ++e)
                for (int j = 0; j < v; ++j) {
                    float total = 0.0f;
                    for (int g = 0; g < groups; ++g) total += parts.data()[(g * rows + e) * ld + j];
                    out[(start + e) * v + j] = total * share;
                }
        }
    }
}

void gradient(const uint16_t* codes, int64_t n, int c, int k, const float* residuals, int m, int v, bool mean,
              float* table, int threads) {
    threads = team(threads, 4.0 * static_cast<double>(n) * c * k * v);
    const Isa& kernel = isa();
    const int64_t ld = round_up(v, 16), size = static_cast<int64_t>(m) * v;
    const int books = books_at_once(m * ld);
    const bool pad = v < ld && n >= 2 * m;
    const float share = 1.0f / static_cast<float>(c);
    Buffer g(n * ld);
    auto each = of_each(threads, [&] { return Buffer(pad ? books * m * ld : 0); });
#pragma omp parallel num_threads(threads)
    {
        Buffer& padded = each[thread_number()];
#pragma omp for schedule(static)
        for (int64_t e = 0; e < n; ++e)
            for (int64_t j = 0; j < ld; ++j) g.data()[e * ld + j] = j < v ? residuals[e * v + j] * share : 0.0f;
#pragma omp for schedule(dynamic)
        for (int i = 0; i < c; i += books) {
            const int width = std::min(books, c - i);
            float* to = pad ? padded.data() : table + i * size;
            std::fill(to, to + width * (pad ? m * ld : size), 0.0f);
            for (int64_t start = 0; start < n; start += 1 << 16)
                kernel.scatter(to, pad ? m * ld : size, pad ? ld : v, codes + (start * c + i) * k,
                               static_cast<int64_t>(c) * k, static_cast<int>(std::min<int64_t>(1 << 16, n - start)),
                               width, k, g.data() + start * ld, ld, pad ? static_cast<int>(ld) : v, mean);
            for (int64_t r = 0; pad && r < static_cast<int64_t>(width) * m; ++r)
                copy_row(table + i * size + r * v, padded.data() + r * ld, v);
        }
    }
}

void cross_entropy(float* logits, int64_t ld, int64_t n, int v, const int64_t* labels, double smoothing,
                   double* losses) {
    const float off = static_cast<float>(smoothing / v), on = static_cast<float>(1 - smoothing + smoothing / v);
    for (int64_t e = 0; e < n; ++e) {
        float* row = logits + e * ld;
        const float most = *std::max_element(row, row + v);
        float total = 0.0f;
        double expected = 0;
        for (int j = 0; j < v; ++j) {
            const float shifted = row[j] - most;
            expected += static_cast<double>(j == labels[e] ? on : off) * shifted;
            row[j] = exponential(shifted);
            total = total + row[j];
        }
        const float inverse = 1.0f / total;
        for (int j = 0; j < v; ++j) row[j] = row[j] * inverse - (j == labels[e] ? on : off);
        losses[e] = std::log(static_cast<double>(total)) - expected;
    }
}

// ---- training -------------------------------------------------------------------------------------------------------

struct ValueTrainer::Batch {
    int32_t distinct = 0;
    std::vector<uint16_t> entries;  // [example][slot]
    std::vector<uint16_t> row;
    std::vector<int32_t> first, next;
    std::vector<float> weights;  // of an example's slots; empty where all are alike
    void make_room(size_t examples, size_t k, size_t pairs) {
        entries.resize(examples * k);
        next.resize(examples * k);
        row.resize(std::min(examples * k, pairs));
        first.resize(row.size());
        weights.reserve(examples);
    }
    Hits hits() const { return {distinct, row.data(), first.data(), next.data()}; }
};

struct ValueTrainer::Worker {
    std::vector<int32_t> slot;  // of a row among the distinct ones of a batch, else -1
    Buffer sums;                // gradients of the distinct rows
};

ValueTrainer::ValueTrainer(const float* values, int c, int m, int v, const Options& options, int threads)
    : isa_(isa()), c_(c), m_(m), v_(v), size_(round_up(v, 16)), stride_(options.adam ? 3 * size_ : size_),
      options_(options), rows_(static_cast<int64_t>(c) * m * stride_), last_(static_cast<size_t>(c) * static_cast<size_t>(m)) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < static_cast<int64_t>(c) * m; ++r) {
        float* row = rows_.data() + r * stride_;
        std::memcpy(row, values + r * v, 4u * static_cast<size_t>(v));
        std::fill(row + v, row + stride_, 0.0f);
    }
    // After so many steps without a gradient, what m / sqrt(s) still moves is lost in rounding.
    const double shrink = options.beta1 / std::sqrt(options.beta2);
    longest_ = shrink < 1 ? static_cast<int>(std::min(1e6, 1 + std::log(1e-9) / std::log(std::max(shrink, 1e-9)))) : 1 << 30;
    catch_up_.push_back({});  // step 0 is before the first
    series_.resize(kSeries + 1);
    sizes_.push_back(0);
    roots_.push_back(0);
    beta1_power_.push_back(1);
    beta2_power_.push_back(1);
    beta2_half_power_.push_back(1);
}

AdamStep ValueTrainer::adam_step() const {
    AdamStep s{};
    s.size = sizes_.back();
    s.root = roots_.back();
    s.one_minus_beta1 = static_cast<float>(1 - options_.beta1);
    s.beta2 = static_cast<float>(options_.beta2);
    s.one_minus_beta2 = static_cast<float>(1 - options_.beta2);
    s.epsilon = static_cast<float>(options_.epsilon);
    s.catch_up = catch_up_.data();
    s.beta1_power = beta1_power_.data();
    s.beta2_power = beta2_power_.data();
    s.beta2_half_power = beta2_half_power_.data();
    s.sizes = sizes_.data();
    s.roots = roots_.data();
    s.longest = longest_;
    return s;
}

// One more step: its size, and its term in the sums that let resting rows catch up.
void ValueTrainer::advance() {
    const int t = ++now_;
    const double b1 = options_.beta1, b2 = options_.beta2;
    const double size = options_.learning_rate / (1 - std::pow(b1, t)), root = 1 / std::sqrt(1 - std::pow(b2, t));
    sizes_.push_back(static_cast<float>(size));
    roots_.push_back(static_cast<float>(root));
    const double power = std::pow(b1, t);
    beta1_power_.push_back(power < 1e-30 ? 0.0f : static_cast<float>(power));
    beta2_power_.push_back(static_cast<float>(std::pow(b2, t)));
    beta2_half_power_.push_back(static_cast<float>(std::pow(b2, 0.5 * t)));
    for (int last = std::max(1, t - longest_); last < t; ++last) {
        CatchUp& row = catch_up_[static_cast<size_t>(last)];
        double* series = &series_[static_cast<size_t>(last) * (kSeries + 1)];
        const int missed = t - last;
        const double h = std::pow(b2, 0.5 * missed) * root, weight = std::pow(b1, missed) * size;
        if (missed == 1) row.reference = static_cast<float>(h);
        const double away = std::max(0.0, 1 - h / row.reference);
        double term = weight;
        for (int r = 0; r < kSeries; ++r, term *= away) {
            series[r] += term;
            row.series[r] = static_cast<float>(series[r]);
        }
        series[kSeries] += term / (1 - away);  // a bound of what the series leaves out
        row.exact = series[kSeries] <= 3e-8 * series[0];
    }
    catch_up_.push_back({});
    series_.resize(series_.size() + kSeries + 1);
}

void ValueTrainer::collect(Batch& batch, Worker& worker, const uint16_t* codes, const int64_t* order, int examples,
                           int codebook, int k) {
    const size_t entries = static_cast<size_t>(examples) * static_cast<size_t>(k);
    bool even = true;
    for (int e = 0; e < examples; ++e)
        for (int s = 0; s < k; ++s) {
            const uint16_t code = codes[(order[e] * c_ + codebook) * k + s];
            batch.entries[static_cast<size_t>(e * k + s)] = code;
            even &= code != kNoPair;
        }
    batch.distinct = 0;
    for (int e = static_cast<int>(entries) - 1; e >= 0; --e) {  // backwards, so that chains run forwards
        const uint16_t code = batch.entries[static_cast<size_t>(e)];
        if (code == kNoPair) continue;
        int32_t& slot = worker.slot[code];
        if (slot < 0) {
            slot = batch.distinct++;
            batch.row[static_cast<size_t>(slot)] = code;
            batch.first[static_cast<size_t>(slot)] = -1;
        }
        batch.next[static_cast<size_t>(e)] = batch.first[static_cast<size_t>(slot)];
        batch.first[static_cast<size_t>(slot)] = e;
    }
    for (int u = 0; u < batch.distinct; ++u) worker.slot[batch.row[static_cast<size_t>(u)]] = -1;
    batch.weights.clear();
    if (even || !options_.mean) return;
    for (int e = 0; e < examples; ++e) {
        int live = 0;
        for (int s = 0; s < k; ++s) live += batch.entries[static_cast<size_t>(e * k + s)] != kNoPair;
        batch.weights.push_back(1.0f / static_cast<float>(std::max(live, 1)));
    }
}

void ValueTrainer::gather(const Batch& batch, int codebook, int k, int examples, float* part, const AdamStep& step) {
    float* rows = rows_.data() + static_cast<int64_t>(codebook) * m_ * stride_;
    if (options_.adam && options_.l2 == 0)
        isa_.adam_catch_up(rows, last_.data() + static_cast<int64_t>(codebook) * m_, size_, batch.row.data(), batch.distinct, now_, step);
    isa_.gather(part, size_, batch.entries.data(), k, examples, 1, k, rows, 0, stride_, static_cast<int>(size_), options_.mean);
}

void ValueTrainer::sum_rows(const Batch& batch, int k, Worker& worker) {
    const bool single = batch.weights.empty();
    const float weight = single && options_.mean ? 1.0f / static_cast<float>(k) : 1.0f;
    for (int u = 0; u < batch.distinct; ++u) {
        float* sum = worker.sums.data() + u * size_;
        std::fill(sum, sum + size_, 0.0f);
        for (int32_t e = batch.first[static_cast<size_t>(u)]; e >= 0; e = batch.next[static_cast<size_t>(e)]) {
            const float w = single ? weight : batch.weights[static_cast<size_t>(e / k)];
            for (int j = 0; j < v_; ++j) sum[j] += g_[static_cast<size_t>((e / k) * size_ + j)] * w;
        }
    }
}

double ValueTrainer::squared_norm(const Batch& batch, int codebook, int k, Worker& worker) {
    sum_rows(batch, k, worker);
    const float* sums = worker.sums.data();
    double total = 0;
    if (options_.l2 == 0) {
        for (int u = 0; u < batch.distinct; ++u)
            for (int j = 0; j < v_; ++j) total += static_cast<double>(sums[u * size_ + j]) * sums[u * size_ + j];
        return total;
    }
    for (int u = 0; u < batch.distinct; ++u) worker.slot[batch.row[static_cast<size_t>(u)]] = u;
    const float* rows = rows_.data() + static_cast<int64_t>(codebook) * m_ * stride_;
    const float l2 = static_cast<float>(options_.l2);
    for (int r = 0; r < m_; ++r)
        for (int j = 0; j < v_; ++j) {
            const int32_t u = worker.slot[static_cast<size_t>(r)];
            const float g = (u >= 0 ? sums[u * size_ + j] : 0.0f) + l2 * rows[r * stride_ + j];
            total += static_cast<double>(g) * g;
        }
    for (int u = 0; u < batch.distinct; ++u) worker.slot[batch.row[static_cast<size_t>(u)]] = -1;
    return total;
}

void ValueTrainer::move(const Batch& batch, int codebook, int k, Worker& worker, float scale, const AdamStep& step) {
    float* rows = rows_.data() + static_cast<int64_t>(codebook) * m_ * stride_;
    const float rate = static_cast<float>(options_.learning_rate);
    if (options_.l2 == 0) {
        const float* weights = batch.weights.empty() ? nullptr : batch.weights.data();
        if (!weights && options_.mean && k > 1) scale *= 1.0f / static_cast<float>(k);
        if (options_.adam)
            isa_.adam_move(rows, last_.data() + static_cast<int64_t>(codebook) * m_, size_, batch.hits(), g_.data(), k, weights, scale, now_, step);
        else
            isa_.sgd_move(rows, size_, batch.hits(), g_.data(), k, weights, scale, rate);
        return;
    }
    sum_rows(batch, k, worker);
    for (int u = 0; u < batch.distinct; ++u) worker.slot[batch.row[static_cast<size_t>(u)]] = u;
    const float l2 = static_cast<float>(options_.l2);
    if (options_.adam)
        isa_.adam_move_all(rows, size_, m_, worker.slot.data(), worker.sums.data(), l2, scale, step);
    else
        isa_.sgd_move_all(rows, size_, m_, worker.slot.data(), worker.sums.data(), l2, scale, rate);
    for (int u = 0; u < batch.distinct; ++u) worker.slot[batch.row[static_cast<size_t>(u)]] = -1;
}

// The walk over codebooks that moves their rows by one batch also looks up the next: a row is in cache once for both.
double ValueTrainer::train(const uint16_t* codes, int64_t n, int k, const int64_t* labels, const int64_t* order,
                           int64_t count, int batch_size, int threads) {
    (void)n;
    const int groups = std::min(kSumGroups, c_);
    threads = team(threads, 10.0 * static_cast<double>(std::min<int64_t>(batch_size, count)) * c_ * k * v_);  // of a step
    const int64_t batches = (count + batch_size - 1) / batch_size;
    const int most = static_cast<int>(std::min<int64_t>(batch_size, count));
    const int64_t part_size = most * size_;
    Buffer parts(groups * part_size);
    g_.resize(static_cast<size_t>(part_size));
    std::vector<double> losses(static_cast<size_t>(most)), norms(static_cast<size_t>(c_));
    std::vector<int64_t> batch_labels(static_cast<size_t>(most));
    std::vector<Batch> seen[2];
    seen[0].resize(static_cast<size_t>(c_));
    seen[1].resize(static_cast<size_t>(c_));
    AdamStep step = adam_step();
    double total = 0;
    float scale = 1.0f;
    const float share = 1.0f / static_cast<float>(c_);
    for (std::vector<Batch>& batches_seen : seen)
        for (Batch& batch : batches_seen) batch.make_room(static_cast<size_t>(most), static_cast<size_t>(k), static_cast<size_t>(m_));
    const bool sums = options_.l2 != 0 || options_.gradient_clip > 0;
    const int64_t retrieved = std::min<int64_t>(static_cast<int64_t>(most) * k, m_);
    auto each = of_each(threads, [&] {
        return Worker{std::vector<int32_t>(static_cast<size_t>(m_), -1), Buffer(sums ? retrieved * size_ : 0)};
    });
#pragma omp parallel num_threads(threads)
    {
        Worker& worker = each[thread_number()];
        for (int64_t b = 0; b <= batches; ++b) {
            const int64_t* rows = order + b * batch_size;
            const int examples = static_cast<int>(std::min<int64_t>(batch_size, count - b * batch_size));
            std::vector<Batch>& now = seen[b % 2];
            std::vector<Batch>& before = seen[(b + 1) % 2];
#pragma omp for schedule(static)
            for (int g = 0; g < groups; ++g) {
                const int first = group_start(g, groups, c_), last = group_start(g + 1, groups, c_);
                float* part = parts.data() + g * part_size;
                if (b < batches) std::fill(part, part + part_size, 0.0f);
                for (int i = first; i < last; ++i) {
                    if (b < batches) collect(now[static_cast<size_t>(i)], worker, codes, rows, examples, i, k);
                    if (b > 0) move(before[static_cast<size_t>(i)], i, k, worker, scale, step);
                    if (b < batches) gather(now[static_cast<size_t>(i)], i, k, examples, part, step);
                }
            }
            if (b == batches) break;
#pragma omp for schedule(static)
            for (int e = 0; e < examples; ++e) {
                float* row = g_.data() + e * size_;
                std::fill(row, row + size_, 0.0f);
                for (int g = 0; g < groups; ++g)
                    for (int j = 0; j < v_; ++j) row[j] += parts.data()[g * part_size + e * size_ + j];
                for (int j = 0; j < v_; ++j) row[j] *= share;
                batch_labels[static_cast<size_t>(e)] = labels[rows[e]];
                cross_entropy(row, size_, 1, v_, &batch_labels[static_cast<size_t>(e)],
                              options_.label_smoothing, &losses[static_cast<size_t>(e)]);
                const float part_of_batch = 1.0f / static_cast<float>(examples);
                for (int j = 0; j < v_; ++j) row[j] = (row[j] * part_of_batch) * share;
            }
            if (options_.gradient_clip > 0) {
#pragma omp for schedule(static)
                for (int i = 0; i < c_; ++i)
                    norms[static_cast<size_t>(i)] = squared_norm(now[static_cast<size_t>(i)], i, k, worker);
            }
#pragma omp single
            {
                for (int e = 0; e < examples; ++e) total += losses[static_cast<size_t>(e)];
                if (options_.gradient_clip > 0) {
                    double norm = 0;
                    for (double x : norms) norm += x;
                    scale = static_cast<float>(std::min(1.0, options_.gradient_clip / (std::sqrt(norm) + 1e-6)));
                }
                advance();
                step = adam_step();
            }
        }
    }
    return total;
}

void ValueTrainer::values(float* out, int threads) {
    const AdamStep step = adam_step();
    std::vector<uint16_t> all(static_cast<size_t>(m_));
    for (int r = 0; r < m_; ++r) all[static_cast<size_t>(r)] = static_cast<uint16_t>(r);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int i = 0; i < c_; ++i) {
        float* rows = rows_.data() + static_cast<int64_t>(i) * m_ * stride_;
        if (options_.adam && options_.l2 == 0)
            isa_.adam_catch_up(rows, last_.data() + static_cast<int64_t>(i) * m_, size_, all.data(), m_, now_, step);
        for (int r = 0; r < m_; ++r)
            std::memcpy(out + (static_cast<int64_t>(i) * m_ + r) * v_, rows + r * stride_, 4u * static_cast<size_t>(v_));
    }
}

double multiply_add_peak(int threads) {
    const Isa& kernel = isa();
    const int64_t repeats = 4'000'000;
    double best = 0;
    for (int turn = 0; turn < 5; ++turn) {
        std::vector<double> sink(static_cast<size_t>(threads));
        const auto start = std::chrono::steady_clock::now();
#pragma omp parallel num_threads(threads)
        sink[thread_number()] = kernel.multiply_adds(repeats);
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        if (sink[0] == 0.12345) std::abort();  // keeps the work alive
        best = std::max(best, 2.0 * 12 * kernel.width * static_cast<double>(repeats) * threads / seconds.count());
    }
    return best;
}

}  // namespace excise
