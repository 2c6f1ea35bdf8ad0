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
#include "softmax.h"

namespace dosirak {

struct Rows {  // query or output rows in fp32; heads lie side by side
    float* data;
    int64_t stride;
};

// One thread's buffers for one query tile and KV tile.
struct Scratch {
    std::vector<float> query, keys, values, scores, partial, total;
    std::vector<float> most, weight, total_most, total_weight;
    int64_t cache_rows[KV_TILE];  // rows of the cache that hold the KV tile's positions

    void fit(const Heads& h) {
        const int64_t rows = std::max(QUERY_TILE, h.heads / h.kv_heads), wide = round_up(h.value_dim, PANEL);
        query.resize(rows * h.key_dim);
        keys.resize(KV_TILE * h.key_dim);
        values.resize(wide * KV_TILE);
        scores.resize(rows * KV_TILE);
        partial.resize(rows * wide);
        total.resize(rows * wide);
        for (auto* each : {&most, &weight, &total_most, &total_weight}) each->resize(rows);
    }

    void find(const Heads& h, const int64_t* table, int64_t head, int64_t base, int64_t count) {
        int64_t block = base / h.block_size, offset = base % h.block_size;
        for (int64_t t = 0; t < count; t++) {
            cache_rows[t] = (table[block] * h.kv_heads + head) * h.block_size + offset;
            if (++offset == h.block_size) offset = 0, block++;
        }
    }

