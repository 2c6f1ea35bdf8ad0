// y += scale * B (A x) for the rows of a step that have an adapter (LoRA, Hu et al. 2021), in fp32.
//
//   x [depth] ──A──▶ middle [rank] ──B──▶ y [first .. first + outputs)
//
// Both sums are chains of additions in a fixed order, one row at a time. So a row's result depends only on the row and
// its adapter. A layer of several parts (q, k, v; gate, up) has one low rank product for each adapted part.
#pragma once

#include <vector>

#include "rows.h"

namespace dosirak {

struct LowRank {  // mirrored in structs.py
    int64_t kind;  // FP32 or BF16, of both matrices
    int64_t rank, first, outputs;
    const void *a, *b;  // A [rank][depth], B transposed: [rank][outputs]
    double scale;
};

struct Added {  // mirrored in structs.py: the addition of one adapter to one linear layer
    int64_t count;
    const LowRank* part;
};

struct Adapters {  // mirrored in structs.py: the adapters of one step
    const int64_t* owners;  // [rows], the adapter of each row, -1 for none; null if no row has one
    int64_t count, linears;
    const Added* const* added;  // [count] of [linears]
};

constexpr int64_t RANKS = 4;                   // chains at a time of each row: enough to hide an addition's latency
constexpr int TOGETHER = LANES == 16 ? 4 : 2;  // rows that share what is read of the matrices, as registers allow
constexpr int64_t OUTPUTS = 512;               // of one task

template <int N>
INLINE Vf load_kind(const void* from, int64_t kind, int64_t at) {
    if (kind == FP32) return load_some<N>((const float*)from + at);
    if constexpr (N == LANES) return widen(load<Vh>((const uint16_t*)from + at));
    Vf value{};
    value[0] = widen(((const uint16_t*)from)[at]);
    return value;
}

struct AdapterRows {  // neighbours of one adapter: inputs x, outputs y and what lies between, so many elements apart
    const float* x;
    float *middle, *y;
    int64_t x_stride, middle_stride, y_stride;
};

// middle[first ..] = scale * A x for N ranks of a part and M rows.
template <int M, int N>
INLINE void shrink(const LowRank& part, const AdapterRows& rows, int64_t depth, int64_t first, int64_t at) {
    Vf sums[M][N] = {};
    for_lanes(depth, [&](int64_t i, auto lanes) {
        Vf x[M];
        for (int m = 0; m < M; m++) x[m] = load_some<lanes>(rows.x + m * rows.x_stride + i);
        for (int n = 0; n < N; n++) {
            const Vf a = load_kind<lanes>(part.a, part.kind, (first + n) * depth + i);
            for (int m = 0; m < M; m++) sums[m][n] = fma(a, x[m], sums[m][n]);
        }
    });
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) rows.middle[m * rows.middle_stride + at + n] = (float)part.scale * sum(sums[m][n]);
}

constexpr int64_t rank_tiles(const LowRank& part) { return (part.rank + RANKS - 1) / RANKS; }

// Computes the `rank_tile`th RANKS of the rows' middles, counted over all parts; nothing past the last.
template <int M>
void shrink(const Added& added, int64_t rank_tile, const AdapterRows& rows, int64_t depth) {
    int64_t at = 0;
    for (int64_t i = 0; i < added.count; i++) {
        const LowRank& part = added.part[i];
        if (rank_tile < rank_tiles(part)) {
            int64_t n = rank_tile * RANKS;
            if (n + RANKS <= part.rank) return shrink<M, RANKS>(part, rows, depth, n, at + n);
            for (; n < part.rank; n++) shrink<M, 1>(part, rows, depth, n, at + n);
            return;
        }
        rank_tile -= rank_tiles(part);
        at += part.rank;
    }
}

// sums [M][OUTPUTS] of outputs `from` .. += N ranks of B from `first` on, one after the other.
template <int M, int N>
INLINE void add_ranks(const LowRank& part, const float* middle, int64_t stride, int64_t first, int64_t from, int64_t count,
                       float (*sums)[OUTPUTS]) {
    for_lanes(count, [&](int64_t o, auto lanes) {
        Vf all[M];
        for (int m = 0; m < M; m++) all[m] = load_some<lanes>(sums[m] + o);
        for (int n = 0; n < N; n++) {
            const Vf b = load_kind<lanes>(part.b, part.kind, (first + n) * part.outputs + from + o);
            for (int m = 0; m < M; m++) all[m] = fma(b, splat(middle[m * stride + first + n]), all[m]);
        }
        for (int m = 0; m < M; m++) store_some<lanes>(sums[m] + o, all[m]);
    });
}

