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
constexpr int64_t TILED_ROWS = 2 * TILE_ROWS;  // rows of codes that share a load of weights

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

// Adds TILE_BYTES of k: codes from `a` and `lower` on, `stride` bytes from row to row, times a panel's weights at w.
template <class T, bool LOWER>
INLINE void add_tiles(const char* a, const char* lower, int64_t stride, const char* w) {
    _tile_loadd(6, w, 2 * T::STEP);
    _tile_loadd(7, w + T::STEP, 2 * T::STEP);
    _tile_loadd(4, a, stride);
    if constexpr (LOWER) _tile_loadd(5, lower, stride);
    multiply_tiles<T, LOWER>();
}

constexpr int64_t TILES_AHEAD = 4;  // between the weights that are multiplied and those that are prefetched

// Stores the sums of `upper` rows, and of as many as the tiles' shapes say after them, times `packs` of one panel.
template <class T, bool LOWER>
INLINE void sums_by_tiles(const char* a, int64_t stride, int64_t upper, const char* w, int64_t packs, void* to,
                          int64_t to_stride) {
    constexpr int64_t PACKS = TILE_ROWS, WEIGHTS = PACKS * 2 * T::STEP;
    alignas(64) static thread_local char weights[WEIGHTS];
    barrier();
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (LOWER) {
        _tile_zero(2);
        _tile_zero(3);
    }
    const int64_t whole = packs / PACKS;
    for (int64_t g = 0; g < whole; g++) {
        for (int64_t line = 0; line < WEIGHTS; line += 64) __builtin_prefetch(w + (g + TILES_AHEAD) * WEIGHTS + line);
        add_tiles<T, LOWER>(a + g * TILE_BYTES, a + upper * stride + g * TILE_BYTES, stride, w + g * WEIGHTS);
    }
    if (packs % PACKS) {  // the rows go on to a multiple of TILE_BYTES; zeros follow the weights that there are
        std::memset(weights, 0, sizeof weights);
        std::memcpy(weights, w + whole * WEIGHTS, packs % PACKS * 2 * T::STEP);
        barrier();
        add_tiles<T, LOWER>(a + whole * TILE_BYTES, a + upper * stride + whole * TILE_BYTES, stride, weights);
    }
    char* out = (char*)to;
    _tile_stored(0, out, to_stride);
    _tile_stored(1, out + TILE_BYTES, to_stride);
    if constexpr (LOWER) {
        _tile_stored(2, out + upper * to_stride, to_stride);
        _tile_stored(3, out + upper * to_stride + TILE_BYTES, to_stride);
    }
    barrier();
}

// Panels first .. last, one behind the other at `panels`, times `rows` rows, in blocks of nearly equal size.
template <class T>
void multiply_by_tiles(const Finish<T>& finish, int64_t row, int64_t rows, int64_t first, int64_t last, const char* panels) {
    alignas(64) static thread_local typename T::Sum sums[TILED_ROWS][2];
    const Linear& l = finish.l;
    const int64_t packs = k_packs<T>(l.depth), size = panel_bytes<T>(l.depth);
    const int64_t stride = finish.codes.stride * (int64_t)sizeof(typename T::Input);
    for_blocks(rows, TILED_ROWS, [&](int64_t done, int64_t count) {
        const int64_t from = row + done;
        const int64_t upper = count > TILE_ROWS ? (count + 1) / 2 : count;
        const char* a = finish.codes.data + from * stride;
        const TileShapes shapes(upper, count - upper);
        for (int64_t p = first; p < last; p++) {
            const char* w = panels + (p - first) * size;
            if (upper < count)
                sums_by_tiles<T, true>(a, stride, upper, w, packs, sums, sizeof sums[0]);
            else
                sums_by_tiles<T, false>(a, stride, upper, w, packs, sums, sizeof sums[0]);
            const Outputs<T> even(finish, p * PANEL), odd(finish, p * PANEL + LANES);
            for (int64_t m = 0; m < count; m++) even(from + m, sums[m][0]), odd(from + m, sums[m][1]);
        }
    });
}

}  // namespace dosirak
#endif