    void clear(int64_t rows, int64_t wide) {
        std::fill_n(total.begin(), rows * wide, 0.0f);
        std::fill_n(total_weight.begin(), rows, 0.0f);
        std::fill_n(total_most.begin(), rows, -INFINITY);
    }
};

// Computes the partial of `count` rows (heads side by side) and the KV tile at `base` into s.partial, s.most, s.weight.
template <class E>
void attend_kv_tile(const Heads& h, const int64_t* table, int64_t head, int64_t position, int64_t count, int64_t base,
                  Scratch& s) {
    const int64_t queries_per_kv = h.heads / h.kv_heads, rows = count * queries_per_kv;
    const int64_t wide = round_up(h.value_dim, PANEL);
    const int64_t high = Seen(h, position + count - 1, base).high, low = Seen(h, position, base).low;
    if (low >= high) {
        std::fill_n(s.weight.begin(), rows, 0.0f);
        return;
    }
    s.find(h, table, head, base, high);
    fetch<E>(h.keys, s.cache_rows, low, std::min(low + AHEAD, high), h.key_dim);
    load_keys<E>(h, s.cache_rows, low, high, s.keys.data());
    fetch<E>(h.values, s.cache_rows, low, std::min(low + AHEAD, high), h.value_dim);
    for_register_tiles<Fp32::ROWS>(rows, [&](int64_t first, auto m) {
        constexpr int M = decltype(m)::value;
        const int64_t low = Seen(h, position + first / queries_per_kv, base).low;
        const int64_t high = Seen(h, position + (first + M - 1) / queries_per_kv, base).high;
        float* scores = s.scores.data() + first * KV_TILE;
        for (int r = 0; r < M; r++) s.weight[first + r] = 0;
        if (low >= high) return;
        for (int64_t p = low / PANEL; p * PANEL < high; p++) {
            Vf sums[M][2] = {};
            const float* keys = s.keys.data() + p * PANEL * h.key_dim;
            accumulate<Fp32, M, 1>(s.query.data() + first * h.key_dim, h.key_dim, (const char*)keys, 0, h.key_dim, sums);
            for (int r = 0; r < M; r++)
                for (int v = 0; v < 2; v++) store(scores + r * KV_TILE + p * PANEL + v * LANES, sums[r][v]);
        }
        const auto seen = [&](int r) { return Seen(h, position + (first + r) / queries_per_kv, base); };
        for (int r = 0; r < M; r++) {
            const Seen its = seen(r);
            if (its.low >= its.high) continue;
            float* row = scores + r * KV_TILE;
            const int64_t place = first + r;
            if (h.bias)
                add_bias(h, head * queries_per_kv + place % queries_per_kv, position + place / queries_per_kv, base, its, row);
            s.most[first + r] = peak(h, row, its);
        }
        for (int r = 0; r < M; r++) {
            const Seen its = seen(r);
            float* row = scores + r * KV_TILE;
            if (its.low >= its.high) {
                std::fill(row + low, row + high, 0.0f);
                continue;
            }
            s.weight[first + r] = weigh(row, its, s.most[first + r]);
            std::fill(row + low, row + std::max(low, its.low / LANES * LANES), 0.0f);
            std::fill(row + std::min(high, round_up(its.high, LANES)), row + high, 0.0f);
        }
    });
    load_values<E>(h, s.cache_rows, low, high, s.values.data());
    for_register_tiles<Fp32::ROWS>(rows, [&](int64_t first, auto m) {
        constexpr int M = decltype(m)::value;
        const int64_t low = Seen(h, position + first / queries_per_kv, base).low;
        const int64_t high = Seen(h, position + (first + M - 1) / queries_per_kv, base).high;
        if (low >= high) return;
        const float* weights = s.scores.data() + first * KV_TILE + low;
        for (int64_t p = 0; p < wide / PANEL; p++) {
            Vf sums[M][2] = {};
            const float* values = s.values.data() + (p * KV_TILE + low) * PANEL;
            accumulate<Fp32, M, 1>(weights, KV_TILE, (const char*)values, 0, high - low, sums);
            for (int r = 0; r < M; r++)
                for (int v = 0; v < 2; v++)
                    store(s.partial.data() + (first + r) * wide + p * PANEL + v * LANES, sums[r][v]);
        }
    });
}

template <class E>
void attend_query_tile(const Heads& h, const Work& work, const QueryTile& tile, int64_t head, const Rows& query,
                 Scratch& s, int64_t from, int64_t to, float* partials) {
    const SequenceRows& sequence = work.sequences[tile.sequence];
    const int64_t queries_per_kv = h.heads / h.kv_heads, rows = tile.count * queries_per_kv;
    const int64_t wide = round_up(h.value_dim, PANEL), width = queries_per_kv * h.key_dim;
    const int64_t position = sequence.start + tile.first;
    for (int64_t i = 0; i < tile.count; i++) {
        const float* row = query.data + (sequence.row + tile.first + i) * query.stride + head * width;
        for (int64_t d = 0; d < width; d++) s.query[i * width + d] = row[d] * (float)h.scale;
    }
    if (!partials) s.clear(rows, wide);
    for (int64_t c = from; c < to; c++) {
        attend_kv_tile<E>(h, work.tables + sequence.table, head, position, tile.count, c * KV_TILE, s);
        if (partials) {
            float* at = partials + (c - from) * rows * (wide + 2);
            std::copy_n(s.partial.data(), rows * wide, at);
            std::copy_n(s.most.data(), rows, at + rows * wide);
            std::copy_n(s.weight.data(), rows, at + rows * (wide + 1));
            continue;
        }
        for (int64_t r = 0; r < rows; r++)
            merge(&s.total[r * wide], &s.total_most[r], &s.total_weight[r], &s.partial[r * wide], s.most[r], s.weight[r], wide);
    }
}

// Writes a query tile's totals, divided by their weights, to the output rows.
inline void finish_query_tile(const Heads& h, const Work& work, const QueryTile& tile, int64_t head, const Rows& out,
                              const Scratch& s) {
    const int64_t queries_per_kv = h.heads / h.kv_heads, wide = round_up(h.value_dim, PANEL);
    for (int64_t r = 0; r < tile.count * queries_per_kv; r++) {
        const int64_t row = work.sequences[tile.sequence].row + tile.first + r / queries_per_kv;
        float* to = out.data + row * out.stride + (head * queries_per_kv + r % queries_per_kv) * h.value_dim;
        for (int64_t d = 0; d < h.value_dim; d++) to[d] = s.total[r * wide + d] / s.total_weight[r];
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
    static thread_local Scratch s;
    const int64_t queries_per_kv = h.heads / h.kv_heads, wide = round_up(h.value_dim, PANEL);
    s.fit(h);
    const int64_t tiles = work.tiles.size();
    if (!work.split) {
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < tiles * h.kv_heads; task++) {
            const QueryTile& tile = work.tiles[task / h.kv_heads];
            const int64_t head = task % h.kv_heads;
            attend_query_tile<E>(h, work, tile, head, query, s, 0, work.kv_tiles(tile), nullptr);
            finish_query_tile(h, work, tile, head, out, s);
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
        attend_query_tile<E>(h, work, tile, head, query, s, kv_tile, kv_tile + 1, at);
    }
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < tiles * h.kv_heads; task++) {
        const int64_t t = task / h.kv_heads, head = task % h.kv_heads;
        const QueryTile& tile = work.tiles[t];
        const int64_t rows = tile.count * queries_per_kv, size = rows * (wide + 2);
        s.clear(rows, wide);
        for (int64_t c = 0; c < work.kv_tiles(tile); c++) {
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
