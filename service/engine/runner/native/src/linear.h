// Rows times panels of packed weights, fp32, bf16 or 8-bit, for any number of rows. One copy of the weights serves all.
//
// panel                 the weights of PANEL outputs, [k / K_PACK][PANEL][K_PACK]: one load gives K_PACK neighbours of every
//                       output
// register tile         M rows times P panels of sums in registers, walked over all of k: every output is one chain of
//                       additions in the order of k, for every M. So a row's result does not depend on the number of rows.
//
// 8-bit: x is quantized row by row. The sum is in 32-bit integers, exact up to k = 2^31 / (255 * 127). Columns with a far
// larger x than the rest (outliers) can be left out of the codes and multiplied in bf16 instead, as LLM.int8 does
// (Dettmers et al. 2022).
// 8-bit weights only: x stays fp32, and the weights are widened in registers.
#pragma once

#include <algorithm>
#include <numeric>

#include "kinds.h"

namespace dosirak {

struct Linear {  // mirrored in structs.py
    int64_t kind, outputs, depth;
    const void* packed;
    const float* scale;   // [outputs], 8-bit and 4-bit only
    const int32_t* sums;  // [outputs], the sum of each output's 8-bit weights; of BLOCKS a PanelPlace for each panel
    const float* bias;    // [outputs] or null
    int64_t outliers;         // columns that 8-bit codes leave out
    const int32_t* columns;   // [outliers]
    const uint16_t* kept;     // [outliers][outputs rounded up to whole vectors], their weights in bf16
    int64_t group;            // inputs of one output that share a scale, 4-bit only
    int64_t hadamard;         // block of the Hadamard transform that the weights' inputs have passed; 1: none
};

constexpr int64_t WHOLE = 16;  // outputs of the widest vector
constexpr int64_t kept_stride(int64_t outputs) { return (outputs + WHOLE - 1) / WHOLE * WHOLE; }

template <int BYTES>
INLINE void prefetch(const char* at) {
    for (int line = 0; line < BYTES; line += 64) __builtin_prefetch(at + line, 0, 2);
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
// `accumulate` (below) for 8-bit codes of two rows and more. One instruction adds 8 inputs of a pair of rows times a pair of
// outputs, twice what a dot product does. Sums are exact, so a row has the same ones by either.
//
// rows      8 inputs of row 2 r, then of row 2 r + 1; the last row of an odd number is its own pair
// weights   two packs of a vector, woven to 8 inputs of output 2 j, then of output 2 j + 1
// sums      row 2 r times the two outputs, then row 2 r + 1
template <int M, int P>
INLINE void accumulate_pairs(const Int8::Input* __restrict a, int64_t lda, const char* __restrict w, int64_t panel,
                             int64_t packs, Vi (&sums)[M][2 * P], const char* ahead) {
    constexpr int PAIRS = (M + 1) / 2;
    int32x4_t pairs[PAIRS][4 * P];
    for (auto& pair : pairs)
        for (auto& sum : pair) sum = vdupq_n_s32(0);
    for (int64_t g = 0; g < packs; g += 2) {
        const char* here = w + g * 2 * Int8::STEP;
        if (ahead) prefetch<4 * Int8::STEP * P>(ahead + g * 2 * Int8::STEP * P);
        int8x16_t rows[PAIRS];
        for (int r = 0; r < PAIRS; r++) {
            const Int8::Input* upper = a + 2 * r * lda + g * Int8::K_PACK;
            rows[r] = vcombine_s8(vld1_s8(upper), vld1_s8(2 * r + 1 < M ? upper + lda : upper));
        }
#pragma GCC unroll 8
        for (int v = 0; v < 2 * P; v++) {
            const char* at = here + (v / 2) * panel + (v % 2) * Int8::STEP;
            const int32x4_t first = (int32x4_t)Int8::weight(at);
            const int32x4_t second = g + 1 < packs ? (int32x4_t)Int8::weight(at + 2 * Int8::STEP) : vdupq_n_s32(0);
            const int8x16_t low = (int8x16_t)vzip1q_s32(first, second), high = (int8x16_t)vzip2q_s32(first, second);
#pragma GCC unroll 6
            for (int r = 0; r < PAIRS; r++) {
                pairs[r][2 * v] = vmmlaq_s32(pairs[r][2 * v], rows[r], low);
                pairs[r][2 * v + 1] = vmmlaq_s32(pairs[r][2 * v + 1], rows[r], high);
            }
        }
    }
    for (int m = 0; m < M; m++)
        for (int v = 0; v < 2 * P; v++) {
            const int64x2_t left = (int64x2_t)pairs[m / 2][2 * v], right = (int64x2_t)pairs[m / 2][2 * v + 1];
            sums[m][v] += (Vi)(m % 2 ? vzip2q_s64(left, right) : vzip1q_s64(left, right));
        }
}
#endif

// sums[M][2 P] += rows a (lda apart) times one pack of k of P panels, which lie `panel` bytes apart.
template <class T, int M, int P>
INLINE void accumulate_pack(const typename T::Input* __restrict a, int64_t lda, const char* __restrict w, int64_t panel,
                            typename T::Sum (&sums)[M][2 * P]) {
    if constexpr (M < 2 * P) {  // fewer rows than vectors of weights: the vectors pass through one register
        typename T::Spread rows[M];
        for (int m = 0; m < M; m++) rows[m] = T::spread(a + m * lda);
#pragma GCC unroll 8
        for (int v = 0; v < 2 * P; v++) {
            const auto weight = T::weight(w + (v / 2) * panel + (v % 2) * T::STEP);
#pragma GCC unroll 12
            for (int m = 0; m < M; m++) sums[m][v] = T::dot(sums[m][v], rows[m], weight);
        }
    } else {
        typename T::Weight weights[2 * P];
        for (int v = 0; v < 2 * P; v++) weights[v] = T::weight(w + (v / 2) * panel + (v % 2) * T::STEP);
#pragma GCC unroll 12
        for (int m = 0; m < M; m++) {
            const auto row = T::spread(a + m * lda);
#pragma GCC unroll 8
            for (int v = 0; v < 2 * P; v++) sums[m][v] = T::dot(sums[m][v], row, weights[v]);
        }
    }
}

// What a register tile prefetches: the panels after its own, which begin at `next` (null: none). `tile` is its number of
// the `tiles` that multiply by the same panels.
struct Ahead {
    const char* next = nullptr;
    int64_t tile = 0, tiles = 1;
};

// Whether tiles prefetch in several streams, which Intel's processors read faster than one. Sums are the same; tests
// compare both.
#if defined(__AVX2__)
inline bool in_streams = __builtin_cpu_is("intel");
#else
inline bool in_streams = false;
#endif
constexpr int64_t STREAMS = 4;
constexpr int64_t NEAR = 1024;  // bytes from what a stream reads to what it prefetches
constexpr int64_t FAR = 16384;  // the same where a panel's only tile goes without streams

// Sets sums to zero, and copies them. All indices are constants, so GCC keeps a tile that begins and ends so in registers.
template <int M, int V, class S>
INLINE void clear(S (&sums)[M][V]) {
#pragma GCC unroll 12
    for (int m = 0; m < M; m++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) sums[m][v] = S{};
}

template <int M, int V, class S>
INLINE void copy(const S (&from)[M][V], S (&to)[M][V]) {
#pragma GCC unroll 12
    for (int m = 0; m < M; m++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) to[m][v] = from[m][v];
}

// `accumulate` (below) for a panel's only tile, which waits for memory most: it walks the panel in streams. Only for sums
// that do not depend on their order. Not inlined: GCC would keep fewer sums in registers.
template <class T, int M>
__attribute__((noinline)) void accumulate_in_streams(const typename T::Input* __restrict a, int64_t lda,
                                                     const char* __restrict w, int64_t packs,
                                                     typename T::Sum (&result)[M][2]) {
    typename T::Sum sums[M][2];
    copy(result, sums);
    const auto add = [&](int64_t g) { accumulate_pack<T, M, 1>(a + g * T::K_PACK, lda, w + g * 2 * T::STEP, 0, sums); };
    const int64_t part = packs / STREAMS;
    for (int64_t g = 0; g < part; g++)
#pragma GCC unroll 4
        for (int64_t stream = 0; stream < STREAMS; stream++) {
            prefetch<2 * T::STEP>(w + (stream * part + g) * 2 * T::STEP + NEAR);
            add(stream * part + g);
        }
    for (int64_t g = STREAMS * part; g < packs; g++) add(g);
    copy(sums, result);
}

// `accumulate` (below) for one of several tiles, each of which prefetches its share of the next panel, in streams.
template <class T, int M>
__attribute__((noinline)) void accumulate_sharing(const typename T::Input* __restrict a, int64_t lda,
                                                  const char* __restrict w, int64_t packs, const Ahead& ahead,
                                                  typename T::Sum (&result)[M][2]) {
    typename T::Sum sums[M][2];
    copy(result, sums);
    const int64_t stream_bytes = packs / STREAMS * 2 * T::STEP;
    const char* to = ahead.next + ahead.tile * packs / (STREAMS * ahead.tiles) * 2 * T::STEP;
    int64_t stream = 0, wait = 1;  // one pack is prefetched as `tiles` packs are multiplied
    for (int64_t g = 0; g < packs; g++) {
        if (--wait == 0) {
            wait = ahead.tiles;
            prefetch<2 * T::STEP>(to + stream * stream_bytes);
            if (++stream == STREAMS) stream = 0, to += 2 * T::STEP;
        }
        accumulate_pack<T, M, 1>(a + g * T::K_PACK, lda, w + g * 2 * T::STEP, 0, sums);
    }
    copy(sums, result);
}

// sums[M][2 P] += rows a (lda apart) times P panels (`panel` bytes apart), over `packs` of k. It also prefetches what
// follows, because the processor's own prefetching does not look past a panel's end: each tile its share, at one pace.
template <class T, int M, int P>
INLINE void accumulate(const typename T::Input* __restrict a, int64_t lda, const char* __restrict w, int64_t panel,
                       int64_t packs, typename T::Sum (&result)[M][2 * P], const Ahead& ahead = {}) {
    constexpr int64_t PACK = 2 * T::STEP * P;
#if defined(__ARM_FEATURE_MATMUL_INT8)
    if constexpr (std::is_same_v<T, Int8> && M > 1)
        return accumulate_pairs<M, P>(a, lda, w, panel, packs, result, ahead.tile == 0 ? ahead.next : nullptr);
#endif
    if constexpr (P == 1 && M > 1)
        if (in_streams && ahead.next) {
            if constexpr (std::is_same_v<T, Int8>)
                if (ahead.tiles == 1) return accumulate_in_streams<T, M>(a, lda, w, packs, result);
            return accumulate_sharing<T, M>(a, lda, w, packs, ahead, result);
        }
    typename T::Sum sums[M][2 * P];
    copy(result, sums);
    const auto walk = [&](auto&& prefetching) {
        for (int64_t g = 0; g < packs; g++) {
            prefetching();
            accumulate_pack<T, M, P>(a + g * T::K_PACK, lda, w + g * 2 * T::STEP, panel, sums);
        }
    };
    const char* to = ahead.next;
    if (!to) {
        walk([] {});
    } else if (ahead.tiles == 1) {
        if (P == 1 && M > 1) to = w + FAR;
        walk([&] { prefetch<PACK>(to), to += PACK; });
    } else {  // a line is prefetched again where a step is shorter
        const int64_t step = (PACK + ahead.tiles - 1) / ahead.tiles;
        to += ahead.tile * packs * PACK / ahead.tiles;
        walk([&] { prefetch<PACK / 2>(to), to += step; });
    }
    copy(sums, result);
}

// Stores the sums of M rows and one panel; rows of `to` lie `stride` apart.
template <int M>
INLINE void store_sums(const Vf (&sums)[M][2], float* to, int64_t stride) {
    for (int m = 0; m < M; m++)
        for (int v = 0; v < 2; v++) store(to + m * stride + v * LANES, sums[m][v]);
}

// Calls f with 1 <= M <= MAX fixed at compile time.
template <int MAX, class F>
INLINE void with_rows(int64_t m, F&& f) {
    if constexpr (MAX == 1) {
        f(std::integral_constant<int, 1>());
    } else if (m == MAX) {
        f(std::integral_constant<int, MAX>());
    } else {
        with_rows<MAX - 1>(m, f);
    }
}

// Cuts m rows into blocks of nearly equal size, at most `most`: f(first row, rows).
template <class F>
INLINE void for_blocks(int64_t m, int64_t most, F&& f) {
    const int64_t blocks = (m + most - 1) / most;
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t first = m * b / blocks;
        f(first, m * (b + 1) / blocks - first);
    }
}

// Cuts m rows into register tiles: f(first row, rows fixed at compile time).
template <int MAX, class F>
INLINE void for_register_tiles(int64_t m, F&& f) {
    for_blocks(m, MAX, [&](int64_t first, int64_t count) {
        with_rows<MAX>(count, [&](auto rows) { f(first, rows); });
    });
}

// Rows for the kernel of a kind: data [m][stride] of its input type, and for 8-bit each row's scale and its outliers
// [m][outliers_stride].
struct Codes {
    char* data;
    float* scale;
    int64_t stride;  // elements
    float* outliers;
    int64_t outliers_stride;
};

struct Output {
    float* data;
    int64_t stride;
    bool add;  // y += instead of y =
};

// What becomes of a product's sums.
template <class T>
struct Finish {
    const Linear& l;
    const Codes& codes;
    const Output& out;
};

// One vector of outputs, n .. n + LANES, those past the end dropped. What belongs to the outputs is read once for all rows.
template <class T>
class Outputs {
public:
    INLINE Outputs(const Finish<T>& finish, int64_t n)
        : l_(finish.l), codes_(finish.codes), out_(finish.out), n_(n),
          count_(std::clamp<int64_t>(finish.l.outputs - n, 0, LANES)) {
        const Linear& l = finish.l;
        if constexpr (std::is_same_v<T, Int8>)
            if constexpr (T::ZERO != 0) zeros_ = T::ZERO * read<Vi>(l.sums);
        if constexpr (std::is_same_v<T, Int8> || std::is_same_v<T, Int8Weight>) scale_ = read<Vf>(l.scale);
        if (l.bias) bias_ = read<Vf>(l.bias);
    }

