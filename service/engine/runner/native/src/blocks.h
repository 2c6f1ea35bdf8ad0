// Blocks of a GGUF file are multiplied as they are: no weight is rounded a second time. A block holds the codes of
// neighbours in depth of one output; a group of them shares a scale, and in some types a minimum:
//
//   weight = d (code - zero) + m        Q4_0 Q5_0 Q8_0: d;   Q4_1 Q5_1: d, m
//                                       K: d = D s, m = -M t, of a block of 256 with D, M and its groups' whole s, t
//
// x is quantized by its own groups of 32 to 8 bits, so that a product is
//
//   y = sum over groups of    (scale of x  d) (sum of (code - zero) x)    +    m (scale of x  sum of x)
//
// The inner sums are whole numbers, the outer one is fp32 in the order of depth: a row has the same bits for every number
// of rows. Outputs of several types lie in one layer, as a file's queries and values do: each panel has its own type.
//
// panel   blocks one after the other: D or d in fp16 [PANEL], M or m [PANEL], then groups
// group   of K: s [PANEL], t [PANEL], a byte each; then codes
// codes   a vector has 4 inputs of LANES outputs. Two packs of 4 share one of 4-bit codes, in its lower and upper halves;
//         what 5-bit and 6-bit codes have above that follows, for all packs of the group in one vector. [..][2] halves
#pragma once

#include "linear.h"