// Adds to the rows' outputs low .. high, at most OUTPUTS. B is read a few whole rows at a time, as they lie in memory.
template <int M>
void expand(const Added& added, const AdapterRows& rows, int64_t low, int64_t high) {
    alignas(64) float sums[M][OUTPUTS];
    const float* middle = rows.middle;
    for (int64_t i = 0; i < added.count; i++) {
        const LowRank& part = added.part[i];
        const int64_t from = std::max(low, part.first), to = std::min(high, part.first + part.outputs);
        if (from < to) {
            const int64_t at = from - part.first, count = to - from;
            for (int m = 0; m < M; m++) std::memset(sums[m], 0, count * sizeof(float));
            int64_t n = 0;
            for (; n + RANKS <= part.rank; n += RANKS)
                add_ranks<M, RANKS>(part, middle, rows.middle_stride, n, at, count, sums);
            for (; n < part.rank; n++) add_ranks<M, 1>(part, middle, rows.middle_stride, n, at, count, sums);
            for (int m = 0; m < M; m++)
                for_lanes(count, [&](int64_t o, auto lanes) {
                    float* y = rows.y + m * rows.y_stride + from + o;
                    store_some<lanes>(y, load_some<lanes>(y) + load_some<lanes>(sums[m] + o));
                });
        }
        middle += part.rank;
    }
}

// Runs the adapters of one step beside the products of its linear layers. A whole team calls every method.
class Adapting {
public:
    explicit Adapting(const Adapters& adapters) : adapters_(adapters) {
        if (!adapters.owners) return;
        most_rank_tiles_.assign(adapters.linears, 0);
        for (int64_t a = 0; a < adapters.count; a++)
            for (int64_t l = 0; l < adapters.linears; l++) {
                const Added& added = adapters.added[a][l];
                int64_t tiles = 0, ranks = 0;
                for (int64_t i = 0; i < added.count; i++) tiles += rank_tiles(added.part[i]), ranks += added.part[i].rank;
                most_rank_tiles_[l] = std::max(most_rank_tiles_[l], tiles);
                most_ranks_ = std::max(most_ranks_, ranks);
            }
    }

    int64_t most_ranks() const { return most_ranks_; }

    // Whether any adapter of the step adds to this layer.
    bool touches(int64_t linear) const { return adapters_.owners && most_rank_tiles_[linear]; }

    // middle [rows][most_ranks] from rows x `stride` apart. No barrier at the end: the layer's own product has one.
    void shrink_rows(int64_t linear, const int64_t* owners, const float* x, int64_t stride, int64_t depth, int64_t rows,
                     float* middle) const {
        const int64_t rank_tiles = most_rank_tiles_[linear];
        const AdapterRows all{x, middle, nullptr, stride, most_ranks_, 0};
#pragma omp for schedule(static) nowait
        for (int64_t task = 0; task < row_tiles(rows) * rank_tiles; task++)
            each(linear, owners, all, task / rank_tiles, rows, [&](const Added& added, const auto& some, auto count) {
                shrink<decltype(count)::value>(added, task % rank_tiles, some, depth);
            });
    }

    void expand_rows(int64_t linear, const int64_t* owners, float* middle, int64_t outputs, int64_t rows, float* y,
                     int64_t stride) const {
        const int64_t output_tiles = (outputs + OUTPUTS - 1) / OUTPUTS;
        const AdapterRows all{nullptr, middle, y, 0, most_ranks_, stride};
#pragma omp for schedule(static)
        for (int64_t task = 0; task < row_tiles(rows) * output_tiles; task++) {
            const int64_t low = task % output_tiles * OUTPUTS, high = std::min(low + OUTPUTS, outputs);
            each(linear, owners, all, task / output_tiles, rows, [&](const Added& added, const auto& some, auto count) {
                expand<decltype(count)::value>(added, some, low, high);
            });
        }
    }

private:
    static constexpr int64_t row_tiles(int64_t rows) { return (rows + TOGETHER - 1) / TOGETHER; }

    // Calls f(addition, rows, count) for neighbours of one adapter in a tile of rows.
    template <class F>
    void each(int64_t linear, const int64_t* owners, const AdapterRows& all, int64_t tile, int64_t rows, F&& f) const {
        const int64_t end = std::min((tile + 1) * TOGETHER, rows);
        for (int64_t r = tile * TOGETHER, next; r < end; r = next) {
            for (next = r + 1; next < end && owners[next] == owners[r];) next++;
            if (owners[r] < 0) continue;
            const AdapterRows some{all.x + r * all.x_stride, all.middle + r * all.middle_stride, all.y + r * all.y_stride,
                            all.x_stride, all.middle_stride, all.y_stride};
            const Added& added = adapters_.added[owners[r]][linear];
            with_rows<TOGETHER>(next - r, [&](auto count) { f(added, some, count); });
        }
    }

    const Adapters& adapters_;
    std::vector<int64_t> most_rank_tiles_;
    int64_t most_ranks_ = 0;
};

}  // namespace dosirak
