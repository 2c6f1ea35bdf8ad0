// This file divides the attention of one step among threads. The division is the same for every layer.
#pragma once

#include <vector>

#include "kv_cache.h"

namespace dosirak {

constexpr int64_t QUERY_TILE = 128;  // rows

// `count` rows from `row` on hold the positions from `start` on of one sequence, whose block table begins at `table`,
// and so does its table of window blocks. See AttentionPlan.sequence_rows.
struct SequenceRows {
    int64_t row, count, start, table;
};

struct QueryTile {
    int64_t sequence, first, count;  // rows of the sequence
};

// One step's division of work, the same for every layer.
struct Work {
    const SequenceRows* sequences;
    const int64_t* tables[2];  // of blocks, and of window blocks
    std::vector<QueryTile> tiles;
    std::vector<int64_t> partials;  // the beginning of each query tile's partials; the last entry is their number
    bool split;                     // threads share the KV tiles of a query tile
    int64_t together;               // heads of a query tile that one thread takes one after the other

    Work(const SequenceRows* sequences, int64_t count, const int64_t* const (&tables)[2], int64_t queries_per_kv,
         int64_t kv_heads, int threads)
        : sequences(sequences), tables{tables[0], tables[1]}, partials{0} {
        const int64_t most = std::max<int64_t>(1, QUERY_TILE / queries_per_kv);
        for (int64_t s = 0; s < count; s++)
            for (int64_t first = 0; first < sequences[s].count; first += most)
                tiles.push_back({s, first, std::min(most, sequences[s].count - first)});
        std::sort(tiles.begin(), tiles.end(), [&](const auto& a, const auto& b) { return weight(a) > weight(b); });
        int64_t longest = 0, all = 0;
        for (const QueryTile& tile : tiles) {
            partials.push_back(partials.back() + kv_tiles(tile));
            longest = std::max(longest, kv_tiles(tile));
            all += weight(tile);
        }
        const bool even = !tiles.empty() && 2 * threads * weight(tiles[0]) <= all;  // no thread is left with a long one
        together = even ? kv_heads : 1;
        split = longest > 1 && threads > 1 && (int64_t)tiles.size() * kv_heads < 4 * threads;
    }

    int64_t begin(const QueryTile& tile) const { return sequences[tile.sequence].start + tile.first; }
    int64_t end(const QueryTile& tile) const { return sequences[tile.sequence].start + tile.first + tile.count; }
    int64_t kv_tiles(const QueryTile& tile) const { return (end(tile) + KV_TILE - 1) / KV_TILE; }
    int64_t weight(const QueryTile& tile) const { return tile.count * end(tile); }
};

}  // namespace dosirak
