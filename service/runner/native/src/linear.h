// y = x W^T over packed weights, fp32, bf16 or 8-bit, for any number of rows. One copy of the weights serves all.
//
// panel   the weights of PANEL outputs, [k / GROUP][PANEL][GROUP]: one load gives GROUP neighbours of every output
// tile    M rows times P panels of sums in registers, walked over all of k: every output is one chain of additions in
//         the order of k, whatever M is. So a row's result does not depend on how many rows there are.
//
// 8-bit: x is quantized row by row; the sum is in 32-bit integers, exact up to k = 2^31 / (255 * 127). Columns whose x
//         is far larger than the rest's (outliers) can be left out of the codes and multiplied in bf16 instead, as
//         LLM.int8 does (Dettmers et al. 2022).
// 8-bit weights alone: x stays fp32, the weights are widened in registers.
#pragma once

#include <algorithm>
#include <numeric>

#include "simd.h"

namespace dosirak {

enum Kind : int64_t { FP32 = 0, BF16 = 1, INT8 = 2, INT8_WEIGHT = 3 };

struct Linear {  // mirrored in library.py
    int64_t kind, outputs, depth;
    const void* packed;
    const float* scale;   // [outputs], 8-bit only
    const int32_t* sums;  // [outputs], the sum of each output's 8-bit weights
    const float* bias;    // [outputs] or null
    int64_t outliers;         // columns that 8-bit codes leave out
    const int32_t* columns;   // [outliers]
    const uint16_t* kept;     // [outliers][outputs rounded up to whole vectors], their weights in bf16
};

constexpr int64_t WHOLE = 16;  // outputs of the widest vector
constexpr int64_t kept_stride(int64_t outputs) { return (outputs + WHOLE - 1) / WHOLE * WHOLE; }

struct Fp32 {
    using Input = float;
    using Sum = Vf;
    using Weight = Vf;
    using Spread = Vf;
    static constexpr int GROUP = 1, STEP = LANES * 4, ROWS = TILE_ROWS;
    static INLINE Weight weight(const char* w) { return load<Vf>(w); }
    static INLINE Spread spread(const Input* a) { return splat(*a); }
    static INLINE Sum dot(Sum sum, Spread a, Weight w) { return fma(a, w, sum); }
};

#if defined(__AVX512BF16__)
struct Bf16 {
    using Input = uint16_t;
    using Sum = Vf;
    using Weight = __m512i;
    using Spread = __m512i;
    static constexpr int GROUP = 2, STEP = 64, ROWS = TILE_ROWS;
    static INLINE Weight weight(const char* w) { return _mm512_loadu_si512(w); }
    static INLINE Spread spread(const Input* a) { return _mm512_set1_epi32(load<int32_t>(a)); }
    static INLINE Sum dot(Sum sum, Spread a, Weight w) {
        return (Vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)w);
    }
};
#else
struct Bf16 {
    struct Pair {
        Vf even, odd;
    };
    using Input = float;
    using Sum = Vf;
    using Weight = Pair;
    using Spread = Pair;
    // TILES of rows from which it pays to widen a slab for all: fewer widen a panel in the cache again for each.
    static constexpr int GROUP = 2, STEP = LANES * 4, ROWS = 4, TILES = 5;
    static INLINE Weight weight(const char* w) {
        const Vu both = load<Vu>(w);
        return {(Vf)(both << 16), (Vf)(both & 0xffff0000u)};
    }
    static INLINE Spread spread(const Input* a) { return {splat(a[0]), splat(a[1])}; }
    static INLINE Sum dot(Sum sum, Spread a, Weight w) { return fma(a.odd, w.odd, fma(a.even, w.even, sum)); }
    static INLINE void widen(const Weight& w, float* to) {
        store(to, w.even);
        store(to + PANEL, w.odd);
    }
};
#endif

