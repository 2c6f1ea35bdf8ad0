// A mixture of experts sends each row through a few of many gated MLPs: those that the router scores highest (Shazeer et
// al., 2017).
//
//   scores ─ choose ─▶ pairs of a row and an expert, sorted by expert ─ gate, up ─ act ─ down ─▶ rows += weight * output
//
// A row adds its experts' outputs in the order of the experts, whatever groups of experts are computed together. So a
// row's result does not depend on the other rows.
#pragma once

#include <vector>

#include "multiply.h"
#include "space.h"

namespace dosirak {

constexpr int64_t EXPERT_TILE = 1024;   // rows whose experts are found together
constexpr int64_t PAIRS = EXPERT_TILE;  // pairs of a group of experts at most, and so of one expert

// The weights of all experts lie one below the other in a layer's gate_up and down, in whole panels.
struct Experts {  // mirrored in structs.py
    int64_t count, active;  // of all, and of each row; a count of 0: the layer has one MLP, without a router
    int64_t renormalized;   // weights are divided by the sum of those of the chosen
    Linear router;          // [count] scores of a row
};

// The linear layer of one of `parts` that lie one below the other.
inline Linear part_of(const Linear& all, int64_t part, int64_t parts) {
    Linear one = all;
    one.outputs = all.outputs / parts;
    const int64_t first = part * one.outputs;
    if (all.kind != BLOCKS) one.packed = (const char*)all.packed + packed_bytes(all.kind, first, all.depth, all.group);
    if (all.scale) one.scale += first;
    if (all.kind == BLOCKS) one.sums = (const int32_t*)((const PanelPlace*)all.sums + first / PANEL);
    else if (all.sums) one.sums += first;
    if (all.bias) one.bias += first;
    return one;
}

// Finds the experts of a row with the highest of `scores` [count], in the order of the experts, and their weights, by
// the softmax of the scores. `scores` is overwritten.
inline void choose(const Experts& e, float* scores, int32_t* chosen, float* weights) {
    const float most = *std::max_element(scores, scores + e.count);
    float total = 0;
    for (int64_t i = 0; i < e.count; i++) total += scores[i] = std::exp(scores[i] - most);
    for (int64_t i = 0; i < e.count; i++) {  // the best until here are sorted, the first of equal ones first
        int64_t at = std::min(i, e.active);
        if (at == e.active && !(scores[i] > scores[chosen[--at]])) continue;
        for (; at > 0 && scores[i] > scores[chosen[at - 1]]; at--) chosen[at] = chosen[at - 1];
        chosen[at] = (int32_t)i;
    }
    std::sort(chosen, chosen + e.active);
    if (e.renormalized) {
        total = 0;
        for (int64_t k = 0; k < e.active; k++) total += scores[chosen[k]];
    }
    for (int64_t k = 0; k < e.active; k++) weights[k] = scores[chosen[k]] / total;
}

// Computes the experts of up to EXPERT_TILE rows. A whole team calls `run`.
class Mixture {
public:
    // Takes memory for the largest of some layers, each told by `add`.
    explicit Mixture(int64_t rows) : rows_(std::min(rows, EXPERT_TILE)) {}

    void add(const Experts& e, const Linear& gate_up, const Linear& down) {
        if (!e.count) return;
        most_experts_ = std::max(most_experts_, e.count);
        most_active_ = std::max(most_active_, e.active);
        depth_ = std::max(depth_, gate_up.depth);
        wide_ = std::max(wide_, down.depth);
    }

    void take(MixtureSpace& space) {
        if (!most_experts_) return;
        const int64_t pairs = std::min(rows_ * most_active_, PAIRS);
        scores_ = space.scores.floats(rows_ * most_experts_);
        weights_ = space.weights.floats(rows_ * most_active_);
        gathered_ = {space.codes.bytes(pairs * encoded_stride(depth_) * sizeof(float)), space.scales.floats(pairs), 0, nullptr, 0};
        inner_ = {space.inner.bytes(pairs * encoded_stride(wide_) * sizeof(float)), space.inner_scales.floats(pairs), 0, nullptr, 0};
        middle_ = space.middle.floats(pairs * 2 * wide_);
        outputs_ = space.outputs.floats(pairs * depth_);
        chosen_.resize(rows_ * most_active_);
        place_.resize(rows_ * most_active_);
        row_of_.resize(rows_ * most_active_);
        begins_.resize(most_experts_ + 1);
    }

