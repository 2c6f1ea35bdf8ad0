// Attention of packed query rows over KV blocks, read where they lie.
//
// chunk     CHUNK positions from a multiple of CHUNK on: the unit of every sum over positions
// tile      up to TILE query rows (position-major, the heads that share one KV head side by side) times one KV head
// partial   of a tile and a chunk: each row's maximum, sum of weights and weighted values, for itself
// merge     of partials in the order of chunks, always the same formula
//
// So what a row gets depends on its own keys alone: not on the batch, nor on prefill chunks, nor on whether one thread
// walks all chunks of a tile or several share them. Masked positions have weight exactly 0, and adding 0 changes nothing.
#pragma once

#include <vector>

#include "rows.h"

namespace dosirak {

constexpr int64_t CHUNK = 128;
constexpr int64_t TILE = 128;
constexpr int64_t AHEAD = 24;  // positions between a row that is read and one that is asked for

struct Heads {  // mirrored in library.py
    int64_t heads, kv_heads, key_dim, value_dim;
    int64_t blocks, block_size, kind;  // of the cache
    int64_t window;            // 0: all positions
    double scale, softcap;     // 0: none
    void *keys, *values;       // [blocks, kv_heads, block_size, dim]; 8-bit rows are followed by their fp32 scale
    int64_t reach;      // no row is at a later position, where there is a
    const float* bias;  // [heads, reach]: at reach - 1 - d what a key d positions back gets
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

struct Span {  // mirrored in library.py: `count` rows from `row` on, positions from `start`, blocks from `table` on
    int64_t row, count, start, table;
};

struct Tile {
    int64_t span, first, count;  // rows of the span
};

// One step's division of work, the same for every layer.
struct Work {
    const Span* spans;
    const int64_t* tables;
    std::vector<Tile> tiles;
    std::vector<int64_t> partials;  // where each tile's partials begin; the last entry is their number
    bool split;                     // threads share the chunks of a tile

    Work(const Span* spans, int64_t count, const int64_t* tables, int64_t per_head, int64_t kv_heads, int threads)
        : spans(spans), tables(tables), partials{0} {
        const int64_t most = std::max<int64_t>(1, TILE / per_head);
        for (int64_t s = 0; s < count; s++)
            for (int64_t first = 0; first < spans[s].count; first += most)
                tiles.push_back({s, first, std::min(most, spans[s].count - first)});
        std::sort(tiles.begin(), tiles.end(), [&](const Tile& a, const Tile& b) { return weight(a) > weight(b); });
        int64_t longest = 0;
        for (const Tile& tile : tiles) {
            partials.push_back(partials.back() + chunks(tile));
            longest = std::max(longest, chunks(tile));
        }
        split = longest > 1 && threads > 1 && (int64_t)tiles.size() * kv_heads < 4 * threads;
    }

    int64_t end(const Tile& tile) const { return spans[tile.span].start + tile.first + tile.count; }
    int64_t chunks(const Tile& tile) const { return (end(tile) + CHUNK - 1) / CHUNK; }
    int64_t weight(const Tile& tile) const { return tile.count * end(tile); }
};

struct Rows {  // query or output rows in fp32; heads lie side by side
    float* data;
    int64_t stride;
};

// One thread's buffers for one tile and chunk.
struct Scratch {
    std::vector<float> query, keys, values, scores, partial, total;
    std::vector<float> most, weight, total_most, total_weight;
    int64_t slots[CHUNK];  // rows of the cache where the chunk's positions lie

    void fit(const Heads& h) {
        const int64_t rows = std::max(TILE, h.heads / h.kv_heads), wide = round_up(h.value_dim, PANEL);
        query.resize(rows * h.key_dim);
        keys.resize(CHUNK * h.key_dim);
        values.resize(wide * CHUNK);
        scores.resize(rows * CHUNK);
        partial.resize(rows * wide);
        total.resize(rows * wide);
        for (auto* each : {&most, &weight, &total_most, &total_weight}) each->resize(rows);
    }

    void find(const Heads& h, const int64_t* table, int64_t head, int64_t base, int64_t count) {
        int64_t block = base / h.block_size, offset = base % h.block_size;
        for (int64_t t = 0; t < count; t++) {
            slots[t] = (table[block] * h.kv_heads + head) * h.block_size + offset;
            if (++offset == h.block_size) offset = 0, block++;
        }
    }