struct Int8Weight {
    struct Four {
        Vf of[4];
    };
    using Input = float;
    using Sum = Vf;
    using Weight = Four;
    using Spread = Four;
    static constexpr int GROUP = 4, STEP = LANES * 4, ROWS = 4, TILES = 3;
    static INLINE Weight weight(const char* w) {
        const Vi all = load<Vi>(w);
        return {{__builtin_convertvector((all << 24) >> 24, Vf), __builtin_convertvector((all << 16) >> 24, Vf),
                 __builtin_convertvector((all << 8) >> 24, Vf), __builtin_convertvector(all >> 24, Vf)}};
    }
    static INLINE Spread spread(const Input* a) { return {{splat(a[0]), splat(a[1]), splat(a[2]), splat(a[3])}}; }
    static INLINE Sum dot(Sum sum, const Spread& a, const Weight& w) {
        for (int k = 0; k < 4; k++) sum = fma(a.of[k], w.of[k], sum);
        return sum;
    }
    static INLINE void widen(const Weight& w, float* to) {
        for (int k = 0; k < 4; k++) store(to + k * PANEL, w.of[k]);
    }
};

#if defined(__AVX512VNNI__)
struct Int8 {
    using Input = uint8_t;
    using Sum = Vi;
    using Weight = __m512i;
    using Spread = __m512i;
    static constexpr int GROUP = 4, STEP = 64, ROWS = TILE_ROWS, REACH = 127, ZERO = REACH + 1;
    static INLINE Weight weight(const char* w) { return _mm512_loadu_si512(w); }
    static INLINE Spread spread(const Input* a) { return _mm512_set1_epi32(load<int32_t>(a)); }
    static INLINE Sum dot(Sum sum, Spread a, Weight w) { return (Vi)_mm512_dpbusd_epi32((__m512i)sum, a, w); }
};
#elif defined(__AVX2__)
// Pairs of products are added in 16 bits here and must not saturate: 2 * 127 * 127 fits, hence 7-bit activations. All 8
// bits by widening to 16 (vpmovsxbw, vpmaddwd) take four instructions where this takes three.
struct Int8 {
    using Input = uint8_t;
    using Sum = Vi;
    using Weight = __m256i;
    using Spread = __m256i;
    static constexpr int GROUP = 4, STEP = 32, ROWS = TILE_ROWS, REACH = 63, ZERO = REACH + 1;
    static INLINE Weight weight(const char* w) { return _mm256_loadu_si256((const __m256i*)w); }
    static INLINE Spread spread(const Input* a) { return _mm256_set1_epi32(load<int32_t>(a)); }
    static INLINE Sum dot(Sum sum, Spread a, Weight w) {
        return sum + (Vi)_mm256_madd_epi16(_mm256_maddubs_epi16(a, w), _mm256_set1_epi16(1));
    }
};
#else
struct Int8 {
    typedef int16_t Vs __attribute__((vector_size(LANES * 4)));
    typedef int8_t Vb __attribute__((vector_size(LANES * 2)));
    struct Pair {
        Vi even, odd;
    };
    using Input = int16_t;
    using Sum = Vi;
    using Weight = Pair;
    using Spread = Pair;
    static constexpr int GROUP = 2, STEP = LANES * 2, ROWS = TILE_ROWS, REACH = 127, ZERO = 0;
    static INLINE Weight weight(const char* w) {
        const Vi both = (Vi)__builtin_convertvector(load<Vb>(w), Vs);
        return {(both << 16) >> 16, both >> 16};
    }
    static INLINE Spread spread(const Input* a) { return {a[0] - Vi{}, a[1] - Vi{}}; }
    static INLINE Sum dot(Sum sum, Spread a, Weight w) { return sum + a.even * w.even + a.odd * w.odd; }
};
#endif

template <class T>
constexpr int64_t groups_of(int64_t depth) {
    return (depth + T::GROUP - 1) / T::GROUP;
}

template <class T>
constexpr int64_t panel_bytes(int64_t depth) {
    return groups_of<T>(depth) * 2 * T::STEP;
}

