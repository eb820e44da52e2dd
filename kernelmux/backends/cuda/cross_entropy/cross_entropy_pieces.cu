// Few long rows in pieces, a block for each, and what one more block makes of them: lse, and the losses or what they add up to. The
// first kernel also serves cross_entropy_with_gradient.
#include "loss_parts.cuh"

#define NONE 0
#define SUM 1
#define MEAN 2
#ifndef WANTED
#define WANTED SUM
#endif
#ifndef LAST_THREADS  // of the block that has all rows
#define LAST_THREADS 128
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
cross_entropy_look(const T* __restrict__ logits, float2* __restrict__ states, int n, i64 step, int blocks, int parts) {
    look_at_parts(logits, states, n, step, blocks, parts);
}

extern "C" __global__ void __launch_bounds__(LAST_THREADS)
cross_entropy_last(
    const T* __restrict__ logits, const i64* __restrict__ target, const float2* states, float* __restrict__ lse,
    float* __restrict__ loss, int rows, int n, i64 step, i64 ignored, float smoothing, int parts) {
    auto loss_of = [&](int row, const Logits& seen, const Target& t, float chosen) {
        const LogSumExp& e = seen.exponentials;
        const float all = e.m == Max::identity() ? nanf("") : e.m + logf(e.sum);
        float found = t.counts ? nanf("") : 0.0f;
        if (t.counts && t.is_class)
            found = SMOOTHED ? all - (1.0f - smoothing) * chosen - smoothing * (seen.sum / n) : all - chosen;
        lse[row] = all;
        if (WANTED == NONE) loss[row] = found;
        return found;
    };
    const float2 sums = all_losses<LAST_THREADS>(logits, target, states, rows, n, step, ignored, parts, loss_of);
    if (WANTED != NONE && threadIdx.x == 0) loss[0] = WANTED == SUM ? sums.x : sums.x / sums.y;
}
