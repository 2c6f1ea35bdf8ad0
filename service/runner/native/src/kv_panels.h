// This file turns a KV tile of the cache into panels, which rows of attention are multiplied with.
//
// keys    [KV_TILE / PANEL] panels of PANEL positions, as deep as key_dim
// values  [value_dim / PANEL] panels of PANEL dimensions, as deep as KV_TILE
//
// Panels are of the kind KindFor the cache's elements, and their depth is filled with zeros to a multiple of GRAIN. 8-bit
// codes go into panels as they are. Their rows' scales stand beside them.
#pragma once

#include "kv_cache.h"

namespace dosirak {

#if defined(__AVX512BF16__)
template <class E>  // bf16 holds 8-bit codes exactly
using KindFor = std::conditional_t<std::is_same_v<E, float>, Fp32, Bf16>;
#else
template <class E>
using KindFor = Fp32;
#endif

template <class T>
constexpr int64_t GRAIN = T::K_PACK == 1 ? 1 : 32;

constexpr int64_t AHEAD = 24;  // positions between the row that is read and the one that is prefetched

struct KVPanels {
    char *keys, *values;
    float *key_scales, *value_scales;  // [KV_TILE], of 8-bit rows; 0 for positions that are not loaded
};

// Prefetches the rows of the KV tile's positions [from, to). The processor cannot foresee them: blocks lie anywhere.
template <class E>
INLINE void fetch(const void* cache, const int64_t* cache_rows, int64_t from, int64_t to, int64_t dim) {
    for (int64_t t = from; t < to; t++) {
        const char* row = (const char*)row_at<E>(cache, cache_rows[t], dim);
        for (int64_t b = 0; b < row_bytes(KIND_OF<E>, dim); b += 64) __builtin_prefetch(row + b);
    }
}

template <class E>
INLINE void load_scales(const void* cache, const int64_t* cache_rows, int64_t low, int64_t high, int64_t dim, float* scales) {
    if constexpr (std::is_same_v<E, int8_t>) {
        std::fill_n(scales, KV_TILE, 0.0f);
        for (int64_t t = low; t < high; t++) scales[t] = load<float>(row_at<E>(cache, cache_rows[t], dim) + dim);
    }
}

#if defined(__AVX512BF16__)
// Returns `count` elements in bf16, zeros after them.
template <class E>
INLINE __m512i narrow_lanes(const E* x, int64_t count) {
    const __mmask32 some = count < 32 ? (1u << count) - 1 : ~0u;
    if constexpr (std::is_same_v<E, uint16_t>) {
        return _mm512_maskz_loadu_epi16(some, x);
    } else {
        const __m256i codes = _mm256_maskz_loadu_epi8(some, x);
        const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(codes)));
        const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(codes, 1)));
        return (__m512i)_mm512_cvtne2ps_pbh(high, low);
    }
}

// Stores column i of 16 rows of pairs at to + i * stride.
INLINE void transpose_pairs(__m512i (&r)[16], char* to, int64_t stride) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
            r[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
        }
    for (int j = 0; j < 4; j++) {  // r[4 q + j] has columns j, j + 4, j + 8, j + 12 of rows 4 q to 4 q + 3
        const __m512i even = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88), odd = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xdd);
        const __m512i even2 = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);
        const __m512i odd2 = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xdd);
        _mm512_storeu_si512(to + j * stride, _mm512_shuffle_i32x4(even, even2, 0x88));
        _mm512_storeu_si512(to + (j + 4) * stride, _mm512_shuffle_i32x4(odd, odd2, 0x88));
        _mm512_storeu_si512(to + (j + 8) * stride, _mm512_shuffle_i32x4(even, even2, 0xdd));
        _mm512_storeu_si512(to + (j + 12) * stride, _mm512_shuffle_i32x4(odd, odd2, 0xdd));
    }
}

template <class E>
void load_panels_of_keys(Bf16, const Heads& h, const int64_t* cache_rows, int64_t low, int64_t high, char* panels) {
    const int64_t dim = h.key_dim, size = panel_bytes<Bf16>(round_up(dim, GRAIN<Bf16>));
    for (int64_t t = low / 16 * 16; t < high; t += 16) {
        fetch<E>(h.keys, cache_rows, t + AHEAD, std::min(t + AHEAD + 16, high), dim);
        char* to = panels + t / PANEL * size + t % PANEL * 4;
        const E* rows[16];
        for (int64_t i = 0; i < 16; i++) rows[i] = row_at<E>(h.keys, cache_rows[std::min(t + i, high - 1)], dim);
        for (int64_t d = 0; d < dim; d += 32) {
            __m512i pairs[16];
            for (int i = 0; i < 16; i++) pairs[i] = narrow_lanes(rows[i] + d, dim - d);
            transpose_pairs(pairs, to + d / 2 * 2 * Bf16::STEP, 2 * Bf16::STEP);
        }
    }
}