// sums[M][2 P] += rows a (lda apart) times P panels (`panel` bytes apart), over `groups` of k. Meanwhile the P panels
// at `ahead`, where given, are fetched: the processor's own prefetching does not look past a panel's end.
template <class T, int M, int P>
INLINE void accumulate(const typename T::Input* __restrict a, int64_t lda, const char* __restrict w, int64_t panel,
                       int64_t groups, typename T::Sum (&sums)[M][2 * P], const char* ahead = nullptr) {
    for (int64_t g = 0; g < groups; g++) {
        const char* here = w + g * 2 * T::STEP;
        if (ahead)
            for (int line = 0; line < 2 * T::STEP * P; line += 64)
                __builtin_prefetch(ahead + g * 2 * T::STEP * P + line, 0, 2);
        if constexpr (M < 2 * P) {  // fewer rows than vectors of weights: these pass through one register
            typename T::Spread rows[M];
            for (int m = 0; m < M; m++) rows[m] = T::spread(a + m * lda + g * T::GROUP);
#pragma GCC unroll 8
            for (int v = 0; v < 2 * P; v++) {
                const auto weight = T::weight(here + (v / 2) * panel + (v % 2) * T::STEP);
#pragma GCC unroll 12
                for (int m = 0; m < M; m++) sums[m][v] = T::dot(sums[m][v], rows[m], weight);
            }
        } else {
            typename T::Weight weights[2 * P];
            for (int v = 0; v < 2 * P; v++) weights[v] = T::weight(here + (v / 2) * panel + (v % 2) * T::STEP);
#pragma GCC unroll 12
            for (int m = 0; m < M; m++) {
                const auto row = T::spread(a + m * lda + g * T::GROUP);
#pragma GCC unroll 8
                for (int v = 0; v < 2 * P; v++) sums[m][v] = T::dot(sums[m][v], row, weights[v]);
            }
        }
    }
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

// Cuts m rows into tiles of nearly equal size, at most MAX: f(first row, rows).
template <int MAX, class F>
INLINE void for_tiles(int64_t m, F&& f) {
    const int64_t tiles = (m + MAX - 1) / MAX;
    for (int64_t t = 0; t < tiles; t++) {
        const int64_t first = m * t / tiles, last = m * (t + 1) / tiles;
        with_rows<MAX>(last - first, [&](auto rows) { f(first, rows); });
    }
}

// Rows as the kernel of a kind wants them: data [m][stride] of its input type, and for 8-bit each row's scale and its
// outliers [m][outliers_stride].
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

template <class T>
struct Finish {
    const Linear& l;
    const Codes& codes;
    const Output& out;

    // Writes one vector of row m's sums: outputs n .. n + LANES, those past the end dropped.
    INLINE void operator()(int64_t m, int64_t n, typename T::Sum sums) const {
        alignas(64) float y[LANES];
        const int64_t count = std::min<int64_t>(LANES, l.outputs - n);
        if (count <= 0) return;
        float* to = out.data + m * out.stride + n;
        if (count == LANES) {
            Vf value = scaled(m, n, sums, LANES);
            if (out.add) value = load<Vf>(to) + value;
            store(to, value);
            return;
        }
        store(y, scaled(m, n, sums, count));
        for (int64_t i = 0; i < count; i++) to[i] = out.add ? to[i] + y[i] : y[i];
    }

    template <class V>
    static INLINE V some(const void* from, int64_t count) {
        V value{};
        std::memcpy(&value, from, count * 4);
        return value;
    }

    INLINE Vf scaled(int64_t m, int64_t n, typename T::Sum sums, int64_t count) const {
        Vf value;
        if constexpr (std::is_same_v<T, Int8>) {
            if constexpr (T::ZERO != 0) sums -= T::ZERO * some<Vi>(l.sums + n, count);
            value = __builtin_convertvector(sums, Vf) * some<Vf>(l.scale + n, count) * codes.scale[m];
            for (int64_t j = 0; j < l.outliers; j++) {
                const Vh kept = load<Vh>(l.kept + j * kept_stride(l.outputs) + n);
                const Vf weight = (Vf)(__builtin_convertvector(kept, Vu) << 16);
                value = fma(splat(codes.outliers[m * codes.outliers_stride + j]), weight, value);
            }
        } else if constexpr (std::is_same_v<T, Int8Weight>) {
            value = sums * some<Vf>(l.scale + n, count);
        } else {
            value = sums;
        }
        return l.bias ? value + some<Vf>(l.bias + n, count) : value;
    }
};

constexpr int64_t BLOCK_ROWS = 64;  // rows of activations that stay in the second-level cache while panels pass
constexpr int64_t SHORT = 16384;    // bytes of a panel under which one row's reading needs help from panel to panel
constexpr int64_t SLAB = 256;       // depth of narrow weights widened at a time for many rows

// P panels from `first` on times m rows.
template <class T, int M, int P>
INLINE void panels(const Finish<T>& finish, int64_t row, int64_t first, bool look_ahead = false) {
    const Linear& l = finish.l;
    const int64_t size = panel_bytes<T>(l.depth);
    typename T::Sum sums[M][2 * P] = {};
    const auto* a = (const typename T::Input*)finish.codes.data + row * finish.codes.stride;
    const char* w = (const char*)l.packed + first * size;
    accumulate<T, M, P>(a, finish.codes.stride, w, size, groups_of<T>(l.depth), sums, look_ahead ? w + P * size : nullptr);
    for (int m = 0; m < M; m++)
        for (int v = 0; v < 2 * P; v++) finish(row + m, first * PANEL + v * LANES, sums[m][v]);
}

// Many rows of narrow weights where the processor multiplies fp32 only: a slab of the panel is widened once for all.
template <class T>
void widened_panel(const Finish<T>& finish, int64_t row, int64_t rows, int64_t panel) {
    alignas(64) static thread_local float slab[SLAB * PANEL];
    alignas(64) static thread_local Vf kept[BLOCK_ROWS][2];
    const Linear& l = finish.l;
    const char* w = (const char*)l.packed + panel * panel_bytes<T>(l.depth);
    const float* a = (const float*)finish.codes.data + row * finish.codes.stride;
    const int64_t depth = groups_of<T>(l.depth) * T::GROUP;
    std::memset(kept, 0, sizeof kept);
    for (int64_t k = 0; k < depth; k += SLAB) {
        const int64_t deep = std::min(SLAB, depth - k);
        for (int64_t g = 0; g < deep / T::GROUP; g++)
            for (int v = 0; v < 2; v++)
                T::widen(T::weight(w + (k / T::GROUP + g) * 2 * T::STEP + v * T::STEP), slab + g * T::GROUP * PANEL + v * LANES);
        for_tiles<Fp32::ROWS>(rows, [&](int64_t first, auto count) {
            constexpr int M = decltype(count)::value;
            Vf sums[M][2];
            std::memcpy(sums, kept[first], sizeof sums);
            accumulate<Fp32, M, 1>(a + first * finish.codes.stride + k, finish.codes.stride, (const char*)slab, 0, deep, sums);
            std::memcpy(kept[first], sums, sizeof sums);
        });
    }
    for (int64_t m = 0; m < rows; m++)
        for (int v = 0; v < 2; v++) finish(row + m, panel * PANEL + v * LANES, kept[m][v]);
}

template <class T>
void block(const Finish<T>& finish, int64_t row, int64_t rows, int64_t first, int64_t last) {
    constexpr bool widens = T::GROUP > 1 && std::is_same_v<typename T::Input, float>;
    int64_t p = first;
    if (rows == 1)
        for (; p + 4 <= last; p += 4) panels<T, 1, 4>(finish, row, p, panel_bytes<T>(finish.l.depth) <= SHORT);
    if (rows == 2)
        for (; p + 2 <= last; p += 2) panels<T, 2, 2>(finish, row, p, true);
    for (; p < last; p++) {
        if constexpr (widens)
            if (rows > T::TILES * T::ROWS) {
                widened_panel<T>(finish, row, rows, p);
                continue;
            }
        for_tiles<T::ROWS>(rows, [&](int64_t at, auto count) {
            panels<T, decltype(count)::value, 1>(finish, row + at, p, at == 0);
        });
    }
}

// Shared by the threads of a team without a barrier at the end. Tasks are ranges of outputs, so that weights are read
// from memory once; with many threads or rows also ranges of rows.
template <class T>
void multiply(const Linear& l, const Codes& codes, int64_t m, const Output& out, int threads) {
    const int64_t all = (l.outputs + PANEL - 1) / PANEL;
    const int64_t wanted = std::clamp<int64_t>(all / (4 * threads), 1, 8);
    const int64_t width = wanted < 3 ? wanted : (wanted + 3) / 4 * 4;  // single rows take four panels at a time
    const int64_t tall = 4 * BLOCK_ROWS;
    const int64_t across = (all + width - 1) / width, down = (m + tall - 1) / tall;
    const Finish<T> finish{l, codes, out};
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t task = 0; task < across * down; task++) {
        const int64_t first = task % across * width, last = std::min(first + width, all);
        const int64_t top = task / across * tall, bottom = std::min(top + tall, m);
        for (int64_t row = top; row < bottom; row += BLOCK_ROWS)
            block<T>(finish, row, std::min(BLOCK_ROWS, bottom - row), first, last);
    }
}

