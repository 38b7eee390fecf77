// Projection, nearest keys and key averages, written once over `Vec`; included by every isa_*.cpp.
#pragma once
#include <cfloat>
#include <cstring>
#include <type_traits>

#include "isa.hpp"
#include "simd.hpp"

namespace {

// Left alone, the compiler keeps all broadcasts of a tile across blocks, on the stack: one load for every multiply-add.
#if defined(EXCISE_AVX512) || defined(EXCISE_AVX2)
#define EXCISE_IN_REGISTER(x) __asm__("" : "+v"(x))
#elif defined(EXCISE_NEON)
#define EXCISE_IN_REGISTER(x) __asm__("" : "+w"(x))
#else
#define EXCISE_IN_REGISTER(x)
#endif
#define EXCISE_RELOAD(pointer) __asm__ volatile("" : "+r"(pointer))
#define EXCISE_UNROLL _Pragma("GCC unroll 16")

constexpr int W = Vec::width, KT = Vec::key_tile, BK = W * KT;  // lanes, vectors of keys at a time, keys of a block
constexpr int kL1Floats = 6144;                                   // of keys, read again for every tile of queries

// Scores |key|^2/2 - z.key of QT queries against one block of packed keys [d][BK].
template <int QT, int D>
inline __attribute__((always_inline)) void score_block(const float* z, int d, const float* keys, const float* half,
                                                       Vec acc[QT][KT]) {
    const int n = D ? D : d;
    EXCISE_RELOAD(z);
    EXCISE_UNROLL
    for (int t = 0; t < KT; ++t) {
        const Vec start = Vec::load(half + t * W);
        EXCISE_UNROLL
        for (int q = 0; q < QT; ++q) acc[q][t] = start;
    }
    for (int j = 0; j < n; ++j) {
        Vec key[KT];
        EXCISE_UNROLL
        for (int t = 0; t < KT; ++t) key[t] = Vec::load(keys + j * BK + t * W);
        EXCISE_UNROLL
        for (int q = 0; q < QT; ++q) {
            Vec x = Vec::all(z[q * n + j]);
            EXCISE_IN_REGISTER(x.v);
            EXCISE_UNROLL
            for (int t = 0; t < KT; ++t) acc[q][t] = Vec::fused_negative(x, key[t], acc[q][t]);
        }
    }
}

inline Vec least_of_block(const Vec acc[KT]) {
    Vec least = acc[0];
    EXCISE_UNROLL
    for (int t = 1; t < KT; ++t) least = Vec::min(least, acc[t]);
    return least;
}

// Calls f with the key size, as a constant for the sizes that matter most, else 0: then the size is read at run time.
template <class F>
void with_key_size(int d, F f) {
    switch (d) {
        case 4: return f(std::integral_constant<int, 4>());
        case 6: return f(std::integral_constant<int, 6>());
        case 8: return f(std::integral_constant<int, 8>());
        case 14: return f(std::integral_constant<int, 14>());
        default: return f(std::integral_constant<int, 0>());
    }
}

// ---- one nearest key ------------------------------------------------------------------------------------------------

// Every lane follows the least score of its own keys and the first block that holds it; which key of the block it was
// is worked out once at the end, so the loop spends six instructions a block beside its multiply-adds.
template <int QT, int D>
void nearest_tile(const float* z, int d, const float* keys, const float* half, int from, int to, float* best,
                  int32_t* where) {
    const int n = D ? D : d;
    Vec least[QT];
    Vec::Int block[QT];
    EXCISE_UNROLL
    for (int q = 0; q < QT; ++q) {
        least[q] = Vec::load(best + q * W);
        block[q] = Vec::load_int(where + q * W);
    }
    for (int b = from; b < to; ++b) {
        Vec acc[QT][KT];
        score_block<QT, D>(z, d, keys + static_cast<int64_t>(b) * n * BK, half + b * BK, acc);
        const Vec::Int now = Vec::all_int(b);
        EXCISE_UNROLL
        for (int q = 0; q < QT; ++q) {
            const Vec x = least_of_block(acc[q]);
            block[q] = Vec::choose(x < least[q], now, block[q]);
            least[q] = Vec::min(x, least[q]);
        }
    }
    EXCISE_UNROLL
    for (int q = 0; q < QT; ++q) {
        least[q].store(best + q * W);
        Vec::store_int(where + q * W, block[q]);
    }
}

template <int D>
int32_t settle(const float* z, int d, const float* keys, const float* half, const float* best, const int32_t* where) {
    const Vec lanes = Vec::load(best);
    const float least = lanes.least();
    if (!(least <= FLT_MAX)) return -1;  // every key is masked
    int32_t block = INT32_MAX;
    for (uint32_t m = Vec::bits(lanes == Vec::all(least)); m; m &= m - 1) {
        const int32_t b = where[__builtin_ctz(m)];
        block = b < block ? b : block;
    }
    const int n = D ? D : d;
    Vec acc[1][KT];
    score_block<1, D>(z, d, keys + static_cast<int64_t>(block) * n * BK, half + block * BK, acc);
    EXCISE_UNROLL
    for (int t = 0; t < KT; ++t) {
        const uint32_t m = Vec::bits(acc[0][t] == Vec::all(least));
        if (m) return block * BK + t * W + __builtin_ctz(m);
    }
    return -1;
}

template <int D>
void nearest_codebook(const float* z, int queries, int d, const float* keys, const float* half, int blocks,
                      float* scratch, int32_t* out) {
    constexpr int QT = Vec::query_tile;
    const int n = D ? D : d;
    float* best = scratch;
    int32_t* where = reinterpret_cast<int32_t*>(scratch + static_cast<int64_t>(queries) * W);
    for (int i = 0; i < queries * W; ++i) {
        best[i] = HUGE_VALF;
        where[i] = 0;
    }
    const int step = kL1Floats / (n * BK) > 0 ? kL1Floats / (n * BK) : 1;
    for (int from = 0; from < blocks; from += step) {
        const int to = from + step < blocks ? from + step : blocks;
        int q = 0;
        for (; q + QT <= queries; q += QT)
            nearest_tile<QT, D>(z + q * n, d, keys, half, from, to, best + q * W, where + q * W);
        for (; q < queries; ++q) nearest_tile<1, D>(z + q * n, d, keys, half, from, to, best + q * W, where + q * W);
    }
    for (int q = 0; q < queries; ++q)
        out[q] = settle<D>(z + q * n, d, keys, half, best + q * W, where + q * W);
}

// With few keys, settling would cost more than searching: here the lanes are queries, and each knows its winner.
constexpr int kFewKeys = 512;

template <int D>
void nearest_of_few(const float* z, int queries, int d, const excise::Packed& packed, float* scratch, int32_t* out) {
    constexpr int QV = Vec::query_tile < 4 ? 2 : 4, lanes = QV * W;
    const int n = D ? D : d;
    for (int from = 0; from < queries; from += lanes) {
        const int count = queries - from < lanes ? queries - from : lanes;
        for (int j = 0; j < n; ++j)
            for (int q = 0; q < lanes; ++q) scratch[j * lanes + q] = q < count ? z[(from + q) * n + j] : 0.0f;
        Vec least[QV];
        Vec::Int where[QV];
        EXCISE_UNROLL
        for (int v = 0; v < QV; ++v) {
            least[v] = Vec::all(HUGE_VALF);
            where[v] = Vec::all_int(-1);
        }
        for (int key = 0; key < packed.count; key += 4) {
            const float* first = packed.keys + static_cast<int64_t>(key / BK) * n * BK + key % BK;
            const float* column = scratch;
            EXCISE_RELOAD(column);
            Vec acc[4][QV];
            EXCISE_UNROLL
            for (int i = 0; i < 4; ++i) {
                const Vec start = Vec::all(packed.half[key + i]);
                EXCISE_UNROLL
                for (int v = 0; v < QV; ++v) acc[i][v] = start;
            }
            for (int j = 0; j < n; ++j) {
                Vec query[QV];
                EXCISE_UNROLL
                for (int v = 0; v < QV; ++v) query[v] = Vec::load(column + j * lanes + v * W);
                EXCISE_UNROLL
                for (int i = 0; i < 4; ++i) {
                    Vec x = Vec::all(first[j * BK + i]);
                    EXCISE_IN_REGISTER(x.v);
                    EXCISE_UNROLL
                    for (int v = 0; v < QV; ++v) acc[i][v] = Vec::fused_negative(query[v], x, acc[i][v]);
                }
            }
            EXCISE_UNROLL
            for (int i = 0; i < 4; ++i) {
                const Vec::Int now = Vec::all_int(key + i);
                EXCISE_UNROLL
                for (int v = 0; v < QV; ++v) {
                    where[v] = Vec::choose(acc[i][v] < least[v], now, where[v]);
                    least[v] = Vec::min(acc[i][v], least[v]);
                }
            }
        }
        int32_t found[lanes];
        EXCISE_UNROLL
        for (int v = 0; v < QV; ++v) Vec::store_int(found + v * W, where[v]);
        std::memcpy(out + from, found, sizeof(int32_t) * static_cast<size_t>(count));
    }
}

void nearest(const float* z, int queries, int d, const excise::Packed& packed, float* scratch, int32_t* out) {
    with_key_size(d, [&](auto size) {
        constexpr int D = decltype(size)::value;
        if (packed.blocks * BK <= kFewKeys && queries >= W) return nearest_of_few<D>(z, queries, d, packed, scratch, out);
        nearest_codebook<D>(z, queries, d, packed.keys, packed.half, packed.blocks, scratch, out);
    });
}

// ---- the k nearest keys ---------------------------------------------------------------------------------------------

// The least score of every lane and block is written down; a bound from those says which blocks can hold a winner. For
// few winners their scores are computed again, for many all scores were kept. No step branches on a single score,
// because such branches cost more than the arithmetic.
constexpr int kKeepScores = 9;

template <int QT, int D, bool kKeep>
void score_tile(const float* z, int d, const float* keys, const float* half, int from, int to, int blocks,
                float* scores, float* minima) {
    const int n = D ? D : d;
    const int64_t ld = static_cast<int64_t>(blocks) * BK, minima_ld = static_cast<int64_t>(blocks) * W;
    for (int b = from; b < to; ++b) {
        Vec acc[QT][KT];
        score_block<QT, D>(z, d, keys + static_cast<int64_t>(b) * n * BK, half + b * BK, acc);
        EXCISE_UNROLL
        for (int q = 0; q < QT; ++q) {
            if (kKeep) {
                EXCISE_UNROLL
                for (int t = 0; t < KT; ++t) acc[q][t].store(scores + q * ld + b * BK + t * W);
            }
            least_of_block(acc[q]).store(minima + q * minima_ld + b * W);
        }
    }
}

template <int D, bool kKeep>
void score_all(const float* z, int queries, int d, const float* keys, const float* half, int blocks, float* scores,
               float* minima) {
    constexpr int QT = Vec::query_tile;
    const int n = D ? D : d;
    const int64_t ld = static_cast<int64_t>(blocks) * BK, minima_ld = static_cast<int64_t>(blocks) * W;
    const int step = kL1Floats / (n * BK) > 0 ? kL1Floats / (n * BK) : 1;
    for (int from = 0; from < blocks; from += step) {
        const int to = from + step < blocks ? from + step : blocks;
        int q = 0;
        for (; q + QT <= queries; q += QT)
            score_tile<QT, D, kKeep>(z + q * n, d, keys, half, from, to, blocks, kKeep ? scores + q * ld : nullptr, minima + q * minima_ld);
        for (; q < queries; ++q)
            score_tile<1, D, kKeep>(z + q * n, d, keys, half, from, to, blocks, kKeep ? scores + q * ld : nullptr, minima + q * minima_ld);
    }
}

// An upper bound of the k-th least score: of minima over disjoint groups of keys, k are at most the bound.
inline float bound(const float* minima, int blocks, int k) {
    constexpr int kMostSets = 64 / W;
    int sets = (8 * k + 5 * W - 1) / (5 * W);  // 1.6 k groups: few candidates, and few groups to rank
    if (sets > kMostSets) sets = kMostSets;
    if (sets > blocks) sets = blocks;
    if (sets * W < k) return FLT_MAX;
    Vec group[kMostSets];
    for (int s = 0; s < sets; ++s) group[s] = Vec::load(minima + s * W);
    for (int b = sets; b < blocks; b += sets)
        for (int s = 0; s < sets && b + s < blocks; ++s) group[s] = Vec::min(group[s], Vec::load(minima + (b + s) * W));
    float values[kMostSets * W];
    for (int s = 0; s < sets; ++s) group[s].store(values + s * W);
    float best = FLT_MAX;
    for (int i = 0; i < sets * W; ++i) {
        int at_most = 0;
        for (int s = 0; s < sets; ++s) at_most += __builtin_popcount(Vec::bits(group[s] <= Vec::all(values[i])));
        const float x = at_most >= k ? values[i] : FLT_MAX;
        best = x < best ? x : best;
    }
    return best;
}

constexpr int kCandidates = 256;  // more than that (many equal keys) are thinned out on the way

struct Candidates {
    static constexpr int kTogether = 8;
    float score[kCandidates + BK];
    int32_t id[kCandidates + BK];
    int count = 0;
    bool thinned = false;  // then they are no longer in the order of their keys

