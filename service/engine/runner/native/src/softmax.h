// This file computes the softmax of one row and one KV tile, and joins the tiles of a row.
#pragma once

#include "kv_cache.h"

namespace dosirak {

// Returns the positions [low, high) of the KV tile at `base` that the row at `position` sees.
struct Seen {
    int64_t low, high;
    Seen(const Heads& h, int64_t position, int64_t base)
        : low(h.window ? std::max<int64_t>(0, position - h.window + 1 - base) : 0),
          high(std::min(KV_TILE, position + 1 - base)) {}
};

// Adds one head's bias for the distances from `position` to the seen positions of the KV tile at `base`.
INLINE void add_bias(const Heads& h, int64_t head, int64_t position, int64_t base, Seen seen, float* scores) {
    const float* from = h.bias + head * h.reach + h.reach - 1 - (position - base);
    for (int64_t t = seen.low; t < seen.high; t++) scores[t] += from[t];
}

// Caps one row's scores [KV_TILE] in [low, high). Other scores in their vectors become -infinity. Returns the largest.
INLINE float peak(const Heads& h, float* scores, Seen seen) {
    const int64_t first = seen.low / LANES * LANES, last = round_up(seen.high, LANES);
    if (h.softcap > 0)
        for (int64_t t = first; t < last; t += LANES)
            store(scores + t, tangent(load<Vf>(scores + t) * (float)(1 / h.softcap)) * (float)h.softcap);
    std::fill(scores + first, scores + seen.low, -INFINITY);
    std::fill(scores + seen.high, scores + last, -INFINITY);
    Vf top = splat(-INFINITY);
    for (int64_t t = first; t < last; t += LANES) top = larger(load<Vf>(scores + t), top);
    return largest(top);
}

// Gives the weights exp(score - most) of each vector of positions to f(first position, weights). Returns their sum.
template <class F>
INLINE float weigh(const float* scores, Seen seen, float most, F&& f) {
    const int64_t first = seen.low / LANES * LANES, last = round_up(seen.high, LANES);
    Vf total{};
    for (int64_t t = first; t < last; t += LANES) {
        const Vf w = exponential(load<Vf>(scores + t) - most);
        f(t, w);
        total += w;
    }
    return sum(total);
}

INLINE float shrink(float from, float to) { return exponential(splat(from - to))[0]; }

// total := total + partial, both relative to their rows' maxima. A total or a partial without weight is none.
inline void merge(float* total, float* total_most, float* total_weight, const float* partial, float most, float weight,
                  int64_t wide) {
    if (weight == 0.0f) return;
    if (*total_weight == 0.0f) {
        std::copy_n(partial, wide, total);
        *total_weight = weight;
        *total_most = most;
        return;
    }
    const float top = std::max(*total_most, most);
    const float old = shrink(*total_most, top), add = shrink(most, top);
    for (int64_t d = 0; d < wide; d += LANES)
        store(total + d, fma(load<Vf>(partial + d), splat(add), load<Vf>(total + d) * old));
    *total_weight = *total_weight * old + weight * add;
    *total_most = top;
}

}  // namespace dosirak