inline void multiply(const Linear& l, const Codes& codes, int64_t m, const Output& out, int threads) {
    if (l.kind == INT8) multiply<Int8>(l, codes, m, out, threads);
    if (l.kind == INT8_WEIGHT) multiply<Int8Weight>(l, codes, m, out, threads);
    if (l.kind == BF16) multiply<Bf16>(l, codes, m, out, threads);
    if (l.kind == FP32) multiply<Fp32>(l, codes, m, out, threads);
}

// `rows` outputs' weights [rows][depth], the first of them output `at`, into their panels, and each one's sum added to
// `sums` where the kernel needs it; `packed` is filled with zeros. A team's work.
template <class T, class W>
void pack(char* packed, int32_t* sums, const W* weights, int64_t rows, int64_t depth, int64_t at) {
    constexpr int64_t wide = T::STEP / LANES / T::GROUP;  // bytes of one weight
    static_assert(wide == sizeof(W));
    const int64_t groups = groups_of<T>(depth), size = panel_bytes<T>(depth);
    const int64_t first = at / PANEL, last = (at + rows + PANEL - 1) / PANEL;
#pragma omp for schedule(dynamic, 1)
    for (int64_t p = first; p < last; p++) {
        const int64_t low = std::max(p * PANEL, at), high = std::min((p + 1) * PANEL, at + rows);
        for (int64_t g = 0; g < groups; g += 16)  // a cache line of every output's row at a time
            for (int64_t n = low; n < high; n++) {
                const W* from = weights + (n - at) * depth + g * T::GROUP;
                char* to = packed + p * size + g * 2 * T::STEP + (n % PANEL) * T::GROUP * sizeof(W);
                const int64_t count = std::min<int64_t>(16 * T::GROUP, depth - g * T::GROUP), whole = count / T::GROUP;
                for (int64_t i = 0; i < whole; i++)
                    std::memcpy(to + i * 2 * T::STEP, from + i * T::GROUP, T::GROUP * sizeof(W));
                std::memcpy(to + whole * 2 * T::STEP, from + whole * T::GROUP, count % T::GROUP * sizeof(W));
                if constexpr (std::is_same_v<T, Int8>)
                    if (T::ZERO) sums[n] += std::accumulate(from, from + count, 0);
            }
    }
}

}  // namespace dosirak
