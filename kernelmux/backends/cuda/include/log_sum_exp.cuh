// What softmax, log_softmax and cross_entropy know of a row: its maximum and the sum of exponentials relative to it.
#pragma once

#include "common.cuh"

// Of numbers z = sign * x: the maximum m of what was seen and the sum of exp2((z - m) * factor). The host splits a scale into its
// sign and factor = |scale| * log2(e), so that m is right for negative scales and z - m stays exact. fmaxf ignores NaN; it gets into
// the sum through exp2, and from there into the whole row.
struct LogSumExp {
    float m = Max::identity(), sum = 0.0f;

    template <typename Each>
    __device__ __forceinline__ void add(Each each, float sign, float factor) {
        float most = sign * m;
        if (sign > 0.0f) each([&](const float* x) { most = fmaxf(most, x[0]); });
        else each([&](const float* x) { most = fminf(most, x[0]); });
        rescale(sign * most, factor);
        // While everything was -inf there is no maximum to subtract.
        const float top = m == Max::identity() ? 0.0f : sign * m, slope = sign * factor;
        each([&](const float* x) { sum += fast_exp2((x[0] - top) * slope); });
    }
    template <typename Op, typename L>
    __device__ __forceinline__ void join(const Op& op, L lanes) {
        rescale(lanes.max(m), op.factor);
        sum = lanes.sum(sum);
    }
    __device__ __forceinline__ void rescale(float larger, float factor) {
        if (sum != 0.0f) sum *= fast_exp2((m - larger) * factor);
        m = larger;
    }
};
