// A vector of floats for the instruction set that this file is compiled for; a fused multiply-add rounds once.
#pragma once
#include <cmath>
#include <cstdint>

#if defined(EXCISE_AVX512) || defined(EXCISE_AVX2)
#include <immintrin.h>
#elif defined(EXCISE_NEON)
#include <arm_neon.h>
#endif

namespace {

// For instruction sets that cannot compress a vector.
template <class V>
inline void keep_lanes(uint32_t chosen, V x, float* to) {
    float lane[V::width];
    x.store(lane);
    for (; chosen; chosen &= chosen - 1) *to++ = lane[__builtin_ctz(chosen)];
}

#if defined(EXCISE_AVX512)

struct Vec {
    static constexpr int width = 16, query_tile = 4, key_tile = 4, project_tile = 8;
    using Int = __m512i;
    using Mask = __mmask16;
    __m512 v;
    static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
    static Vec load(const float* p, int n) { return {_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p)}; }
    static Vec all(float x) { return {_mm512_set1_ps(x)}; }
    void store(float* p) const { _mm512_storeu_ps(p, v); }
    void store(float* p, int n) const { _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), v); }
    static Int load_int(const int32_t* p) { return _mm512_loadu_si512(p); }
    static void store_int(int32_t* p, Int x) { _mm512_storeu_si512(p, x); }
    static Int all_int(int32_t x) { return _mm512_set1_epi32(x); }
    static Int choose(Mask m, Int yes, Int no) { return _mm512_mask_mov_epi32(no, m, yes); }
    static Int next(Int x) { return _mm512_add_epi32(x, _mm512_set1_epi32(1)); }
    friend Mask operator<(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ); }
    friend Mask operator<=(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ); }
    friend Mask operator==(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ); }
    static uint32_t bits(Mask m) { return m; }
    friend Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
    friend Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
    friend Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
    friend Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
    static Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
    static Vec sqrt(Vec a) { return {_mm512_sqrt_ps(a.v)}; }
    static Vec fused(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }          // a*b + c
    static Vec fused_negative(Vec a, Vec b, Vec c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }  // c - a*b
    float least() const { return _mm512_reduce_min_ps(v); }
    // Writes the chosen lanes side by side; may write a whole vector.
    static void keep(Mask m, Vec x, float* to) { _mm512_storeu_ps(to, _mm512_maskz_compress_ps(m, x.v)); }
    // The same, and their keys; returns how many.
    static int keep(Mask m, Vec x, int32_t first, float* scores, int32_t* ids) {
        const Int lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        keep(m, x, scores);
        _mm512_storeu_si512(ids, _mm512_maskz_compress_epi32(m, _mm512_add_epi32(lanes, _mm512_set1_epi32(first))));
        return __builtin_popcount(m);
    }
};

#elif defined(EXCISE_AVX2)

