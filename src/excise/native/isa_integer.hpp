// Nearest keys by whole numbers, two products in every lane of an instruction; floats decide what rounding leaves open.
//
// Keys and queries are rounded to multiples of a step, so the distance of a rounded pair is exact and differs from the true
// one by less than a known length. All keys that could win within it are looked at again, in floats: the answer is that of
// the float search, to the bit. Mostly there is one such key, and no float is touched.
#pragma once
#include <climits>

#include "isa_search.hpp"
#include "isa_stairs.hpp"

namespace {

constexpr int32_t kNever = INT32_MAX;     // the score of the padding
constexpr int kGroup = 8;                 // blocks whose minima are summed up in one vector
constexpr int kMostQueries = 64;          // of a call
constexpr int kFewHits = 4;               // nearest keys that lie in few groups
constexpr int kFewDimensions = 4;         // with fewer, settling costs more than the products that are saved
constexpr float kLongestKey = 16384.0f;   // in steps
constexpr float kLongestQuery = 32760.0f; // in steps: no coordinate leaves 16 bits, no sum 32

struct IntVec {
    __m512i v;
    static IntVec load(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
    static IntVec all(int32_t x) { return {_mm512_set1_epi32(x)}; }
    static IntVec min(IntVec a, IntVec b) { return {_mm512_min_epi32(a.v, b.v)}; }
    static uint32_t bits(__mmask16 m) { return m; }
    friend __mmask16 operator<=(IntVec a, IntVec b) { return _mm512_cmple_epi32_mask(a.v, b.v); }
    void store(int32_t* p) const { _mm512_storeu_si512(p, v); }
    int32_t least() const { return _mm512_reduce_min_epi32(v); }
    static IntVec min_where(__mmask16 m, IntVec a, IntVec b) { return {_mm512_mask_min_epi32(a.v, m, a.v, b.v)}; }
    friend IntVec operator+(IntVec a, IntVec b) { return {_mm512_add_epi32(a.v, b.v)}; }
    IntVec plus_one_where(__mmask16 m) const { return {_mm512_mask_add_epi32(v, m, v, _mm512_set1_epi32(1))}; }
    // this + x * y, lane by lane, over the two whole numbers of 16 bits in each lane of x and y
    IntVec plus_products(IntVec x, IntVec y) const { return {_mm512_dpwssd_epi32(v, x.v, y.v)}; }
};

inline int32_t two_in_one(int32_t first, int32_t second) {
    return static_cast<int32_t>(static_cast<uint32_t>(first & 0xffff) | static_cast<uint32_t>(second) << 16);
}

// Packed keys [block][d][BK] to [block][two dimensions][BK] and half their squared lengths; returns the step, or 0 where
// the keys are too short or too long for whole numbers to be of use.
float round_keys(const float* keys, const float* half, float far, int d, int blocks, int32_t* rounded,
                 int32_t* rounded_half) {
    float longest = 0.0f;
    for (int i = 0; i < blocks * BK; ++i) {
        const float x = half[i] <= far ? half[i] : 0.0f;
        longest = x > longest ? x : longest;
    }
    const float step = std::sqrt(2.0f * longest) * (1.0001f / kLongestKey);
    if (!(step > 1e-14f && step < 1e14f)) return 0.0f;
    const float inverse = 1.0f / step;
    for (int b = 0; b < blocks; ++b) {
        int32_t total[BK] = {};
        for (int j = 0; j < d; j += 2) {
            const float* first = keys + (static_cast<int64_t>(b) * d + j) * BK;
            int32_t* to = rounded + (static_cast<int64_t>(b) * ((d + 1) / 2) + j / 2) * BK;
            for (int i = 0; i < BK; ++i) {
                const float scale = half[b * BK + i] <= far ? inverse : 0.0f;
                const int32_t x = static_cast<int32_t>(std::nearbyint(first[i] * scale));
                const int32_t y = j + 1 < d ? static_cast<int32_t>(std::nearbyint(first[i + BK] * scale)) : 0;
                total[i] += x * x + y * y;
                to[i] = two_in_one(x, y);
            }
        }
        for (int i = 0; i < BK; ++i) rounded_half[b * BK + i] = half[b * BK + i] <= far ? total[i] / 2 : kNever;
    }
    return step;
}

// Queries in steps, negated, two dimensions in one, and the squares of their rounded lengths. Where a query is too long (or
// no number), its square is -1 and it is to be searched in floats. Returns how many are not.
template <int D>
int round_queries(const float* z, int count, int d, const excise::Packed& packed, int32_t* rounded, int32_t* squared) {
    const int n = D ? D : d, twos = (n + 1) / 2;
    const float inverse = 1.0f / packed.step, reach = packed.reach * inverse;
    const float longest = reach < kLongestQuery ? reach : kLongestQuery;
    int fit = 0;
    for (int q = 0; q < count; ++q) {
        const float* from = z + q * n;
        float total = 0.0f;
        for (int j = 0; j < n; ++j) total += (from[j] * inverse) * (from[j] * inverse);
        const bool fits = total <= longest * longest;
        const float scale = fits ? -inverse : 0.0f;
        int32_t square = 0;
        for (int j = 0; j < twos; ++j) {
            const float x = fits ? from[2 * j] : 0.0f, y = fits && 2 * j + 1 < n ? from[2 * j + 1] : 0.0f;
            const int32_t first = static_cast<int32_t>(std::nearbyint(x * scale)), second = static_cast<int32_t>(std::nearbyint(y * scale));
            square += first * first + second * second;
            rounded[q * twos + j] = two_in_one(first, second);
        }
        squared[q] = fits ? square : -1;
        fit += fits;
    }
    return fit;
}

// The rounded score that a winner can have at most, where some key (or k of them) has the score `known`. In steps:
// rounding moves neither a key nor a query by more than .503 in a coordinate, so a distance `a` of rounded pairs is off by
// less than E = 1.006 sqrt(d); floats are off by less than F in twice the difference of two scores. A key that wins is
// within (sqrt((a + E)^2 + F) + E)^2 <= a^2 + 4 a E + 4 E^2 + F + 2 E sqrt(F). The square a^2 is that of the rounded query plus
// twice the score, exactly but for a half lost in halving the odd square of a key.
struct Margin {
    float moved, base;
    double e, f;
    explicit Margin(int d) : e(1.006 * std::sqrt(static_cast<double>(d))) {
        const double key = kLongestKey + 4.0;
        f = 8.8 * (d + 2) * 0x1p-24 * (key * key / 2 + kLongestQuery * key);
        moved = static_cast<float>(e);
        base = static_cast<float>(4 * e * e + f + 2 * e * std::sqrt(f) + 4.0);
    }
    int32_t farthest(int32_t known, int32_t squared) const {
        const float distance = static_cast<float>(squared + 2 * static_cast<int64_t>(known) + 1);
        const float more = 2.0f * moved * std::sqrt(distance) + 0.5f * base;
        const int64_t most = static_cast<int64_t>(known) + static_cast<int64_t>(more * 1.00001f) + 1;
        return most < kNever ? static_cast<int32_t>(most) : kNever - 1;
    }
    // The same for its score in floats: half the square of a key is off by half of `moved` times its length, a product of a
    // key and a query by as much of both lengths.
    float in_floats(int32_t farthest, int32_t squared, float step) const {
        const double off = 0.51 * moved * (2 * (kLongestKey + 4.0) + std::sqrt(static_cast<double>(squared))) + base;
        const double most = (farthest + off) * step * step;
        return farthest < kNever - 1 ? static_cast<float>(most + std::fabs(most) * 1e-6) : FLT_MAX;
    }
    // The rounded score that a key can have at most whose square of the distance is `distance`, in steps, by its score in
    // floats.
    int32_t farthest_in_steps(double distance, int32_t squared) const {
        const double most = std::sqrt((distance > 0 ? distance : 0) + f) + e;
        const double score = (most * most - squared) * (0.5 * 1.000001) + 2.0;
        return score < kNever - 1 ? static_cast<int32_t>(score) : kNever - 1;
    }
};

template <int QT, int D>
inline __attribute__((always_inline)) void score_rounded(const int32_t* z, int d, const int32_t* keys, const int32_t* half,
                                                         IntVec acc[QT][KT]) {
    const int twos = (D ? D + 1 : d + 1) / 2;
    EXCISE_RELOAD(z);
    EXCISE_UNROLL
    for (int t = 0; t < KT; ++t) {
        const IntVec start = IntVec::load(half + t * W);
        EXCISE_UNROLL
        for (int q = 0; q < QT; ++q) acc[q][t] = start;
    }
    for (int j = 0; j < twos; ++j) {
        IntVec key[KT];
        EXCISE_UNROLL
        for (int t = 0; t < KT; ++t) key[t] = IntVec::load(keys + j * BK + t * W);
        EXCISE_UNROLL
        for (int q = 0; q < QT; ++q) {
            IntVec x = IntVec::all(z[q * twos + j]);
            EXCISE_IN_REGISTER(x.v);
            EXCISE_UNROLL
            for (int t = 0; t < KT; ++t) acc[q][t] = acc[q][t].plus_products(key[t], x);
        }
    }
}

// The least score of every lane, for each block and for each group of blocks.
template <int QT, int D>
void minima_tile(const int32_t* z, int d, const int32_t* keys, const int32_t* half, int from, int to, int32_t* minima,
                 int64_t minima_ld, int32_t* groups, int64_t groups_ld) {
    const int twos = (D ? D + 1 : d + 1) / 2;
    for (int first = from; first < to; first += kGroup) {
        const int last = first + kGroup < to ? first + kGroup : to;
        IntVec least[QT];
        EXCISE_UNROLL
        for (int q = 0; q < QT; ++q) least[q] = IntVec::all(kNever);
        for (int b = first; b < last; ++b) {
            IntVec acc[QT][KT];
            score_rounded<QT, D>(z, d, keys + static_cast<int64_t>(b) * twos * BK, half + b * BK, acc);
            EXCISE_UNROLL
            for (int q = 0; q < QT; ++q) {
                IntVec x = acc[q][0];
                EXCISE_UNROLL
                for (int t = 1; t < KT; ++t) x = IntVec::min(x, acc[q][t]);
                x.store(minima + q * minima_ld + b * W);
                least[q] = IntVec::min(least[q], x);
            }
        }
        EXCISE_UNROLL
        for (int q = 0; q < QT; ++q) least[q].store(groups + q * groups_ld + first / kGroup * W);
    }
}

// Where the queries of a call lie in scratch.
struct Rounded {
    int32_t *minima, *groups, *hits, *queries;
    float* rest;
    int64_t minima_ld, groups_ld;
    Rounded(float* scratch, int blocks, int count, int twos)
        : minima_ld(static_cast<int64_t>(blocks) * W), groups_ld(static_cast<int64_t>((blocks + kGroup - 1) / kGroup) * W) {
        minima = reinterpret_cast<int32_t*>(scratch);
        groups = minima + count * minima_ld;
        hits = groups + count * groups_ld;
        queries = hits + blocks + 1;
        rest = reinterpret_cast<float*>(queries + static_cast<int64_t>(count) * twos);
    }
};

template <int D>
void all_minima(const Rounded& at, int count, int d, const excise::Packed& packed) {
    constexpr int QT = Vec::query_tile;
    const int twos = (d + 1) / 2;
    int step = kL1Floats / (kGroup * BK * (twos + 1)) * kGroup;
    step = step > kGroup ? step : kGroup;
    for (int from = 0; from < packed.blocks; from += step) {
        const int to = from + step < packed.blocks ? from + step : packed.blocks;
        int q = 0;
        const auto tile = [&](auto size) {
            constexpr int Q = decltype(size)::value;
            for (; q + Q <= count; q += Q)
                minima_tile<Q, D>(at.queries + q * twos, d, packed.rounded, packed.rounded_half, from, to,
                                  at.minima + q * at.minima_ld, at.minima_ld, at.groups + q * at.groups_ld, at.groups_ld);
        };
        tile(std::integral_constant<int, QT>());
        tile(std::integral_constant<int, 1>());
    }
}

inline int32_t least_of(const int32_t* minima, int64_t count) {
    IntVec least = IntVec::load(minima);
    for (int64_t i = W; i < count; i += W) least = IntVec::min(least, IntVec::load(minima + i));
    return least.least();
}

// An upper bound of the k-th least score: of minima over disjoint groups of keys, k are at most the bound.
inline int32_t bound_rounded(const int32_t* minima, const int32_t* groups, int blocks, int k) {
    constexpr int kMostSets = 6;
    int sets = (k + 4) / 5;  // some 3 k groups: few candidates, and few groups to rank
    if (sets > kMostSets) sets = kMostSets;
    int vectors = (blocks + kGroup - 1) / kGroup;
    if (vectors >= sets) minima = groups;
    else vectors = blocks;
    if (sets > vectors) sets = vectors;
    if (sets * W < k) return kNever;
    int32_t values[kMostSets * W];
    for (int s = 0; s < sets; ++s) {
        IntVec least = IntVec::load(minima + s * W);
        for (int v = s + sets; v < vectors; v += sets) least = IntVec::min(least, IntVec::load(minima + v * W));
        least.store(values + s * W);
    }
    IntVec best = IntVec::all(kNever);
    for (int s = 0; s < sets; ++s) {
        const IntVec own = IntVec::load(values + s * W);
        IntVec at_most[4] = {IntVec::all(0), IntVec::all(0), IntVec::all(0), IntVec::all(0)};
        for (int i = 0; i < sets * W; i += 4) {
            EXCISE_UNROLL
            for (int a = 0; a < 4; ++a) at_most[a] = at_most[a].plus_one_where(IntVec::all(values[i + a]) <= own);
        }
        const IntVec total = (at_most[0] + at_most[1]) + (at_most[2] + at_most[3]);
        best = IntVec::min_where(IntVec::all(k) <= total, best, own);
    }
    return best.least();
}

// A bit for each of some vectors of minima (at most 64) that holds one within the limit. No branch: they would all miss.
inline uint64_t within(int32_t limit, const int32_t* minima, int vectors) {
    const IntVec most = IntVec::all(limit);
    uint64_t found = 0;
    for (int i = 0; i < vectors; ++i)
        found |= static_cast<uint64_t>(IntVec::bits(IntVec::load(minima + i * W) <= most) != 0) << i;
    return found;
}

// Blocks of a range that hold a score within the limit, in order.
inline int blocks_within(int32_t limit, const int32_t* minima, int from, int to, int32_t* hits) {
    int hit = 0;
    for (int b = from; b < to; b += 64)
        for (uint64_t left = within(limit, minima + b * W, to - b < 64 ? to - b : 64); left; left &= left - 1)
            hits[hit++] = b + __builtin_ctzll(left);
    return hit;
}

// The same of all blocks, for few hits: only groups that hold one are looked into.
inline int blocks_within(int32_t limit, const int32_t* minima, const int32_t* groups, int blocks, int32_t* hits) {
    const int all = (blocks + kGroup - 1) / kGroup;
    int hit = 0;
    for (int g = 0; g < all; g += 64)
        for (uint64_t left = within(limit, groups + g * W, all - g < 64 ? all - g : 64); left; left &= left - 1) {
            const int first = (g + __builtin_ctzll(left)) * kGroup;
            hit += blocks_within(limit, minima, first, blocks - first < kGroup ? blocks : first + kGroup, hits + hit);
        }
    return hit;
}

template <int D>
int32_t settle_rounded(const int32_t* rounded, const float* z, int d, const excise::Packed& packed, int32_t limit,
                       const int32_t* hits, int hit) {
    const int n = D ? D : d, twos = (n + 1) / 2;
    if (hit == 1) {
        const int b = hits[0];
        IntVec acc[1][KT];
        score_rounded<1, D>(rounded, d, packed.rounded + static_cast<int64_t>(b) * twos * BK, packed.rounded_half + b * BK, acc);
        uint64_t keys = 0;
        EXCISE_UNROLL
        for (int t = 0; t < KT; ++t) keys |= static_cast<uint64_t>(IntVec::bits(acc[0][t] <= IntVec::all(limit))) << (t * W);
        if ((keys & (keys - 1)) == 0) return b * BK + __builtin_ctzll(keys);
    }
    float best = HUGE_VALF;
    int32_t where = -1;
    for (int h = 0; h < hit; ++h) {
        const int b = hits[h];
        Vec acc[1][KT];
        score_block<1, D>(z, d, packed.keys + static_cast<int64_t>(b) * n * BK, packed.half + b * BK, acc);
        const float x = least_of_block(acc[0]).least();
        if (!(x < best)) continue;
        best = x;
        for (int t = KT - 1; t >= 0; --t) {
            const uint32_t same = Vec::bits(acc[0][t] == Vec::all(x));
            if (same) where = b * BK + t * W + __builtin_ctz(same);
        }
    }
    return where;
}

template <int D>
void nearest_rounded(const float* z, int queries, int d, int k, const excise::Packed& packed, float* scratch, int32_t* out,
                     float* out_scores) {
    const int n = D ? D : d, twos = (n + 1) / 2;
    const Rounded at(scratch, packed.blocks, queries < kMostQueries ? queries : kMostQueries, twos);
    const Margin margin(n);
    for (int from = 0; from < queries; from += kMostQueries) {
        const int count = queries - from < kMostQueries ? queries - from : kMostQueries;
        int32_t squared[kMostQueries], limit[kMostQueries];
        const int fit = round_queries<D>(z + from * n, count, n, packed, at.queries, squared);
        if (k == 1 && 4 * fit < 3 * count) {  // many at a time are faster than one by one
            nearest_codebook<D>(z + from * n, count, n, packed.keys, packed.half, packed.blocks, scratch, out + from);
            continue;
        }
        all_minima<D>(at, count, d, packed);
        for (int q = 0; q < count; ++q) {
            const int32_t *minima = at.minima + q * at.minima_ld, *groups = at.groups + q * at.groups_ld;
            limit[q] = k == 1 ? least_of(groups, at.groups_ld) : bound_rounded(minima, groups, packed.blocks, k);
        }
        for (int q = 0; q < count; ++q) limit[q] = margin.farthest(limit[q], squared[q]);
        int64_t looked = 0;
        for (int q = 0; q < count; ++q) {
            const float* query = z + (from + q) * n;
            int32_t* to = out + (from + q) * k;
            if (squared[q] < 0) {
                if (k == 1) nearest_codebook<D>(query, 1, d, packed.keys, packed.half, packed.blocks, at.rest, to);
                else nearest_k_any<D>(query, 1, d, k, packed.keys, packed.half, packed.blocks, at.rest, to, out_scores + (from + q) * k);
                continue;
            }
            const int32_t *minima = at.minima + q * at.minima_ld, *groups = at.groups + q * at.groups_ld;
            const int hit = k <= kFewHits ? blocks_within(limit[q], minima, groups, packed.blocks, at.hits)
                                          : blocks_within(limit[q], minima, 0, packed.blocks, at.hits);
            if (k == 1) {
                *to = settle_rounded<D>(at.queries + q * twos, query, d, packed, limit[q], at.hits, hit);
                looked += hit;
                if (4 * looked <= static_cast<int64_t>(packed.blocks) * (q + 8)) continue;
                // The step is too coarse to tell these keys apart.
                nearest_codebook<D>(query + n, count - q - 1, n, packed.keys, packed.half, packed.blocks, at.rest, to + 1);
                break;
            } else {
                const float most = margin.in_floats(limit[q], squared[q], packed.step);
                select<D, false>(query, d, packed.keys, packed.half, nullptr, k, most, at.hits, hit, to, out_scores + (from + q) * k);
            }
        }
    }
}

void nearest_or_rounded(const float* z, int queries, int d, const excise::Packed& packed, float* scratch, int32_t* out) {
    const bool few = packed.blocks * BK <= kFewKeys && queries >= W;
    if (few || d < kFewDimensions || packed.step == 0.0f) return nearest(z, queries, d, packed, scratch, out);
    with_key_size(d, [&](auto size) { nearest_rounded<decltype(size)::value>(z, queries, d, 1, packed, scratch, out, nullptr); });
}

void nearest_k_or_rounded(const float* z, int queries, int d, int k, const excise::Packed& packed, float* scratch,
                          int32_t* out, float* out_scores) {
    if (packed.step == 0.0f) {  // one by one, because scratch is made for the scores of one query
        for (int q = 0; q < queries; ++q) nearest_k(z + q * d, 1, d, k, packed, scratch, out + q * k, out_scores + q * k);
        return;
    }
    with_key_size(d, [&](auto size) {
        nearest_rounded<decltype(size)::value>(z, queries, d, k, packed, scratch, out, out_scores);
    });
}

// ---- every mask size at once ----------------------------------------------------------------------------------------

// Blocks whose rounded scores say that they can hold a key nearer than a limit.
struct LeastRounded {
    const int32_t* least;
    const Margin& margin;
    double length, inverse;  // the square of the query, one over that of the step
    int32_t squared;
    IntVec most{};
    void set_limit(float limit) {
        most = IntVec::all(limit < FLT_MAX ? margin.farthest_in_steps((length + 2.0 * limit) * inverse, squared) : kNever - 1);
    }
    bool holds(int b) const { return IntVec::bits(IntVec::load(least + static_cast<int64_t>(b) * W) <= most) != 0; }
};

template <int D>
void climb_rounded(const float* z, int queries, int d, int k, const excise::Packed& packed, float* scratch,
                   const uint16_t* pairs, const int32_t* ranks, uint16_t* codes, float* best, excise::Entered* out,
                   int32_t* counts) {
    const int n = D ? D : d, twos = (n + 1) / 2;
    const Rounded at(scratch, packed.blocks, queries, twos);
    const Margin margin(n);
    const double inverse = 1 / (static_cast<double>(packed.step) * packed.step);
    int32_t squared[kMostQueries];
    round_queries<D>(z, queries, n, packed, at.queries, squared);
    all_minima<D>(at, queries, n, packed);
    for (int q = 0; q < queries; ++q) {
        const float* query = z + q * n;
        if (squared[q] < 0) {
            climb_all<D>(query, 1, n, k, packed, at.rest, pairs, ranks, codes + q * k, best + q * k, out, counts + q);
        } else {
            double length = 0;
            for (int j = 0; j < n; ++j) length += static_cast<double>(query[j]) * query[j];
            const LeastRounded least{at.minima + q * at.minima_ld, margin, length, inverse, squared[q]};
            counts[q] = climb_one<D>(query, n, k, packed, least, pairs, ranks, codes + q * k, best + q * k, out);
        }
        out += counts[q];
    }
}

void climb_or_rounded(const float* z, int queries, int d, int k, const excise::Packed& packed, float* scratch,
                      const uint16_t* pairs, const int32_t* ranks, uint16_t* codes, float* best, excise::Entered* out,
                      int32_t* counts) {
    if (d < kFewDimensions || packed.step == 0.0f)
        return climb(z, queries, d, k, packed, scratch, pairs, ranks, codes, best, out, counts);
    with_key_size(d, [&](auto size) {
        climb_rounded<decltype(size)::value>(z, queries, d, k, packed, scratch, pairs, ranks, codes, best, out, counts);
    });
}

}  // namespace
