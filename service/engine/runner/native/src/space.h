// The space is the memory of one step between its products. It grows with the largest step and stays.
#pragma once

#include <cstdint>
#include <memory>
#include <new>

namespace dosirak {

class Buffer {  // grows, is never zeroed, stays
public:
    float* floats(int64_t count) { return (float*)bytes(count * sizeof(float)); }
    char* bytes(int64_t size) {
        if (size > size_ || (WATCHED && size != size_)) {
            memory_.reset(new (ALIGNMENT) char[size]);
            size_ = size;
        }
        return memory_.get();
    }

private:
    static constexpr std::align_val_t ALIGNMENT{64};
#ifdef __SANITIZE_ADDRESS__
    static constexpr bool WATCHED = true;  // the rest of a larger step would hide an access past the end
#else
    static constexpr bool WATCHED = false;
#endif
    struct Free {
        void operator()(char* memory) const { operator delete[](memory, ALIGNMENT); }
    };
    std::unique_ptr<char[], Free> memory_;
    int64_t size_ = 0;
};

struct MixtureSpace {
    Buffer scores, weights, codes, scales, inner, inner_scales, middle, outputs;
};

struct Space {  // one step's memory, shared by the team
    Buffer x, read, qkv, mixed, middle, codes, scales, outliers, partials, logits, plain, low_rank;
    MixtureSpace mixture;
};

}  // namespace dosirak
