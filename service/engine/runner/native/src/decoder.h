// The decoder computes one step of a whole model with one team of threads: embedding, layers, final norm, head.
//
// Rows pass the layers in fp32. The dense part of a layer runs over ROW_TILE rows at a time, so that the values between
// two products stay in the cache. Attention runs over all rows, after their keys are written.
//
//   x ─ norm ─ qkv ─ rotate, write keys and values ─│all rows│─ attention ─ out ─(norm)─ + ─ norm ─ gate, up ─ act ─ down ─(norm)─ + ─▶
//
// With a parallel residual, the second norm reads the rows that the first one read: gate, up come before out.
#pragma once

#include "hidden_rows.h"

namespace dosirak {

constexpr int64_t LINEARS = 4;  // of a layer

constexpr int64_t ROW_TILE = 256;
constexpr int64_t ALONE = 2;  // up to this many rows, every thread prepares all of them: cheaper than a wait

class Pass {
public:
    Pass(const Model& model, const Step& step, int threads, Space& space)
        : model_(model), step_(step), read_(step), threads_(threads), work_(make_work(step.sequence, step.sequences)),
          last_work_(make_work(read_.sequences.data(), read_.sequences.size())), adapting_(step.adapters), mixture_(step.rows) {
        const Heads& h = model.layer[0].heads;
        const int64_t tile = std::min(step.rows, ROW_TILE), rows = std::max<int64_t>(step.rows, 1);
        int64_t tallest = tile;  // rows that are prepared together
        most_outliers_ = model.head.outliers;
        int64_t intermediate = 0;  // of the widest MLP
        for (int64_t i = 0; i < model.layers; i++) {
            const Layer& l = model.layer[i];
            intermediate = std::max(intermediate, l.down.depth);
            mixture_.add(l.experts, l.gate_up, l.down);
            most_outliers_ = std::max({most_outliers_, l.qkv.outliers, l.out.outliers, l.gate_up.outliers, l.down.outliers});
            if (l.experts.count) tallest = std::min(step.rows, EXPERT_TILE);
        }
        mixture_.take(space.mixture);
        widest_ = std::max({model.hidden, intermediate, h.heads * h.value_dim});
        qkv_width_ = model.layer[0].qkv.outputs;
        x_ = space.x.floats(rows * model.hidden);
        qkv_ = space.qkv.floats(rows * qkv_width_);
        mixed_ = space.mixed.floats(rows * h.heads * h.value_dim);
        middle_ = space.middle.floats(tile * std::max(2 * intermediate, model.hidden));
        const int64_t held = std::max<int64_t>({tallest, threads * ALONE, std::min(step.logit_rows, ROW_TILE)});
        codes_ = space.codes.bytes(held * encoded_stride(widest_) * sizeof(float));
        scales_ = space.scales.floats(held);
        outliers_ = space.outliers.floats(held * most_outliers_);
        if (step.adapters.owners) {
            plain_ = space.plain.floats(held * widest_);
            low_rank_ = space.low_rank.floats(held * adapting_.most_ranks());
            for (int64_t place : read_.place) head_owners_.push_back(read_.owners[place]);
        }
        const auto shared = [&](const Work& work) { return work.split ? partials_size(h, work) : 0; };
        partials_ = space.partials.floats(std::max(shared(work_), shared(last_work_)));
        const int64_t read = read_.rows.size();
        all_ = {x_, step.rows, nullptr, step.adapters.owners};
        last_ = read == step.rows
                    ? all_
                    : HiddenRows{space.read.floats(read * model.hidden), read, read_.rows.data(), read_.owners.data()};
        for (const int kind : {0, 1}) {
            slots_[kind].assign(rows, -1);
            if (kind && step.tables[1] == step.tables[0]) break;  // no layer has window blocks, or no row a sequence
            for (int64_t s = 0; s < step.sequences; s++)
                for (int64_t i = 0; i < step.sequence[s].count; i++) {
                    const int64_t position = step.sequence[s].start + i;
                    const int64_t block = step.tables[kind][step.sequence[s].table + position / h.block_size];
                    slots_[kind][step.sequence[s].row + i] = block * h.block_size + position % h.block_size;
                }
        }
    }