    // Orders the candidates by score, then by key, and keeps the first k.
    void rank(int k) {
        int32_t at[kCandidates + BK + kTogether];
        if (!places_of_few(at)) places(at);
        float sorted_score[kCandidates + BK];
        int32_t sorted_id[kCandidates + BK];
        for (int i = 0; i < count; ++i) {
            sorted_score[at[i]] = score[i];
            sorted_id[at[i]] = id[i];
        }
        count = count < k ? count : k;
        for (int i = 0; i < count; i += W) {  // whole vectors: there is room
            Vec::load(sorted_score + i).store(score + i);
            Vec::store_int(id + i, Vec::load_int(sorted_id + i));
        }
    }

    // How many candidates come before each; up to a vector of them, as they were found: by key.
    bool places_of_few(int32_t* at) {
#if defined(EXCISE_AVX512)
        if (thinned || count > W) return false;
        Vec::all(HUGE_VALF).store(score + count);
        const Vec own = Vec::load(score);
        Vec::Int before = Vec::all_int(0);
        for (int i = 0; i < count; ++i) {
            const Vec other = Vec::all(score[i]);
            const uint32_t later = 0xfffeu << i;
            const uint32_t after = (Vec::bits(other <= own) & later) | (Vec::bits(other < own) & ~later);
            before = Vec::choose(static_cast<Vec::Mask>(after), Vec::next(before), before);
        }
        Vec::store_int(at, before);
        return true;
#else
        (void)at;
        return false;
#endif
    }

