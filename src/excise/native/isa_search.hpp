// Projection, nearest keys and key averages, written once over `Vec`; included by every isa_*.cpp.
#pragma once
#include <cfloat>
#include <cstring>

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

void nearest(const float* z, int queries, int d, const float* keys, const float* half, int blocks, float* scratch,
             int32_t* out) {
    switch (d) {
        case 4: return nearest_codebook<4>(z, queries, d, keys, half, blocks, scratch, out);
        case 6: return nearest_codebook<6>(z, queries, d, keys, half, blocks, scratch, out);
        case 8: return nearest_codebook<8>(z, queries, d, keys, half, blocks, scratch, out);
        case 14: return nearest_codebook<14>(z, queries, d, keys, half, blocks, scratch, out);
        default: return nearest_codebook<0>(z, queries, d, keys, half, blocks, scratch, out);
    }
}

// ---- the k nearest keys ---------------------------------------------------------------------------------------------

template <int QT, int D>
void block_minima(const float* z, int d, const float* keys, const float* half, int from, int to, int blocks,
                  float* minima) {
    const int n = D ? D : d;
    for (int b = from; b < to; ++b) {
        Vec acc[QT][KT];
        score_block<QT, D>(z, d, keys + static_cast<int64_t>(b) * n * BK, half + b * BK, acc);
        EXCISE_UNROLL
        for (int q = 0; q < QT; ++q)
            least_of_block(acc[q]).store(minima + (static_cast<int64_t>(q) * blocks + b) * W);
    }
}

// An upper bound of the k-th least score: minima over disjoint groups of keys, of which k are at most the bound.
inline float bound(const float* minima, int blocks, int k) {
    constexpr int kMostSets = 64 / W > 0 ? 64 / W : 1;
    int sets = (2 * k + W - 1) / W;
    if (sets > kMostSets) sets = kMostSets;
    if (sets > blocks) sets = blocks;
    if (sets * W < k) return FLT_MAX;
    Vec group[kMostSets];
    for (int s = 0; s < sets; ++s) group[s] = Vec::load(minima + s * W);
    for (int b = sets, s = 0; b < blocks; ++b) {
        group[s] = Vec::min(group[s], Vec::load(minima + b * W));
        s = s + 1 == sets ? 0 : s + 1;
    }
    float values[kMostSets * W];
    for (int s = 0; s < sets; ++s) group[s].store(values + s * W);
    float best = FLT_MAX;
    for (int i = 0; i < sets * W; ++i) {
        if (!(values[i] < best)) continue;
        int at_most = 0;
        const Vec x = Vec::all(values[i]);
        for (int s = 0; s < sets; ++s) at_most += __builtin_popcount(Vec::bits(group[s] <= x));
        if (at_most >= k) best = values[i];
    }
    return best;
}

template <int D>
void collect(const float* z, int d, int k, const float* keys, const float* half, int blocks, const float* minima,
             int32_t* out) {
    const int n = D ? D : d;
    float limit = bound(minima, blocks, k);
    float score[33];
    int found = 0;
    for (int b = 0; b < blocks; ++b) {
        if (!Vec::bits(Vec::load(minima + static_cast<int64_t>(b) * W) <= Vec::all(limit))) continue;
        Vec acc[1][KT];
        score_block<1, D>(z, d, keys + static_cast<int64_t>(b) * n * BK, half + b * BK, acc);
        EXCISE_UNROLL
        for (int t = 0; t < KT; ++t) {
            float x[W];
            uint32_t m = Vec::bits(acc[0][t] <= Vec::all(limit));
            if (m) acc[0][t].store(x);
            for (; m; m &= m - 1) {  // ascending keys: of equal scores the first stays in front
                const int lane = __builtin_ctz(m);
                if (found == k && !(x[lane] < score[k - 1])) continue;
                int at = found < k ? found++ : k - 1;
                for (; at > 0 && x[lane] < score[at - 1]; --at) {
                    score[at] = score[at - 1];
                    out[at] = out[at - 1];
                }
                score[at] = x[lane];
                out[at] = b * BK + t * W + lane;
                if (found == k && score[k - 1] < limit) limit = score[k - 1];
            }
        }
    }
    for (; found < k; ++found) out[found] = -1;
}

