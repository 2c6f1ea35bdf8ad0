// 4-bit weights are the compressed form of an int8 layer's weights. A group of neighbours in depth of one output gives
//
//   weight8 = base + (code * scale >> 4)        code 0 .. 15, scale 0 .. 255, base -128 .. 127
//
// in whole numbers, so a product is exactly the product of that int8 layer, for every number of rows and by every kernel.
// Few rows are multiplied as the codes are decoded in registers. For more rows a panel is decoded once for all.
//
// panel   [depth / group] times: scales [PANEL], bases [PANEL], then [group / 8][2] vectors of codes
// codes   a vector holds the packs 2 i and 2 i + 1 of LANES outputs. A 16-bit word of it has the codes of inputs
//         1, 5, 0, 4 of the eight, or 3, 7, 2, 6, from the lowest bits on: so each product by the scale comes out in
//         the byte where the weight belongs.
#pragma once

#include "linear.h"
#include "space.h"

namespace dosirak {

struct Int4 {
    static constexpr int64_t INPUTS = 8;  // of one vector of codes; a group is a multiple of 32, a depth one of a group
};

constexpr int64_t CODES_NEAR = 9216;  // bytes from what is decoded to what is prefetched
constexpr int64_t CODES_NEAR_IN_STREAMS = 4096;
#if defined(__AMX_INT8__)
constexpr int DECODED_ROWS = 4;       // of a register tile
constexpr int64_t DECODED_TILES = 1;  // that decode sooner than one writes what it decodes
#else
constexpr int DECODED_ROWS = Int8::ROWS;
constexpr int64_t DECODED_TILES = LANES == 16 ? 2 : 1;
#endif
constexpr int64_t MOST_DECODED_IN_REGISTERS = DECODED_TILES * DECODED_ROWS;

// Whether this instruction set has kernels for 4-bit weights. Where it has none, they are decoded as a layer is made.
constexpr bool HAS_INT4 = Int8::K_PACK == 4;

constexpr int64_t group_bytes(int64_t group) { return 2 * PANEL + group * PANEL / 2; }
constexpr int64_t int4_panel_bytes(int64_t depth, int64_t group) { return depth / group * group_bytes(group); }

#if defined(__AVX512VNNI__) || defined(__AVX2__) || defined(__ARM_FEATURE_DOTPROD)
typedef uint16_t Vw __attribute__((vector_size(LANES * 4)));
typedef uint8_t Vc __attribute__((vector_size(LANES * 4)));
typedef uint8_t Vo __attribute__((vector_size(LANES)));

// The upper halves of 32-bit products.
INLINE Vw high_product(Vw a, Vw b) {
#if defined(__AVX512F__)
    return (Vw)_mm512_mulhi_epu16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (Vw)_mm256_mulhi_epu16((__m256i)a, (__m256i)b);
#else
    const uint16x8_t left = (uint16x8_t)a, right = (uint16x8_t)b;
    const uint32x4_t low = vmull_u16(vget_low_u16(left), vget_low_u16(right)), high = vmull_high_u16(left, right);
    return (Vw)vuzp2q_u16((uint16x8_t)low, (uint16x8_t)high);
#endif
}

// LANES bytes, each in 32 bits.
INLINE Vu spread_bytes(const char* from) {
#if defined(__AVX512F__)
    return (Vu)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)from));
#elif defined(__AVX2__)
    return (Vu)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from));
#else
    return __builtin_convertvector(load<Vo>(from), Vu);
#endif
}

// What decodes the codes of one vector of outputs.
class Group {
public:
    INLINE Group(const char* at, int half) {
        const Vu scale = spread_bytes(at + half * LANES), base = spread_bytes(at + PANEL + half * LANES);
        scale_ = (Vw)(scale | scale << 16);
        sixteen_ = scale_ << 4;
        const Vu two = base | base << 8;
        base_ = (Vc)(two | two << 16);
    }

    INLINE Int8::Weight even(Vw codes) const {
        return joined((codes & 0x000f) * sixteen_, high_product(codes & 0x0f00, sixteen_));
    }

    INLINE Int8::Weight odd(Vw codes) const {
        return joined((codes & 0x00f0) * scale_, high_product(codes & 0xf000, scale_));
    }

private:
    INLINE Int8::Weight joined(Vw upper, Vw lower) const { return (Int8::Weight)((Vc)((upper & 0xff00) | lower) + base_); }

    Vw scale_, sixteen_;
    Vc base_;
};

// Weights of two packs, in both halves of a panel.
struct Decoded {
    Int8::Weight even[2], odd[2];
};

// f(first input, weights) for a panel in the order of depth.
template <class F>
INLINE void for_codes(const char* w, int64_t depth, int64_t group, F&& f) {
    const int64_t near = in_streams ? CODES_NEAR_IN_STREAMS : CODES_NEAR;
    for (int64_t k = 0; k < depth; k += group) {
        const Group left(w, 0), right(w, 1);
        prefetch<2 * PANEL>(w + near);
        w += 2 * PANEL;
        for (int64_t i = k; i < k + group; i += Int4::INPUTS, w += 2 * Int8::STEP) {
            prefetch<2 * Int8::STEP>(w + near);
            const Vw a = load<Vw>(w), b = load<Vw>(w + Int8::STEP);
            f(i, Decoded{{left.even(a), right.even(b)}, {left.odd(a), right.odd(b)}});
        }
    }
}

