// This file turns a KV tile of the cache into panels, which rows of attention are multiplied with.
//
// keys    [KV_TILE / PANEL] panels of PANEL positions, as deep as key_dim
// values  [value_dim / PANEL] panels of PANEL dimensions, as deep as KV_TILE
//
// Keys are turned as the cache holds them, 32 bits of a position at a time: panels of StoredKind. Few rows widen them in
// registers. For many rows they are widened once, to panels of KindFor. Values lie in the cache as they are wanted, so few
// rows are multiplied with them there. Each way adds the same products in the same order: a row has the same bits.
//
// With bf16 dot products, keys and values go into panels of bf16 for any number of rows. 8-bit codes go into panels as
// they are. Their rows' scales stand beside them.
#pragma once

#include "kv_cache.h"

namespace dosirak {

#if defined(__AVX512BF16__)
template <class E>  // bf16 holds 8-bit codes exactly
using KindFor = std::conditional_t<std::is_same_v<E, float>, Fp32, Bf16>;
template <class E>
using StoredKind = KindFor<E>;
#else
template <class E>
using KindFor = Fp32;
template <class E>
using StoredKind =
    std::conditional_t<std::is_same_v<E, float>, Fp32, std::conditional_t<std::is_same_v<E, uint16_t>, WidenedBf16, Int8Weight>>;
#endif

template <class E>
constexpr bool WIDENS = !std::is_same_v<StoredKind<E>, KindFor<E>>;

template <class T>
constexpr int64_t GRAIN = T::K_PACK == 1 ? 1 : 32;  // positions
template <class E>
constexpr int64_t DEEP_GRAIN = std::max<int64_t>(GRAIN<KindFor<E>>, StoredKind<E>::K_PACK);  // dimensions of keys

constexpr int64_t AHEAD = 24;  // positions between the row that is read and the one that is prefetched

struct KVPanels {
    char *stored, *keys, *values;  // keys as stored, and widened
    float *key_scales, *value_scales;  // [KV_TILE], of 8-bit rows; 0 for positions that are not loaded
};

// The rows of the cache that hold the positions [low, high) of a KV tile.
struct CacheRows {
    int64_t low = 0, high = 0;
    int64_t of[KV_TILE];

