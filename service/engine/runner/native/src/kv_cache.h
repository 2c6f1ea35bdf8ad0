// This file finds a position's key and value in a layer's KV blocks, and stores them in fp32, bf16 or 8 bits.
#pragma once

#include "rows.h"

namespace dosirak {

constexpr int64_t KV_TILE = 128;  // positions

struct Heads {  // mirrored in structs.py
    int64_t heads, kv_heads, key_dim, value_dim;
    int64_t blocks, block_size, kind;  // of the cache
    int64_t window;            // 0: all positions
    int64_t in_windows;        // which of a step's tables: 0 for blocks, 1 for window blocks
    double scale, softcap;     // 0: none
    void *keys, *values;       // [blocks, kv_heads, block_size, dim]; 8-bit rows are followed by their fp32 scale
    int64_t reach;      // no row is at a later position, if there is a
    const float* bias;  // [heads, reach]: at reach - 1 - d the addition for a key d positions back
    const float* sinks;  // [heads] or null: the score of a key that each row sees and that has no value
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

}  // namespace dosirak