    void run(int thread) {  // by every thread of the team
        thread_ = thread;
        scratch().resize(widest_);
        mark(BEGIN);
        embed();
        mark(EMBEDDING);
        for (int64_t i = 0; i < model_.layers; i++) {
            const Layer& layer = model_.layer[i];
            const bool last = i + 1 == model_.layers;
            row_tiles(step_.rows, [&](int64_t first, int64_t rows) { keys_and_values(layer, first, rows); });
            attend(layer.heads, last ? last_work_ : work_, {qkv_, qkv_width_},
                   {mixed_, layer.heads.heads * layer.heads.value_dim}, partials_);
            mark(ATTENTION);
            const HiddenRows& hidden = last ? last_ : all_;
            if (hidden.packed) gather(hidden);
            row_tiles(hidden.count, [&](int64_t first, int64_t rows) { rest_of_layer(layer, hidden, first, rows); });
            if (layer.experts.count)
                row_tiles(hidden.count, [&](int64_t first, int64_t rows) { experts(layer, hidden, first, rows); }, EXPERT_TILE);
        }
        logits();
        states();
        mark(HEAD);
    }

private:
    // The first thread notes that a phase has ended: with its own work and with the others'.
    void mark(Phase phase) const {
        if (step_.marks && thread_ == 0) step_.marks->add(phase);
    }

    Work make_work(const SequenceRows* sequences, int64_t count) const {
        const Heads& h = model_.layer[0].heads;
        return Work(sequences, count, step_.tables, h.heads / h.kv_heads, h.kv_heads, threads_);
    }

    void gather(const HiddenRows& hidden) const {
#pragma omp for schedule(static)
        for (int64_t r = 0; r < hidden.count; r++)
            std::copy_n(x_ + hidden.packed[r] * model_.hidden, model_.hidden, hidden.x + r * model_.hidden);
    }

    static std::vector<float>& scratch() {
        static thread_local std::vector<float> row;
        return row;
    }

    template <class F>
    void row_tiles(int64_t rows, F&& f, int64_t most = ROW_TILE) {
        for (int64_t first = 0; first < rows; first += most) f(first, std::min(most, rows - first));
    }

    // A linear layer of the step: its number, and the owners of its present rows, if any row has an adapter.
    struct Product {
        const Linear& linear;
        int64_t number;
        const int64_t* owners;
    };

    Product product(const Linear& linear, int64_t number, const int64_t* owners, int64_t first) const {
        return {linear, number, adapting_.touches(number) ? owners + first : nullptr};
    }

    Product product(const Layer& layer, int64_t which, const int64_t* owners, int64_t first) const {
        const Linear* linears[LINEARS] = {&layer.qkv, &layer.out, &layer.gate_up, &layer.down};
        return product(*linears[which], (&layer - model_.layer) * LINEARS + which, owners, first);
    }

    // Prepares each of `rows`, as f(row) gives it, in the layer's form. Then every thread may read all of them.
    template <class F>
    Codes prepare(const Product& into, int64_t rows, F&& f) {
        const int64_t depth = into.linear.depth;
        Codes codes{codes_, scales_, encoded_stride(depth), outliers_, most_outliers_};
        float* plain = plain_;
        const auto put = [&](int64_t r) {
            const float* row = f(r);
            encode(into.linear, row, depth, codes, r);
            if (into.owners && into.owners[r] >= 0) std::memcpy(plain + r * widest_, row, depth * sizeof(float));
        };
        if (rows <= ALONE) {
            codes.data += thread_ * ALONE * encoded_stride(widest_) * sizeof(float);
            codes.scale += thread_ * ALONE;
            codes.outliers += thread_ * ALONE * most_outliers_;
            if (into.owners) plain += thread_ * ALONE * widest_;
            for (int64_t r = 0; r < rows; r++) put(r);
        } else {
#pragma omp for schedule(static)
            for (int64_t r = 0; r < rows; r++) put(r);
        }
        if (into.owners) adapting_.shrink_rows(into.number, into.owners, plain, widest_, depth, rows, low_rank_);
        return codes;
    }

    // Computes the product of prepared rows; it is complete at return.
    void apply(const Product& by, const Codes& codes, int64_t rows, const Output& out) {
        multiply(by.linear, codes, rows, out, threads_);
#pragma omp barrier
        if (by.owners)
            adapting_.expand_rows(by.number, by.owners, low_rank_, by.linear.outputs, rows, out.data, out.stride);
    }

    Codes normed(const Product& into, const float* x, const Norm& norm, int64_t rows) {
        return prepare(into, rows, [&](int64_t r) {
            float* row = scratch().data();
            normalize(x + r * model_.hidden, norm, row, model_.hidden, (float)model_.eps);
            return row;
        });
    }

