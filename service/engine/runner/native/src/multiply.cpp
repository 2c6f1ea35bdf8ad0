// The products with packed weights of every kind: half of what there is to compile.
#include "multiply.h"

namespace dosirak {

// Writes an output's packed 8-bit weights as numbers.
template <class T>
void unpack(const Linear& l, int64_t output, float* to) {
    const char* from = (const char*)l.packed + output / PANEL * panel_bytes<T>(l.depth) + output % PANEL * T::K_PACK;
    for (int64_t k = 0; k < l.depth; k++) to[k] = (float)*(const int8_t*)(from + k / T::K_PACK * 2 * T::STEP + k % T::K_PACK);
}

void weights_of(const Linear& l, int64_t output, float* to) {
    if (l.kind == BLOCKS) return unpack_row(l, output, to);
    if (l.kind == INT8) unpack<Int8>(l, output, to);
    else unpack<Int8Weight>(l, output, to);
    for (int64_t k = 0; k < l.depth; k++) to[k] *= l.scale[output];
    hadamard(to, to, l.depth, l.hadamard);
}

// Rows top .. bottom times panels first .. last. Weights stream past a block of rows that stays in the cache.
template <class T>
INLINE void multiply_task(const Finish<T>& finish, T, int64_t top, int64_t bottom, int64_t first, int64_t last) {
    const char* w = (const char*)finish.l.packed + first * panel_bytes<T>(finish.l.depth);
    for_row_blocks<T>(finish.l.depth, top, bottom, [&](int64_t row, int64_t count) {
        multiply_rows<T>(finish, row, count, first, last, w);
    });
}

// The threads of a team share the work, without a barrier at the end. Tasks are ranges of outputs, so that weights are
// read from memory once. With many threads or rows, tasks are also ranges of rows.
template <class T>
void multiply(const Linear& l, const Codes& codes, int64_t m, const Output& out, int threads) {
    const int64_t all = (l.outputs + PANEL - 1) / PANEL;
    const int64_t wanted = std::clamp<int64_t>(all / (4 * threads), 1, 8);
    const int64_t width = wanted < 3 ? wanted : (wanted + 3) / 4 * 4;  // single rows take four panels at a time
    const int64_t across = (all + width - 1) / width, down = (m + TALL - 1) / TALL;
    using Finished = std::conditional_t<std::is_same_v<T, Int4>, Int8, std::conditional_t<std::is_same_v<T, Blocks>, Fp32, T>>;
    const Finish<Finished> finish{l, codes, out};
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t task = 0; task < across * down; task++) {
        const int64_t first = task % across * width, last = std::min(first + width, all);
        const int64_t top = task / across * TALL, bottom = std::min(top + TALL, m);
        multiply_task(finish, T(), top, bottom, first, last);
    }
}

void multiply(const Linear& l, const Codes& codes, int64_t m, const Output& out, int threads) {
    if constexpr (HAS_INT4)
        if (l.kind == INT4) multiply<Int4>(l, codes, m, out, threads);
    if (l.kind == BLOCKS) multiply<Blocks>(l, codes, m, out, threads);
    if (l.kind == INT8) multiply<Int8>(l, codes, m, out, threads);
    if (l.kind == INT8_WEIGHT) multiply<Int8Weight>(l, codes, m, out, threads);
    if (l.kind == BF16) multiply<Bf16>(l, codes, m, out, threads);
    if (l.kind == FP32) multiply<Fp32>(l, codes, m, out, threads);
}

}  // namespace dosirak
