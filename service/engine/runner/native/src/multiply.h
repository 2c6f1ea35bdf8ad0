// y = x W^T over packed weights of any kind, by a team. multiply.cpp has the products, so that they are compiled beside
// the rest.
#pragma once

#include "blocks.h"
#include "hadamard.h"
#include "int4.h"

namespace dosirak {

// Bytes of the packed weights of a layer; `group` of 4-bit weights.
inline int64_t packed_bytes(int64_t kind, int64_t outputs, int64_t depth, int64_t group) {
    const int64_t panels = (outputs + PANEL - 1) / PANEL;
    if (kind == INT4) return panels * int4_panel_bytes(depth, group);
    if (kind == INT8) return panels * panel_bytes<Int8>(depth);
    if (kind == INT8_WEIGHT) return panels * panel_bytes<Int8Weight>(depth);
    if (kind == BF16) return panels * panel_bytes<Bf16>(depth);
    return panels * panel_bytes<Fp32>(depth);
}

// Writes the weights [depth] of one output of an 8-bit layer, as they were before their Hadamard transform.
void weights_of(const Linear& l, int64_t output, float* to);

// The threads of a team share the work, without a barrier at the end.
void multiply(const Linear& l, const Codes& codes, int64_t m, const Output& out, int threads);

}  // namespace dosirak