    void embedding_row(int64_t token, float* x) const {
        if (!model_.embedding) return weights_of(model_.head, token, x);
        const int64_t at = token * model_.hidden;
        for (int64_t i = 0; i < model_.hidden; i++)
            x[i] = model_.embedding_kind == BF16 ? widen(((const uint16_t*)model_.embedding)[at + i])
                                                 : ((const float*)model_.embedding)[at + i];
    }

    void embed() {
        const float scale = (float)model_.embedding_scale;
#pragma omp for schedule(static)
        for (int64_t r = 0; r < step_.rows; r++) {
            float* x = x_ + r * model_.hidden;
            embedding_row(step_.token_ids[r], x);
            for (int64_t i = 0; i < model_.hidden; i++) x[i] *= scale;
        }
    }

    void keys_and_values(const Layer& layer, int64_t first, int64_t rows) {
        const Product qkv = product(layer, 0, all_.owners, first);
        const Codes codes = normed(qkv, x_ + first * model_.hidden, layer.input_norm, rows);
        apply(qkv, codes, rows, {qkv_ + first * qkv_width_, qkv_width_, false});
        mark(QKV);
        const int64_t heads = layer.heads.kv_heads;
#pragma omp for schedule(static)
        for (int64_t task = 0; task < rows * heads; task++) place(layer, first + task / heads, task % heads);
        mark(KEYS_AND_VALUES);
    }

    // For one row and KV head: norms and rotates its queries and its key, and stores key and value in their block.
    void place(const Layer& layer, int64_t row, int64_t head) const {
        const Heads& h = layer.heads;
        const int64_t queries_per_kv = h.heads / h.kv_heads, dim = h.key_dim, position = step_.positions[row];
        const float *cos = layer.cos + position * model_.rotary, *sin = layer.sin + position * model_.rotary;
        float* query = qkv_ + row * qkv_width_ + head * queries_per_kv * dim;
        float* key = qkv_ + row * qkv_width_ + (h.heads + head) * dim;
        float* value = qkv_ + row * qkv_width_ + (h.heads + h.kv_heads) * dim + head * h.value_dim;
        for (int64_t g = 0; g < queries_per_kv; g++, query += dim) {
            if (layer.query_norm.weight) normalize(query, layer.query_norm, query, dim, (float)model_.eps);
            rotate(query, cos, sin, model_.rotary);
        }
        if (layer.key_norm.weight) normalize(key, layer.key_norm, key, dim, (float)model_.eps);
        rotate(key, cos, sin, model_.rotary);
        const int64_t slot = slots_[h.in_windows][row];
        if (slot < 0) return;
        const int64_t block = slot / h.block_size, offset = slot % h.block_size;
        const int64_t at = (block * h.kv_heads + head) * h.block_size + offset;
        if (h.kind == INT8) clean(key, dim);  // codes cannot hold NaN
        clean(value, h.value_dim);
        put_row(h.kind, h.keys, at, key, dim);
        put_row(h.kind, h.values, at, value, h.value_dim);
    }

    // Replaces NaN by a number (see KVCache.write).
    static void clean(float* x, int64_t n) {
        const float most = 3.38953139e38f;  // bf16's largest
        for (int64_t i = 0; i < n; i++) x[i] = x[i] != x[i] ? 0.0f : std::min(std::max(x[i], -most), most);
    }

    void rest_of_layer(const Layer& layer, const HiddenRows& hidden, int64_t first, int64_t rows) {
        if (model_.parallel) {
            gate_up(layer, hidden, first, rows);
            attention_output(layer, hidden, first, rows);
        } else {
            attention_output(layer, hidden, first, rows);
            if (layer.experts.count) return;
            gate_up(layer, hidden, first, rows);
        }
        down(layer, hidden, first, rows);
    }

    void attention_output(const Layer& layer, const HiddenRows& hidden, int64_t first, int64_t rows) {
        const int64_t mixed = layer.heads.heads * layer.heads.value_dim;
        const Product out = product(layer, 1, hidden.owners, first);
        const Codes attended = prepare(out, rows, [&](int64_t r) {
            return mixed_ + (hidden.packed ? hidden.packed[first + r] : first + r) * mixed;
        });
        add(out, layer.attention_norm, attended, hidden.x + first * model_.hidden, rows);
        mark(OUT);
    }

