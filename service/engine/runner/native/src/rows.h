// This file computes one row between two products: norm, activation, rotary positions, and the row's form for the next
// product. Each function sees one row only.
#pragma once

#include <vector>

#include "blocks.h"
#include "hadamard.h"

namespace dosirak {

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Elements of an encoded row; those past `depth` are zeros. An odd multiple of 64, so that neighbours' first elements do
// not meet in the same sets of a cache.
constexpr int64_t encoded_stride(int64_t depth) { return ((depth + 63) / 64 | 1) * 64; }

template <class F>
INLINE void for_lanes(int64_t n, F&& f) {  // f(index, lanes) over whole vectors, then one element at a time
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) f(i, std::integral_constant<int, LANES>());
    for (; i < n; i++) f(i, std::integral_constant<int, 1>());
}

template <int N>
INLINE Vf load_some(const float* x) {
    if constexpr (N == LANES) return load<Vf>(x);
    Vf value{};
    value[0] = *x;
    return value;
}

template <int N>
INLINE void store_some(float* x, Vf value) {
    if constexpr (N == LANES)
        store(x, value);
    else
        *x = value[0];
}

// Stores N lanes in the form of a kind's input.
template <int N>
INLINE void put_some(float* to, Vf x) {
    store_some<N>(to, x);
}

#if defined(__AVX512BF16__)
template <int N>
INLINE void put_some(uint16_t* to, Vf x) {
    const Vh narrowed = (Vh)_mm512_cvtneps_pbh((__m512)x);
    std::memcpy(to, &narrowed, N * sizeof(uint16_t));
}
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
template <int N>
INLINE void put_some(uint16_t* to, Vf x) {
    const Vh narrowed = (Vh)vcvt_bf16_f32((float32x4_t)x);
    std::memcpy(to, &narrowed, N * sizeof(uint16_t));
}
#endif

struct Norm {  // mirrored in structs.py
    const float *weight, *bias;  // fp32 [n]; a weight of null: no norm; a bias: a layer norm
};

// Root mean square norm (Zhang and Sennrich, 2019) with weight [n]; y may be x.
inline void rms_norm(const float* x, const float* weight, float* y, int64_t n, float eps) {
    Vf squares{};
    for_lanes(n, [&](int64_t i, auto lanes) {
        const Vf v = load_some<lanes>(x + i);
        squares = fma(v, v, squares);
    });
    const float factor = 1.0f / std::sqrt(sum(squares) / (float)n + eps);
    for_lanes(n, [&](int64_t i, auto lanes) {
        store_some<lanes>(y + i, load_some<lanes>(x + i) * factor * load_some<lanes>(weight + i));
    });
}

// Layer norm (Ba et al., 2016) with weight and bias [n]; y may be x.
inline void layer_norm(const float* x, const Norm& norm, float* y, int64_t n, float eps) {
    Vf total{}, squares{};
    for_lanes(n, [&](int64_t i, auto lanes) { total += load_some<lanes>(x + i); });
    const float mean = sum(total) / (float)n;
    for_lanes(n, [&](int64_t i, auto lanes) {
        store_some<lanes>(y + i, load_some<lanes>(x + i) - mean);
        const Vf v = load_some<lanes>(y + i);  // zeros past the end, where the difference has none
        squares = fma(v, v, squares);
    });
    const float factor = 1.0f / std::sqrt(sum(squares) / (float)n + eps);
    for_lanes(n, [&](int64_t i, auto lanes) {
        const Vf scaled = load_some<lanes>(y + i) * factor;
        store_some<lanes>(y + i, fma(scaled, load_some<lanes>(norm.weight + i), load_some<lanes>(norm.bias + i)));
    });
}

inline void normalize(const float* x, const Norm& norm, float* y, int64_t n, float eps) {
    if (norm.bias) return layer_norm(x, norm, y, n, eps);
    rms_norm(x, norm.weight, y, n, eps);
}

enum Activation : int64_t { SILU = 0, GELU_TANH = 1, CLAMPED_SILU = 2, GELU = 3 };

