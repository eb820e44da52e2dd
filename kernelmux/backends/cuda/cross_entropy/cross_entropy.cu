// lse = log(sum(exp(x))) of each row, and its loss, lse - (1 - s) * x[target] - s * mean(x): 0 for rows that are ignored, NaN where the
// target is no class. Rows lie `step` elements apart.
#include "log_sum_exp.cuh"
#include "row_join.cuh"
#include "targets.cuh"

#ifndef SMOOTHED  // s > 0
#define SMOOTHED 0
#endif

// NaN for a row of nothing but -inf, as for every other row with an infinity.
struct Seen {
    LogSumExp exponentials;
    float sum = 0.0f;

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
    __device__ __forceinline__ float log_sum() const {
        return exponentials.m == Max::identity() ? nanf("") : exponentials.m + logf(exponentials.sum);
    }
    static constexpr float factor = 1.44269504f;  // log2(e)
};

extern "C" __global__ void __launch_bounds__(GROUP * ROWS)
cross_entropy_online(
    const T* __restrict__ logits, const i64* __restrict__ target, float* __restrict__ lse, float* __restrict__ loss, i64 rows,
    int n, i64 step, i64 ignored, float smoothing) {
    __shared__ JoinRoom<Seen> room;
    const i64 row = blockIdx.x * (i64)ROWS + threadIdx.y;
    const T* const x = logits + row * step;
    const Peel part = Peel::of<WIDTH>(x, row < rows ? n : 0);
    Seen seen;
    for (int k = threadIdx.x; k < part.few; k += GROUP) {
        const float value = to_float(x[part.beside(k)]);
        seen.add([&](auto f) { f(&value); });
    }
    for (int i = part.head + threadIdx.x * WIDTH; i < part.tail; i += UNROLL * GROUP * WIDTH) {
        Elements held[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (i + u * GROUP * WIDTH < part.tail) held[u] = load_constant<WIDTH>(x + i + u * GROUP * WIDTH);
        seen.add([&](auto f) {
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
                if (i + u * GROUP * WIDTH < part.tail) {
                    float values[WIDTH];
                    to_floats(values, held[u]);
#pragma unroll
                    for (int j = 0; j < WIDTH; ++j) f(&values[j]);
                }
        });
    }
    seen = joined(seen, seen, room);
    if (threadIdx.x != 0 || row >= rows) return;
    const Target t(target[row], n, ignored);
    const float all = seen.log_sum();
    float found = t.counts ? nanf("") : 0.0f;
    if (t.counts && t.is_class) {
        const float chosen = to_float(x[t.value]);
        found = SMOOTHED ? all - (1.0f - smoothing) * chosen - smoothing * (seen.sum / n) : all - chosen;
    }
    lse[row] = all;
    loss[row] = found;
}