// One panel times M rows.
template <int M>
INLINE void int4_panel(const Finish<Int8>& finish, int64_t row, int64_t panel, const char* w) {
    const Linear& l = finish.l;
    const int64_t stride = finish.codes.stride;
    const auto* a = (const Int8::Input*)finish.codes.data + row * stride;
    constexpr int CHAINS = M < 4 ? 2 : 1;  // of sums: one alone would wait for its own additions where rows are few
    Vi sums[CHAINS][M][2];
    for (auto& chain : sums) clear(chain);
    for_codes(w, l.depth, l.group, [&](int64_t k, const Decoded& weights) {
#pragma GCC unroll 12
        for (int m = 0; m < M; m++) {
            const auto even = Int8::spread(a + m * stride + k), odd = Int8::spread(a + m * stride + k + Int8::K_PACK);
            for (int half = 0; half < 2; half++) {
                Vi &first = sums[0][m][half], &second = sums[CHAINS - 1][m][half];
                first = Int8::dot(first, even, weights.even[half]);
                second = Int8::dot(second, odd, weights.odd[half]);
            }
        }
    });
    if constexpr (CHAINS == 2)
        for (int m = 0; m < M; m++)
            for (int half = 0; half < 2; half++) sums[0][m][half] += sums[1][m][half];
    finish_tile(finish, row, panel * PANEL, sums[0]);
}

// Writes the weights of `deep` inputs, whose groups begin at w, as int8 has them.
INLINE void decode(const char* w, int64_t deep, int64_t group, char* to) {
    for_codes(w, deep, group, [&](int64_t k, const Decoded& weights) {
        char* at = to + k / Int8::K_PACK * 2 * Int8::STEP;
        for (const auto& pack : {weights.even, weights.odd})
            for (int half = 0; half < 2; half++, at += Int8::STEP) store(at, pack[half]);
    });
}

// One panel times more rows: decoded once for all of them.
inline void decoded_panel(const Finish<Int8>& finish, int64_t row, int64_t rows, int64_t panel, const char* w) {
    static thread_local Buffer whole;
    char* decoded = whole.bytes(panel_bytes<Int8>(finish.l.depth));
    decode(w, finish.l.depth, finish.l.group, decoded);
    for_row_blocks<Int8>(finish.l.depth, row, row + rows, [&](int64_t first, int64_t count) {
        multiply_rows<Int8>(finish, first, count, panel, panel + 1, decoded, false);
    });
}

INLINE void multiply_task(const Finish<Int8>& finish, Int4, int64_t top, int64_t bottom, int64_t first, int64_t last) {
    const Linear& l = finish.l;
    const int64_t size = int4_panel_bytes(l.depth, l.group), rows = bottom - top;
    for (int64_t p = first; p < last; p++) {
        const char* w = (const char*)l.packed + p * size;
        if (rows <= MOST_DECODED_IN_REGISTERS)
            for_register_tiles<DECODED_ROWS>(rows, [&](int64_t from, auto count) {
                int4_panel<decltype(count)::value>(finish, top + from, p, w);
            });
        else
            decoded_panel(finish, top, rows, p, w);
    }
}
#endif

// Packs `rows` outputs from output `at` on: codes [rows][depth / 2], two inputs in a byte, the first in its lower half;
// scales and bases [rows][depth / group]. `packed` is filled with zeros before. A team's work.
inline void pack_int4(char* packed, int32_t* sums, const uint8_t* codes, const uint8_t* scales, const int8_t* bases,
                      int64_t rows, int64_t depth, int64_t group, int64_t at) {
    const int64_t groups = depth / group, size = int4_panel_bytes(depth, group);
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const int64_t n = at + r, lane = n % PANEL;
        char* panel = packed + n / PANEL * size;
        int32_t sum = 0;
        for (int64_t g = 0; g < groups; g++, panel += group_bytes(group)) {
            const uint8_t scale = scales[r * groups + g];
            const int8_t base = bases[r * groups + g];
            panel[lane] = (char)scale;
            panel[PANEL + lane] = (char)base;
            for (int64_t i = 0; i < group; i += Int4::INPUTS) {
                const uint8_t* from = codes + r * (depth / 2) + (g * group + i) / 2;
                int code[Int4::INPUTS];
                for (int64_t j = 0; j < Int4::INPUTS; j++) {
                    code[j] = from[j / 2] >> (j % 2 * 4) & 15;
                    sum += (int8_t)(base + (code[j] * scale >> 4));
                }
                char* to = panel + 2 * PANEL + i * PANEL / 2 + lane * Int8::K_PACK;
                for (int word = 0; word < 4; word += 2) {
                    *to++ = (char)(code[word + 1] | code[word + 5] << 4);
                    *to++ = (char)(code[word] | code[word + 4] << 4);
                }
            }
        }
        sums[n] += sum;
    }
}

}  // namespace dosirak
