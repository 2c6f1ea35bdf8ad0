// This file holds the functions that Python calls through ctypes: plain pointers and structures. Pointers stay the
// caller's.
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num() { return 0; }
static int omp_get_num_threads() { return 1; }
#endif

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <utility>

#include "bounds.h"
#include "decoder.h"
#include "sampling.h"
#include "team.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace dosirak;

EXPORT int dosirak_supported() {
#if defined(__AMX_INT8__)
    return tiles_supported() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
#elif defined(__AVX512BF16__)
    return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#elif defined(__AVX512F__)
    return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#elif defined(__AVX2__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#elif defined(__ARM_FEATURE_MATMUL_INT8) && defined(__linux__)
    const unsigned long wanted = HWCAP2_I8MM | HWCAP2_BF16;
    return (getauxval(AT_HWCAP2) & wanted) == wanted && (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__ARM_FEATURE_DOTPROD) && defined(__linux__)
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__ARM_FEATURE_DOTPROD)
    return 0;  // only Linux is asked what the processor has
#else
    return 1;
#endif
}

// Chooses how products prefetch, for tests, and returns the choice before.
EXPORT int dosirak_prefetch_in_streams(int chosen) { return std::exchange(in_streams, chosen != 0); }

// The largest code of a quantized activation: 127, or 63 where products would saturate.
EXPORT int64_t dosirak_activation_reach() { return Int8::REACH; }

// Outputs that lie side by side when packed: layers of multiples of it are joined by joining their bytes.
EXPORT int64_t dosirak_panel() { return PANEL; }

// Whether layers of 4-bit weights can be made.
EXPORT int dosirak_has_int4() { return HAS_INT4; }

EXPORT int64_t dosirak_packed_bytes(int64_t kind, int64_t outputs, int64_t depth, int64_t group) {
    return packed_bytes(kind, outputs, depth, group);
}

// Weights [rows][depth] become outputs `at` .. of zero-filled `packed` and, of 8-bit ones, `sums`.
EXPORT void dosirak_pack(int64_t kind, void* packed, int32_t* sums, const void* weights, int64_t rows, int64_t depth,
                         int64_t at, int threads) {
#pragma omp parallel num_threads(threads)
    {
        if (kind == INT8) pack<Int8>((char*)packed, sums, (const int8_t*)weights, rows, depth, at);
        if (kind == INT8_WEIGHT) pack<Int8Weight>((char*)packed, sums, (const int8_t*)weights, rows, depth, at);
        if (kind == BF16) pack<Bf16>((char*)packed, sums, (const uint16_t*)weights, rows, depth, at);
        if (kind == FP32) pack<Fp32>((char*)packed, sums, (const float*)weights, rows, depth, at);
    }
}

// The same for 4-bit weights (see int4.h for their plain form).
EXPORT void dosirak_pack_int4(void* packed, int32_t* sums, const uint8_t* codes, const uint8_t* scales, const int8_t* bases,
                              int64_t rows, int64_t depth, int64_t group, int64_t at, int threads) {
#pragma omp parallel num_threads(threads)
    pack_int4((char*)packed, sums, codes, scales, bases, rows, depth, group, at);
}

// Bytes of a panel of a file's blocks of a type.
EXPORT int64_t dosirak_block_panel_bytes(int64_t type, int64_t depth) { return block_panel_bytes(type, depth); }

// Rows of a file's blocks become outputs `at` .. of zero-filled panels of their type.
EXPORT void dosirak_pack_blocks(int64_t type, void* packed, const uint8_t* blocks, int64_t rows, int64_t depth, int64_t at,
                                int threads) {
#pragma omp parallel num_threads(threads)
    pack_blocks(type, (char*)packed, blocks, rows, depth, at);
}

// y [rows, outputs] = layer(x [rows, depth]).
EXPORT void dosirak_linear(const Linear* layer, const float* x, int64_t rows, float* y, int threads) {
    static thread_local Buffer data, scales, outliers;
    const int64_t stride = encoded_stride(layer->depth), left_out = layer->outliers;
    const Codes codes{data.bytes(rows * stride * 4), scales.floats(rows), stride, outliers.floats(rows * left_out), left_out};
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++) encode(*layer, x + r * layer->depth, layer->depth, codes, r);
        multiply(*layer, codes, rows, {y, layer->outputs, false}, threads);
    }
}

