// A row of logits with a target class: what one walk over it finds, and the loss and the gradient that follow.
#pragma once

#include "row_join.cuh"
#include "targets.cuh"

#ifndef SMOOTHED  // s > 0
#define SMOOTHED 0
#endif

// A state of row_join.cuh: the maximum m of a row and the sum of 2^(x * log2(e) - base()); with smoothing the sum of its logits too.
// base() is rounded before it is subtracted, by the same amount wherever it is, so that one fma makes the argument.
struct Logits {
    float m = Max::identity(), sum = 0.0f, total = 0.0f;
    static constexpr float factor = 1.44269504f;  // log2(e)

    // While everything was -inf there is no maximum to subtract.
    static __device__ __forceinline__ float base(float m) { return m == Max::identity() ? 0.0f : __fmul_rn(m, factor); }

    template <typename Each>
    __device__ __forceinline__ void add(Each each) {
        float most = m;
        each([&](const float* x) { most = fmaxf(most, x[0]); });
        rescale(most);
        const float low = -base(m);
        each([&](const float* x) { sum += fast_exp2(fmaf(x[0], factor, low)); });
        if (SMOOTHED) each([&](const float* x) { total += x[0]; });
    }
    template <typename Op, typename L>
    __device__ __forceinline__ void join(const Op&, L lanes) {
        rescale(lanes.max(m));
        sum = lanes.sum(sum);
        if (SMOOTHED) total = lanes.sum(total);
    }
    __device__ __forceinline__ void rescale(float larger) {
        if (sum != 0.0f) sum *= fast_exp2(base(m) - base(larger));
        m = larger;
    }
    // log2(sum(exp(x))); NaN for a row of nothing but -inf, as for every other row with an infinity.
    __device__ __forceinline__ float log2_sum() const { return m == Max::identity() ? nanf("") : base(m) + log2f(sum); }
};

// With g, the gradient of the row's loss: grad = 2^(x * log2(e) - shift) - g * ((1 - s) * (1 at the target) + s / n), where shift is
// log2(sum(exp(x)) / g). A row that does not count has `value` everywhere, 0 or NaN, and so has its loss.
struct RowLoss {
    float shift, spread, at_target, smoothing, without_target;
    int target;
    bool constant;
    float value;

    __device__ __forceinline__ RowLoss(const Logits& row, const Target& t, int n, float s, float g) : smoothing(s) {
        const float lse = row.log2_sum();
        shift = lse - log2f(g), spread = g * (s / n), at_target = g * (1.0f - s);
        without_target = lse * 0.69314718f - (SMOOTHED ? s * (row.total / n) : 0.0f);
        target = t.is_class ? (int)t.value : -1;
        constant = !(t.counts && t.is_class);
        value = t.counts ? nanf("") : 0.0f;
    }
    __device__ __forceinline__ float gradient(float x) const {
        const float p = fast_exp2(fmaf(x, Logits::factor, -shift));
        return SMOOTHED ? p - spread : p;
    }
    // That of the logit of the target; its loss goes to *to.
    __device__ __forceinline__ float hit(float x, float* to) const {
        *to = without_target - (SMOOTHED ? (1.0f - smoothing) * x : x);
        return gradient(x) - at_target;
    }
    // The gradients of the WIDTH logits from column i on.
    __device__ __forceinline__ Elements gradients(const Elements& held, int i, float* to) const {
        float x[WIDTH], found[WIDTH];
        to_floats(x, held);
        if (constant) {
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) found[j] = value;
            return from_floats<T>(found);
        }
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) found[j] = gradient(x[j]);
        if ((unsigned)(target - i) < WIDTH)
#pragma unroll
            for (int j = 0; j < WIDTH; ++j)
                if (i + j == target) found[j] = hit(x[j], to);
        return from_floats<T>(found);
    }
    // That of the logit of column i alone.
    __device__ __forceinline__ float single(float x, int i, float* to) const {
        return constant ? value : i == target ? hit(x, to) : gradient(x);
    }
};

// Whole vectors, where both ends are aligned; else one by one. As PTX: the compiler makes of plain stores in the two branches the
// same narrow ones (8192 x 128256 in bf16 on an H200: 1780 us, 1069 so, and 1078 with streaming stores).
__device__ __forceinline__ void store_row(T* to, const Elements& x, bool wide) {
    static_assert(sizeof(Elements) == 16, "one access");
    const uint4 r = bits<uint4>(x);
    if (wide) asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(r.x), "r"(r.y), "r"(r.z), "r"(r.w) : "memory");
    else
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) to[j] = x.v[j];
}

__device__ __forceinline__ bool starts_vector(const T* p) {
    return reinterpret_cast<unsigned long long>(p) % sizeof(Elements) == 0;
}