    // Leaves gates and ups in `middle_` [rows][outputs of gate_up].
    void gate_up(const Layer& layer, const HiddenRows& hidden, int64_t first, int64_t rows) {
        const Product gate_up = product(layer, 2, hidden.owners, first);
        const Codes inner = normed(gate_up, hidden.x + first * model_.hidden, layer.middle_norm, rows);
        apply(gate_up, inner, rows, {middle_, layer.gate_up.outputs, false});
        mark(GATE_UP);
    }

    void down(const Layer& layer, const HiddenRows& hidden, int64_t first, int64_t rows) {
        const int64_t wide = layer.down.depth, width = layer.gate_up.outputs;
        const Product down = product(layer, 3, hidden.owners, first);
        const Codes active = prepare(down, rows, [&](int64_t r) {
            float* row = scratch().data();
            if (width == wide) activated(middle_ + r * width, row, wide, model_.gate);
            else gated(middle_ + r * width, row, wide, model_.gate);
            return row;
        });
        if (layer.mlp_norm.weight) {
#pragma omp barrier
        }
        add(down, layer.mlp_norm, active, hidden.x + first * model_.hidden, rows);
        mark(DOWN);
    }

    void experts(const Layer& layer, const HiddenRows& hidden, int64_t first, int64_t rows) {
        float* x = hidden.x + first * model_.hidden;
        const Experts& e = layer.experts;
        const Product router{e.router, 0, nullptr}, gate_up{layer.gate_up, 0, nullptr};
        const Codes scored = normed(router, x, layer.middle_norm, rows);
        apply(router, scored, rows, {mixture_.scores(), e.count, false});
        const Codes codes = normed(gate_up, x, layer.middle_norm, rows);
        mixture_.run(e, layer.gate_up, layer.down, model_.gate, codes, rows, x, threads_);
        mark(EXPERTS);
    }

    // x += layer(codes), with a norm between if the layer has one.
    void add(const Product& layer, const Norm& norm, const Codes& codes, float* x, int64_t rows) {
        if (!norm.weight) return apply(layer, codes, rows, {x, model_.hidden, true});
        apply(layer, codes, rows, {middle_, model_.hidden, false});
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++) {
            float *y = middle_ + r * model_.hidden, *to = x + r * model_.hidden;
            normalize(y, norm, y, model_.hidden, (float)model_.eps);
            for (int64_t i = 0; i < model_.hidden; i++) to[i] += y[i];
        }
    }

    void logits() {
        for (int64_t first = 0; first < step_.logit_rows; first += ROW_TILE) {
            const int64_t rows = std::min(ROW_TILE, step_.logit_rows - first), width = model_.head.outputs;
            const Product head = product(model_.head, model_.layers * LINEARS, head_owners_.data(), first);
            const Codes codes = prepare(head, rows, [&](int64_t r) {
                float* row = scratch().data();
                const float* x = last_.x + read_.place[first + r] * model_.hidden;
                normalize(x, model_.final_norm, row, model_.hidden, (float)model_.eps);
                return row;
            });
            float* to = step_.logits + first * width;
            apply(head, codes, rows, {to, width, false});
            if (model_.logit_softcap <= 0) continue;
            const float cap = (float)model_.logit_softcap;
#pragma omp for schedule(static)
            for (int64_t r = 0; r < rows; r++)
                for_lanes(width, [&](int64_t i, auto lanes) {
                    float* at = to + r * width + i;
                    store_some<lanes>(at, tangent(load_some<lanes>(at) / cap) * cap);
                });
        }
    }

    // Without a final norm they are the rows behind the last layer.
    void states() const {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < step_.state_rows; i++) {
            const float* x = last_.x + read_.state_place[i] * model_.hidden;
            float* to = step_.states + i * model_.hidden;
            if (model_.final_norm.weight) normalize(x, model_.final_norm, to, model_.hidden, (float)model_.eps);
            else std::copy_n(x, model_.hidden, to);
        }
    }

    const Model& model_;
    const Step& step_;
    const ReadRows read_;
    const int threads_;
    const Work work_, last_work_;
    HiddenRows all_, last_;
    const Adapting adapting_;
    Mixture mixture_;
    int64_t widest_, qkv_width_, most_outliers_;
    float *x_, *qkv_, *mixed_, *middle_, *scales_, *outliers_, *partials_;
    float *plain_ = nullptr, *low_rank_ = nullptr;
    char* codes_;
    std::vector<int64_t> head_owners_;
    std::vector<int64_t> slots_[2];  // of blocks, and of window blocks
    static thread_local int thread_;
};

inline thread_local int Pass::thread_ = 0;

}  // namespace dosirak