struct Vec {
    static constexpr int width = 8, query_tile = 3, key_tile = 4, project_tile = 6;
    using Int = __m256i;
    using Mask = __m256;
    __m256 v;
    static __m256i lanes(int n) {
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    }
    static Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
    static Vec load(const float* p, int n) { return {_mm256_maskload_ps(p, lanes(n))}; }
    static Vec all(float x) { return {_mm256_set1_ps(x)}; }
    void store(float* p) const { _mm256_storeu_ps(p, v); }
    void store(float* p, int n) const { _mm256_maskstore_ps(p, lanes(n), v); }
    static Int load_int(const int32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
    static void store_int(int32_t* p, Int x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
    static Int all_int(int32_t x) { return _mm256_set1_epi32(x); }
    static Int choose(Mask m, Int yes, Int no) {
        return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(no), _mm256_castsi256_ps(yes), m));
    }
    friend Mask operator<(Vec a, Vec b) { return _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ); }
    friend Mask operator<=(Vec a, Vec b) { return _mm256_cmp_ps(a.v, b.v, _CMP_LE_OQ); }
    friend Mask operator==(Vec a, Vec b) { return _mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ); }
    static uint32_t bits(Mask m) { return static_cast<uint32_t>(_mm256_movemask_ps(m)); }
    friend Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
    friend Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
    friend Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
    friend Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
    static Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
    static Vec sqrt(Vec a) { return {_mm256_sqrt_ps(a.v)}; }
    static Vec fused(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
    static Vec fused_negative(Vec a, Vec b, Vec c) { return {_mm256_fnmadd_ps(a.v, b.v, c.v)}; }
    float least() const {
        __m128 x = _mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        x = _mm_min_ps(x, _mm_movehl_ps(x, x));
        return _mm_cvtss_f32(_mm_min_ss(x, _mm_shuffle_ps(x, x, 1)));
    }
    static void keep(Mask m, Vec x, float* to) { keep_lanes(bits(m), x, to); }
    static int keep(Mask m, Vec x, int32_t first, float* scores, int32_t* ids) {
        keep(m, x, scores);
        int count = 0;
        for (uint32_t b = bits(m); b; b &= b - 1) ids[count++] = first + __builtin_ctz(b);
        return count;
    }
};

#elif defined(EXCISE_NEON)

