// How the attention of one step is divided among threads, the same for every layer.
#pragma once

#include <vector>

#include "kv_cache.h"

namespace dosirak {

constexpr int64_t TILE = 128;

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

}  // namespace dosirak
