// Which token a row of scores gives, and logprobs. Knows rows of numbers; nothing of models, steps or requests.
//
// Every row is computed by one thread and by itself. A token's weight e^((score - largest) / temperature) is computed
// with multiplications and additions only, and summed as an integer, its mass: so a row gives the same token on every
// instruction set, with any number of rows or threads, and in the torch operations of `sampling/reference.py`, whose
// results these are bit for bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "simd.h"

namespace dosirak {

// What one row is drawn with. `inverse_temperature` 0 is greedy; `point` is a random number of 53 bits. `token` is set:
// -1 where the row holds no usable number.
struct DrawRow {
    const float* scores;
    int64_t vocabulary, top_k;
    double top_p;
    float min_p, inverse_temperature;
    int64_t point, token;
};

// One row's changes by penalties: of each of `count` different tokens its number in the output.
struct PenaltyRow {
    float* logits;
    const int32_t *ids, *output;
    int64_t count;
    float repetition, frequency, presence;
};

// One row's mask: a bit for each token, of whole words, the lowest bit of the first byte for token 0.
struct MaskRow {
    float* logits;
    const uint8_t* bits;
    int64_t vocabulary;
};

// Of one row: the score of `token`, the largest score, the mass of all at temperature 1, and the `count` likeliest. The
// largest is NaN where the row holds no usable number.
struct LogprobRow {
    const float* scores;
    int64_t vocabulary, token, count;
    float score, largest;
    int64_t mass;
    int64_t* ids;   // [count]
    float* values;  // [count], descending, ties by lower id
};

constexpr float CUT = -27.5f;              // below it a weight is 0: its mass would round to it
constexpr double UNIT = 1099511627776.0;   // 2^40: the mass of the weight 1
constexpr double MAGIC = 4503599627370496.0;  // 2^52: adding it rounds to an integer, ties to even
constexpr int64_t BLOCK = 256;             // scores whose masses are summed together, whole vectors of each level

typedef float Half __attribute__((vector_size(LANES * 2)));
typedef double Vd __attribute__((vector_size(LANES * 4)));
typedef int64_t Vl __attribute__((vector_size(LANES * 4)));

// e^x for x <= 0 (Cephes' expf polynomial, without fused operations), exactly 1 at 0 and 0 below CUT.
INLINE Vf weight(Vf x) {
    const Vf z = x < CUT ? splat(CUT) : x;
    const Vf n = nearest(z * 1.44269504088896341f);
    const Vf r = (z + n * -0.693359375f) + n * 2.12194440e-4f;
    Vf p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = (p * (r * r) + r) + 1.0f;
    const Vi power = (__builtin_convertvector(n, Vi) + 127) << 23;
    return x < CUT ? Vf{} : p * (Vf)power;
}

INLINE Vl mass(Half weights) {
    const Vd rounded = __builtin_convertvector(weights, Vd) * UNIT + MAGIC;
    return (Vl)rounded - (Vl)(Vd{} + MAGIC);
}

INLINE int64_t mass(float weight) {
    const double rounded = (double)weight * UNIT + MAGIC;
    int64_t bits;
    std::memcpy(&bits, &rounded, sizeof bits);
    return bits & 0xfffffffffffffLL;
}

INLINE int64_t sum(Vl x) {
    int64_t lane[LANES / 2], total = 0;
    store(lane, x);
    for (int64_t each : lane) total += each;
    return total;
}

// One row's memory; each thread has its own.
struct Room {
    std::vector<float> weight;                   // of every token, 0 of a dropped one; padded to whole blocks
    std::vector<int64_t> sums;                   // masses of blocks of them
    std::vector<float> peaks;                    // largest scores of blocks
    std::vector<std::pair<float, int32_t>> best;  // the likeliest tokens, (score, id)
    std::vector<float> compact;
    std::vector<uint32_t> keys;
};

inline Room& room_of_thread() {
    static thread_local Room room;
    return room;
}

constexpr int64_t blocks_of(int64_t n) { return (n + BLOCK - 1) / BLOCK; }

// The largest score; NaN where a score is NaN, the largest is infinite, or all are minus infinity. `peaks`: of blocks.
inline float largest_score(const float* scores, int64_t n, std::vector<float>& peaks) {
    const float none = -std::numeric_limits<float>::infinity();
    peaks.assign((n + BLOCK - 1) / BLOCK, none);
    Vi wrong{};
    bool broken = false;
    float peak = none;
    for (int64_t b = 0; b < (int64_t)peaks.size(); b++) {
        const int64_t first = b * BLOCK, last = std::min(n, first + BLOCK);
        Vf most = splat(none);
        int64_t i = first;
        for (; i + LANES <= last; i += LANES) {
            const Vf v = load<Vf>(scores + i);
            most = larger(v, most);
            wrong |= (Vi)(v != v);
        }
        float found = largest(most);
        for (; i < last; i++) {
            broken |= scores[i] != scores[i];
            found = scores[i] > found ? scores[i] : found;
        }
        peaks[b] = found;
        peak = found > peak ? found : peak;
    }
    for (int i = 0; i < LANES; i++) broken |= wrong[i] != 0;
    return broken || !std::isfinite(peak) ? std::numeric_limits<float>::quiet_NaN() : peak;
}

// The lowest id of the largest score.
inline int64_t likeliest(const float* scores, int64_t n, float peak, const std::vector<float>& peaks) {
    const int64_t block = std::find(peaks.begin(), peaks.end(), peak) - peaks.begin();
    return std::find(scores + block * BLOCK, scores + n, peak) - scores;
}

// Weights of `n` scores; the last block is filled up with weights 0.
inline void weigh(const float* scores, int64_t n, float peak, float factor, std::vector<float>& weights) {
    weights.resize(blocks_of(n) * BLOCK);
    float* to = weights.data();
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) store(to + i, weight((load<Vf>(scores + i) - peak) * factor));
    if (i == n) {
        std::fill(to + i, to + weights.size(), 0.0f);
        return;
    }
    float last[LANES];
    std::fill(last, last + LANES, -std::numeric_limits<float>::infinity());
    std::copy(scores + i, scores + n, last);
    store(to + i, weight((load<Vf>(last) - peak) * factor));
    std::fill(to + i + LANES, to + weights.size(), 0.0f);
}