template <int D>
void nearest_k_codebook(const float* z, int queries, int d, int k, const float* keys, const float* half, int blocks,
                        float* minima, int32_t* out) {
    constexpr int QT = Vec::query_tile;
    const int n = D ? D : d;
    const int step = kL1Floats / (n * BK) > 0 ? kL1Floats / (n * BK) : 1;
    for (int from = 0; from < blocks; from += step) {
        const int to = from + step < blocks ? from + step : blocks;
        int q = 0;
        for (; q + QT <= queries; q += QT)
            block_minima<QT, D>(z + q * n, d, keys, half, from, to, blocks, minima + static_cast<int64_t>(q) * blocks * W);
        for (; q < queries; ++q)
            block_minima<1, D>(z + q * n, d, keys, half, from, to, blocks, minima + static_cast<int64_t>(q) * blocks * W);
    }
    for (int q = 0; q < queries; ++q)
        collect<D>(z + q * n, d, k, keys, half, blocks, minima + static_cast<int64_t>(q) * blocks * W, out + q * k);
}

void nearest_k(const float* z, int queries, int d, int k, const float* keys, const float* half, int blocks,
               float* scratch, int32_t* out) {
    switch (d) {
        case 4: return nearest_k_codebook<4>(z, queries, d, k, keys, half, blocks, scratch, out);
        case 6: return nearest_k_codebook<6>(z, queries, d, k, keys, half, blocks, scratch, out);
        case 8: return nearest_k_codebook<8>(z, queries, d, k, keys, half, blocks, scratch, out);
        case 14: return nearest_k_codebook<14>(z, queries, d, k, keys, half, blocks, scratch, out);
        default: return nearest_k_codebook<0>(z, queries, d, k, keys, half, blocks, scratch, out);
    }
}

// ---- projection -----------------------------------------------------------------------------------------------------

template <int RT, int VT>
void project_tile(const float* x, int64_t ldx, int f, const float* panel, int64_t stride, int last, float* out,
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
            const Vec a = Vec::all(x[r * ldx + i]);
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
void project_rows(const float* x, int64_t ldx, int rows, int f, const float* panel, int64_t stride, int last,
                  float* out, int64_t ldo) {
    constexpr int RT = Vec::project_tile;
    int r = 0;
    for (; r + RT <= rows; r += RT)
        project_tile<RT, VT>(x + r * ldx, ldx, f, panel, stride, last, out + r * ldo, ldo);
    for (; r < rows; ++r) project_tile<1, VT>(x + r * ldx, ldx, f, panel, stride, last, out + r * ldo, ldo);
}

void project(const float* x, int64_t ldx, int rows, int f, const float* panel, int64_t stride, int cols, float* out,
             int64_t ldo) {
    int col = 0;
    for (; col + 2 * W <= cols; col += 2 * W) project_rows<2>(x, ldx, rows, f, panel + col, stride, W, out + col, ldo);
    for (; col < cols; col += W) {
        const int last = cols - col < W ? cols - col : W;
        project_rows<1>(x, ldx, rows, f, panel + col, stride, last, out + col, ldo);
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

void average(float* keys, float* sums, float* counts, const float* added, const float* hits, int d, int blocks,
             int pairs) {
    const float decay = 0.95f, rest = static_cast<float>(1 - 0.95);
    const double epsilon = 1e-5;
    const int padded = blocks * BK;
    double total = 0;
    for (int i = 0; i < padded; ++i) counts[i] = decay * counts[i] + rest * hits[i];
    for (int i = 0; i < padded; ++i) total += counts[i];
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
