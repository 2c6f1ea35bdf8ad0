// These structures describe a whole model and one step through it, as Python fills them.
#pragma once

#include <chrono>

#include "adapters.h"
#include "attention.h"
#include "experts.h"

namespace dosirak {

struct Layer {  // mirrored in structs.py
    Linear qkv, out, gate_up, down;  // an MLP without gates has ups only, as many as down reads
    Norm input_norm, attention_norm, middle_norm, mlp_norm;  // [hidden]; the second and fourth may be none
    Norm query_norm, key_norm;                               // [head_dim], may be none
    const float *cos, *sin;  // [max_positions, rotary]
    Heads heads;
    Experts experts;  // if any, gate_up and down hold all of theirs
};

struct Model {  // mirrored in structs.py
    int64_t hidden, layers, rotary;
    int64_t parallel;  // the MLP reads the same rows as attention, and both outputs are added to them
    Gate gate;
    int64_t vocabulary, max_positions;
    int64_t embedding_kind;  // FP32 or BF16
    const void* embedding;   // [vocabulary, hidden]; null: it is the head's matrix, of 8-bit weights or blocks
    Norm final_norm;
    double eps, embedding_scale, logit_softcap;  // softcap 0: none
    Linear head;
    const Layer* layer;
};

// What a thread computes between two marks of a step.
enum Phase : int64_t { BEGIN, EMBEDDING, QKV, KEYS_AND_VALUES, ATTENTION, OUT, GATE_UP, DOWN, EXPERTS, HEAD };

// The ends of phases, in order, as pairs of a phase and nanoseconds since the epoch. It holds `room` pairs; what comes
// after is left out.
struct Marks {  // mirrored in marks.py
    int64_t room, count;
    int64_t* entries;

    void add(Phase phase) {
        if (count == room) return;
        const auto now = std::chrono::system_clock::now().time_since_epoch();
        entries[2 * count] = phase;
        entries[2 * count + 1] = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
        count++;
    }
};

struct Step {  // mirrored in structs.py
    int64_t rows, sequences, logit_rows, state_rows, table_entries;
    const int64_t *token_ids, *positions, *logit_row, *state_row;
    const int64_t* tables[2];  // of blocks, and of window blocks: the same if the cache has none
    const SequenceRows* sequence;
    float* logits;  // [logit_rows, vocabulary]
    float* states;  // [state_rows, hidden], behind the final norm
    Adapters adapters;  // linears: qkv, out, gate_up, down of every layer, then the head
    Marks* marks;       // null: no profile is being made
};

}  // namespace dosirak
