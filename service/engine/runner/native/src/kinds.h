// Each kind of weights is multiplied by this instruction set's own instructions. A kind says how a vector of weights is
// loaded, how an input is spread over it, and how a sum grows.
//
// A kind packs K_PACK neighbours in depth (k) side by side, STEP bytes of them per vector. ROWS rows share each load.
#pragma once

#include <algorithm>

#include "simd.h"

namespace dosirak {

enum Kind : int64_t { FP32 = 0, BF16 = 1, INT8 = 2, INT8_WEIGHT = 3, INT4 = 4, BLOCKS = 5 };

// Where a processor multiplies fp32 only, narrow weights are widened: in registers for few rows, and for more than
// MOST_WIDENED_IN_REGISTERS a slab of a panel at a time, once for all rows.
constexpr bool HAS_32_REGISTERS = LANES == 16;  // for 12 rows beside the weights, so that bf16 needs no slab

struct Fp32 {
    using Input = float;
    using Sum = Vf;
    using Weight = Vf;
    using Spread = Vf;
    static constexpr int K_PACK = 1, STEP = LANES * 4, ROWS = REGISTER_TILE_ROWS;
    static INLINE Weight weight(const char* w) { return load<Vf>(w); }
    static INLINE Spread spread(const Input* a) { return splat(*a); }
    static INLINE Sum dot(Sum sum, Spread a, Weight w) { return fma(a, w, sum); }
};

struct WidenedBf16 {
    struct Pair {
        Vf even, odd;
    };
    using Input = float;
    using Sum = Vf;
    using Weight = Pair;
    using Spread = Pair;
    static constexpr int K_PACK = 2, STEP = LANES * 4, ROWS = HAS_32_REGISTERS ? REGISTER_TILE_ROWS : 4;
    static constexpr int64_t MOST_WIDENED_IN_REGISTERS = HAS_32_REGISTERS ? INT64_MAX : 20;
    static INLINE Weight weight(const char* w) {
        const Vu both = load<Vu>(w);
        return {(Vf)(both << 16), (Vf)(both & 0xffff0000u)};
    }
    static INLINE Spread spread(const Input* a) { return {splat(a[0]), splat(a[1])}; }
    static INLINE Sum dot(Sum sum, Spread a, Weight w) { return fma(a.odd, w.odd, fma(a.even, w.even, sum)); }
    static INLINE void widen(const Weight& w, float* to) {
        store(to, w.even);
        store(to + PANEL, w.odd);
    }
};

#if defined(__AVX512BF16__)
struct Bf16 {
    using Input = uint16_t;
    using Sum = Vf;
    using Weight = __m512i;
    using Spread = __m512i;
    static constexpr int K_PACK = 2, STEP = 64, ROWS = REGISTER_TILE_ROWS;
    static INLINE Weight weight(const char* w) { return _mm512_loadu_si512(w); }
    static INLINE Spread spread(const Input* a) { return _mm512_set1_epi32(load<int32_t>(a)); }
    static INLINE Sum dot(Sum sum, Spread a, Weight w) {
        return (Vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)w);
    }
};
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
struct Bf16 {
    using Input = uint16_t;
    using Sum = Vf;
    using Weight = bfloat16x8_t;
    using Spread = bfloat16x8_t;
    static constexpr int K_PACK = 2, STEP = 16, ROWS = REGISTER_TILE_ROWS;
    static INLINE Weight weight(const char* w) { return load<bfloat16x8_t>(w); }
    static INLINE Spread spread(const Input* a) { return (bfloat16x8_t)vdupq_n_s32(load<int32_t>(a)); }
    static INLINE Sum dot(Sum sum, Spread a, Weight w) { return (Vf)vbfdotq_f32((float32x4_t)sum, a, w); }
};
#else
using Bf16 = WidenedBf16;
#endif

