// Rows times panels for attention, a block of rows at a time: by the tiles of AMX, or by register tiles.
#pragma once

#include "rows.h"

namespace dosirak {

#if defined(__AMX_INT8__)
template <class T>
constexpr bool BY_TILES = std::is_same_v<T, Bf16>;
#else
template <class T>
constexpr bool BY_TILES = false;
#endif

template <class T, bool = BY_TILES<T>>
class RowBlocks;

#if defined(__AMX_INT8__)
// Blocks of 32 rows, or one of fewer than 17. The tiles of 32 are always full: `held` rows must be there to be read and
// written, and what the rows past the last hold is of no importance.
template <class T>
class RowBlocks<T, true> {
public:
    static constexpr int64_t held(int64_t rows) {
        return rows > TILE_ROWS ? (rows + TILED_ROWS - 1) / TILED_ROWS * TILED_ROWS : rows;
    }

    explicit RowBlocks(int64_t rows)
        : rows_(rows), shapes_(std::min<int64_t>(rows, TILE_ROWS), rows > TILE_ROWS ? TILE_ROWS : 0) {}

    // f(first row, rows)
    template <class F>
    INLINE void each(F&& f) const {
        for (int64_t first = 0; first < rows_; first += TILED_ROWS) f(first, std::min(TILED_ROWS, rows_ - first));
    }

    // Stores the sums of a block times `packs` of a panel. `packs` fill whole tiles; strides are in elements.
    INLINE void multiply(const typename T::Input* a, int64_t stride, int64_t rows, const char* w, int64_t packs, float* to,
                         int64_t to_stride) const {
        const int64_t wide = stride * (int64_t)sizeof(typename T::Input), to_wide = to_stride * (int64_t)sizeof(float);
        if (rows_ > TILE_ROWS) sums_by_tiles<T, true>((const char*)a, wide, TILE_ROWS, w, packs, to, to_wide);
        else sums_by_tiles<T, false>((const char*)a, wide, rows, w, packs, to, to_wide);
    }

private:
    const int64_t rows_;
    const TileShapes shapes_;
};
#endif

// Register tiles of nearly equal size.
template <class T>
class RowBlocks<T, false> {
public:
    static constexpr int64_t held(int64_t rows) { return rows; }

    explicit RowBlocks(int64_t rows) : rows_(rows) {}

    template <class F>
    INLINE void each(F&& f) const {
        for_blocks(rows_, T::ROWS, f);
    }

    INLINE void multiply(const typename T::Input* a, int64_t stride, int64_t rows, const char* w, int64_t packs, float* to,
                         int64_t to_stride) const {
        with_rows<T::ROWS>(rows, [&](auto m) {
            constexpr int M = decltype(m)::value;
            typename T::Sum sums[M][2] = {};
            accumulate<T, M, 1>(a, stride, w, 0, packs, sums);
            store_sums<M>(sums, to, to_stride);
        });
    }

private:
    const int64_t rows_;
};

}  // namespace dosirak