    // Prefetches one position's row into the second-level cache.
    template <class E>
    INLINE void prefetch(const void* cache, int64_t t, int64_t dim) const {
        if (t < low || t >= high) return;
        const char* row = (const char*)row_at<E>(cache, of[t], dim);
        for (int64_t b = 0; b < row_bytes(KIND_OF<E>, dim); b += 64) __builtin_prefetch(row + b, 0, 2);
    }
};

// Prefetches the rows of the positions [from, to). The processor cannot foresee them: blocks lie anywhere.
template <class E>
INLINE void fetch(const void* cache, const CacheRows& at, int64_t from, int64_t to, int64_t dim) {
    for (int64_t t = from; t < to; t++) at.prefetch<E>(cache, t, dim);
}

template <class E>
INLINE void load_scales(const void* cache, const CacheRows& at, int64_t dim, float* scales) {
    if constexpr (std::is_same_v<E, int8_t>) {
        std::fill_n(scales, KV_TILE, 0.0f);
        for (int64_t t = at.low; t < at.high; t++) scales[t] = load<float>(row_at<E>(cache, at.of[t], dim) + dim);
    }
}

// Reads LANES columns of 32 bits, from byte b on, of LANES rows. Stores column i at to + i * stride.
#if defined(__AVX512F__)
INLINE void transpose(__m512i (&r)[16], char* to, int64_t stride) {
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

INLINE void transpose(const char* const (&rows)[LANES], int64_t b, char* to, int64_t stride) {
    __m512i r[16];
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(rows[i] + b);
    transpose(r, to, stride);
}
#elif defined(__AVX2__)
INLINE void transpose(const char* const (&rows)[LANES], int64_t b, char* to, int64_t stride) {
    __m256 r[8], t[8];
    for (int i = 0; i < 8; i++) r[i] = load<__m256>(rows[i] + b);
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
        store(to + j * stride, _mm256_permute2f128_ps(r[j], r[j + 4], 0x20));
        store(to + (j + 4) * stride, _mm256_permute2f128_ps(r[j], r[j + 4], 0x31));
    }
}
#else
INLINE void transpose(const char* const (&rows)[LANES], int64_t b, char* to, int64_t stride) {
    for (int j = 0; j < LANES; j++)
        for (int i = 0; i < LANES; i++) std::memcpy(to + j * stride + 4 * i, rows[i] + b + 4 * j, 4);
}
#endif

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

template <class E>
void load_panels_of_keys(Bf16, const Heads& h, const CacheRows& at, char* panels) {
    const int64_t dim = h.key_dim, size = panel_bytes<Bf16>(round_up(dim, GRAIN<Bf16>));
    for (int64_t t = at.low / 16 * 16; t < at.high; t += 16) {
        fetch<E>(h.keys, at, t + AHEAD, t + AHEAD + 16, dim);
        char* to = panels + t / PANEL * size + t % PANEL * 4;
        const E* rows[16];
        for (int64_t i = 0; i < 16; i++) rows[i] = row_at<E>(h.keys, at.of[std::min(t + i, at.high - 1)], dim);
        for (int64_t d = 0; d < dim; d += 32) {
            __m512i pairs[16];
            for (int i = 0; i < 16; i++) pairs[i] = narrow_lanes(rows[i] + d, dim - d);
            transpose(pairs, to + d / 2 * 2 * Bf16::STEP, 2 * Bf16::STEP);
        }
    }
}

template <class E>
void load_panels_of_values(Bf16, const Heads& h, const CacheRows& at, char* panels) {
    const int64_t dim = h.value_dim, size = panel_bytes<Bf16>(KV_TILE);
    for (int64_t t = at.low / GRAIN<Bf16> * GRAIN<Bf16>; t < round_up(at.high, GRAIN<Bf16>); t += 2) {
        fetch<E>(h.values, at, t + AHEAD, t + AHEAD + 2, dim);
        const bool first = t >= at.low && t < at.high, second = t + 1 >= at.low && t + 1 < at.high;
        const E* even = row_at<E>(h.values, at.of[first ? t : at.low], dim);
        const E* odd = row_at<E>(h.values, at.of[second ? t + 1 : at.low], dim);
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
    else return widen(load<Vb>(x));
}

// Turns keys as the cache holds them.
template <class E>
void load_panels_of_keys(Fp32, const Heads& h, const CacheRows& at, char* panels) {
    const int64_t dim = h.key_dim, bytes = dim * sizeof(E), size = panel_bytes<StoredKind<E>>(dim);
    for (int64_t t = at.low / LANES * LANES; t < at.high; t += LANES) {
        fetch<E>(h.keys, at, t + AHEAD, t + AHEAD + LANES, dim);
        const char* rows[LANES];
        for (int64_t i = 0; i < LANES; i++)
            rows[i] = (const char*)row_at<E>(h.keys, at.of[std::min(t + i, at.high - 1)], dim);
        char* to = panels + t / PANEL * size + t % PANEL * 4;
        int64_t b = 0;
        for (; b + 4 * LANES <= bytes; b += 4 * LANES) transpose(rows, b, to + b * PANEL, 4 * PANEL);
        for (; b < bytes; b += 4)
            for (int64_t i = 0; i < LANES; i++) {
                uint32_t pack = 0;
                std::memcpy(&pack, rows[i] + b, std::min<int64_t>(4, bytes - b));
                store(to + b * PANEL + i * 4, pack);
            }
    }
}

// Widens the keys, once for many rows.
template <class E>
void widen_keys(const Heads& h, const CacheRows& at, const KVPanels& panels) {
    using T = StoredKind<E>;
    const int64_t packs = k_packs<T>(h.key_dim);
    for (int64_t p = at.low / PANEL; p * PANEL < at.high; p++)
        widen_packs<T>(panels.stored + p * packs * 2 * T::STEP, packs, (float*)panels.keys + p * packs * T::K_PACK * PANEL);
}

template <class E>
void load_panels_of_values(Fp32, const Heads& h, const CacheRows& at, char* panels) {
    const int64_t dim = h.value_dim;
    for (int64_t t = at.low; t < at.high; t++) {
        fetch<E>(h.values, at, t + AHEAD, t + AHEAD + 1, dim);
        const E* row = row_at<E>(h.values, at.of[t], dim);
        float* to = (float*)panels + t * PANEL;
        int64_t d = 0;
        for (; d + PANEL <= dim; d += PANEL, to += KV_TILE * PANEL) {
            store(to, lanes_of(row + d));
            store(to + LANES, lanes_of(row + d + LANES));
        }
        if (d < dim)
            for (int64_t i = 0; i < PANEL; i++) to[i] = d + i < dim ? element(row + d + i) : 0.0f;
    }
}

// Loads the keys of the KV tile, the first AHEAD of which were prefetched, and the scales of the values.
template <class E>
void load_keys(const Heads& h, const CacheRows& at, const KVPanels& to) {
    load_panels_of_keys<E>(KindFor<E>(), h, at, to.stored);
    load_scales<E>(h.keys, at, h.key_dim, to.key_scales);
    load_scales<E>(h.values, at, h.value_dim, to.value_scales);
}

}  // namespace dosirak