// The mass of all; `room.sums` are those of the blocks.
inline int64_t sum_up(Room& room) {
    int64_t total = 0;
    room.sums.clear();
    for (size_t first = 0; first < room.weight.size(); first += BLOCK) {
        Vl found{};
        for (int64_t i = 0; i < BLOCK; i += LANES / 2) found += mass(load<Half>(room.weight.data() + first + i));
        room.sums.push_back(sum(found));
        total += room.sums.back();
    }
    return total;
}

// A bit for each of the values from `least` on.
INLINE uint32_t bits_from(Vf values, float least) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)values, _mm512_set1_ps(least), _CMP_GE_OQ);
#elif defined(__AVX2__)
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)values, _mm256_set1_ps(least), _CMP_GE_OQ));
#else
    uint32_t bits = 0;
    for (int i = 0; i < LANES; i++) bits |= (uint32_t)(values[i] >= least) << i;
    return bits;
#endif
}

// f(index) for every value from `least` on.
template <class F>
INLINE void for_those_from(const float* values, int64_t n, float least, F&& f) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t bits = bits_from(load<Vf>(values + i), least); bits; bits &= bits - 1) f(i + __builtin_ctz(bits));
    for (; i < n; i++)
        if (values[i] >= least) f(i);
}

// A float's bits, in the order of its value.
INLINE uint32_t key_of(float value) {
    value += 0.0f;  // -0 is 0
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

INLINE float value_of(uint32_t key) {
    const uint32_t bits = key >> 31 ? key ^ 0x80000000u : ~key;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// Where values in descending order are cut: those above `value` stay, and of those equal to it the first `ties`.
struct Cut {
    float value;
    int64_t ties;
};

// Where the largest values have the amount `wanted`, at least 1 and at most that of all. None under `least` is among
// them. The key of the last one is found by eleven bits at a time, from the amounts of the values that share those above.
template <class Amount>
inline Cut find_cut(const float* values, int64_t n, float least, int64_t wanted, Amount&& amount, Room& room) {
    constexpr int BITS = 11, COUNT = 1 << BITS;
    int64_t before = 0, sums[COUNT] = {};
    const auto take_bucket = [&] {
        int bucket = COUNT - 1;
        while (bucket && before + sums[bucket] < wanted) before += sums[bucket--];
        return (uint32_t)bucket;
    };
    for_those_from(values, n, least, [&](int64_t i) { sums[key_of(values[i]) >> 2 * BITS] += amount(values[i]); });
    uint32_t prefix = take_bucket();
    room.keys.clear();
    for_those_from(values, n, std::max(least, value_of(prefix << 2 * BITS)), [&](int64_t i) {
        if (key_of(values[i]) >> 2 * BITS == prefix) room.keys.push_back(key_of(values[i]));
    });
    for (int shift = BITS; shift >= 0; shift -= BITS) {
        std::fill(sums, sums + COUNT, 0);
        for (uint32_t key : room.keys)
            if (key >> shift >> BITS == prefix) sums[key >> shift & (COUNT - 1)] += amount(value_of(key));
        prefix = prefix << BITS | take_bucket();
    }
    const int64_t each = amount(value_of(prefix));
    return {value_of(prefix), (wanted - before + each - 1) / each};
}

// Drops the tokens whose `values`, their scores or their weights, are cut off.
inline void drop(const float* values, int64_t n, Cut cut, Room& room) {
    int64_t i = 0, ties = cut.ties;
    const auto drop_one = [&](int64_t at) {
        if (!(values[at] > cut.value || (values[at] == cut.value && ties-- > 0))) room.weight[at] = 0;
    };
    for (; i + LANES <= n; i += LANES) {
        const Vf v = load<Vf>(values + i), w = load<Vf>(room.weight.data() + i);
        const Vi tied = (Vi)(v == cut.value);
        if (bits_from((Vf)(tied & (Vi)splat(1.0f)), 1.0f)) {
            for (int64_t j = i; j < i + LANES; j++) drop_one(j);
        } else {
            store(room.weight.data() + i, v > cut.value ? w : Vf{});
        }
    }
    for (; i < n; i++) drop_one(i);
}

// The `count` largest of `n` scores, sorted, ties by lower id, to `room.best`. A block's peak is one of its scores: where
// there are as many blocks, so many scores are not under the least of the `count` largest peaks.
inline void find_best(const float* scores, int64_t n, int64_t count, Room& room) {
    const auto likelier = [](const auto& a, const auto& b) {
        return a.first > b.first || (a.first == b.first && a.second < b.second);
    };
    const int64_t blocks = room.peaks.size();
    float least = -std::numeric_limits<float>::infinity();
    if (count <= blocks) {
        std::vector<float>& peaks = room.compact = room.peaks;
        std::nth_element(peaks.begin(), peaks.begin() + count - 1, peaks.end(), std::greater<float>());
        least = peaks[count - 1];
    }
    room.best.clear();
    for (int64_t b = 0; b < blocks; b++) {
        if (room.peaks[b] < least) continue;
        for (int64_t i = b * BLOCK, last = std::min(n, i + BLOCK); i < last; i++)
            if (scores[i] >= least) room.best.push_back({scores[i], (int32_t)i});
    }
    std::partial_sort(room.best.begin(), room.best.begin() + count, room.best.end(), likelier);
    room.best.resize(count);
}

// Weighs the `count` likeliest tokens only.
inline void weigh_best(const DrawRow& row, float peak, int64_t count, Room& room) {
    find_best(row.scores, row.vocabulary, count, room);
    std::vector<float> scores(count);
    for (int64_t i = 0; i < count; i++) scores[i] = room.best[i].first;
    weigh(scores.data(), count, peak, row.inverse_temperature, room.compact);
    room.weight.assign(blocks_of(row.vocabulary) * BLOCK, 0.0f);
    for (int64_t i = 0; i < count; i++) room.weight[room.best[i].second] = room.compact[i];
}

// Weighs every token, or the `top_k` likeliest.
inline void weigh_row(const DrawRow& row, float peak, Room& room) {
    const bool some = row.top_k > 0 && row.top_k < row.vocabulary;
    if (some && row.top_k <= (int64_t)room.peaks.size()) return weigh_best(row, peak, row.top_k, room);
    weigh(row.scores, row.vocabulary, peak, row.inverse_temperature, room.weight);
    if (!some) return;
    const float least = -std::numeric_limits<float>::infinity();
    const auto one = [](float) { return 1; };
    drop(row.scores, row.vocabulary, find_cut(row.scores, row.vocabulary, least, row.top_k, one, room), room);
}

// Keeps the fewest likeliest tokens whose mass is `top_p` of all, at least one (Holtzman et al., 2020). Tokens that share
// less than 1 - top_p of the mass, were they all as light as `least`, are not among them.
inline void keep_top_p(double top_p, Room& room) {
    const int64_t total = sum_up(room), n = room.weight.size();
    const int64_t wanted = std::min(total, std::max<int64_t>(1, (int64_t)std::ceil(top_p * (double)total)));
    const double each = ((1.0 - top_p) * (double)total / (double)n - 2.0) * (1.0 - 1e-6);
    const float least = (float)std::max(each / UNIT, 1e-13);
    const auto mass_of = [](float weight) { return mass(weight); };
    drop(room.weight.data(), n, find_cut(room.weight.data(), n, least, wanted, mass_of, room), room);
}

// Drops the tokens less than `min_p` times as likely as the likeliest, whose weight is 1.
inline void keep_min_p(float min_p, Room& room) {
    for (size_t i = 0; i < room.weight.size(); i += LANES) {
        const Vf w = load<Vf>(room.weight.data() + i);
        store(room.weight.data() + i, w >= min_p ? w : Vf{});
    }
}

// point / 2^53 of `total`, rounded down.
INLINE int64_t share(int64_t point, int64_t total) { return (int64_t)((unsigned __int128)point * (uint64_t)total >> 53); }

// Inverse of the cumulative distribution over the kept tokens in the order of their ids: the block, then the token.
inline int64_t invert(int64_t point, Room& room) {
    int64_t left = share(point, sum_up(room)), id = 0;
    for (int64_t sum : room.sums) {
        if (left < sum) break;
        left -= sum;
        id += BLOCK;
    }
    while ((left -= mass(room.weight[id])) >= 0) id++;
    return id;
}

// As `processors.Penalties` says.
inline void penalize(const PenaltyRow& row) {
    for (int64_t i = 0; i < row.count; i++) {
        float value = row.logits[row.ids[i]];
        value = value < 0 ? value * row.repetition : value / row.repetition;
        value -= (float)row.output[i] * row.frequency;
        row.logits[row.ids[i]] = value - (row.output[i] > 0 ? row.presence : 0.0f);
    }
}

// As `processors.Masks` says.
inline void mask(const MaskRow& row) {
    const float none = -std::numeric_limits<float>::infinity();
    for (int64_t first = 0; first < row.vocabulary; first += 32) {
        uint32_t word;
        std::memcpy(&word, row.bits + first / 8, sizeof word);
        float* to = row.logits + first;
        const int64_t count = std::min<int64_t>(32, row.vocabulary - first);
        if (word == 0xffffffffu) continue;
        if (word == 0) {
            std::fill(to, to + count, none);
            continue;
        }
        for (int64_t i = 0; i < count; i++) to[i] = word >> i & 1 ? to[i] : none;
    }
}

inline int64_t draw(const DrawRow& row, Room& room) {
    const float peak = largest_score(row.scores, row.vocabulary, room.peaks);
    if (peak != peak) return -1;
    if (row.inverse_temperature == 0.0f) return likeliest(row.scores, row.vocabulary, peak, room.peaks);
    weigh_row(row, peak, room);
    if (row.top_p < 1.0) keep_top_p(row.top_p, room);
    if (row.min_p > 0.0f) keep_min_p(row.min_p, room);
    return invert(row.point, room);
}

inline void logprobs(LogprobRow& row, Room& room) {
    row.largest = largest_score(row.scores, row.vocabulary, room.peaks);
    if (row.largest != row.largest) return;
    row.score = row.scores[row.token];
    weigh(row.scores, row.vocabulary, row.largest, 1.0f, room.weight);
    row.mass = sum_up(room);
    if (!row.count) return;
    find_best(row.scores, row.vocabulary, row.count, room);
    for (int64_t i = 0; i < row.count; i++) {
        row.values[i] = room.best[i].first;
        row.ids[i] = room.best[i].second;
    }
}

}  // namespace dosirak