    // The same for any number in any order.
    void places(int32_t* at) {
        int64_t key[kCandidates + BK + kTogether];
        for (int i = 0; i < count; ++i) {
            const float x = score[i] + 0.0f;  // -0 is 0
            int32_t bits;
            std::memcpy(&bits, &x, 4);
            bits ^= (bits >> 31) & 0x7fffffff;
            key[i] = static_cast<int64_t>(bits) * (int64_t{1} << 32) + id[i];
        }
        for (int i = count; i < count + kTogether; ++i) key[i] = INT64_MAX;
        for (int i = 0; i < count; i += kTogether) {
            int64_t smaller[kTogether] = {};
            for (int j = 0; j < count; ++j)
                for (int l = 0; l < kTogether; ++l) smaller[l] += key[j] < key[i + l];
            for (int l = 0; l < kTogether; ++l) at[i + l] = static_cast<int32_t>(smaller[l]);
        }
    }
};

// Of the keys in the blocks `hits` whose score is within the limit, the k nearest.
template <int D, bool kKeep>
void select(const float* z, int d, const float* keys, const float* half, const float* scores, int k, float limit,
            const int32_t* hits, int hit, int32_t* out, float* out_scores) {
    Candidates found;
    for (int h = 0; h < hit; ++h) {
        Vec acc[1][KT];
        if (!kKeep)
            score_block<1, D>(z, d, keys + static_cast<int64_t>(hits[h]) * (D ? D : d) * BK, half + hits[h] * BK, acc);
        EXCISE_UNROLL
        for (int t = 0; t < KT; ++t) {
            const int first = hits[h] * BK + t * W;
            const Vec x = kKeep ? Vec::load(scores + first) : acc[0][t];
            found.count += Vec::keep(x <= Vec::all(limit), x, first, found.score + found.count, found.id + found.count);
        }
        if (found.count > kCandidates) {
            found.rank(k);
            found.thinned = true;
            limit = found.score[k - 1];
        }
    }
    found.rank(k);
    for (int i = 0; i < k; ++i) out[i] = i < found.count ? found.id[i] : -1;
    for (int i = 0; i < k; ++i) out_scores[i] = found.score[i];
}

template <int D, bool kKeep>
void nearest_k_codebook(const float* z, int queries, int d, int k, const float* keys, const float* half, int blocks,
                        float* scratch, int32_t* out, float* out_scores) {
    const int n = D ? D : d;
    const int64_t ld = static_cast<int64_t>(blocks) * BK, minima_ld = static_cast<int64_t>(blocks) * W;
    float* scores = scratch;
    float* minima = scores + queries * ld;
    int32_t* hits = reinterpret_cast<int32_t*>(minima + queries * minima_ld);
    score_all<D, kKeep>(z, queries, d, keys, half, blocks, scores, minima);
    for (int q = 0; q < queries; ++q) {
        const float* own = minima + q * minima_ld;
        const float limit = bound(own, blocks, k);
        int hit = 0;
        for (int b = 0; b < blocks; ++b) {
            hits[hit] = b;
            hit += Vec::bits(Vec::load(own + static_cast<int64_t>(b) * W) <= Vec::all(limit)) != 0;
        }
        select<D, kKeep>(z + q * n, d, keys, half, scores + q * ld, k, limit, hits, hit, out + q * k, out_scores + q * k);
    }
}

template <int D>
void nearest_k_any(const float* z, int queries, int d, int k, const float* keys, const float* half, int blocks,
                   float* scratch, int32_t* out, float* out_scores) {
    (k < kKeepScores ? nearest_k_codebook<D, false> : nearest_k_codebook<D, true>)(z, queries, d, k, keys, half, blocks,
                                                                                 scratch, out, out_scores);
}

void nearest_k(const float* z, int queries, int d, int k, const excise::Packed& packed, float* scratch, int32_t* out,
               float* out_scores) {
    with_key_size(d, [&](auto size) {
        constexpr int D = decltype(size)::value;
        nearest_k_any<D>(z, queries, d, k, packed.keys, packed.half, packed.blocks, scratch, out, out_scores);
    });
}

// ---- projection -----------------------------------------------------------------------------------------------------

template <int RT, int VT>
void project_tile(const float* x, int64_t ldx, int64_t next, int f, const float* panel, int64_t stride, int last, float* out,
                  int64_t ldo) {
    Vec acc[RT][VT];
    EXCISE_UNROLL
    for (int r = 0; r < RT; ++r)
        EXCISE_UNROLL
        for (int t = 0; t < VT; ++t) acc[r][t] = Vec::all(0.0f);
    for (int i = 0; i < f; ++i) {
        Vec column[VT];
        EXCISE_UNROLL
        for (int t = 0; t < VT; ++t)
            column[t] = t + 1 == VT && last < W ? Vec::load(panel + i * stride + t * W, last)
                                                : Vec::load(panel + i * stride + t * W);
        EXCISE_UNROLL
        for (int r = 0; r < RT; ++r) {
            Vec a = Vec::all(x[r * ldx + i * next]);
            EXCISE_IN_REGISTER(a.v);
            EXCISE_UNROLL
            for (int t = 0; t < VT; ++t) acc[r][t] = Vec::fused(a, column[t], acc[r][t]);
        }
    }
    EXCISE_UNROLL
    for (int r = 0; r < RT; ++r)
        EXCISE_UNROLL
        for (int t = 0; t < VT; ++t) {
            float* to = out + r * ldo + t * W;
            if (t + 1 == VT && last < W) acc[r][t].store(to, last);
            else acc[r][t].store(to);
        }
}

template <int VT>
void project_rows(const float* x, int64_t ldx, int64_t next, int rows, int f, const float* panel, int64_t stride,
                  int last, float* out, int64_t ldo) {
    constexpr int RT = Vec::project_tile;
    int r = 0;
    for (; r + RT <= rows; r += RT)
        project_tile<RT, VT>(x + r * ldx, ldx, next, f, panel, stride, last, out + r * ldo, ldo);
    for (; r < rows; ++r) project_tile<1, VT>(x + r * ldx, ldx, next, f, panel, stride, last, out + r * ldo, ldo);
}

void project(const float* x, int64_t ldx, int64_t next, int rows, int f, const float* panel, int64_t stride, int cols,
             float* out, int64_t ldo) {
    int col = 0;
    for (; col + 2 * W <= cols; col += 2 * W)
        project_rows<2>(x, ldx, next, rows, f, panel + col, stride, W, out + col, ldo);
    for (; col < cols; col += W) {
        const int last = cols - col < W ? cols - col : W;
        project_rows<1>(x, ldx, next, rows, f, panel + col, stride, last, out + col, ldo);
    }
}

// ---- keys -----------------------------------------------------------------------------------------------------------

void half_norms(const float* keys, int d, int blocks, float* half) {
    for (int i = 0; i < blocks * KT; ++i) {
        const float* key = keys + static_cast<int64_t>(i / KT) * d * BK + (i % KT) * W;
        Vec total = Vec::all(0.0f);
        for (int j = 0; j < d; ++j) {
            const Vec x = Vec::load(key + j * BK);
            total = Vec::fused(x, x, total);
        }
        (Vec::all(0.5f) * total).store(half + i * W);
    }
}

int pack_shorter(const float* keys, const float* half, float end, int d, int blocks, float* scratch, float* to,
                 int32_t* which) {
    constexpr int ld = BK + W;  // of scratch, where a block's dimensions grow until it is full
    int count = 0, lanes = 0;
    for (int v = 0; v < blocks * KT; ++v) {
        const float* from = keys + static_cast<int64_t>(v / KT) * d * BK + v % KT * W;
        const Vec length = Vec::load(half + v * W);
        const Vec::Mask shorter = length <= Vec::all(end);
        for (int j = 0; j < d; ++j) Vec::keep(shorter, Vec::load(from + j * BK), scratch + j * ld + lanes);
        float unused[W];
        const int more = Vec::keep(shorter, length, v * W, unused, which + count);
        count += more;
        lanes += more;
        if (lanes < BK) continue;
        for (int j = 0; j < d; ++j) {
            float* own = scratch + j * ld;
            EXCISE_UNROLL
            for (int t = 0; t < KT; ++t) Vec::load(own + t * W).store(to + j * BK + t * W);
            Vec::load(own + BK).store(own);
        }
        to += d * BK;
        lanes -= BK;
    }
    for (int j = 0; lanes > 0 && j < d; ++j)
        for (int i = 0; i < BK; ++i) to[j * BK + i] = i < lanes ? scratch[j * ld + i] : 0.0f;
    return count;
}

void average(float* keys, float* sums, float* counts, const float* added, const float* hits, int d, int blocks,
             int pairs) {
    const float decay = 0.95f, rest = static_cast<float>(1 - 0.95);
    const double epsilon = 1e-5;
    const int padded = blocks * BK;
    for (int i = 0; i < padded; ++i) counts[i] = decay * counts[i] + rest * hits[i];
    static_assert(BK % 16 == 0, "blocks are summed by sixteens");
    double total = 0, lanes[16] = {};  // one sum after another would wait for itself
    for (int i = 0; i < padded; i += 16)
        for (int l = 0; l < 16; ++l) lanes[l] += counts[i + l];
    for (double lane : lanes) total += lane;
    const double divisor = total + pairs * epsilon;
    float smoothed[BK];
    for (int b = 0; b < blocks; ++b) {
        for (int i = 0; i < BK; ++i)
            smoothed[i] = static_cast<float>((counts[b * BK + i] + epsilon) / divisor * total);
        const int64_t at = static_cast<int64_t>(b) * d * BK;
        for (int j = 0; j < d; ++j)
            for (int i = 0; i < BK; ++i) {
                const int64_t p = at + j * BK + i;
                sums[p] = decay * sums[p] + rest * added[p];
                keys[p] = sums[p] / smoothed[i];
            }
    }
}

double multiply_adds(int64_t repeats) {
    constexpr int chains = 12;
    Vec acc[chains];
    EXCISE_UNROLL
    for (int i = 0; i < chains; ++i) acc[i] = Vec::all(1.0f + static_cast<float>(i));
    const Vec a = Vec::all(0.999999f), b = Vec::all(1e-7f);
    for (int64_t r = 0; r < repeats; ++r) {
        EXCISE_UNROLL
        for (int i = 0; i < chains; ++i) acc[i] = Vec::fused(acc[i], a, b);
#if defined(__GNUC__)
        __asm__ volatile("" ::: "memory");
#endif
    }
    Vec total = acc[0];
    EXCISE_UNROLL
    for (int i = 1; i < chains; ++i) total = total + acc[i];
    return total.least();
}

}  // namespace