    // Writes row m's sums.
    INLINE void operator()(int64_t m, typename T::Sum sums) const {
        float* to = out_.data + m * out_.stride + n_;
        Vf value = scaled(m, sums);
        if (count_ == LANES) {
            if (out_.add) value = load<Vf>(to) + value;
            store(to, value);
            return;
        }
        alignas(64) float y[LANES];
        store(y, value);
        for (int64_t i = 0; i < count_; i++) to[i] = out_.add ? to[i] + y[i] : y[i];
    }

private:
    template <class V, class E>
    INLINE V read(const E* from) const {
        if (count_ == LANES) return load<V>(from + n_);
        V value{};
        if (count_) std::memcpy(&value, from + n_, count_ * sizeof(E));
        return value;
    }

    INLINE Vf scaled(int64_t m, typename T::Sum sums) const {
        Vf value;
        if constexpr (std::is_same_v<T, Int8>) {
            if constexpr (T::ZERO != 0) sums -= zeros_;
            value = __builtin_convertvector(sums, Vf) * scale_ * codes_.scale[m];
            for (int64_t j = 0; count_ && j < l_.outliers; j++) {
                const Vf weight = widen(load<Vh>(l_.kept + j * kept_stride(l_.outputs) + n_));
                value = fma(splat(codes_.outliers[m * codes_.outliers_stride + j]), weight, value);
            }
        } else if constexpr (std::is_same_v<T, Int8Weight>) {
            value = sums * scale_;
        } else {
            value = sums;
        }
        return l_.bias ? value + bias_ : value;
    }

