// The bounds refuse a step that names rows, blocks or ids that do not exist, before the step is read. No later code
// checks again.
//
// Each function returns the reason as a sentence, or null. It makes one comparison per row and per block of a step.
#pragma once

#include "model.h"

namespace dosirak {

inline bool all_below(const int64_t* numbers, int64_t count, int64_t limit) {
    bool good = true;
    for (int64_t i = 0; i < count; i++) good &= (uint64_t)numbers[i] < (uint64_t)limit;
    return good;
}

// Checks that the rows of `sequences` are among `rows`, and their positions in blocks of the cache.
inline const char* refuse_attention(const Heads& h, const SequenceRows* sequences, int64_t count, const int64_t* tables,
                                    int64_t entries, int64_t rows) {
    if (!all_below(tables, entries, h.blocks)) return "a block id is not one of the KV cache's blocks";
    const int64_t most = h.bias ? h.reach : entries * h.block_size;  // positions
    for (int64_t s = 0; s < count; s++) {
        const SequenceRows& sequence = sequences[s];
        if (sequence.row < 0 || sequence.count < 0 || sequence.row > rows || sequence.count > rows - sequence.row)
            return "a sequence's rows are not among the step's rows";
        if (sequence.start < 0 || sequence.start > most - sequence.count)
            return "a position is past what its sequence can hold";
        const int64_t blocks = (sequence.start + sequence.count + h.block_size - 1) / h.block_size;
        if (sequence.table < 0 || sequence.table > entries - blocks) return "a position is past its sequence's blocks";
    }
    return nullptr;
}

inline const char* refuse_step(const Model& model, const Step& step) {
    if (!all_below(step.token_ids, step.rows, model.vocabulary)) return "a token id is not in the model's vocabulary";
    if (!all_below(step.positions, step.rows, model.max_positions)) return "a position is past the model's last";
    if (!all_below(step.logit_row, step.logit_rows, step.rows)) return "logits are wanted of a row that is not there";
    if (!all_below(step.state_row, step.state_rows, step.rows)) return "states are wanted of a row that is not there";
    const Adapters& adapters = step.adapters;
    for (int64_t r = 0; adapters.owners && r < step.rows; r++)
        if (adapters.owners[r] < -1 || adapters.owners[r] >= adapters.count)
            return "a row has an adapter that is not there";
    bool checked[2] = {};  // layers with the same table share one cache
    for (int64_t i = 0; i < model.layers; i++) {
        const Heads& h = model.layer[i].heads;
        if (checked[h.in_windows]) continue;
        checked[h.in_windows] = true;
        const int64_t* tables = step.tables[h.in_windows];
        if (const char* reason = refuse_attention(h, step.sequence, step.sequences, tables, step.table_entries, step.rows))
            return reason;
    }
    return nullptr;
}

}  // namespace dosirak