template <class E>
void load_panels_of_values(Bf16, const Heads& h, const int64_t* cache_rows, int64_t low, int64_t high, char* panels) {
    const int64_t dim = h.value_dim, size = panel_bytes<Bf16>(KV_TILE);
    for (int64_t t = low / GRAIN<Bf16> * GRAIN<Bf16>; t < round_up(high, GRAIN<Bf16>); t += 2) {
        fetch<E>(h.values, cache_rows, t + AHEAD, std::min(t + AHEAD + 2, high), dim);
        const bool first = t >= low && t < high, second = t + 1 >= low && t + 1 < high;
        const E* even = row_at<E>(h.values, cache_rows[first ? t : low], dim);
        const E* odd = row_at<E>(h.values, cache_rows[second ? t + 1 : low], dim);
        for (int64_t d = 0; d < dim; d += PANEL) {
            const __m512i a = narrow_lanes(even + d, first ? dim - d : 0), b = narrow_lanes(odd + d, second ? dim - d : 0);
            const auto pairs = [](__m256i a, __m256i b) {
                return _mm512_or_si512(_mm512_cvtepu16_epi32(a), _mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16));
            };
            char* to = panels + d / PANEL * size + t / 2 * 2 * Bf16::STEP;
            _mm512_storeu_si512(to, pairs(_mm512_castsi512_si256(a), _mm512_castsi512_si256(b)));
            const __m256i a_high = _mm512_extracti64x4_epi64(a, 1), b_high = _mm512_extracti64x4_epi64(b, 1);
            _mm512_storeu_si512(to + Bf16::STEP, pairs(a_high, b_high));
        }
    }
}
#endif

template <class E>
INLINE float element(const E* x) {
    if constexpr (std::is_same_v<E, uint16_t>) return widen(*x);
    else return (float)*x;
}

template <class E>
INLINE Vf lanes_of(const E* x) {
    if constexpr (std::is_same_v<E, float>) return load<Vf>(x);
    else if constexpr (std::is_same_v<E, uint16_t>) return widen(load<Vh>(x));
    else return __builtin_convertvector(load<Vb>(x), Vf);
}

#if defined(__AVX2__)
template <class E>
INLINE __m256 eight(const E* x) {
    if constexpr (std::is_same_v<E, float>) return _mm256_loadu_ps(x);
    else if constexpr (std::is_same_v<E, int8_t>)
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)x)));
    else return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)x)), 16));
}

// to[j * stride + i] = rows[i][j] for 8 times 8.
template <class E>
INLINE void transpose(const E* const* rows, float* to, int64_t stride) {
    __m256 r[8], t[8];
    for (int i = 0; i < 8; i++) r[i] = eight(rows[i]);
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0x44);
            r[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0xee);
        }
    for (int j = 0; j < 4; j++) {
        _mm256_storeu_ps(to + j * stride, _mm256_permute2f128_ps(r[j], r[j + 4], 0x20));
        _mm256_storeu_ps(to + (j + 4) * stride, _mm256_permute2f128_ps(r[j], r[j + 4], 0x31));
    }
}
#else
template <class E>
INLINE void transpose(const E* const* rows, float* to, int64_t stride) {
    for (int j = 0; j < 8; j++)
        for (int i = 0; i < 8; i++) to[j * stride + i] = element(rows[i] + j);
}
#endif

template <class E>
void load_panels_of_keys(Fp32, const Heads& h, const int64_t* cache_rows, int64_t low, int64_t high, char* panels) {
    const int64_t dim = h.key_dim;
    for (int64_t t = low / 8 * 8; t < high; t += 8) {
        fetch<E>(h.keys, cache_rows, t + AHEAD, std::min(t + AHEAD + 8, high), dim);
        const E* rows[8];
        for (int64_t i = 0; i < 8; i++) rows[i] = row_at<E>(h.keys, cache_rows[std::min(t + i, high - 1)], dim);
        float* at = (float*)panels + t / PANEL * PANEL * dim + t % PANEL;
        int64_t d = 0;
        for (; d + 8 <= dim; d += 8) {
            transpose(rows, at + d * PANEL, PANEL);
            for (auto& row : rows) row += 8;
        }
        for (int64_t rest = 0; d < dim; d++, rest++)
            for (int64_t i = 0; i < 8; i++) at[d * PANEL + i] = element(rows[i] + rest);
    }
}

template <class E>
void load_panels_of_values(Fp32, const Heads& h, const int64_t* cache_rows, int64_t low, int64_t high, char* panels) {
    const int64_t dim = h.value_dim;
    for (int64_t t = low; t < high; t++) {
        fetch<E>(h.values, cache_rows, t + AHEAD, std::min(t + AHEAD + 1, high), dim);
        const E* row = row_at<E>(h.values, cache_rows[t], dim);
        float* at = (float*)panels + t * PANEL;
        int64_t d = 0;
        for (; d + PANEL <= dim; d += PANEL, at += KV_TILE * PANEL) {
            store(at, lanes_of(row + d));
            store(at + LANES, lanes_of(row + d + LANES));
        }
        if (d < dim)
            for (int64_t i = 0; i < PANEL; i++) at[i] = d + i < dim ? element(row + d + i) : 0.0f;
    }
}

// Loads the keys of the KV tile's positions [low, high), and the scales of the values.
template <class E>
void load_keys(const Heads& h, const int64_t* cache_rows, int64_t low, int64_t high, const KVPanels& to) {
    fetch<E>(h.keys, cache_rows, low, std::min(low + AHEAD, high), h.key_dim);
    load_panels_of_keys<E>(KindFor<E>(), h, cache_rows, low, high, to.keys);
    load_scales<E>(h.keys, cache_rows, low, high, h.key_dim, to.key_scales);
    load_scales<E>(h.values, cache_rows, low, high, h.value_dim, to.value_scales);
    fetch<E>(h.values, cache_rows, low, std::min(low + AHEAD, high), h.value_dim);
}

template <class E>
void load_values(const Heads& h, const int64_t* cache_rows, int64_t low, int64_t high, const KVPanels& to) {
    load_panels_of_values<E>(KindFor<E>(), h, cache_rows, low, high, to.values);
}

}  // namespace dosirak
