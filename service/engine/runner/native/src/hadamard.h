// The Hadamard transform of a row mixes neighbours, so that no column is far larger than the others before a row is
// quantized (QuaRot, Ashkboos et al. 2024). It is a fast Walsh-Hadamard transform: log2(block) additions an element.
//
//   block of 4       a b c d  ─▶  a+b a-b c+d c-d  ─▶  (a+b)+(c+d) (a-b)+(c-d) (a+b)-(c+d) (a-b)-(c-d)
//   row of 576       four blocks of 128, one of 64: a rest takes the largest powers of two that fit
//
// Nothing is divided: `models.weights.hadamard` divides the weights by the block's size once. Additions have one order on
// every instruction set, and the same as in `models.weights.hadamard`: all get the same bits.
#pragma once

#include <algorithm>

#include "simd.h"

namespace dosirak {

// Adds and subtracts the lanes whose numbers differ in the bit DISTANCE.
template <int DISTANCE>
INLINE Vf mixed_lanes(Vf x) {
    Vi partner;
    Vu sign;
    for (int i = 0; i < LANES; i++) partner[i] = i ^ DISTANCE, sign[i] = i & DISTANCE ? 0x80000000u : 0u;
#if defined(__clang__)
    Vf other;
    for (int i = 0; i < LANES; i++) other[i] = x[i ^ DISTANCE];
#else
    const Vf other = __builtin_shuffle(x, partner);
#endif
    return other + (Vf)((Vu)x ^ sign);
}

INLINE Vf mixed_lanes(Vf x) {
    x = mixed_lanes<2>(mixed_lanes<1>(x));
    if constexpr (LANES >= 8) x = mixed_lanes<4>(x);
    if constexpr (LANES >= 16) x = mixed_lanes<8>(x);
    return x;
}

INLINE void mix(Vf& a, Vf& b) {
    const Vf sum = a + b;
    b = a - b, a = sum;
}

// Transforms VECTORS vectors.
template <int VECTORS>
INLINE void mix_vectors(const float* from, float* to) {
    Vf v[VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < VECTORS; i++) v[i] = mixed_lanes(load<Vf>(from + i * LANES));
#pragma GCC unroll 3
    for (int step = 1; step < VECTORS; step *= 2)
#pragma GCC unroll 8
        for (int i = 0; i < VECTORS; i++)
            if (!(i & step)) mix(v[i], v[i + step]);
#pragma GCC unroll 8
    for (int i = 0; i < VECTORS; i++) store(to + i * LANES, v[i]);
}

// Transforms one block, of a power of two, from one place to another or in place.
inline void mix_block(const float* from, float* x, int64_t block) {
    const int64_t inner = std::min<int64_t>(block, 8 * LANES);  // as much as registers hold
    if (block < LANES) {
        if (from != x) std::copy(from, from + block, x);
        for (int64_t step = 1; step < block; step *= 2)
            for (int64_t i = 0; i < block; i++)
                if (!(i & step)) {
                    const float a = x[i], b = x[i + step];
                    x[i] = a + b, x[i + step] = a - b;
                }
        return;
    }
    for (int64_t at = 0; at < block; at += inner) {
        if (inner == 8 * LANES) mix_vectors<8>(from + at, x + at);
        else if (inner == 4 * LANES) mix_vectors<4>(from + at, x + at);
        else if (inner == 2 * LANES) mix_vectors<2>(from + at, x + at);
        else mix_vectors<1>(from + at, x + at);
    }
    for (int64_t step = inner; step < block; step *= 2)
        for (int64_t at = 0; at < block; at += 2 * step)
            for (int64_t i = at; i < at + step; i += LANES) {
                Vf a = load<Vf>(x + i), b = load<Vf>(x + i + step);
                mix(a, b);
                store(x + i, a), store(x + i + step, b);
            }
}

// Transforms [n] from one place to another or in place, by blocks of a power of two; a block of 1 is copied.
inline void hadamard(const float* from, float* to, int64_t n, int64_t block) {
    for (int64_t at = 0; block > 0; block /= 2)
        for (; at + block <= n; at += block) mix_block(from + at, to + at, block);
}

}  // namespace dosirak
