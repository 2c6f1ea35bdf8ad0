// Attention computes packed query rows over KV blocks and reads the blocks in place.
//
// KV tile     KV_TILE positions from a multiple of KV_TILE on: the unit of every sum over positions
// query tile  up to QUERY_TILE query rows (position-major, heads that share a KV head side by side) times one KV head
// partial     result of a query tile and a KV tile: each row's own maximum, sum of weights and weighted values
// merge       joins partials in the order of KV tiles, always by the same formula
//
// So a row's result depends on its own keys only. It does not depend on the batch, on prefill chunks, or on whether one
// thread walks all KV tiles or several share them. Masked positions have weight exactly 0; adding 0 changes nothing.
#pragma once

#include <vector>

#include "attention_work.h"
#include "few_rows.h"
#include "row_blocks.h"
#include "softmax.h"
#include "space.h"

namespace dosirak {

struct Rows {  // query or output rows in fp32; heads lie side by side
    float* data;
    int64_t stride;
};

// One thread's buffers for one query tile and KV tile. T is the kind that keys and values of E are multiplied in.
template <class E, class T = KindFor<E>>
struct Scratch {
    using Input = typename T::Input;
    int64_t depth;   // of the panels of keys
    Input* query;    // [rows][depth]
    KVPanels panels;
    float* scores;   // [rows][KV_TILE]
    Input* weights;  // the same as scores, in the kind of the values
    float *partial, *total, *most, *weight, *total_most, *total_weight;
    CacheRows both[2], *at = both, *next = both + 1;  // of the KV tile and of the one after it

    void fit(const Heads& h) {
        const int64_t rows = RowBlocks<T>::held(std::max(QUERY_TILE, h.heads / h.kv_heads));
        const int64_t wide = round_up(h.value_dim, PANEL);
        depth = round_up(h.key_dim, DEEP_GRAIN<E>);
        query = (Input*)memory_[0].bytes(rows * depth * sizeof(Input));
        panels.stored = panels.keys = memory_[1].bytes(KV_TILE / PANEL * panel_bytes<StoredKind<E>>(depth));
        if (WIDENS<E>) panels.keys = memory_[8].bytes(KV_TILE / PANEL * panel_bytes<T>(depth));
        panels.values = memory_[2].bytes(wide / PANEL * panel_bytes<T>(KV_TILE));
        scores = memory_[3].floats(rows * KV_TILE);
        weights = (Input*)scores;
        if constexpr (!std::is_same_v<Input, float>) weights = (Input*)memory_[4].bytes(rows * KV_TILE * sizeof(Input));
        partial = memory_[5].floats(rows * wide);
        total = memory_[6].floats(rows * wide);
        float* rest = memory_[7].floats(4 * rows + 2 * KV_TILE);
        for (float** each : {&most, &weight, &total_most, &total_weight}) *each = rest, rest += rows;
        panels.key_scales = rest;
        panels.value_scales = rest + KV_TILE;
    }

