// Tiles are the registers of AMX: eight of up to 16 rows of 64 bytes. A tile of codes times a tile of weights is added to
// a tile of 16 x 16 sums by one instruction. Panels of weights are packed as it wants them: a tile is 16 packs of k.
//
//   tile 0 1      sums of the upper rows, outputs 0 .. 15 and 16 .. 31 of a panel
//   tile 2 3      those of the lower rows
//   tile 4 5      codes of the upper and of the lower rows, 64 bytes of k
//   tile 6 7      weights of the two halves of a panel, the same 64 bytes of k
//
// 8-bit sums are exact, so a row has the same ones by tiles and by dot products. A bf16 sum is rounded as the instruction
// does it, so every number of rows goes by tiles. `linear.h` includes this file.
#pragma once

#if defined(__AMX_INT8__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace dosirak {

constexpr int TILE_ROWS = 16;          // of codes
constexpr int TILE_BYTES = 64;         // of k
template <class T>  // rows from which on tiles are taken
constexpr int64_t FEWEST_TILED = std::is_same_v<T, Int8> ? 3 : std::is_same_v<T, Bf16> ? 1 : INT64_MAX;
constexpr int64_t TILED_ROWS = 2 * TILE_ROWS;  // rows of codes that share a load of weights: a block
template <class T>  // whether sums do not depend on their order
constexpr bool STREAMED = std::is_same_v<T, Int8>;

// Whether the processor has tiles, and the system saves them: it does so only for processes that ask.
inline bool tiles_supported() {
    unsigned a, b, c, d;
    constexpr unsigned WANTED = 1u << 22 | 1u << 24 | 1u << 25;  // AMX-BF16, AMX-TILE, AMX-INT8
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & WANTED) != WANTED) return false;
    constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}

// While it lives, the thread's tiles have the shapes for `upper` and `lower` rows of codes.
class alignas(64) TileShapes {
public:
    TileShapes(int64_t upper, int64_t lower) {
        const int64_t of[8] = {upper, upper, lower, lower, upper, lower, TILE_ROWS, TILE_ROWS};
        for (int tile = 0; tile < 8; tile++)
            if (of[tile]) rows_[tile] = (uint8_t)of[tile], bytes_[tile] = TILE_BYTES;
        _tile_loadconfig(this);
    }
    ~TileShapes() { _tile_release(); }
    TileShapes(const TileShapes&) = delete;

private:  // as the instruction reads them
    uint8_t palette_ = 1, start_ = 0, none_[14] = {};
    uint16_t bytes_[16] = {};
    uint8_t rows_[16] = {};
};

// The compiler does not know that loads of tiles read memory.
INLINE void barrier() { asm volatile("" ::: "memory"); }

template <bool LOWER>
INLINE void zero_sums() {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (LOWER) {
        _tile_zero(2);
        _tile_zero(3);
    }
}

// Sums of a block, its upper rows first; `stride` bytes from row to row.
template <bool LOWER>
INLINE void load_sums(const char* from, int64_t stride, int64_t upper) {
    _tile_loadd(0, from, stride);
    _tile_loadd(1, from + TILE_BYTES, stride);
    if constexpr (LOWER) {
        _tile_loadd(2, from + upper * stride, stride);
        _tile_loadd(3, from + upper * stride + TILE_BYTES, stride);
    }
}

template <bool LOWER>
INLINE void store_sums(char* to, int64_t stride, int64_t upper) {
    _tile_stored(0, to, stride);
    _tile_stored(1, to + TILE_BYTES, stride);
    if constexpr (LOWER) {
        _tile_stored(2, to + upper * stride, stride);
        _tile_stored(3, to + upper * stride + TILE_BYTES, stride);
    }
    barrier();
}