struct Int8Weight {
    struct Four {
        Vf of[4];
    };
    using Input = float;
    using Sum = Vf;
    using Weight = Four;
    using Spread = Four;
    static constexpr int K_PACK = 4, STEP = LANES * 4, ROWS = HAS_32_REGISTERS ? 8 : 4;
    static constexpr int64_t MOST_WIDENED_IN_REGISTERS = HAS_32_REGISTERS ? INT64_MAX : 12;
    static INLINE Weight weight(const char* w) {
        const Vi all = load<Vi>(w);
        return {{__builtin_convertvector((all << 24) >> 24, Vf), __builtin_convertvector((all << 16) >> 24, Vf),
                 __builtin_convertvector((all << 8) >> 24, Vf), __builtin_convertvector(all >> 24, Vf)}};
    }
    static INLINE Spread spread(const Input* a) { return {{splat(a[0]), splat(a[1]), splat(a[2]), splat(a[3])}}; }
    static INLINE Sum dot(Sum sum, const Spread& a, const Weight& w) {
        for (int k = 0; k < 4; k++) sum = fma(a.of[k], w.of[k], sum);
        return sum;
    }
    static INLINE void widen(const Weight& w, float* to) {
        for (int k = 0; k < 4; k++) store(to + k * PANEL, w.of[k]);
    }
};

#if defined(__AVX512VNNI__)
struct Int8 {
    using Input = uint8_t;
    using Sum = Vi;
    using Weight = __m512i;
    using Spread = __m512i;
    static constexpr int K_PACK = 4, STEP = 64, ROWS = REGISTER_TILE_ROWS, REACH = 127, ZERO = REACH + 1;
    static INLINE Weight weight(const char* w) { return _mm512_loadu_si512(w); }
    static INLINE Spread spread(const Input* a) { return _mm512_set1_epi32(load<int32_t>(a)); }
    static INLINE Sum dot(Sum sum, Spread a, Weight w) { return (Vi)_mm512_dpbusd_epi32((__m512i)sum, a, w); }
};
#elif defined(__AVX2__)
// Pairs of products are added in 16 bits here and must not saturate. 2 * 127 * 127 fits, so activations have 7 bits.
// All 8 bits, widened to 16 (vpmovsxbw, vpmaddwd), would take four instructions instead of three.
struct Int8 {
    using Input = uint8_t;
    using Sum = Vi;
    using Weight = __m256i;
    using Spread = __m256i;
    static constexpr int K_PACK = 4, STEP = 32, ROWS = REGISTER_TILE_ROWS, REACH = 63, ZERO = REACH + 1;
    static INLINE Weight weight(const char* w) { return _mm256_loadu_si256((const __m256i*)w); }
    static INLINE Spread spread(const Input* a) { return _mm256_set1_epi32(load<int32_t>(a)); }
    static INLINE Sum dot(Sum sum, Spread a, Weight w) {
        return sum + (Vi)_mm256_madd_epi16(_mm256_maddubs_epi16(a, w), _mm256_set1_epi16(1));
    }
};
#elif defined(__ARM_FEATURE_DOTPROD)
struct Int8 {
    using Input = int8_t;
    using Sum = Vi;
    using Weight = int8x16_t;
    using Spread = int8x16_t;
    static constexpr int K_PACK = 4, STEP = 16, ROWS = REGISTER_TILE_ROWS, REACH = 127, ZERO = 0;
    static INLINE Weight weight(const char* w) { return load<int8x16_t>(w); }
    static INLINE Spread spread(const Input* a) { return (int8x16_t)vdupq_n_s32(load<int32_t>(a)); }
    static INLINE Sum dot(Sum sum, Spread a, Weight w) { return (Vi)vdotq_s32((int32x4_t)sum, a, w); }
};
#else
struct Int8 {
    typedef int16_t Vs __attribute__((vector_size(LANES * 4)));
    typedef int8_t Vb __attribute__((vector_size(LANES * 2)));
    struct Pair {
        Vi even, odd;
    };
    using Input = int16_t;
    using Sum = Vi;
    using Weight = Pair;
    using Spread = Pair;
    static constexpr int K_PACK = 2, STEP = LANES * 2, ROWS = REGISTER_TILE_ROWS, REACH = 127, ZERO = 0;
    static INLINE Weight weight(const char* w) {
        const Vi both = (Vi)__builtin_convertvector(load<Vb>(w), Vs);
        return {(both << 16) >> 16, both >> 16};
    }
    static INLINE Spread spread(const Input* a) { return {a[0] - Vi{}, a[1] - Vi{}}; }
    static INLINE Sum dot(Sum sum, Spread a, Weight w) { return sum + a.even * w.even + a.odd * w.odd; }
};
#endif

template <class T>
constexpr int64_t k_packs(int64_t depth) {
    return (depth + T::K_PACK - 1) / T::K_PACK;
}

template <class T>
constexpr int64_t panel_bytes(int64_t depth) {
    return k_packs<T>(depth) * 2 * T::STEP;
}

}  // namespace dosirak