// y [rows, outputs] += what an adapter adds to a layer of rows x [rows, depth]; middle has room for [rows, all ranks].
EXPORT void dosirak_add(const Added* added, const float* x, int64_t depth, int64_t rows, float* middle, float* y,
                        int64_t outputs, int threads) {
    const std::vector<int64_t> owners(rows, 0);
    const Adapters alone{owners.data(), 1, 1, &added};
    const Adapting adapting(alone);
#pragma omp parallel num_threads(threads)
    {
        adapting.shrink_rows(0, owners.data(), x, depth, depth, rows, middle);
#pragma omp barrier
        adapting.expand_rows(0, owners.data(), middle, outputs, rows, y, outputs);
    }
}

// out [rows, heads, value_dim] for query [rows, heads, key_dim], whose keys and values are in the cache; or the reason
// why not. `tables` has so many `entries`.
EXPORT const char* dosirak_attend(const Heads* heads, const SequenceRows* sequences, int64_t count, const int64_t* tables,
                                  int64_t entries, int64_t rows, float* query, float* out, int threads) {
    static thread_local Buffer partials;
    const Heads& h = *heads;
    if (const char* reason = refuse_attention(h, sequences, count, tables, entries, rows)) return reason;
    const int64_t* const both[2] = {tables, tables};
    const Work work(sequences, count, both, h.heads / h.kv_heads, h.kv_heads, threads);
    float* shared = work.split ? partials.floats(partials_size(h, work)) : nullptr;
#pragma omp parallel num_threads(threads)
    attend(h, work, {query, h.heads * h.key_dim}, {out, h.heads * h.value_dim}, shared);
    return nullptr;
}

// Writes the step's keys, values and logits, or nothing and gives the reason.
EXPORT const char* dosirak_step(const Model* model, const Step* step, int threads) {
    static thread_local Space space;
    if (const char* reason = refuse_step(*model, *step)) return reason;
    Pass pass(*model, *step, threads, space);
    Team team;
#pragma omp parallel num_threads(threads)
    {
        team.part(omp_get_thread_num(), omp_get_num_threads());
        pass.run(omp_get_thread_num());
    }
    return nullptr;
}

// Where the threads of a step run, for its test: the core of each.
EXPORT void dosirak_cores(int32_t* cores, int threads) {
    Team team;
#pragma omp parallel num_threads(threads)
    cores[omp_get_thread_num()] = team.part(omp_get_thread_num(), omp_get_num_threads());
}

// The row operations, for their tests: codes of one row as integers relative to zero, and its scale.
EXPORT void dosirak_quantize(const float* x, int64_t n, int32_t* codes, float* scale) {
    std::vector<Int8::Input> found(n + LANES);
    quantize(x, found.data(), scale, n);
    for (int64_t i = 0; i < n; i++) codes[i] = (int32_t)found[i] - Int8::ZERO;
}

// The Hadamard transform of one row, in place.
EXPORT void dosirak_hadamard(float* x, int64_t n, int64_t block) { hadamard(x, x, n, block); }

// Changes each row's logits.
EXPORT void dosirak_penalize(const PenaltyRow* rows, int64_t count, int threads) {
#pragma omp parallel for schedule(dynamic) num_threads(count > 1 ? threads : 1)
    for (int64_t r = 0; r < count; r++) penalize(rows[r]);
}

// Sets what each row's mask leaves out to minus infinity.
EXPORT void dosirak_mask(const MaskRow* rows, int64_t count, int threads) {
#pragma omp parallel for schedule(dynamic) num_threads(count > 1 ? threads : 1)
    for (int64_t r = 0; r < count; r++) mask(rows[r]);
}

// Sets the token of each row.
EXPORT void dosirak_draw(DrawRow* rows, int64_t count, int threads) {
#pragma omp parallel for schedule(dynamic) num_threads(count > 1 ? threads : 1)
    for (int64_t r = 0; r < count; r++) rows[r].token = draw(rows[r], room_of_thread());
}

// Fills in what each row asks for.
EXPORT void dosirak_logprobs(LogprobRow* rows, int64_t count, int threads) {
#pragma omp parallel for schedule(dynamic) num_threads(count > 1 ? threads : 1)
    for (int64_t r = 0; r < count; r++) logprobs(rows[r], room_of_thread());
}
