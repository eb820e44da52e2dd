// A row of logits with a target class: what one walk over it finds, and the loss and the gradient that follow.
#pragma once

#include "log_sum_exp.cuh"
#include "row_join.cuh"
#include "targets.cuh"

#ifndef SMOOTHED  // s > 0
#define SMOOTHED 0
#endif

// A state of row_join.cuh: the exponentials of a row, and with smoothing the sum of its logits.
struct Logits {
    LogSumExp exponentials;
    float sum = 0.0f;
    static constexpr float factor = 1.44269504f;  // log2(e)

    template <typename Each>
    __device__ __forceinline__ void add(Each each) {
        exponentials.add(each, 1.0f, factor);
        if (SMOOTHED) each([&](const float* x) { sum += x[0]; });
    }
    template <typename Op, typename L>
    __device__ __forceinline__ void join(const Op& op, L lanes) {
        exponentials.join(*this, lanes);
        if (SMOOTHED) sum = lanes.sum(sum);
    }
    // log(sum(exp(x))): NaN for a row of nothing but -inf, as for every other row with an infinity.
    __device__ __forceinline__ float log_sum() const {
        return exponentials.m == Max::identity() ? nanf("") : exponentials.m + logf(exponentials.sum);
    }
    // Of a row of n logits with `chosen` at its target: 0 for one that does not count, NaN where the target is no class.
    __device__ __forceinline__ float loss(const Target& t, float chosen, int n, float smoothing) const {
        if (!t.counts || !t.is_class) return t.counts ? nanf("") : 0.0f;
        return SMOOTHED ? log_sum() - (1.0f - smoothing) * chosen - smoothing * (sum / n) : log_sum() - chosen;
    }
};

// With g, the gradient of the row's loss: grad = g * (exp(x - m) / sum - (1 - s) * (1 at the target) - s / n). A row that does
// not count has `constant` everywhere, 0 or NaN, and so has its loss.
struct RowLoss {
    float top, scale, spread, at_target, base;
    int target;
    int constant;  // no bool: none of its bytes is padding
    float value;

    RowLoss() = default;
    __device__ __forceinline__ RowLoss(const Logits& row, const Target& t, int n, float smoothing, float g) {
        const LogSumExp& e = row.exponentials;
        top = e.m, scale = g / e.sum, spread = g * (smoothing / n), at_target = g * (1.0f - smoothing);
        base = e.m + logf(e.sum) - (SMOOTHED ? smoothing * (row.sum / n) : 0.0f);
        target = t.is_class ? (int)t.value : -1;
        constant = !(t.counts && t.is_class);
        value = t.counts ? nanf("") : 0.0f;
    }
    __device__ __forceinline__ float loss(float chosen, float smoothing) const {
        return base - (SMOOTHED ? (1.0f - smoothing) * chosen : chosen);
    }
    __device__ __forceinline__ float gradient(float x) const {
        const float e = fast_exp2((x - top) * Logits::factor);
        return SMOOTHED ? fmaf(e, scale, -spread) : e * scale;
    }
    // The gradients of the WIDTH logits from column i on; if the target is one of them, its loss too.
    __device__ __forceinline__ Elements gradients(const Elements& held, int i, float smoothing, float* to) const {
        float x[WIDTH], found[WIDTH];
        to_floats(x, held);
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) found[j] = constant ? value : gradient(x[j]);
        if (!constant && (unsigned)(target - i) < WIDTH)
#pragma unroll
            for (int j = 0; j < WIDTH; ++j)
                if (i + j == target) {
                    found[j] -= at_target;
                    *to = loss(x[j], smoothing);
                }
        return from_floats<T>(found);
    }
    // The same of one logit.
    __device__ __forceinline__ float single(float x, int i, float smoothing, float* to) const {
        float found = constant ? value : gradient(x);
        if (!constant && i == target) {
            found -= at_target;
            *to = loss(x, smoothing);
        }
        return found;
    }
};

// Whole vectors, where both ends are aligned; else one by one. Streaming: plain stores of the two branches become the same narrow
// ones (8192 x 128256 in bf16 on an H200: 1780 us, and 1083 so).
__device__ __forceinline__ void store_row(T* to, const Elements& x, bool wide) {
    if (wide) store_streaming(to, x);
    else
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) to[j] = x.v[j];
}

__device__ __forceinline__ bool starts_vector(const T* p) {
    return reinterpret_cast<unsigned long long>(p) % sizeof(Elements) == 0;
}

// By the intrinsic: an assignment becomes narrow stores here. A row is read once, so that streaming has nothing to keep in L2
// (8192 x 128256 in bf16 on an H200, in one run: 1069 us, 1078 with streaming stores).
__device__ __forceinline__ void store_whole(T* to, const Elements& x) {
    using Raw = typename Elements::Raw;
    __stwb(reinterpret_cast<Raw*>(to), bits<Raw>(x));
}