    // The place of the router's scores [rows][count], which are written before `run`.
    float* scores() const { return scores_; }

    // x [rows][depth] += the experts' outputs for `codes`, which are rows for gate_up.
    void run(const Experts& e, const Linear& gate_up, const Linear& down, const Gate& gate, const Codes& codes,
             int64_t rows, float* x, int threads) {
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++)
            choose(e, scores_ + r * e.count, &chosen_[r * e.active], weights_ + r * e.active);
#pragma omp single
        sort(e, rows);
        for (int64_t first = 0, last; first < e.count; first = last) {
            for (last = first + 1; last < e.count && begins_[last + 1] - begins_[first] <= PAIRS;) last++;
            if (begins_[first] < begins_[last]) group(e, first, last, gate_up, down, gate, codes, rows, x, threads);
        }
    }

private:
    // Sorts the pairs by expert.
    void sort(const Experts& e, int64_t rows) {
        std::fill(begins_.begin(), begins_.end(), 0);
        for (int64_t i = 0; i < rows * e.active; i++) begins_[chosen_[i] + 1]++;
        for (int64_t i = 0; i < e.count; i++) begins_[i + 1] += begins_[i];
        std::vector<int64_t> next(begins_.begin(), begins_.end() - 1);
        for (int64_t i = 0; i < rows * e.active; i++) {
            place_[i] = next[chosen_[i]]++;
            row_of_[place_[i]] = i / e.active;
        }
    }

    // The experts first .. last.
    void group(const Experts& e, int64_t first, int64_t last, const Linear& gate_up, const Linear& down, const Gate& gate,
               const Codes& codes, int64_t rows, float* x, int threads) {
        const int64_t begin = begins_[first], pairs = begins_[last] - begin, wide = down.depth, depth = gate_up.depth;
        Codes gathered = gathered_, inner = inner_;
        gathered.stride = codes.stride;
        inner.stride = encoded_stride(wide);
        const int64_t row_bytes = codes.stride * input_bytes(gate_up.kind);
#pragma omp for schedule(static)
        for (int64_t p = 0; p < pairs; p++) {
            std::memcpy(gathered.data + p * row_bytes, codes.data + row_of_[begin + p] * row_bytes, row_bytes);
            gathered.scale[p] = codes.scale[row_of_[begin + p]];
        }
        products(e, first, last, gate_up, gathered, middle_, threads);
#pragma omp for schedule(static)
        for (int64_t p = 0; p < pairs; p++) {
            static thread_local std::vector<float> active;
            active.resize(wide);
            gated(middle_ + p * 2 * wide, active.data(), wide, gate);
            encode(down, active.data(), wide, inner, p);
        }
        products(e, first, last, down, inner, outputs_, threads);
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = r * e.active; k < (r + 1) * e.active; k++) {
                const int64_t p = place_[k] - begin;
                if (p < 0 || p >= pairs) continue;
                const Vf weight = splat(weights_[k]);
                for_lanes(depth, [&](int64_t i, auto lanes) {
                    float* to = x + r * depth + i;
                    store_some<lanes>(to, fma(load_some<lanes>(outputs_ + p * depth + i), weight, load_some<lanes>(to)));
                });
            }
    }

    // Computes a product of each expert's rows; it is complete at return.
    void products(const Experts& e, int64_t first, int64_t last, const Linear& all, const Codes& codes, float* y,
                  int threads) const {
        const int64_t row_bytes = codes.stride * input_bytes(all.kind), outputs = all.outputs / e.count;
        for (int64_t i = first; i < last; i++) {
            const int64_t at = begins_[i] - begins_[first], count = begins_[i + 1] - begins_[i];
            if (!count) continue;
            const Codes its{codes.data + at * row_bytes, codes.scale + at, codes.stride, nullptr, 0};
            multiply(part_of(all, i, e.count), its, count, {y + at * outputs, outputs, false}, threads);
        }
#pragma omp barrier
    }

    const int64_t rows_;
    int64_t most_experts_ = 0, most_active_ = 0, depth_ = 0, wide_ = 0;
    float *scores_ = nullptr, *weights_ = nullptr, *middle_ = nullptr, *outputs_ = nullptr;
    Codes gathered_{}, inner_{};
    std::vector<int32_t> chosen_;
    std::vector<int64_t> place_, row_of_, begins_;  // of each pair: its place by expert; of each place: its row
};

}  // namespace dosirak
