// This file multiplies few query rows with a KV tile, as in a decode step. Such a step waits for memory more than it
// computes, and the processor cannot foresee where the next rows of the cache lie. So the product with the keys prefetches
// the values, and the product with the values prefetches the keys of the KV tile that is next.
//
// Keys are widened in registers. Values lie in the cache as they are wanted, and are multiplied there. The sums have the
// same order as those of many rows: a row has the same bits.
#pragma once

#include "kv_panels.h"

namespace dosirak {

// Whether so few rows go this way: their blocks would read panels no more often than making them costs.
template <class E>
bool are_few(const Heads& h, int64_t rows) {
    return std::is_same_v<KindFor<E>, Fp32> && rows <= 2 * StoredKind<E>::ROWS && h.value_dim % PANEL == 0;
}

// Stores the scores of M rows of `query` [M][depth] and the keys that were turned as stored.
template <class E, int M>
void multiply_keys(const Heads& h, const CacheRows& at, const float* query, int64_t depth, const char* panels, float* scores,
                   bool prefetch) {
    using T = StoredKind<E>;
    const int64_t packs = k_packs<T>(depth);
    for (int64_t p = at.low / PANEL; p * PANEL < at.high; p++) {
        const char* panel = panels + p * panel_bytes<T>(depth);
        Vf sums[M][2] = {};
        for (int64_t i = 0; i < PANEL; i++) {
            if (prefetch) at.prefetch<E>(h.values, p * PANEL + i, h.value_dim);
            for (int64_t g = packs * i / PANEL; g < packs * (i + 1) / PANEL; g++)
                accumulate_pack<T, M, 1>(query + g * T::K_PACK, depth, panel + g * 2 * T::STEP, 0, sums);
        }
        store_sums<M>(sums, scores + p * PANEL, KV_TILE);
    }
}

// Stores the sums of M rows of weights times the values.
template <class E, int M>
void multiply_values(const Heads& h, const CacheRows& at, const float* weights, float* to, const CacheRows* next) {
    for (int64_t d = 0; d < h.value_dim; d += PANEL) {
        Vf sums[M][2] = {};
        for (int64_t t = at.low; t < at.high; t++) {
            if (d == 0 && next) next->prefetch<E>(h.keys, t, h.key_dim);
            const E* value = row_at<E>(h.values, at.of[t], h.value_dim) + d;
            const Vf even = lanes_of(value), odd = lanes_of(value + LANES);
#pragma GCC unroll 12
            for (int m = 0; m < M; m++) {
                const Vf weight = splat(weights[m * KV_TILE + t]);
                sums[m][0] = fma(weight, even, sums[m][0]);
                sums[m][1] = fma(weight, odd, sums[m][1]);
            }
        }
        store_sums<M>(sums, to + d, h.value_dim);
    }
}

}  // namespace dosirak