struct Vec {
    static constexpr int width = 4, query_tile = 4, key_tile = 4, project_tile = 8;
    using Int = int32x4_t;
    using Mask = uint32x4_t;
    float32x4_t v;
    static Vec load(const float* p) { return {vld1q_f32(p)}; }
    static Vec load(const float* p, int n) {
        float x[4] = {0, 0, 0, 0};
        for (int i = 0; i < n; ++i) x[i] = p[i];
        return {vld1q_f32(x)};
    }
    static Vec all(float x) { return {vdupq_n_f32(x)}; }
    void store(float* p) const { vst1q_f32(p, v); }
    void store(float* p, int n) const {
        float x[4];
        vst1q_f32(x, v);
        for (int i = 0; i < n; ++i) p[i] = x[i];
    }
    static Int load_int(const int32_t* p) { return vld1q_s32(p); }
    static void store_int(int32_t* p, Int x) { vst1q_s32(p, x); }
    static Int all_int(int32_t x) { return vdupq_n_s32(x); }
    static Int choose(Mask m, Int yes, Int no) { return vbslq_s32(m, yes, no); }
    friend Mask operator<(Vec a, Vec b) { return vcltq_f32(a.v, b.v); }
    friend Mask operator<=(Vec a, Vec b) { return vcleq_f32(a.v, b.v); }
    friend Mask operator==(Vec a, Vec b) { return vceqq_f32(a.v, b.v); }
    static uint32_t bits(Mask m) {
        const uint32_t lane[4] = {1, 2, 4, 8};
        return vaddvq_u32(vandq_u32(m, vld1q_u32(lane)));
    }
    friend Vec operator+(Vec a, Vec b) { return {vaddq_f32(a.v, b.v)}; }
    friend Vec operator-(Vec a, Vec b) { return {vsubq_f32(a.v, b.v)}; }
    friend Vec operator*(Vec a, Vec b) { return {vmulq_f32(a.v, b.v)}; }
    friend Vec operator/(Vec a, Vec b) { return {vdivq_f32(a.v, b.v)}; }
    static Vec min(Vec a, Vec b) { return {vbslq_f32(vcltq_f32(a.v, b.v), a.v, b.v)}; }
    static Vec sqrt(Vec a) { return {vsqrtq_f32(a.v)}; }
    static Vec fused(Vec a, Vec b, Vec c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
    static Vec fused_negative(Vec a, Vec b, Vec c) { return {vfmsq_f32(c.v, a.v, b.v)}; }
    float least() const { return vminvq_f32(v); }
    static void keep(Mask m, Vec x, float* to) { keep_lanes(bits(m), x, to); }
    static int keep(Mask m, Vec x, int32_t first, float* scores, int32_t* ids) {
        keep(m, x, scores);
        int count = 0;
        for (uint32_t b = bits(m); b; b &= b - 1) ids[count++] = first + __builtin_ctz(b);
        return count;
    }
};

#else  // plain C++: four lanes in an array; a product of two floats is exact in a double

struct Vec {
    static constexpr int width = 4, query_tile = 2, key_tile = 4, project_tile = 4;
    struct Int { int32_t x[4]; };
    struct Mask { bool x[4]; };
    float v[4];
    template <class F> static Vec each(F f) { return {{f(0), f(1), f(2), f(3)}}; }
    static Vec load(const float* p) { return each([&](int i) { return p[i]; }); }
    static Vec load(const float* p, int n) { return each([&](int i) { return i < n ? p[i] : 0.0f; }); }
    static Vec all(float x) { return {{x, x, x, x}}; }
    void store(float* p) const { store(p, 4); }
    void store(float* p, int n) const { for (int i = 0; i < n; ++i) p[i] = v[i]; }
    static Int load_int(const int32_t* p) { return {{p[0], p[1], p[2], p[3]}}; }
    static void store_int(int32_t* p, Int a) { for (int i = 0; i < 4; ++i) p[i] = a.x[i]; }
    static Int all_int(int32_t x) { return {{x, x, x, x}}; }
    static Int choose(Mask m, Int yes, Int no) {
        for (int i = 0; i < 4; ++i) if (m.x[i]) no.x[i] = yes.x[i];
        return no;
    }
    template <class F> static Mask compare(F f) { return {{f(0), f(1), f(2), f(3)}}; }
    friend Mask operator<(Vec a, Vec b) { return compare([&](int i) { return a.v[i] < b.v[i]; }); }
    friend Mask operator<=(Vec a, Vec b) { return compare([&](int i) { return a.v[i] <= b.v[i]; }); }
    friend Mask operator==(Vec a, Vec b) { return compare([&](int i) { return a.v[i] == b.v[i]; }); }
    static uint32_t bits(Mask m) {
        uint32_t b = 0;
        for (int i = 0; i < 4; ++i) b |= static_cast<uint32_t>(m.x[i]) << i;
        return b;
    }
    friend Vec operator+(Vec a, Vec b) { return each([&](int i) { return a.v[i] + b.v[i]; }); }
    friend Vec operator-(Vec a, Vec b) { return each([&](int i) { return a.v[i] - b.v[i]; }); }
    friend Vec operator*(Vec a, Vec b) { return each([&](int i) { return a.v[i] * b.v[i]; }); }
    friend Vec operator/(Vec a, Vec b) { return each([&](int i) { return a.v[i] / b.v[i]; }); }
    static Vec min(Vec a, Vec b) { return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
    static Vec sqrt(Vec a) { return each([&](int i) { return std::sqrt(a.v[i]); }); }
    static Vec fused(Vec a, Vec b, Vec c) {
        return each([&](int i) { return static_cast<float>(static_cast<double>(a.v[i]) * b.v[i] + c.v[i]); });
    }
    static Vec fused_negative(Vec a, Vec b, Vec c) {
        return each([&](int i) { return static_cast<float>(c.v[i] - static_cast<double>(a.v[i]) * b.v[i]); });
    }
    float least() const {
        float x = v[0];
        for (int i = 1; i < 4; ++i) x = v[i] < x ? v[i] : x;
        return x;
    }
    static void keep(Mask m, Vec x, float* to) { keep_lanes(bits(m), x, to); }
    static int keep(Mask m, Vec x, int32_t first, float* scores, int32_t* ids) {
        keep(m, x, scores);
        int count = 0;
        for (uint32_t b = bits(m); b; b &= b - 1) ids[count++] = first + __builtin_ctz(b);
        return count;
    }
};

#endif

}  // namespace