struct Gate {  // mirrored in structs.py
    int64_t activation;
    double alpha, limit;  // of CLAMPED_SILU
};

// Calls f with an activation, a function of one vector. CLAMPED_SILU is none: it changes the up too.
template <class F>
INLINE void with_activation(int64_t activation, F&& f) {
    if (activation == SILU) {
        f([](Vf x) { return x * sigmoid(x); });
    } else if (activation == GELU) {
        f([](Vf x) { return x * normal(x); });
    } else {  // 0.5 x (1 + tanh(z)) = x sigmoid(2 z)
        f([](Vf x) {
            const Vf z = 0.7978845608028654f * (x + 0.044715f * (x * x * x));
            return x * sigmoid(2.0f * z);
        });
    }
}

// y = (up + 1) gate sigmoid(alpha gate), of gpt-oss, with a gate of at most `limit` and an up of at most `limit` either
// way.
inline void clamped_silu(const float* gate_up, float* y, int64_t n, const Gate& gate) {
    const Vf limit = splat((float)gate.limit);
    for_lanes(n, [&](int64_t i, auto lanes) {
        Vf x = load_some<lanes>(gate_up + i), up = load_some<lanes>(gate_up + n + i);
        x = x > limit ? limit : x;  // a NaN stays one
        up = (up > limit ? limit : up < -limit ? -limit : up) + 1.0f;
        store_some<lanes>(y + i, x * sigmoid((float)gate.alpha * x) * up);
    });
}

// y = activation(gate) * up for rows [gate | up] of n each.
inline void gated(const float* gate_up, float* y, int64_t n, const Gate& gate) {
    if (gate.activation == CLAMPED_SILU) return clamped_silu(gate_up, y, n, gate);
    with_activation(gate.activation, [&](auto&& active) {
        for_lanes(n, [&](int64_t i, auto lanes) {
            store_some<lanes>(y + i, active(load_some<lanes>(gate_up + i)) * load_some<lanes>(gate_up + n + i));
        });
    });
}

// y = activation(up) for rows of an MLP without a gate.
inline void activated(const float* up, float* y, int64_t n, const Gate& gate) {
    with_activation(gate.activation, [&](auto&& active) {
        for_lanes(n, [&](int64_t i, auto lanes) { store_some<lanes>(y + i, active(load_some<lanes>(up + i))); });
    });
}

// Rotary positions of one head by halves of its first `rotary` dimensions (Su et al., 2021); cos, sin [rotary].
inline void rotate(float* x, const float* cos, const float* sin, int64_t rotary) {
    const int64_t half = rotary / 2;
    for_lanes(half, [&](int64_t i, auto lanes) {
        const Vf a = load_some<lanes>(x + i), b = load_some<lanes>(x + half + i);
        store_some<lanes>(x + i, a * load_some<lanes>(cos + i) - b * load_some<lanes>(sin + i));
        store_some<lanes>(x + half + i, b * load_some<lanes>(cos + half + i) + a * load_some<lanes>(sin + half + i));
    });
}

// Writes codes round(x (1 / s)) with s = max|x| / REACH (see linear.quantize_rows). A row with a NaN gets a NaN scale, and
// so NaN outputs.
inline void quantize(const float* x, Int8::Input* codes, float* scale, int64_t n) {
    Vf most{}, wrong{};
    for_lanes(n, [&](int64_t i, auto lanes) {
        const Vf v = load_some<lanes>(x + i);
        most = larger(magnitude(v), most);
        wrong = fma(v, Vf{}, wrong);
    });
    const float broken = sum(wrong);
    const float s = std::max(largest(most), 1e-30f) * (1.0f / Int8::REACH);
    *scale = broken == 0.0f ? s : broken + NAN;
    if (broken != 0.0f || broken != broken) {
        for (int64_t i = 0; i < n; i++) codes[i] = Int8::ZERO;
        return;
    }
    constexpr float shift = Int8::REACH + 1;  // as in the fallback: ties round alike
    const float inverse = 1.0f / s;
    for_lanes(n, [&](int64_t i, auto lanes) {
        const Vf code = nearest(load_some<lanes>(x + i) * inverse + shift) - (shift - Int8::ZERO);
        typedef Int8::Input Codes __attribute__((vector_size(LANES * sizeof(Int8::Input))));
        const Codes narrow = __builtin_convertvector(__builtin_convertvector(code, Vi), Codes);
        std::memcpy(codes + i, &narrow, lanes * sizeof(Int8::Input));
    });
}

