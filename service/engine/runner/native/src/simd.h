// This file gives vectors of one instruction set. Every source file is compiled once for each set (see build.py). So
// the load of a library makes the choice, and the same few names mean AVX-512, AVX2, NEON or the compiler's own vectors.
//
// Sums are fused multiply-adds in a fixed order, and nothing else contracts (-ffp-contract=off). So a result depends on
// its own operands and never on the caller's number of rows.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define INLINE inline __attribute__((always_inline))

namespace dosirak {

#if defined(__AVX512F__)
constexpr int LANES = 16;
constexpr int REGISTER_TILE_ROWS = 12;
#elif defined(__ARM_NEON)
constexpr int LANES = 4;
constexpr int REGISTER_TILE_ROWS = 12;
#else
constexpr int LANES = 8;
constexpr int REGISTER_TILE_ROWS = 6;
#endif
constexpr int PANEL = 2 * LANES;  // columns of packed weights that lie side by side

typedef float Vf __attribute__((vector_size(LANES * 4)));
typedef int32_t Vi __attribute__((vector_size(LANES * 4)));
typedef uint32_t Vu __attribute__((vector_size(LANES * 4)));
typedef uint16_t Vh __attribute__((vector_size(LANES * 2)));
typedef int8_t Vb __attribute__((vector_size(LANES)));

template <class V>
INLINE V load(const void* from) {
    V value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <class V>
INLINE void store(void* to, V value) {
    std::memcpy(to, &value, sizeof value);
}

INLINE Vf splat(float x) { return x - Vf{}; }

INLINE Vf fma(Vf a, Vf b, Vf c) {
#if defined(__AVX512F__)
    return (Vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (Vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON)
    return (Vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

INLINE Vf larger(Vf a, Vf b) {  // b if one is NaN
#if defined(__AVX512F__)
    return (Vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (Vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return a > b ? a : b;
#endif
}
INLINE Vf magnitude(Vf x) { return (Vf)((Vu)x & 0x7fffffffu); }

// Sum and maximum over lanes, in one order: halves are joined until one lane is left.
#if defined(__AVX512F__)
template <class F>
INLINE float joined(Vf x, F&& join) {
    const __m512 all = (__m512)x;
    const __m512 two = (__m512)join(x, (Vf)_mm512_shuffle_f32x4(all, all, 0x4e));
    const __m512 one = (__m512)join((Vf)two, (Vf)_mm512_shuffle_f32x4(two, two, 0xb1));
    const __m512 half = (__m512)join((Vf)one, (Vf)_mm512_permute_ps(one, 0x4e));
    return join((Vf)half, (Vf)_mm512_permute_ps(half, 0xb1))[0];
}

INLINE float sum(Vf x) { return joined(x, [](Vf a, Vf b) { return a + b; }); }
INLINE float largest(Vf x) { return joined(x, [](Vf a, Vf b) { return larger(a, b); }); }
#else
INLINE float sum(Vf x) {
    float lane[LANES];
    store(lane, x);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) lane[i] += lane[i + width];
    return lane[0];
}

INLINE float largest(Vf x) {
    float lane[LANES];
    store(lane, x);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) lane[i] = lane[i] > lane[i + width] ? lane[i] : lane[i + width];
    return lane[0];
}
#endif

// The nearest integer, ties to even, for magnitudes under 2^22.
INLINE Vf nearest(Vf x) {
#if defined(__AVX512F__)
    return (Vf)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    const float shift = 12582912.0f;
    return (x + shift) - shift;
#endif
}

INLINE Vf widen(Vh bf16) {
#if defined(__AVX512F__)  // GCC would convert halves and join them
    return (Vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)bf16), 16);
#elif defined(__AVX2__)
    return (Vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)bf16), 16);
#else
    return (Vf)(__builtin_convertvector(bf16, Vu) << 16);
#endif
}

INLINE Vf widen(Vb codes) {
#if defined(__AVX512F__)
    return (Vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)codes));
#elif defined(__AVX2__)
    return (Vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(load<int64_t>(&codes))));
#else
    return __builtin_convertvector(codes, Vf);
#endif
}

// bf16, ties to even. Not for NaN.
INLINE Vh narrow(Vf x) {
    const Vu bits = (Vu)x;
    return __builtin_convertvector((bits + (0x7fffu + ((bits >> 16) & 1u))) >> 16, Vh);
}

INLINE float widen(uint16_t bf16) {
    const uint32_t bits = (uint32_t)bf16 << 16;
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

INLINE uint16_t narrow(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if (x != x) return 0x7fc0;
    return (uint16_t)((bits + (0x7fffu + ((bits >> 16) & 1u))) >> 16);
}

// e^x to 2 units in the last place for x <= 88; exactly 0 below -87.3 (Cephes' expf polynomial).
INLINE Vf exponential(Vf x) {
    const Vf n = nearest(x * 1.44269504088896341f);
    Vf r = fma(n, splat(-0.693359375f), x);
    r = fma(n, splat(2.12194440e-4f), r);
    Vf p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = fma(p, r * r, r) + 1.0f;
#if defined(__AVX512F__)
    const __mmask16 counts = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.3f), _CMP_NLT_UQ);
    return (Vf)_mm512_maskz_scalef_ps(counts, (__m512)p, (__m512)n);
#else
    const Vi power = (__builtin_convertvector(n, Vi) + 127) << 23;
    return x < -87.3f ? Vf{} : p * (Vf)power;
#endif
}

INLINE Vf clamp(Vf x, float low, float high) {
    x = x < low ? splat(low) : x;
    return x > high ? splat(high) : x;
}

// 1 / x to one unit in the last place, for normal results.
INLINE Vf reciprocal(Vf x) {
#if defined(__AVX512F__)  // a division of 16 lanes takes as long as 16 other operations; one step of Newton's method takes 3
    const Vf near = (Vf)_mm512_rcp14_ps((__m512)x);
    return fma(near, fma(-x, near, splat(1.0f)), near);
#else
    return 1.0f / x;
#endif
}

INLINE Vf sigmoid(Vf x) { return reciprocal(1.0f + exponential(clamp(-x, -87.0f, 87.0f))); }
INLINE Vf tangent(Vf x) { return 2.0f * sigmoid(2.0f * x) - 1.0f; }

// The distribution function of the normal distribution, (1 + erf(x / sqrt 2)) / 2, to 1e-7 (Abramowitz and Stegun,
// 7.1.26).
INLINE Vf normal(Vf x) {
    const Vf z = magnitude(x) * 0.70710678118654752f, t = 1.0f / (1.0f + 0.3275911f * z);
    Vf p = splat(1.061405429f);
    p = fma(p, t, splat(-1.453152027f));
    p = fma(p, t, splat(1.421413741f));
    p = fma(p, t, splat(-0.284496736f));
    p = fma(p, t, splat(0.254829592f));
    const Vf tail = 0.5f * t * p * exponential(clamp(-z * z, -87.0f, 0.0f));
    return x < 0.0f ? tail : 1.0f - tail;
}

}  // namespace dosirak