    const Linear l_;  // copies: no store of an output can change them, so they stay in registers
    const Codes codes_;
    const Output out_;
    const int64_t n_, count_;
    Vi zeros_{};
    Vf scale_{}, bias_{};
};

// Writes a tile's sums: of M rows from `row` on, the V vectors of outputs from n on.
template <class T, int M, int V>
INLINE void finish_tile(const Finish<T>& finish, int64_t row, int64_t n, const typename T::Sum (&sums)[M][V]) {
    typename T::Sum kept[M][V];  // in memory, so that `sums` may stay in registers
    copy(sums, kept);
    for (int v = 0; v < V; v++) {
        const Outputs<T> outputs(finish, n + v * LANES);
        for (int m = 0; m < M; m++) outputs(row + m, kept[m][v]);
    }
}

constexpr int64_t CACHED_ROWS = 64;  // rows of activations that stay in the second-level cache while panels pass
constexpr int64_t TALL = 4 * CACHED_ROWS;  // rows of one task at most
constexpr int64_t SHORT = 16384;    // bytes of a panel under which one row needs prefetching from panel to panel
constexpr int64_t SLAB = 256;       // depth of narrow weights widened at a time for many rows

}  // namespace dosirak

#include "tiles.h"

namespace dosirak {

// f(first row, rows) for blocks of rows top .. bottom whose inputs of T stay in the cache.
template <class T, class F>
INLINE void for_row_blocks(int64_t depth, int64_t top, int64_t bottom, F&& f) {
    int64_t most = CACHED_ROWS;
#if defined(__AMX_INT8__)
    if constexpr (FEWEST_TILED<T> < INT64_MAX) most = passing_rows<T>(depth, bottom - top);
#endif
    for (int64_t row = top; row < bottom; row += most) f(row, std::min(most, bottom - row));
}

// P panels at w, of outputs from panel `first` on, times M rows. Not inlined: GCC would keep fewer sums in registers.
template <class T, int M, int P>
__attribute__((noinline)) void panels(const Finish<T>& finish, int64_t row, int64_t first, const char* w, bool more,
                                      int64_t tile = 0, int64_t tiles = 1) {
    const int64_t depth = finish.l.depth, size = panel_bytes<T>(depth);
    typename T::Sum sums[M][2 * P];
    clear(sums);
    const auto* a = (const typename T::Input*)finish.codes.data + row * finish.codes.stride;
    const Ahead ahead{more ? w + P * size : nullptr, tile, tiles};
    accumulate<T, M, P>(a, finish.codes.stride, w, size, k_packs<T>(depth), sums, ahead);
    finish_tile(finish, row, first * PANEL, sums);
}

// Writes the packs of a panel at w in fp32, [k][PANEL].
template <class T>
INLINE void widen_packs(const char* w, int64_t packs, float* to) {
    for (int64_t g = 0; g < packs; g++)
        for (int v = 0; v < 2; v++) T::widen(T::weight(w + (2 * g + v) * T::STEP), to + g * T::K_PACK * PANEL + v * LANES);
}

// One panel times up to TALL rows of narrow weights if the processor multiplies fp32 only: by slabs of its depth, each of
// which is widened once for all rows.
template <class T>
void widened_panel(const Finish<T>& finish, int64_t row, int64_t rows, int64_t panel, const char* w) {
    alignas(64) static thread_local char slab[panel_bytes<Fp32>(SLAB)];
    alignas(64) static thread_local Vf kept[TALL][2];
    const int64_t depth = k_packs<T>(finish.l.depth) * T::K_PACK, stride = finish.codes.stride;
    const auto* a = (const float*)finish.codes.data + row * stride;
    std::memset(kept, 0, rows * sizeof kept[0]);
    for (int64_t k = 0; k < depth; k += SLAB) {
        const int64_t deep = std::min(SLAB, depth - k);
        widen_packs<T>(w + k / T::K_PACK * 2 * T::STEP, deep / T::K_PACK, (float*)slab);
        for_register_tiles<Fp32::ROWS>(rows, [&](int64_t first, auto count) {
            constexpr int M = decltype(count)::value;
            auto& sums = *(Vf(*)[M][2])kept[first];
            accumulate<Fp32, M, 1>(a + first * stride + k, stride, slab, 0, deep, sums);
        });
    }
    const Outputs<T> even(finish, panel * PANEL), odd(finish, panel * PANEL + LANES);
    for (int64_t m = 0; m < rows; m++) even(row + m, kept[m][0]), odd(row + m, kept[m][1]);
}

// Panels first .. last, which lie at w, times a block of rows (`for_row_blocks`). `more` panels follow them in memory.
template <class T>
void multiply_rows(const Finish<T>& finish, int64_t row, int64_t rows, int64_t first, int64_t last, const char* w,
                   bool more = true) {
#if defined(__AMX_INT8__)
    if constexpr (FEWEST_TILED<T> < INT64_MAX)
        if (rows >= FEWEST_TILED<T>) return multiply_by_tiles(finish, row, rows, first, last, w, more);
#endif
    constexpr bool widens = T::K_PACK > 1 && std::is_same_v<typename T::Input, float>;
    const int64_t size = panel_bytes<T>(finish.l.depth);
    const auto at = [&](int64_t panel) { return w + (panel - first) * size; };
    int64_t p = first;
    if (rows == 1)
        for (; p + 4 <= last; p += 4) panels<T, 1, 4>(finish, row, p, at(p), more && size <= SHORT);
    if (rows == 2)
        for (; p + 2 <= last; p += 2) panels<T, 2, 2>(finish, row, p, at(p), more && !(in_streams && LANES == 16));
    for (; p < last; p++) {
        if constexpr (widens)
            if (rows > T::MOST_WIDENED_IN_REGISTERS) {
                widened_panel<T>(finish, row, rows, p, at(p));
                continue;
            }
        const int64_t tiles = (rows + T::ROWS - 1) / T::ROWS;
        int64_t tile = 0;
        for_register_tiles<T::ROWS>(rows, [&](int64_t from, auto count) {
            panels<T, decltype(count)::value, 1>(finish, row + from, p, at(p), more, tile++, tiles);
        });
    }
}

// Packs the weights [rows][depth] of `rows` outputs, from output `at` on, into their panels. Adds each output's sum to
// `sums` if the kernel needs it. `packed` is filled with zeros before. A team's work.
template <class T, class W>
void pack(char* packed, int32_t* sums, const W* weights, int64_t rows, int64_t depth, int64_t at) {
    constexpr int64_t wide = T::STEP / LANES / T::K_PACK;  // bytes of one weight
    static_assert(wide == sizeof(W));
    const int64_t packs = k_packs<T>(depth), size = panel_bytes<T>(depth);
    const int64_t first = at / PANEL, last = (at + rows + PANEL - 1) / PANEL;
#pragma omp for schedule(dynamic, 1)
    for (int64_t p = first; p < last; p++) {
        const int64_t low = std::max(p * PANEL, at), high = std::min((p + 1) * PANEL, at + rows);
        for (int64_t g = 0; g < packs; g += 16)  // a cache line of every output's row at a time
            for (int64_t n = low; n < high; n++) {
                const W* from = weights + (n - at) * depth + g * T::K_PACK;
                char* to = packed + p * size + g * 2 * T::STEP + (n % PANEL) * T::K_PACK * sizeof(W);
                const int64_t count = std::min<int64_t>(16 * T::K_PACK, depth - g * T::K_PACK), whole = count / T::K_PACK;
                for (int64_t i = 0; i < whole; i++)
                    std::memcpy(to + i * 2 * T::STEP, from + i * T::K_PACK, T::K_PACK * sizeof(W));
                std::memcpy(to + whole * 2 * T::STEP, from + whole * T::K_PACK, count % T::K_PACK * sizeof(W));
                if constexpr (std::is_same_v<T, Int8>)
                    if (T::ZERO) sums[n] += std::accumulate(from, from + count, 0);
            }
    }
}

}  // namespace dosirak