    // Makes the first partial the total.
    void begin_total() {
        std::swap(total, partial);
        std::swap(total_most, most);
        std::swap(total_weight, weight);
    }

private:
    Buffer memory_[9];
};

// Turns one row's scores into weights in the kind of the values, and zeros in the rest of [low, high). Notes the row's
// maximum and its sum of weights. `bias` is added for the distances from the row's position.
template <class E, class T>
INLINE void weigh_row(const Heads& h, int64_t bias_head, int64_t position, int64_t base, int64_t low, int64_t high,
                      int64_t row, Scratch<E, T>& s) {
    float* scores = s.scores + row * KV_TILE;
    const Seen seen(h, position, base);
    const int64_t first = seen.low / LANES * LANES, last = round_up(seen.high, LANES);
    if (seen.low >= seen.high) {
        std::fill(s.weights + row * KV_TILE + low, s.weights + row * KV_TILE + high, typename T::Input{});
        return;
    }
    if constexpr (std::is_same_v<E, int8_t>)
        for (int64_t t = first; t < last; t += LANES)
            store(scores + t, load<Vf>(scores + t) * load<Vf>(s.panels.key_scales + t));
    if (h.bias) add_bias(h, bias_head, position, base, seen, scores);
    s.most[row] = peak(h, scores, seen);
    auto* weights = s.weights + row * KV_TILE;
    s.weight[row] = weigh(scores, seen, s.most[row], [&](int64_t t, Vf w) {
        if constexpr (std::is_same_v<E, int8_t>) w *= load<Vf>(s.panels.value_scales + t);
        put_some<LANES>(weights + t, w);
    });
    std::fill(weights + low, weights + std::max(low, first), typename T::Input{});
    std::fill(weights + std::min(high, last), weights + high, typename T::Input{});
}

// Finds the cache rows of the KV tile at `base`, as far as query rows at the positions first .. last see them.
inline void find_rows(const Heads& h, const int64_t* table, int64_t head, int64_t first, int64_t last, int64_t base, CacheRows& to) {
    to.low = Seen(h, first, base).low;
    to.high = Seen(h, last, base).high;
    int64_t block = base / h.block_size, offset = base % h.block_size;
    for (int64_t t = 0; t < to.high; t++) {
        to.of[t] = (table[block] * h.kv_heads + head) * h.block_size + offset;
        if (++offset == h.block_size) offset = 0, block++;
    }
}

// Computes the partial of `count` rows (heads side by side) and the KV tile at `base` into s.partial, s.most, s.weight.
// s.at and s.next hold the cache rows.
template <class E, class T>
void attend_kv_tile(const Heads& h, int64_t head, int64_t position, int64_t base, const RowBlocks<T>& blocks, int64_t rows,
                    Scratch<E, T>& s) {
    const int64_t queries_per_kv = h.heads / h.kv_heads, wide = round_up(h.value_dim, PANEL);
    const auto position_of = [&](int64_t row) { return position + row / queries_per_kv; };
    const int64_t low = s.at->low, high = s.at->high;
    // f(first row, rows, low, high): the positions, in whole grains, that rows of the block see
    const auto each_block = [&](auto&& f) {
        blocks.each([&](int64_t first, int64_t count) {
            const int64_t low = Seen(h, position_of(first), base).low / GRAIN<T> * GRAIN<T>;
            const int64_t high = round_up(Seen(h, position_of(first + count - 1), base).high, GRAIN<T>);
            if (low < high) f(first, count, low, high);
        });
    };
    const auto weigh = [&](int64_t first, int64_t count, int64_t low, int64_t high) {
        for (int64_t r = first; r < first + count; r++)
            weigh_row<E>(h, head * queries_per_kv + r % queries_per_kv, position_of(r), base, low, high, r, s);
    };
    std::fill_n(s.weight, rows, 0.0f);
    if (low >= high) return;
    load_keys<E>(h, *s.at, s.panels);
    if constexpr (std::is_same_v<T, Fp32>)
        if (are_few<E>(h, rows)) {
            for_register_tiles<StoredKind<E>::ROWS>(rows, [&](int64_t first, auto m) {
                multiply_keys<E, decltype(m)::value>(h, *s.at, s.query + first * s.depth, s.depth, s.panels.stored,
                                                     s.scores + first * KV_TILE, first == 0);
            });
            weigh(0, rows, low, high);
            for_register_tiles<T::ROWS>(rows, [&](int64_t first, auto m) {
                multiply_values<E, decltype(m)::value>(h, *s.at, s.scores + first * KV_TILE, s.partial + first * wide,
                                                       first == 0 ? s.next : nullptr);
            });
            return;
        }
    if constexpr (WIDENS<E>) widen_keys<E>(h, *s.at, s.panels);
    fetch<E>(h.values, *s.at, low, low + AHEAD, h.value_dim);  // they come while scores are computed
    each_block([&](int64_t first, int64_t count, int64_t low, int64_t high) {
        for (int64_t p = low / PANEL; p * PANEL < high; p++)
            blocks.multiply(s.query + first * s.depth, s.depth, count, s.panels.keys + p * panel_bytes<T>(s.depth),
                            k_packs<T>(s.depth), s.scores + first * KV_TILE + p * PANEL, KV_TILE);
        weigh(first, count, low, high);
    });
    load_panels_of_values<E>(T(), h, *s.at, s.panels.values);
    fetch<E>(h.keys, *s.next, s.next->low, s.next->low + AHEAD, h.key_dim);
    each_block([&](int64_t first, int64_t count, int64_t low, int64_t high) {
        for (int64_t p = 0; p < wide / PANEL; p++)
            blocks.multiply(s.weights + first * KV_TILE + low, KV_TILE, count,
                            s.panels.values + p * panel_bytes<T>(KV_TILE) + k_packs<T>(low) * 2 * T::STEP,
                            k_packs<T>(high - low), s.partial + first * wide + p * PANEL, wide);
    });
}

// Returns the first KV tile that the row at `position`, or a later one, sees.
inline int64_t first_kv_tile(const Heads& h, int64_t position) {
    return h.window ? std::max<int64_t>(0, position - h.window + 1) / KV_TILE : 0;
}

template <class E, class T>
void attend_query_tile(const Heads& h, const Work& work, const QueryTile& tile, int64_t head, int64_t heads_end,
                       const Rows& query, Scratch<E, T>& s, int64_t from, int64_t to, float* partials) {
    const SequenceRows& sequence = work.sequences[tile.sequence];
    const int64_t queries_per_kv = h.heads / h.kv_heads, rows = tile.count * queries_per_kv;
    const int64_t wide = round_up(h.value_dim, PANEL), width = queries_per_kv * h.key_dim;
    const int64_t position = sequence.start + tile.first;
    const int64_t begin = std::max(from, first_kv_tile(h, position));
    const auto find_tile = [&](int64_t head, int64_t c, CacheRows& to) {
        find_rows(h, work.tables[h.in_windows] + sequence.table, head, position, position + tile.count - 1, c * KV_TILE, to);
    };
    find_tile(head, begin, *s.next);
    fetch<E>(h.keys, *s.next, s.next->low, s.next->low + AHEAD, h.key_dim);
    for (int64_t i = 0; i < tile.count; i++) {
        const float* row = query.data + (sequence.row + tile.first + i) * query.stride + head * width;
        for (int64_t q = 0; q < queries_per_kv; q++) {
            auto* to = s.query + (i * queries_per_kv + q) * s.depth;
            for_lanes(h.key_dim, [&](int64_t d, auto lanes) {
                put_some<lanes>(to + d, load_some<lanes>(row + q * h.key_dim + d) * (float)h.scale);
            });
            std::fill(to + h.key_dim, to + s.depth, typename T::Input{});
        }
    }
    const RowBlocks<T> blocks(rows);
    for (int64_t c = begin; c < to; c++) {
        std::swap(s.at, s.next);
        s.next->high = 0;
        if (c + 1 < to) find_tile(head, c + 1, *s.next);
        else if (head + 1 < heads_end) find_tile(head + 1, begin, *s.next);
        attend_kv_tile<E>(h, head, position, c * KV_TILE, blocks, rows, s);
        if (partials) {
            float* at = partials + (c - from) * rows * (wide + 2);
            std::copy_n(s.partial, rows * wide, at);
            std::copy_n(s.most, rows, at + rows * wide);
            std::copy_n(s.weight, rows, at + rows * (wide + 1));
            continue;
        }
        if (c == begin) {
            s.begin_total();
            continue;
        }
        for (int64_t r = 0; r < rows; r++)
            merge(&s.total[r * wide], &s.total_most[r], &s.total_weight[r], &s.partial[r * wide], s.most[r], s.weight[r], wide);
    }
}

// Writes a query tile's totals, divided by their weights, to the output rows. A sink has a weight and no value.
template <class E>
void finish_query_tile(const Heads& h, const Work& work, const QueryTile& tile, int64_t head, const Rows& out,
                       const Scratch<E>& s) {
    const int64_t queries_per_kv = h.heads / h.kv_heads, wide = round_up(h.value_dim, PANEL);
    for (int64_t r = 0; r < tile.count * queries_per_kv; r++) {
        const int64_t row = work.sequences[tile.sequence].row + tile.first + r / queries_per_kv;
        const int64_t query_head = head * queries_per_kv + r % queries_per_kv;
        float* to = out.data + row * out.stride + query_head * h.value_dim;
        const float sink = h.sinks ? std::exp(h.sinks[query_head] - s.total_most[r]) : 0.0f;
        const float part = 1.0f / (s.total_weight[r] + sink);
        for_lanes(h.value_dim, [&](int64_t d, auto lanes) {
            store_some<lanes>(to + d, load_some<lanes>(s.total + r * wide + d) * part);
        });
    }
}

// Floats of all partials when threads share KV tiles.
inline int64_t partials_size(const Heads& h, const Work& work) {
    int64_t size = 0;
    for (const QueryTile& tile : work.tiles) size += work.kv_tiles(tile) * tile.count;
    return size * h.heads * (round_up(h.value_dim, PANEL) + 2);
}

// A team's work, which ends with a barrier. `shared` holds partials_size floats if work.split.
template <class E>
void attend(const Heads& h, const Work& work, const Rows& query, const Rows& out, float* shared) {
    static thread_local Scratch<E> s;
    const int64_t queries_per_kv = h.heads / h.kv_heads, wide = round_up(h.value_dim, PANEL);
    s.fit(h);
    const int64_t tiles = work.tiles.size();
    if (!work.split) {
        const int64_t parts = h.kv_heads / work.together;  // of a query tile
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < tiles * parts; task++) {
            const QueryTile& tile = work.tiles[task / parts];
            const int64_t begin = task % parts * work.together, end = begin + work.together;
            for (int64_t head = begin; head < end; head++) {
                attend_query_tile<E>(h, work, tile, head, end, query, s, 0, work.kv_tiles(tile), nullptr);
                finish_query_tile(h, work, tile, head, out, s);
            }
        }
        return;
    }
    std::vector<int64_t> begins{0};  // of each query tile's partials in `shared`, of one head after the other
    for (const QueryTile& tile : work.tiles)
        begins.push_back(begins.back() + work.kv_tiles(tile) * tile.count * h.heads * (wide + 2));
    const int64_t all = work.partials.back();
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < all * h.kv_heads; task++) {
        const int64_t unit = task / h.kv_heads, head = task % h.kv_heads;
        const int64_t t = std::upper_bound(work.partials.begin(), work.partials.end(), unit) - work.partials.begin() - 1;
        const QueryTile& tile = work.tiles[t];
        const int64_t kv_tile = unit - work.partials[t], size = tile.count * queries_per_kv * (wide + 2);
        float* at = shared + begins[t] + (head * work.kv_tiles(tile) + kv_tile) * size;
        attend_query_tile<E>(h, work, tile, head, head, query, s, kv_tile, kv_tile + 1, at);
    }
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < tiles * h.kv_heads; task++) {
        const int64_t t = task / h.kv_heads, head = task % h.kv_heads;
        const QueryTile& tile = work.tiles[t];
        const int64_t rows = tile.count * queries_per_kv, size = rows * (wide + 2);
        std::fill_n(s.total_weight, rows, 0.0f);
        for (int64_t c = first_kv_tile(h, work.begin(tile)); c < work.kv_tiles(tile); c++) {
            const float* at = shared + begins[t] + (head * work.kv_tiles(tile) + c) * size;
            for (int64_t r = 0; r < rows; r++)
                merge(&s.total[r * wide], &s.total_most[r], &s.total_weight[r], at + r * wide, at[rows * wide + r],
                      at[rows * (wide + 1) + r], wide);
        }
        finish_query_tile(h, work, tile, head, out, s);
    }
}

inline void attend(const Heads& h, const Work& work, const Rows& query, const Rows& out, float* shared) {
    if (h.kind == FP32) attend<float>(h, work, query, out, shared);
    if (h.kind == BF16) attend<uint16_t>(h, work, query, out, shared);
    if (h.kind == INT8) attend<int8_t>(h, work, query, out, shared);
}

}  // namespace dosirak