template <class T, bool LOWER>
INLINE void multiply_tiles() {
    if constexpr (std::is_same_v<T, Int8>) {
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        if constexpr (LOWER) {
            _tile_dpbusd(2, 5, 6);
            _tile_dpbusd(3, 5, 7);
        }
    } else {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (LOWER) {
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
}

constexpr int64_t TILE_PACKS = TILE_ROWS;  // of k, in a tile of weights
template <class T>
constexpr int64_t WEIGHTS = TILE_PACKS * 2 * T::STEP;  // bytes of the two tiles of a panel with the same k

// The codes of a block.
struct TiledRows {
    const char *upper, *lower;
    int64_t stride;  // bytes

    TiledRows(const char* codes, int64_t stride, int64_t upper_rows)
        : upper(codes), lower(codes + upper_rows * stride), stride(stride) {}
};

// Adds the codes' tile g of k times weights at w.
template <class T, bool LOWER>
INLINE void add_tiles(const TiledRows& rows, int64_t g, const char* w) {
    _tile_loadd(6, w, 2 * T::STEP);
    _tile_loadd(7, w + T::STEP, 2 * T::STEP);
    _tile_loadd(4, rows.upper + g * TILE_BYTES, rows.stride);
    if constexpr (LOWER) _tile_loadd(5, rows.lower + g * TILE_BYTES, rows.stride);
    multiply_tiles<T, LOWER>();
}

// Adds the last packs of a panel, which fill no tile. Codes go on to a multiple of TILE_BYTES; zeros follow the weights.
template <class T, bool LOWER>
INLINE void add_rest(const TiledRows& rows, int64_t packs, const char* panel) {
    alignas(64) static thread_local char weights[WEIGHTS<T>];
    const int64_t whole = packs / TILE_PACKS;
    std::memset(weights, 0, sizeof weights);
    std::memcpy(weights, panel + whole * WEIGHTS<T>, packs % TILE_PACKS * 2 * T::STEP);
    barrier();
    add_tiles<T, LOWER>(rows, whole, weights);
}

constexpr int64_t TILES_AHEAD = 4;  // between the weights that are multiplied and those that are prefetched

// Stores the sums of `upper` rows, and of as many as the tiles' shapes say after them, times `packs` of one panel. Weights
// come from memory: in streams where the order of sums allows it.
template <class T, bool LOWER>
INLINE void sums_by_tiles(const char* a, int64_t stride, int64_t upper, const char* w, int64_t packs, void* to,
                          int64_t to_stride) {
    const TiledRows rows(a, stride, upper);
    const int64_t whole = packs / TILE_PACKS, part = STREAMED<T> ? whole / STREAMS : 0;
    const auto add = [&](int64_t g, int64_t ahead) {
        for (int64_t line = 0; line < WEIGHTS<T>; line += 64) __builtin_prefetch(w + g * WEIGHTS<T> + ahead + line);
        add_tiles<T, LOWER>(rows, g, w + g * WEIGHTS<T>);
    };
    barrier();
    zero_sums<LOWER>();
    for (int64_t i = 0; i < part; i++)
        for (int64_t stream = 0; stream < STREAMS; stream++) add(stream * part + i, NEAR);
    for (int64_t g = STREAMS * part; g < whole; g++) add(g, TILES_AHEAD * WEIGHTS<T>);
    if (packs % TILE_PACKS) add_rest<T, LOWER>(rows, packs, w);
    store_sums<LOWER>((char*)to, to_stride, upper);
}

template <class T>
using BlockSums = typename T::Sum[TILED_ROWS][2];

// Writes rows from .. to of a block, whose first is `row`, times panel p.
template <class T>
INLINE void finish_block(const Finish<T>& finish, int64_t row, int64_t from, int64_t to, int64_t p, const BlockSums<T>& sums) {
    const Outputs<T> even(finish, p * PANEL), odd(finish, p * PANEL + LANES);
    for (int64_t m = from; m < to; m++) even(row + m, sums[m][0]), odd(row + m, sums[m][1]);
}

template <class T>
int64_t codes_stride(const Finish<T>& finish) {
    return finish.codes.stride * (int64_t)sizeof(typename T::Input);
}

// Panels first .. last, which lie at w, times one block.
template <class T>
void few_by_tiles(const Finish<T>& finish, int64_t row, int64_t rows, int64_t first, int64_t last, const char* w) {
    alignas(64) static thread_local BlockSums<T> sums;
    const int64_t packs = k_packs<T>(finish.l.depth), size = panel_bytes<T>(finish.l.depth), stride = codes_stride(finish);
    const int64_t upper = rows > TILE_ROWS ? (rows + 1) / 2 : rows;
    const char* a = finish.codes.data + row * stride;
    const TileShapes shapes(upper, rows - upper);
    for (int64_t p = first; p < last; p++, w += size) {
        if (upper < rows)
            sums_by_tiles<T, true>(a, stride, upper, w, packs, sums, sizeof sums[0]);
        else
            sums_by_tiles<T, false>(a, stride, upper, w, packs, sums, sizeof sums[0]);
        finish_block(finish, row, 0, rows, p, sums);
    }
}

constexpr int64_t SLAB_TILES = 8;  // of k whose weights stay in the first-level cache while blocks pass
constexpr int64_t CACHED_CODES = 3 << 19;  // bytes of codes that stay in the second-level cache while panels pass
constexpr int64_t MOST_BLOCKS = TALL / TILED_ROWS;

// Rows that pass the panels together, of `rows` in parts of nearly equal size.
template <class T>
int64_t passing_rows(int64_t depth, int64_t rows) {
    const int64_t most = std::clamp<int64_t>(CACHED_CODES / (depth * sizeof(typename T::Input)), TILED_ROWS, TALL);
    const int64_t parts = (rows + most - 1) / most;
    return std::min((rows + TILED_ROWS * parts - 1) / (TILED_ROWS * parts) * TILED_ROWS, TALL);
}

// The same times several blocks, by slabs of k. Sums wait in memory between two slabs. As a slab's weights are multiplied,
// those of the next one are prefetched, at one pace, where `more` weights follow.
template <class T>
void many_by_tiles(const Finish<T>& finish, int64_t row, int64_t rows, int64_t first, int64_t last, const char* w,
                   bool more) {
    alignas(64) static thread_local BlockSums<T> sums[MOST_BLOCKS];
    const int64_t packs = k_packs<T>(finish.l.depth), size = panel_bytes<T>(finish.l.depth), stride = codes_stride(finish);
    const int64_t whole = packs / TILE_PACKS, tiles = (packs + TILE_PACKS - 1) / TILE_PACKS;
    const int64_t blocks = (rows + TILED_ROWS - 1) / TILED_ROWS, tall = (rows + blocks - 1) / blocks, upper = (tall + 1) / 2;
    const int64_t share = more ? (WEIGHTS<T> + blocks - 1) / blocks : 0;
    const TileShapes shapes(upper, tall - upper);
    for (int64_t p = first; p < last; p++, w += size)
        for (int64_t slab = 0; slab < tiles; slab += SLAB_TILES) {
            const int64_t end = std::min(slab + SLAB_TILES, tiles);
            const char* next = w + end * WEIGHTS<T>;
            for (int64_t b = 0; b < blocks; b++) {
                const int64_t from = std::min(b * tall, rows - tall);  // the last block computes rows of the one before again
                const TiledRows block(finish.codes.data + (row + from) * stride, stride, upper);
                barrier();
                if (slab) load_sums<true>((const char*)sums[b], sizeof sums[b][0], upper);
                else zero_sums<true>();
                for (int64_t g = slab; g < std::min(end, whole); g++, next += share) {
                    for (int64_t line = 0; line < share; line += 64) __builtin_prefetch(next + line, 0, 2);
                    add_tiles<T, true>(block, g, w + g * WEIGHTS<T>);
                }
                if (end > whole) add_rest<T, true>(block, packs, w);
                store_sums<true>((char*)sums[b], sizeof sums[b][0], upper);
                if (end == tiles) finish_block(finish, row + from, b * tall - from, tall, p, sums[b]);
            }
        }
}

// The same times any number of rows. Up to FEW_ROWS, memory gives a panel no sooner than two blocks have multiplied it.
constexpr int64_t FEW_ROWS = 2 * TILED_ROWS;
template <class T>
void multiply_by_tiles(const Finish<T>& finish, int64_t row, int64_t rows, int64_t first, int64_t last, const char* w,
                       bool more) {
    if (rows > FEW_ROWS) return many_by_tiles(finish, row, rows, first, last, w, more);
    for_blocks(rows, TILED_ROWS, [&](int64_t done, int64_t count) { few_by_tiles(finish, row + done, count, first, last, w); });
}

}  // namespace dosirak
#endif