namespace dosirak {

enum BlockType : int64_t { Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14 };  // GGUF's

struct PanelPlace {  // one for each panel of a layer, in the place of `Linear::sums`
    int64_t type, offset;
};

constexpr int64_t block_bits(int64_t type) {
    return type == Q8_0 ? 8 : type == Q6_K ? 6 : type == Q5_0 || type == Q5_1 || type == Q5_K ? 5 : 4;
}
constexpr int block_zero(int64_t type) {
    return type == Q4_0 ? 8 : type == Q5_0 ? 16 : type == Q6_K ? 32 : type == Q8_0 ? 128 : 0;
}
constexpr bool has_minimum(int64_t type) { return type == Q4_1 || type == Q5_1 || type == Q4_K || type == Q5_K; }
constexpr bool is_nested(int64_t type) { return type >= Q4_K; }
constexpr int64_t block_inputs(int64_t type) { return is_nested(type) ? 256 : 32; }
constexpr int64_t group_inputs(int64_t type) { return type == Q6_K ? 16 : 32; }

constexpr int64_t CODES = LANES * 4;  // bytes of a vector of codes
constexpr int64_t head_bytes(int64_t type) { return (has_minimum(type) ? 4 : 2) * PANEL; }
constexpr int64_t group_head_bytes(int64_t type) { return is_nested(type) ? (has_minimum(type) ? 2 : 1) * PANEL : 0; }
constexpr int64_t low_bytes(int64_t type) { return group_inputs(type) * PANEL / (block_bits(type) == 8 ? 1 : 2); }
constexpr bool has_high(int64_t type) { return block_bits(type) == 5 || block_bits(type) == 6; }
constexpr int64_t block_group_bytes(int64_t type) {
    return group_head_bytes(type) + low_bytes(type) + (has_high(type) ? 2 * CODES : 0);
}
constexpr int64_t block_bytes(int64_t type) {
    return head_bytes(type) + block_inputs(type) / group_inputs(type) * block_group_bytes(type);
}
constexpr int64_t block_panel_bytes(int64_t type, int64_t depth) { return depth / block_inputs(type) * block_bytes(type); }

// fp16, for numbers.
INLINE float widen_half(uint16_t half) {
    const uint32_t bits = (uint32_t)(half & 0x7fff) << 13;
    float x;
    std::memcpy(&x, &bits, 4);
    x *= 0x1p112f;
    return half & 0x8000 ? -x : x;
}

INLINE Vf widen_halves(const char* from) {
#if defined(__AVX512F__)
    return (Vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#else
    const Vu half = __builtin_convertvector(load<Vh>(from), Vu);
    const Vf x = (Vf)((half & 0x7fffu) << 13) * 0x1p112f;
    return (Vf)((Vu)x | (half & 0x8000u) << 16);
#endif
}

// Products of unsigned codes and signed x, four inputs at a time.
template <int BITS>
struct CodeDot {
#if defined(__AVX512VNNI__)
    static constexpr bool CENTERED = false;  // whether 8-bit codes are multiplied with their zero taken off
    static INLINE __m512i spread(const int8_t* x) { return _mm512_set1_epi32(load<int32_t>(x)); }
    static INLINE Vi dot(Vi sum, Vu w, __m512i x) { return (Vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, x); }
#elif defined(__AVX2__)
    static constexpr bool CENTERED = true;
    static INLINE __m256i spread(const int8_t* x) { return _mm256_set1_epi32(load<int32_t>(x)); }
    static INLINE Vi dot(Vi sum, Vu w, __m256i row) {
        __m256i codes = (__m256i)w;
        if constexpr (BITS == 8) {  // pairs of products must fit 16 bits: 2 * 128 * 127
            const __m256i centered = _mm256_xor_si256(codes, _mm256_set1_epi8((char)0x80));
            codes = _mm256_abs_epi8(centered), row = _mm256_sign_epi8(row, centered);
        }
        return sum + (Vi)_mm256_madd_epi16(_mm256_maddubs_epi16(codes, row), _mm256_set1_epi16(1));
    }
#elif defined(__ARM_FEATURE_DOTPROD)
    static constexpr bool CENTERED = true;
    static INLINE int8x16_t spread(const int8_t* x) { return (int8x16_t)vdupq_n_s32(load<int32_t>(x)); }
    static INLINE Vi dot(Vi sum, Vu w, int8x16_t x) {
        return (Vi)vdotq_s32((int32x4_t)sum, (int8x16_t)(BITS == 8 ? w ^ 0x80808080u : w), x);
    }
#else
    static constexpr bool CENTERED = false;
    static INLINE const int8_t* spread(const int8_t* x) { return x; }
    static INLINE Vi dot(Vi sum, Vu w, const int8_t* x) {
        for (int k = 0; k < 4; k++) sum += (Vi)(w >> (8 * k) & 0xffu) * (int32_t)x[k];
        return sum;
    }
#endif
};

// A row [stride] as the kernels read it: codes, and of each group of 32 its scale, its sum times that, and less its sum, so
// that a zero can be taken off; the latter also of each 16.
struct BlockRow {
    int8_t* codes;
    float *scale, *shift;
    int32_t *less32, *less16;

    INLINE BlockRow(char* row, int64_t stride)
        : codes((int8_t*)row), scale((float*)(row + stride)), shift(scale + stride / 32),
          less32((int32_t*)(shift + stride / 32)), less16(less32 + stride / 32) {}
};
constexpr int64_t BLOCK_ROW_BYTES = 2;  // of an input, all in all

// The codes of a group as bytes: f(pack, codes of the panel's left half, of its right half) in order.
template <int TYPE, class F>
INLINE void for_packs(const char* codes, F&& f) {
    constexpr int PACKS = group_inputs(TYPE) / 4, BITS = block_bits(TYPE);
    if constexpr (BITS == 8) {
#pragma GCC unroll 8
        for (int pack = 0; pack < PACKS; pack++)
            f(pack, load<Vu>(codes + 2 * pack * CODES), load<Vu>(codes + (2 * pack + 1) * CODES));
    } else {
        Vu high[2] = {};
        if constexpr (has_high(TYPE))
            for (int half = 0; half < 2; half++) high[half] = load<Vu>(codes + low_bytes(TYPE) + half * CODES);
        const auto at = [&](int pack, int half) {
            const Vu both = load<Vu>(codes + (pack / 2 * 2 + half) * CODES);
            Vu low = (pack % 2 ? both >> 4 : both) & 0x0f0f0f0fu;
            if constexpr (has_high(TYPE)) {
                const int left = 4 - pack * (BITS - 4);
                const Vu bits = left < 0 ? high[half] >> -left : high[half] << left;
                low |= bits & (BITS == 5 ? 0x10101010u : 0x30303030u);
            }
            return low;
        };
#pragma GCC unroll 8
        for (int pack = 0; pack < PACKS; pack++) f(pack, at(pack, 0), at(pack, 1));
    }
}

// A whole number in all lanes. GCC would multiply it by a constant before it spreads it, in a mask register.
INLINE Vi spread(const int32_t* from) {
#if defined(__AVX512F__)
    __m512i all;
    asm("vpbroadcastd %1, %0" : "=v"(all) : "m"(*from));
    return (Vi)all;
#else
    return Vi{} + *from;
#endif
}

constexpr int BLOCK_ROWS = LANES == 16 ? 8 : LANES == 4 ? 6 : 4;  // of a register tile: two sums a row, two of codes
constexpr int64_t BLOCKS_NEAR = 16384;  // bytes from what is multiplied to what is prefetched

// P panels, one behind the other at w, times M rows.
template <int TYPE, int M, int P>
void blocks_panels(const Finish<Fp32>& finish, int64_t row, int64_t first, const char* w) {
    constexpr int64_t GROUP = group_inputs(TYPE), BLOCK = block_inputs(TYPE), BYTES = block_group_bytes(TYPE);
    constexpr int PACKS = GROUP / 4, CHAINS = M * P < 4 ? 2 : 1;
    using Dot = CodeDot<block_bits(TYPE)>;
    constexpr int ZERO = block_bits(TYPE) == 8 && Dot::CENTERED ? 0 : block_zero(TYPE);
    const int64_t stride = finish.codes.stride, wide = stride * BLOCK_ROW_BYTES;
    const int64_t size = block_panel_bytes(TYPE, finish.l.depth);
    const BlockRow rows(finish.codes.data + row * wide, stride);
    const auto of_row = [&](const auto* numbers, int m) { return (decltype(numbers))((const char*)numbers + m * wide); };
    Vf sums[M][2 * P];
    clear(sums);
    for (int64_t k = 0; k < finish.l.depth; k += BLOCK) {
        const char* head = w;
        w += head_bytes(TYPE);
        for (int64_t i = k; i < k + BLOCK; i += GROUP, w += BYTES) {
#pragma GCC unroll 4
            for (int p = 0; p < P; p++) {
                Vi found[CHAINS][M][2];
                clear(found[0]);
                clear(found[CHAINS - 1]);
                if constexpr (ZERO != 0)
#pragma GCC unroll 12
                    for (int r = 0; r < M; r++) {
                        const auto* less = GROUP == 16 ? of_row(rows.less16, r) + i / 16 : of_row(rows.less32, r) + i / 32;
                        found[0][r][0] = found[0][r][1] = spread(less) * ZERO;
                    }
                for_packs<TYPE>(w + p * size + group_head_bytes(TYPE), [&](int pack, Vu left, Vu right) {
                    if (P == 1 && pack * 128 < BYTES) prefetch<128>(w + pack * 128 + BLOCKS_NEAR);
#pragma GCC unroll 12
                    for (int r = 0; r < M; r++) {
                        auto& sum = found[CHAINS == 2 && pack >= PACKS / 2][r];
                        const auto x = Dot::spread(of_row(rows.codes, r) + i + 4 * pack);
                        sum[0] = Dot::dot(sum[0], left, x);
                        sum[1] = Dot::dot(sum[1], right, x);
                    }
                });
#pragma GCC unroll 2
                for (int half = 0; half < 2; half++) {
                    const int64_t lane = half * LANES;
                    Vf d = widen_halves(head + p * size + 2 * lane), m{};
                    if constexpr (has_minimum(TYPE)) m = widen_halves(head + p * size + 2 * (PANEL + lane));
                    if constexpr (is_nested(TYPE)) d *= widen(load<Vb>(w + p * size + lane));
                    if constexpr (is_nested(TYPE) && has_minimum(TYPE)) m *= -widen(load<Vb>(w + p * size + PANEL + lane));
#pragma GCC unroll 12
                    for (int r = 0; r < M; r++) {
                        const Vi whole = CHAINS == 2 ? found[0][r][half] + found[1][r][half] : found[0][r][half];
                        Vf& sum = sums[r][2 * p + half];
                        sum = fma(__builtin_convertvector(whole, Vf), d * of_row(rows.scale, r)[i / 32], sum);
                        if constexpr (has_minimum(TYPE)) sum = fma(m, splat(of_row(rows.shift, r)[i / 32]), sum);
                    }
                }
            }
        }
    }
    finish_tile(finish, row, first * PANEL, sums);
}

// Calls f with a type fixed at compile time.
template <class F>
INLINE void with_type(int64_t type, F&& f) {
    if (type == Q4_0) f(std::integral_constant<int, Q4_0>());
    if (type == Q4_1) f(std::integral_constant<int, Q4_1>());
    if (type == Q5_0) f(std::integral_constant<int, Q5_0>());
    if (type == Q5_1) f(std::integral_constant<int, Q5_1>());
    if (type == Q8_0) f(std::integral_constant<int, Q8_0>());
    if (type == Q4_K) f(std::integral_constant<int, Q4_K>());
    if (type == Q5_K) f(std::integral_constant<int, Q5_K>());
    if (type == Q6_K) f(std::integral_constant<int, Q6_K>());
}

struct Blocks {};

// Panels first .. last of one type times rows. Few rows take several panels at a time, which are read from memory side by
// side, as the processor's own prefetching likes it.
template <int TYPE>
void multiply_blocks(const Finish<Fp32>& finish, int64_t row, int64_t rows, int64_t first, int64_t last, const char* w) {
    const int64_t size = block_panel_bytes(TYPE, finish.l.depth);
    int64_t p = first;
    if (rows == 1)
        for (; p + 4 <= last; p += 4) blocks_panels<TYPE, 1, 4>(finish, row, p, w + (p - first) * size);
    if (rows == 2)
        for (; p + 2 <= last; p += 2) blocks_panels<TYPE, 2, 2>(finish, row, p, w + (p - first) * size);
    for (; p < last; p++)
        for_register_tiles<BLOCK_ROWS>(rows, [&](int64_t from, auto count) {
            blocks_panels<TYPE, decltype(count)::value, 1>(finish, row + from, p, w + (p - first) * size);
        });
}

INLINE void multiply_task(const Finish<Fp32>& finish, Blocks, int64_t top, int64_t bottom, int64_t first, int64_t last) {
    const auto* places = (const PanelPlace*)finish.l.sums;
    for_row_blocks<Fp32>(finish.l.depth, top, bottom, [&](int64_t row, int64_t rows) {
        for (int64_t p = first, next; p < last; p = next) {
            for (next = p + 1; next < last && places[next].type == places[p].type;) next++;
            with_type(places[p].type, [&](auto type) {
                multiply_blocks<decltype(type)::value>(finish, row, rows, p, next,
                                                       (const char*)finish.l.packed + places[p].offset);
            });
        }
    });
}

// One block of a file, taken apart.
struct PlainBlock {
    uint8_t codes[256], scales[16], minima[8];  // the latter two of K
    uint16_t d, m;
};

INLINE uint16_t load_half(const uint8_t* from) { return load<uint16_t>(from); }

inline PlainBlock take_apart(const uint8_t* from, int64_t type) {
    PlainBlock b{};
    if (type == Q6_K) {
        b.d = load_half(from + 208);
        std::memcpy(b.scales, from + 192, 16);
        for (int k = 0; k < 256; k++) {
            const int part = k / 128, quarter = k % 128 / 32, l = k % 32;
            const uint8_t low = from[64 * part + 32 * (quarter % 2) + l], high = from[128 + 32 * part + l];
            b.codes[k] = (uint8_t)((low >> (quarter / 2 * 4) & 15) | (high >> (2 * quarter) & 3) << 4);
        }
        return b;
    }
    b.d = load_half(from);
    if (has_minimum(type)) b.m = load_half(from + 2);
    from += has_minimum(type) ? 4 : 2;
    if (type == Q8_0) {
        for (int k = 0; k < 32; k++) b.codes[k] = from[k] ^ 0x80;
    } else if (is_nested(type)) {
        for (int g = 0; g < 8; g++) {
            const uint8_t *low = from + g % 4, *mixed = from + 4 + g;
            b.scales[g] = g < 4 ? low[0] & 63 : (*mixed & 15) | low[0] >> 6 << 4;
            b.minima[g] = g < 4 ? low[4] & 63 : *mixed >> 4 | low[4] >> 6 << 4;
        }
        const uint8_t *high = from + 12, *codes = high + (type == Q5_K ? 32 : 0);
        for (int k = 0; k < 256; k++) {
            b.codes[k] = codes[k / 64 * 32 + k % 32] >> (k / 32 % 2 * 4) & 15;
            if (type == Q5_K) b.codes[k] |= (high[k % 32] >> (k / 32) & 1) << 4;
        }
    } else {
        const uint32_t high = has_high(type) ? load<uint32_t>(from) : 0;
        from += has_high(type) ? 4 : 0;
        for (int k = 0; k < 32; k++) b.codes[k] = (from[k % 16] >> (k / 16 * 4) & 15) | (high >> k & 1) << 4;
    }
    return b;
}

// Where a panel has what belongs to one group's codes of one output: the byte of each input's pack is `pack` vectors on.
INLINE char* lane_of(char* codes, int64_t lane) { return codes + lane / LANES * CODES + lane % LANES * 4; }

// Puts a block in its place for output `lane` of a panel that was filled with zeros.
inline void put_block(const PlainBlock& b, int64_t type, int64_t lane, char* to) {
    std::memcpy(to + 2 * lane, &b.d, 2);
    if (has_minimum(type)) std::memcpy(to + 2 * (PANEL + lane), &b.m, 2);
    to += head_bytes(type);
    for (int64_t g = 0; g < block_inputs(type) / group_inputs(type); g++, to += block_group_bytes(type)) {
        if (is_nested(type)) to[lane] = (char)b.scales[g];
        if (is_nested(type) && has_minimum(type)) to[PANEL + lane] = (char)b.minima[g];
        const uint8_t* codes = b.codes + g * group_inputs(type);
        char *low = lane_of(to + group_head_bytes(type), lane), *high = low + low_bytes(type);
        for (int64_t k = 0; k < group_inputs(type); k++) {
            const int64_t pack = k / 4, at = k % 4;
            if (block_bits(type) == 8) {
                low[2 * pack * CODES + at] = (char)codes[k];
                continue;
            }
            low[pack / 2 * 2 * CODES + at] |= (char)((codes[k] & 15) << (pack % 2 * 4));
            if (has_high(type)) high[at] |= (char)(codes[k] >> 4 << (pack * (block_bits(type) - 4)));
        }
    }
}

constexpr int64_t file_block_bytes(int64_t type) {
    if (is_nested(type)) return type == Q4_K ? 144 : type == Q5_K ? 176 : 210;
    return (has_minimum(type) ? 4 : 2) + 4 * block_bits(type);
}

// Packs the rows [rows][blocks] of a file as outputs `at` .. of panels of one type. `packed` is filled with zeros before.
// A team's work.
inline void pack_blocks(int64_t type, char* packed, const uint8_t* from, int64_t rows, int64_t depth, int64_t at) {
    const int64_t blocks = depth / block_inputs(type), row_bytes = blocks * file_block_bytes(type);
    const int64_t first = at / PANEL, last = (at + rows + PANEL - 1) / PANEL;
#pragma omp for schedule(dynamic, 1)
    for (int64_t p = first; p < last; p++)
        for (int64_t n = std::max(p * PANEL, at); n < std::min((p + 1) * PANEL, at + rows); n++)
            with_type(type, [&](auto fixed) {
                constexpr int64_t TYPE = decltype(fixed)::value;
                for (int64_t i = 0; i < blocks; i++)
                    put_block(take_apart(from + (n - at) * row_bytes + i * file_block_bytes(TYPE), TYPE), TYPE, n % PANEL,
                              packed + p * block_panel_bytes(TYPE, depth) + i * block_bytes(TYPE));
            });
}

// Writes the weights of one output, as an embedding reads them.
inline void unpack_row(const Linear& l, int64_t output, float* to) {
    const PanelPlace place = ((const PanelPlace*)l.sums)[output / PANEL];
    const int64_t lane = output % PANEL;
    char* at = (char*)l.packed + place.offset;
    with_type(place.type, [&](auto fixed) {
        constexpr int64_t TYPE = decltype(fixed)::value, GROUP = group_inputs(TYPE), BITS = block_bits(TYPE);
        for (int64_t k = 0; k < l.depth; k += block_inputs(TYPE)) {
            const float scale = widen_half(load<uint16_t>(at + 2 * lane));
            const float minimum = has_minimum(TYPE) ? widen_half(load<uint16_t>(at + 2 * (PANEL + lane))) : 0.0f;
            at += head_bytes(TYPE);
            for (int64_t i = 0; i < block_inputs(TYPE); i += GROUP, at += block_group_bytes(TYPE), to += GROUP) {
                const float d = is_nested(TYPE) ? scale * (float)(int8_t)at[lane] : scale;
                const float m = is_nested(TYPE) && has_minimum(TYPE) ? -minimum * (float)at[PANEL + lane] : minimum;
                const char *low = lane_of(at + group_head_bytes(TYPE), lane), *high = low + low_bytes(TYPE);
                for (int64_t j = 0; j < GROUP; j++) {
                    const int64_t pack = j / 4, in = j % 4;
                    int code = (uint8_t)low[(BITS == 8 ? pack : pack / 2) * 2 * CODES + in];
                    if (BITS < 8) code = code >> (pack % 2 * 4) & 15;
                    if (has_high(TYPE)) code |= ((uint8_t)high[in] >> (pack * (BITS - 4)) & (BITS == 5 ? 1 : 3)) << 4;
                    to[j] = d * (float)(code - block_zero(TYPE)) + m;
                }
            }
        }
    });
}

}  // namespace dosirak
