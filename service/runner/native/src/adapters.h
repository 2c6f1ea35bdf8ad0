// y += scale * B (A x) for the rows of a step that have an adapter (LoRA, Hu et al. 2021), in fp32.
//
//   x [depth] ──A──▶ middle [rank] ──B──▶ y [first .. first + outputs)
//
// Both sums are chains of additions in a written order, of one row at a time: a row's result depends on the row and its
// adapter alone. A layer of several parts (q, k, v; gate, up) has one low rank product for each that is adapted.
#pragma once

#include <vector>

#include "rows.h"

namespace dosirak {

struct LowRank {  // mirrored in library.py
    int64_t kind;  // FP32 or BF16, of both matrices
    int64_t rank, first, outputs;
    const void *a, *b;  // A [rank][depth], B transposed: [rank][outputs]
    double scale;
};

struct Added {  // mirrored in library.py: what one adapter adds to one linear layer
    int64_t count;
    const LowRank* part;
};

struct Adapters {  // mirrored in library.py: those of one step
    const int64_t* owners;  // [rows], which adapter a row has, -1 for none; null where no row has one
    int64_t count, linears;
    const Added* const* added;  // [count] of [linears]
};

constexpr int64_t RANKS = 4;      // chains at a time: enough to hide an addition's latency
constexpr int64_t OUTPUTS = 512;  // of one task

template <int N>
INLINE Vf load_kind(const void* from, int64_t kind, int64_t at) {
    if (kind == FP32) return load_some<N>((const float*)from + at);
    if constexpr (N == LANES) return widen(load<Vh>((const uint16_t*)from + at));
    Vf value{};
    value[0] = widen(((const uint16_t*)from)[at]);
    return value;
}

// middle[first ..] = scale * A x for N ranks of a part.
template <int N>
INLINE void shrink(const LowRank& part, const float* x, int64_t depth, int64_t first, float* middle) {
    Vf sums[N] = {};
    for_lanes(depth, [&](int64_t i, auto lanes) {
        const Vf v = load_some<lanes>(x + i);
        for (int n = 0; n < N; n++)
            sums[n] = fma(load_kind<lanes>(part.a, part.kind, (first + n) * depth + i), v, sums[n]);
    });
    for (int n = 0; n < N; n++) middle[first + n] = (float)part.scale * sum(sums[n]);
}

constexpr int64_t groups_of(const LowRank& part) { return (part.rank + RANKS - 1) / RANKS; }

// The `group`th RANKS of one row's middle, counted over all parts; nothing past the last.
inline void shrink(const Added& added, int64_t group, const float* x, int64_t depth, float* middle) {
    for (int64_t i = 0; i < added.count; i++) {
        const LowRank& part = added.part[i];
        if (group < groups_of(part)) {
            int64_t n = group * RANKS;
            if (n + RANKS <= part.rank) return shrink<RANKS>(part, x, depth, n, middle);
            for (; n < part.rank; n++) shrink<1>(part, x, depth, n, middle);
            return;
        }
        group -= groups_of(part);
        middle += part.rank;
    }
}

// Adds to the outputs low .. high of one row.
inline void expand(const Added& added, const float* middle, int64_t low, int64_t high, float* y) {
    for (int64_t i = 0; i < added.count; i++) {
        const LowRank& part = added.part[i];
        const int64_t from = std::max(low, part.first), to = std::min(high, part.first + part.outputs);
        for_lanes(to - from, [&](int64_t o, auto lanes) {
            Vf all{};
            for (int64_t n = 0; n < part.rank; n++)
                all = fma(load_kind<lanes>(part.b, part.kind, n * part.outputs + from - part.first + o), splat(middle[n]), all);
            store_some<lanes>(y + from + o, load_some<lanes>(y + from + o) + all);
        });
        middle += part.rank;
    }
}

// The adapters of one step at work, beside the products of its linear layers. Every method is a team's.
class Adapting {
public:
    explicit Adapting(const Adapters& adapters) : adapters_(adapters) {
        if (!adapters.owners) return;
        most_groups_.assign(adapters.linears, 0);
        for (int64_t a = 0; a < adapters.count; a++)
            for (int64_t l = 0; l < adapters.linears; l++) {
                const Added& added = adapters.added[a][l];
                int64_t groups = 0, ranks = 0;
                for (int64_t i = 0; i < added.count; i++) groups += groups_of(added.part[i]), ranks += added.part[i].rank;
                most_groups_[l] = std::max(most_groups_[l], groups);
                most_ranks_ = std::max(most_ranks_, ranks);
            }
    }

    int64_t most_ranks() const { return most_ranks_; }

    // Whether any adapter of the step adds to this layer.
    bool touches(int64_t linear) const { return adapters_.owners && most_groups_[linear]; }

    // middle [rows][most_ranks] from rows x `stride` apart. No barrier at the end: the layer's own product has one.
    void shrink_rows(int64_t linear, const int64_t* owners, const float* x, int64_t stride, int64_t depth, int64_t rows,
                     float* middle) const {
        const int64_t groups = most_groups_[linear];
#pragma omp for schedule(static) nowait
        for (int64_t task = 0; task < rows * groups; task++) {
            const int64_t r = task / groups;
            if (owners[r] >= 0)
                shrink(adapters_.added[owners[r]][linear], task % groups, x + r * stride, depth, middle + r * most_ranks_);
        }
    }

    void expand_rows(int64_t linear, const int64_t* owners, const float* middle, int64_t outputs, int64_t rows, float* y,
                     int64_t stride) const {
        const int64_t pieces = (outputs + OUTPUTS - 1) / OUTPUTS;
#pragma omp for schedule(static)
        for (int64_t task = 0; task < rows * pieces; task++) {
            const int64_t r = task / pieces, low = task % pieces * OUTPUTS;
            if (owners[r] >= 0)
                expand(adapters_.added[owners[r]][linear], middle + r * most_ranks_, low, std::min(low + OUTPUTS, outputs),
                       y + r * stride);
        }
    }

private:
    const Adapters& adapters_;
    std::vector<int64_t> most_groups_;
    int64_t most_ranks_ = 0;
};

}  // namespace dosirak
