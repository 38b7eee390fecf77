// Rows of values: sums over retrieved rows, their transpose, and the moves of training; included by every isa_*.cpp.
#pragma once
#include "isa.hpp"
#include "simd.hpp"

namespace {

constexpr int VW = Vec::width;

// Calls f(offset, lanes) for the vectors of a row; lanes < VW only in the last.
template <class F>
inline __attribute__((always_inline)) void for_row(int v, F f) {
    int i = 0;
    for (; i + VW <= v; i += VW) f(i, VW);
    if (i < v) f(i, v - i);
}

inline Vec load_some(const float* p, int lanes) { return lanes == VW ? Vec::load(p) : Vec::load(p, lanes); }
inline void store_some(float* p, int lanes, Vec x) {
    if (lanes == VW) x.store(p);
    else x.store(p, lanes);
}

inline float slot_weight(const uint16_t* codes, int k, bool mean) {
    if (!mean) return 1.0f;
    int live = 0;
    for (int s = 0; s < k; ++s) live += codes[s] != excise::kNoPair;
    return 1.0f / static_cast<float>(live > 1 ? live : 1);
}

// acc (n, ld) and g (n, ld) are padded to whole vectors; rows of tables are not.
template <bool kSingle>
void gather_rows(float* acc, int64_t ld, const uint16_t* codes, int64_t code_stride, int n, int codebooks, int k,
                 const float* values, int64_t codebook_stride, int64_t row_stride, int v, bool mean) {
    for (int e = 0; e < n; ++e) {
        const uint16_t* code = codes + e * code_stride;
        __builtin_prefetch(codes + (e + 24 < n ? e + 24 : e) * code_stride);
        for_row(v, [&](int i, int lanes) {
            Vec a = Vec::load(acc + e * ld + i);
            for (int c = 0; c < codebooks; ++c) {
                const float* table = values + c * codebook_stride + i;
                if (kSingle) {
                    if (code[c] != excise::kNoPair) a = a + load_some(table + code[c] * row_stride, lanes);
                } else {
                    const Vec weight = Vec::all(slot_weight(code + c * k, k, mean));
                    for (int s = 0; s < k; ++s)
                        if (code[c * k + s] != excise::kNoPair)
                            a = a + load_some(table + code[c * k + s] * row_stride, lanes) * weight;
                }
            }
            a.store(acc + e * ld + i);
        });
    }
}

void gather(float* acc, int64_t ld, const uint16_t* codes, int64_t code_stride, int n, int codebooks, int k,
            const float* values, int64_t codebook_stride, int64_t row_stride, int v, bool mean) {
    (k == 1 ? gather_rows<true> : gather_rows<false>)(acc, ld, codes, code_stride, n, codebooks, k, values,
                                                      codebook_stride, row_stride, v, mean);
}

template <bool kSingle>
void scatter_rows(float* table, int64_t codebook_stride, int64_t row_stride, const uint16_t* codes,
                  int64_t code_stride, int n, int codebooks, int k, const float* g, int64_t ld, int v, bool mean) {
    for (int e = 0; e < n; ++e) {
        const uint16_t* code = codes + e * code_stride;
        __builtin_prefetch(codes + (e + 24 < n ? e + 24 : e) * code_stride);
        for_row(v, [&](int i, int lanes) {
            const Vec x = Vec::load(g + e * ld + i);
            for (int c = 0; c < codebooks; ++c) {
                float* rows = table + c * codebook_stride + i;
                const Vec weighted = kSingle ? x : x * Vec::all(slot_weight(code + c * k, k, mean));
                for (int s = 0; s < (kSingle ? 1 : k); ++s) {
                    if (code[c * k + s] == excise::kNoPair) continue;
                    float* row = rows + code[c * k + s] * row_stride;
                    store_some(row, lanes, load_some(row, lanes) + weighted);
                }
            }
        });
    }
}

void scatter(float* table, int64_t codebook_stride, int64_t row_stride, const uint16_t* codes, int64_t code_stride,
             int n, int codebooks, int k, const float* g, int64_t ld, int v, bool mean) {
    (k == 1 ? scatter_rows<true> : scatter_rows<false>)(table, codebook_stride, row_stride, codes, code_stride, n,
                                                        codebooks, k, g, ld, v, mean);
}

// ---- training rows: [values | m | s], each padded to `size` floats, whole vectors; padding stays 0 -------------------

// Asks for a row some turns before it is used: about 64 lines are then under way.
inline void fetch_row(const float* rows, int64_t size, const uint16_t* which, int count, int turn) {
    const int64_t floats = 3 * size;
    const int ahead = turn + static_cast<int>(1024 / floats) + 1;
    if (ahead >= count) return;
    const float* row = rows + which[ahead] * floats;
    for (int64_t i = 0; i < floats; i += 16) __builtin_prefetch(row + i, 1, 3);
}

// A row that no example touched for some steps still moved on its moments: sum over those steps of
// weight_i * m / (u * h_i + epsilon), with u = sqrt(s). All h_i lie close to the first, so the sum is a short series in
// 1 - h_i/h_1, one division instead of one a step; early in training, where they do not, the steps are walked.
inline void catch_up_row(float* row, int64_t size, int32_t missed, int32_t last, const excise::AdamStep& step) {
    const excise::CatchUp& known = step.catch_up[last];
    const Vec epsilon = Vec::all(step.epsilon), one = Vec::all(1.0f);
    const Vec decay1 = Vec::all(step.beta1_power[missed]), decay2 = Vec::all(step.beta2_power[missed]);
    const int walked = missed < step.longest ? missed : step.longest;
    for (int64_t i = 0; i < size; i += VW) {
        const Vec m = Vec::load(row + size + i), s = Vec::load(row + 2 * size + i), u = Vec::sqrt(s);
        Vec p = Vec::load(row + i);
        if (known.exact) {
            const Vec h = u * Vec::all(known.reference), inverse = one / (h + epsilon), x = h * inverse;
            Vec sum = Vec::all(known.series[excise::kSeries - 1]);
            for (int r = excise::kSeries - 2; r >= 0; --r) sum = Vec::fused(sum, x, Vec::all(known.series[r]));
            p = p - (m * inverse) * sum;
        } else {
            for (int j = 1; j <= walked; ++j) {
                const Vec weight = Vec::all(step.beta1_power[j] * step.sizes[last + j]);
                const Vec h = Vec::all(step.beta2_half_power[j] * step.roots[last + j]);
                p = p - (weight * m) / (u * h + epsilon);
            }
        }
        p.store(row + i);
        (m * decay1).store(row + size + i);
        (s * decay2).store(row + 2 * size + i);
    }
}

void adam_catch_up(float* rows, int32_t* last, int64_t size, const uint16_t* which, int count, int now,
                   const excise::AdamStep& step) {
    for (int i = 0; i < count; ++i) {
        fetch_row(rows, size, which, count, i);
        int32_t& moved = last[which[i]];
        if (moved == now || moved == 0) continue;  // 0: never touched, so it never moved
        catch_up_row(rows + which[i] * 3 * size, size, now - moved, moved, step);
        moved = now;
    }
}

inline Vec chain_sum(const excise::Hits& hits, int distinct, const float* g, int64_t size, int k,
                     const float* weights) {
    Vec sum = Vec::all(0.0f);
    for (int32_t e = hits.first[distinct]; e >= 0; e = hits.next[e]) {
        const int32_t example = k == 1 ? e : e / k;
        const Vec x = Vec::load(g + example * size);
        sum = sum + (weights ? x * Vec::all(weights[example]) : x);
    }
    return sum;
}

inline void adam_vector(float* row, int64_t size, Vec g, const excise::AdamStep& step) {
    Vec m = Vec::load(row + size), s = Vec::load(row + 2 * size);
    m = m + Vec::all(step.one_minus_beta1) * (g - m);
    s = Vec::all(step.beta2) * s + (Vec::all(step.one_minus_beta2) * g) * g;
    const Vec move = (Vec::all(step.size) * m) / (Vec::sqrt(s) * Vec::all(step.root) + Vec::all(step.epsilon));
    (Vec::load(row) - move).store(row);
    m.store(row + size);
    s.store(row + 2 * size);
}

void adam_move(float* rows, int32_t* last, int64_t size, const excise::Hits& hits, const float* g, int k,
               const float* weights, float scale, int now, const excise::AdamStep& step) {
    for (int u = 0; u < hits.distinct; ++u) {
        fetch_row(rows, size, hits.row, hits.distinct, u);
        float* row = rows + hits.row[u] * 3 * size;
        for (int64_t i = 0; i < size; i += VW)
            adam_vector(row + i, size, chain_sum(hits, u, g + i, size, k, weights) * Vec::all(scale), step);
        last[hits.row[u]] = now;
    }
}

inline Vec dense_gradient(const float* row, int64_t i, const float* sum, float l2, float scale) {
    Vec g = Vec::all(l2) * Vec::load(row + i);
    if (sum) g = Vec::load(sum + i) + g;
    return g * Vec::all(scale);
}

void adam_move_all(float* rows, int64_t size, int pairs, const int32_t* slot, const float* sums, float l2, float scale,
                   const excise::AdamStep& step) {
    for (int r = 0; r < pairs; ++r) {
        float* row = rows + r * 3 * size;
        const float* sum = slot[r] >= 0 ? sums + slot[r] * size : nullptr;
        for (int64_t i = 0; i < size; i += VW)
            adam_vector(row + i, size, dense_gradient(row, i, sum, l2, scale), step);
    }
}

void sgd_move(float* rows, int64_t size, const excise::Hits& hits, const float* g, int k, const float* weights,
              float scale, float rate) {
    for (int u = 0; u < hits.distinct; ++u) {
        float* row = rows + hits.row[u] * size;
        for (int64_t i = 0; i < size; i += VW) {
            const Vec x = chain_sum(hits, u, g + i, size, k, weights) * Vec::all(scale);
            (Vec::load(row + i) - Vec::all(rate) * x).store(row + i);
        }
    }
}

void sgd_move_all(float* rows, int64_t size, int pairs, const int32_t* slot, const float* sums, float l2, float scale,
                  float rate) {
    for (int r = 0; r < pairs; ++r) {
        float* row = rows + r * size;
        const float* sum = slot[r] >= 0 ? sums + slot[r] * size : nullptr;
        for (int64_t i = 0; i < size; i += VW)
            (Vec::load(row + i) - Vec::all(rate) * dense_gradient(row, i, sum, l2, scale)).store(row + i);
    }
}

}  // namespace