// Writes a row for blocks (see BlockRow): codes of each group of 32 by its own largest magnitude. A group that is no
// number gets such a scale, and the row such outputs.
inline void quantize_groups(const float* x, int64_t n, int64_t stride, char* to) {
    const BlockRow row(to, stride);
    for (int64_t k = 0; k < n; k += 32) {
        Vf most{}, wrong{};
        for (int64_t i = k; i < k + 32; i += LANES) {
            const Vf v = load<Vf>(x + i);
            most = larger(magnitude(v), most);
            wrong = fma(v, Vf{}, wrong);
        }
        const float broken = sum(wrong), s = std::max(largest(most), 1e-30f) * (1.0f / 127);
        const bool good = broken == 0.0f;
        const float inverse = good ? 1.0f / s : 0.0f;
        for (int64_t i = k; i < k + 32; i += 16) {
            Vf total{};
            for (int64_t j = i; j < i + 16; j += LANES) {
                const Vf code = good ? nearest(load<Vf>(x + j) * inverse) : Vf{};
                total += code;
                store(row.codes + j, __builtin_convertvector(__builtin_convertvector(code, Vi), Vb));
            }
            row.less16[i / 16] = -(int32_t)sum(total);
        }
        row.scale[k / 32] = good ? s : broken + NAN;
        row.less32[k / 32] = row.less16[k / 16] + row.less16[k / 16 + 1];
        row.shift[k / 32] = row.scale[k / 32] * -(float)row.less32[k / 32];
    }
}

// Bytes of an element of an encoded row.
constexpr int64_t input_bytes(int64_t kind) {
    if (kind == BLOCKS) return BLOCK_ROW_BYTES;
    if (kind == INT8 || kind == INT4) return sizeof(Int8::Input);
    return kind == BF16 ? sizeof(Bf16::Input) : sizeof(float);
}

// Writes one row in the form that a linear layer reads.
inline void encode(const Linear& into, const float* x, int64_t n, const Codes& codes, int64_t row) {
    const int64_t padded = codes.stride, kind = into.kind;
    if (kind == BLOCKS) return quantize_groups(x, n, padded, codes.data + row * padded * BLOCK_ROW_BYTES);
    if (into.hadamard > 1) {
        static thread_local std::vector<float> mixed;
        mixed.resize(n);
        hadamard(x, mixed.data(), n, into.hadamard);
        x = mixed.data();
    }
    if (into.outliers) {
        static thread_local std::vector<float> rest;
        rest.assign(x, x + n);
        for (int64_t j = 0; j < into.outliers; j++) {
            codes.outliers[row * codes.outliers_stride + j] = x[into.columns[j]];
            rest[into.columns[j]] = 0;
        }
        x = rest.data();
    }
    if (kind == INT8 || kind == INT4) {
        auto* to = (Int8::Input*)codes.data + row * padded;
        quantize(x, to, codes.scale + row, n);
        for (int64_t i = n; i < padded; i++) to[i] = Int8::ZERO;
        return;
    }
    if constexpr (std::is_same_v<Bf16::Input, uint16_t>)
        if (kind == BF16) {
            auto* to = (uint16_t*)codes.data + row * padded;
            for_lanes(n, [&](int64_t i, auto lanes) { put_some<lanes>(to + i, load_some<lanes>(x + i)); });
            for (int64_t i = n; i < padded; i++) to[i] = 0;
            return;
        }
    auto* to = (float*)codes.data + row * padded;
    std::memcpy(to, x, n * sizeof(float));
    for (int64_t i = n; i < padded; i++) to[i] = 0;
}

}  // namespace dosirak
