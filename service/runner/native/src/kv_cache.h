// This file finds a position's key and value in a layer's KV blocks, stores them in fp32, bf16 or 8 bits, and turns a KV
// tile into panels of fp32. It knows neither queries nor weights of attention.
#pragma once

#include "rows.h"

namespace dosirak {

constexpr int64_t KV_TILE = 128;  // positions
constexpr int64_t AHEAD = 24;   // positions between the row that is read and the one that is prefetched

struct Heads {  // mirrored in library.py
    int64_t heads, kv_heads, key_dim, value_dim;
    int64_t blocks, block_size, kind;  // of the cache
    int64_t window;            // 0: all positions
    double scale, softcap;     // 0: none
    void *keys, *values;       // [blocks, kv_heads, block_size, dim]; 8-bit rows are followed by their fp32 scale
    int64_t reach;      // no row is at a later position, if there is a
    const float* bias;  // [heads, reach]: at reach - 1 - d the addition for a key d positions back
};

// Bytes between two rows of the cache.
constexpr int64_t row_bytes(int64_t kind, int64_t dim) {
    return kind == FP32 ? dim * 4 : kind == BF16 ? dim * 2 : dim + (int64_t)sizeof(float);
}

// Stores x [dim] as row `at`. 8-bit codes are round(x / s) with s = max|x| / 127 (see kv_cache.encode).
inline void put_row(int64_t kind, void* cache, int64_t at, const float* x, int64_t dim) {
    char* to = (char*)cache + at * row_bytes(kind, dim);
    if (kind == FP32) std::memcpy(to, x, dim * sizeof(float));
    if (kind == BF16) for (int64_t d = 0; d < dim; d++) ((uint16_t*)to)[d] = narrow(x[d]);
    if (kind != INT8) return;
    float most = 0;
    for (int64_t d = 0; d < dim; d++) most = std::max(most, std::abs(x[d]));
    const float scale = std::max(most, 1e-30f) / 127;
    for (int64_t d = 0; d < dim; d++) to[d] = (char)(int8_t)std::nearbyint(x[d] / scale);
    std::memcpy(to + dim, &scale, sizeof scale);
}

template <class E>
constexpr int64_t KIND_OF = std::is_same_v<E, float> ? FP32 : std::is_same_v<E, uint16_t> ? BF16 : INT8;

template <class E>
INLINE const E* row_at(const void* cache, int64_t row, int64_t dim) {
    return (const E*)((const char*)cache + row * row_bytes(KIND_OF<E>, dim));
}

// Returns the factor of a row's elements; the pointer must be at the row's beginning.
template <class E>
INLINE float scale_of(const E* row, int64_t dim) {
    if constexpr (std::is_same_v<E, int8_t>) return load<float>(row + dim);
    else return 1.0f;
}

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

// to[j * stride + i] = rows[i][j] * scales[i] for 8 times 8.
template <class E>
INLINE void transpose(const E* const* rows, const float* scales, float* to, int64_t stride) {
    __m256 r[8], t[8];
    for (int i = 0; i < 8; i++) {
        r[i] = eight(rows[i]);
        if constexpr (std::is_same_v<E, int8_t>) r[i] = _mm256_mul_ps(r[i], _mm256_set1_ps(scales[i]));
    }
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
INLINE void transpose(const E* const* rows, const float* scales, float* to, int64_t stride) {
    for (int j = 0; j < 8; j++)
        for (int i = 0; i < 8; i++) to[j * stride + i] = element(rows[i] + j) * scales[i];
}
#endif

// Prefetches the rows of the KV tile's positions [from, to). The processor cannot foresee them: blocks lie anywhere.
template <class E>
INLINE void fetch(const void* cache, const int64_t* cache_rows, int64_t from, int64_t to, int64_t dim) {
    for (int64_t t = from; t < to; t++) {
        const char* row = (const char*)row_at<E>(cache, cache_rows[t], dim);
        for (int64_t b = 0; b < row_bytes(KIND_OF<E>, dim); b += 64) __builtin_prefetch(row + b);
    }
}

// Writes keys of the KV tile's positions [from, to) as panels [KV_TILE / PANEL][dim][PANEL] of fp32.
template <class E>
void load_keys(const Heads& h, const int64_t* cache_rows, int64_t from, int64_t to, float* panels) {
    const int64_t dim = h.key_dim;
    for (int64_t t = from / 8 * 8; t < to; t += 8) {
        fetch<E>(h.keys, cache_rows, t + AHEAD, std::min(t + AHEAD + 8, to), dim);
        const E* rows[8];
        float scales[8];
        for (int64_t i = 0; i < 8; i++) {
            rows[i] = row_at<E>(h.keys, cache_rows[std::min(t + i, to - 1)], dim);
            scales[i] = scale_of(rows[i], dim);
        }
        float* at = panels + t / PANEL * PANEL * dim + t % PANEL;
        int64_t d = 0;
        for (; d + 8 <= dim; d += 8) {
            transpose(rows, scales, at + d * PANEL, PANEL);
            for (auto& row : rows) row += 8;
        }
        for (int64_t rest = 0; d < dim; d++, rest++)
            for (int64_t i = 0; i < 8; i++) at[d * PANEL + i] = element(rows[i] + rest) * scales[i];
    }
}

// Writes values of the KV tile's positions [from, to) as panels [dim / PANEL][KV_TILE][PANEL] of fp32, zero-filled.
template <class E>
void load_values(const Heads& h, const int64_t* cache_rows, int64_t from, int64_t to, float* panels) {
    const int64_t dim = h.value_dim;
    for (int64_t t = from; t < to; t++) {
        fetch<E>(h.values, cache_rows, t + AHEAD, std::min(t + AHEAD + 1, to), dim);
        const E* row = row_at<E>(h.values, cache_rows[t], dim);
        const float scale = scale_of(row, dim);
        float* at = panels + t * PANEL;
        int64_t d = 0;
        for (; d + PANEL <= dim; d += PANEL, at += KV_TILE * PANEL) {
            store(at, lanes_of(row + d) * scale);
            store(at + LANES, lanes_of(row + d + LANES) * scale);
        }
        if (d < dim)
            for (int64_t i = 0; i < PANEL; i++) at[i] = d + i < dim ? element(row + d + i) * scale : 0.0f;
    }
}

}  // namespace dosirak
