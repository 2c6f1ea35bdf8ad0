// After the last layer's keys are written, only the rows that are read go on, for logits or for their states: one row of
// a prompt, as a rule.
#pragma once

#include "model.h"

namespace dosirak {

// The rows that are read: their packed rows in order, the same as rows of sequences, and the index among them of each
// logit row and of each state row.
struct ReadRows {
    std::vector<int64_t> rows, place, state_place, owners;
    std::vector<SequenceRows> sequences;

    explicit ReadRows(const Step& step) {
        std::vector<int64_t> index(step.rows, -1);
        for (int64_t i = 0; i < step.logit_rows; i++) index[step.logit_row[i]] = 0;
        for (int64_t i = 0; i < step.state_rows; i++) index[step.state_row[i]] = 0;
        for (int64_t s = 0; s < step.sequences; s++) {
            const SequenceRows& sequence = step.sequence[s];
            for (int64_t r = sequence.row, end = sequence.row + sequence.count; r < end; r++) {
                if (index[r] < 0) continue;
                const bool joins = r > sequence.row && !sequences.empty() && sequences.back().row + sequences.back().count == r;
                if (joins) sequences.back().count++;
                else sequences.push_back({r, 1, sequence.start + r - sequence.row, sequence.table});
            }
        }
        for (int64_t r = 0; r < step.rows; r++) {
            if (index[r] < 0) continue;
            index[r] = rows.size();
            rows.push_back(r);
            if (step.adapters.owners) owners.push_back(step.adapters.owners[r]);
        }
        for (int64_t i = 0; i < step.logit_rows; i++) place.push_back(index[step.logit_row[i]]);
        for (int64_t i = 0; i < step.state_rows; i++) state_place.push_back(index[step.state_row[i]]);
    }
};

// The rows that go through the rest of a layer: `x` side by side, `packed` their indices among the step's rows (null:
// the same rows), `owners` as in Adapters.
struct HiddenRows {
    float* x;
    int64_t count;
    const int64_t *packed, *owners;
};

}  // namespace dosirak