    void clear(int64_t rows, int64_t wide) {
        std::fill_n(total.begin(), rows * wide, 0.0f);
        std::fill_n(total_weight.begin(), rows, 0.0f);
        std::fill_n(total_most.begin(), rows, -INFINITY);
    }
};

template <class E>
constexpr int64_t KIND_OF = std::is_same_v<E, float> ? FP32 : std::is_same_v<E, uint16_t> ? BF16 : INT8;

template <class E>
INLINE const E* row_at(const void* cache, int64_t slot, int64_t dim) {
    return (const E*)((const char*)cache + slot * row_bytes(KIND_OF<E>, dim));
}

// What a row's elements are multiplied by; the row must be seen from its beginning.
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

// Asks for the rows of the chunk's positions [from, to), which the processor does not foresee: blocks lie anywhere.
template <class E>
INLINE void fetch(const void* cache, const int64_t* slots, int64_t from, int64_t to, int64_t dim) {
    for (int64_t t = from; t < to; t++) {
        const char* row = (const char*)row_at<E>(cache, slots[t], dim);
        for (int64_t b = 0; b < row_bytes(KIND_OF<E>, dim); b += 64) __builtin_prefetch(row + b);
    }
}

// Keys of the chunk's positions [from, to) as panels [CHUNK / PANEL][dim][PANEL] of fp32.
template <class E>
void load_keys(const Heads& h, const int64_t* slots, int64_t from, int64_t to, float* panels) {
    const int64_t dim = h.key_dim;
    for (int64_t t = from / 8 * 8; t < to; t += 8) {
        fetch<E>(h.keys, slots, t + AHEAD, std::min(t + AHEAD + 8, to), dim);
        const E* rows[8];
        float scales[8];
        for (int64_t i = 0; i < 8; i++) {
            rows[i] = row_at<E>(h.keys, slots[std::min(t + i, to - 1)], dim);
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

// Values of the chunk's positions [from, to) as panels [dim / PANEL][CHUNK][PANEL] of fp32, filled up with zeros.
template <class E>
void load_values(const Heads& h, const int64_t* slots, int64_t from, int64_t to, float* panels) {
    const int64_t dim = h.value_dim;
    for (int64_t t = from; t < to; t++) {
        fetch<E>(h.values, slots, t + AHEAD, std::min(t + AHEAD + 1, to), dim);
        const E* row = row_at<E>(h.values, slots[t], dim);
        const float scale = scale_of(row, dim);
        float* at = panels + t * PANEL;
        int64_t d = 0;
        for (; d + PANEL <= dim; d += PANEL, at += CHUNK * PANEL) {
            store(at, lanes_of(row + d) * scale);
            store(at + LANES, lanes_of(row + d + LANES) * scale);
        }
        if (d < dim)
            for (int64_t i = 0; i < PANEL; i++) at[i] = d + i < dim ? element(row + d + i) * scale : 0.0f;
    }
}

// Which positions of the chunk at `base` the row at `position` sees: [low, high).
struct Seen {
    int64_t low, high;
    Seen(const Heads& h, int64_t position, int64_t base)
        : low(h.window ? std::max<int64_t>(0, position - h.window + 1 - base) : 0),
          high(std::min(CHUNK, position + 1 - base)) {}
};

// Adds what the distances from `position` to the seen positions of the chunk at `base` are worth to one head.
INLINE void add_bias(const Heads& h, int64_t head, int64_t position, int64_t base, Seen seen, float* scores) {
    const float* from = h.bias + head * h.reach + h.reach - 1 - (position - base);
    for (int64_t t = seen.low; t < seen.high; t++) scores[t] += from[t];
}

// Of one row's scores [CHUNK] those in [low, high), capped; the others in their vectors become -infinity. The largest.
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

// These become weights exp(score - most). Their sum.
INLINE float weigh(float* scores, Seen seen, float most) {
    const int64_t first = seen.low / LANES * LANES, last = round_up(seen.high, LANES);
    Vf total{};
    for (int64_t t = first; t < last; t += LANES) {
        const Vf w = exponential(load<Vf>(scores + t) - most);
        store(scores + t, w);
        total += w;
    }
    return sum(total);
}

// The partial of `count` rows (their heads side by side) and the chunk at `base`, into s.partial, s.most, s.weight.
template <class E>
void attend_chunk(const Heads& h, const int64_t* table, int64_t head, int64_t position, int64_t count, int64_t base,
                  Scratch& s) {
    const int64_t group = h.heads / h.kv_heads, rows = count * group, wide = round_up(h.value_dim, PANEL);
    const int64_t high = Seen(h, position + count - 1, base).high, low = Seen(h, position, base).low;
    if (low >= high) {
        std::fill_n(s.weight.begin(), rows, 0.0f);
        return;
    }
    s.find(h, table, head, base, high);
    fetch<E>(h.keys, s.slots, low, std::min(low + AHEAD, high), h.key_dim);
    load_keys<E>(h, s.slots, low, high, s.keys.data());
    fetch<E>(h.values, s.slots, low, std::min(low + AHEAD, high), h.value_dim);
    for_tiles<Fp32::ROWS>(rows, [&](int64_t first, auto m) {
        constexpr int M = decltype(m)::value;
        const int64_t low = Seen(h, position + first / group, base).low;
        const int64_t high = Seen(h, position + (first + M - 1) / group, base).high;
        float* scores = s.scores.data() + first * CHUNK;
        for (int r = 0; r < M; r++) s.weight[first + r] = 0;
        if (low >= high) return;
        for (int64_t p = low / PANEL; p * PANEL < high; p++) {
            Vf sums[M][2] = {};
            const float* keys = s.keys.data() + p * PANEL * h.key_dim;
            accumulate<Fp32, M, 1>(s.query.data() + first * h.key_dim, h.key_dim, (const char*)keys, 0, h.key_dim, sums);
            for (int r = 0; r < M; r++)
                for (int v = 0; v < 2; v++) store(scores + r * CHUNK + p * PANEL + v * LANES, sums[r][v]);
        }
        const auto seen = [&](int r) { return Seen(h, position + (first + r) / group, base); };
        for (int r = 0; r < M; r++) {
            const Seen its = seen(r);
            if (its.low >= its.high) continue;
            float* row = scores + r * CHUNK;
            if (h.bias) add_bias(h, head * group + (first + r) % group, position + (first + r) / group, base, its, row);
            s.most[first + r] = peak(h, row, its);
        }
        for (int r = 0; r < M; r++) {
            const Seen its = seen(r);
            float* row = scores + r * CHUNK;
            if (its.low >= its.high) {
                std::fill(row + low, row + high, 0.0f);
                continue;
            }
            s.weight[first + r] = weigh(row, its, s.most[first + r]);
            std::fill(row + low, row + std::max(low, its.low / LANES * LANES), 0.0f);
            std::fill(row + std::min(high, round_up(its.high, LANES)), row + high, 0.0f);
        }
    });
    load_values<E>(h, s.slots, low, high, s.values.data());
    for_tiles<Fp32::ROWS>(rows, [&](int64_t first, auto m) {
        constexpr int M = decltype(m)::value;
        const int64_t low = Seen(h, position + first / group, base).low;
        const int64_t high = Seen(h, position + (first + M - 1) / group, base).high;
        if (low >= high) return;
        const float* weights = s.scores.data() + first * CHUNK + low;
        for (int64_t p = 0; p < wide / PANEL; p++) {
            Vf sums[M][2] = {};
            const float* values = s.values.data() + (p * CHUNK + low) * PANEL;
            accumulate<Fp32, M, 1>(weights, CHUNK, (const char*)values, 0, high - low, sums);
            for (int r = 0; r < M; r++)
                for (int v = 0; v < 2; v++)
                    store(s.partial.data() + (first + r) * wide + p * PANEL + v * LANES, sums[r][v]);
        }
    });
}

INLINE float shrink(float from, float to) { return exponential(splat(from - to))[0]; }

// total := total + partial, both relative to their rows' maxima.
inline void merge(float* total, float* total_most, float* total_weight, const float* partial, float most, float weight,
                  int64_t wide) {
    if (weight == 0.0f) return;
    const float top = std::max(*total_most, most);
    const float old = *total_weight == 0.0f ? 0.0f : shrink(*total_most, top), add = shrink(most, top);
    for (int64_t d = 0; d < wide; d += LANES)
        store(total + d, fma(load<Vf>(partial + d), splat(add), load<Vf>(total + d) * old));
    *total_weight = *total_weight * old + weight * add;
    *total_most = top;
}

template <class E>
void attend_tile(const Heads& h, const Work& work, const Tile& tile, int64_t head, const Rows& query,
                 Scratch& s, int64_t from, int64_t to, float* partials) {
    const Span& span = work.spans[tile.span];
    const int64_t group = h.heads / h.kv_heads, rows = tile.count * group, wide = round_up(h.value_dim, PANEL);
    const int64_t position = span.start + tile.first;
    for (int64_t i = 0; i < tile.count; i++) {
        const float* row = query.data + (span.row + tile.first + i) * query.stride + head * group * h.key_dim;
        for (int64_t d = 0; d < group * h.key_dim; d++) s.query[i * group * h.key_dim + d] = row[d] * (float)h.scale;
    }
    if (!partials) s.clear(rows, wide);
    for (int64_t c = from; c < to; c++) {
        attend_chunk<E>(h, work.tables + span.table, head, position, tile.count, c * CHUNK, s);
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

// Writes a tile's totals, divided by their weights, to the output rows.
inline void finish_tile(const Heads& h, const Work& work, const Tile& tile, int64_t head, const Rows& out, const Scratch& s) {
    const int64_t group = h.heads / h.kv_heads, wide = round_up(h.value_dim, PANEL);
    for (int64_t r = 0; r < tile.count * group; r++) {
        const int64_t row = work.spans[tile.span].row + tile.first + r / group;
        float* to = out.data + row * out.stride + (head * group + r % group) * h.value_dim;
        for (int64_t d = 0; d < h.value_dim; d++) to[d] = s.total[r * wide + d] / s.total_weight[r];
    }
}

// Floats of all partials when the chunks of tiles are shared.
inline int64_t partials_size(const Heads& h, const Work& work) {
    int64_t size = 0;
    for (const Tile& tile : work.tiles) size += work.chunks(tile) * tile.count;
    return size * h.heads * (round_up(h.value_dim, PANEL) + 2);
}

// A team's work; ends with a barrier. `shared` holds partials_size floats where work.split.
template <class E>
void attend(const Heads& h, const Work& work, const Rows& query, const Rows& out, float* shared) {
    static thread_local Scratch s;
    const int64_t group = h.heads / h.kv_heads, wide = round_up(h.value_dim, PANEL);
    s.fit(h);
    const int64_t tiles = work.tiles.size();
    if (!work.split) {
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < tiles * h.kv_heads; task++) {
            const Tile& tile = work.tiles[task / h.kv_heads];
            const int64_t head = task % h.kv_heads;
            attend_tile<E>(h, work, tile, head, query, s, 0, work.chunks(tile), nullptr);
            finish_tile(h, work, tile, head, out, s);
        }
        return;
    }
    std::vector<int64_t> begins{0};  // of each tile's partials in `shared`, of one head after the other
    for (const Tile& tile : work.tiles)
        begins.push_back(begins.back() + work.chunks(tile) * tile.count * h.heads * (wide + 2));
    const int64_t all = work.partials.back();
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < all * h.kv_heads; task++) {
        const int64_t unit = task / h.kv_heads, head = task % h.kv_heads;
        const int64_t t = std::upper_bound(work.partials.begin(), work.partials.end(), unit) - work.partials.begin() - 1;
        const Tile& tile = work.tiles[t];
        const int64_t chunk = unit - work.partials[t], size = tile.count * group * (wide + 2);
        float* at = shared + begins[t] + (head * work.chunks(tile) + chunk) * size;
        attend_tile<E>(h, work, tile, head, query, s, chunk, chunk + 1, at);
    }
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < tiles * h.kv_heads; task++) {
        const int64_t t = task / h.kv_heads, head = task % h.kv_heads;
        const Tile& tile = work.tiles[t];
        const int64_t rows = tile.count * group, size = rows * (wide + 2);
        s.clear(rows, wide);
        for (int64_t c = 0; c < work.chunks(tile); c++) {
            const float* at = shared + begins[t] + (head * work.chunks(tile) + c) * size;
            for (int64_t r = 0; r < rows; r++)
                merge(&s.total[r * wide], &s.total_most[r], &s.total_weight[r], at + r * wide, at[rows * wide + r],
                      at[rows * (wide + 1) + r], wide);
        }
        finish_tile(h, work, tile, head, out, s);
    }
}

inline void attend(const Heads& h, const Work& work, const Rows& query, const Rows& out, float* shared) {
    if (h.kind == FP32) attend<float>(h, work, query, out, shared);
    if (h.kind == BF16) attend<uint16_t>(h, work, query, out, shared);
    if (h.kind == INT8) attend<int8_t>(h, work, query, out, shared);
}

}  // namespace dosirak
