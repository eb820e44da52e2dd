// lse = log(sum(exp(x))) of each row, and its loss, lse - (1 - s) * x[target] - s * mean(x): 0 for rows that are ignored, NaN where the
// target is no class. Rows lie `step` elements apart; the CLUSTER blocks that share a long one take their vectors in turns.
#include "dependent_launch.cuh"
#include "row_losses.cuh"
#include "row_parameters.cuh"

#ifndef MEAN_OF_ONE  // whether the loss of the only row is the mean: NaN if it does not count
#define MEAN_OF_ONE 0
#endif

extern "C" __global__ void CLUSTER_SHAPE __launch_bounds__(GROUP * ROWS)
cross_entropy_online(
    const T* __restrict__ logits, const i64* __restrict__ target, float* __restrict__ lse, float* __restrict__ loss, i64 rows,
    int n, i64 step, i64 ignored, float smoothing) {
    constexpr int SHARE = CLUSTER * GROUP;  // threads of a row
    __shared__ JoinRoom<Logits> room;
    join_cluster(room);
    const i64 row = blockIdx.x / CLUSTER * (i64)ROWS + threadIdx.y;
    const int thread = block_in_cluster() * GROUP + threadIdx.x;
    const T* const x = logits + row * step;
    const Peel part = Peel::of<WIDTH>(x, row < rows ? n : 0);
    Logits seen;
    for (int k = thread; k < part.few; k += SHARE) {
        const float value = to_float(x[part.beside(k)]);
        seen.add([&](auto f) { f(&value); });
    }
    for (int i = part.head + thread * WIDTH; i < part.tail; i += UNROLL * SHARE * WIDTH) {
        Elements held[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (i + u * SHARE * WIDTH < part.tail) held[u] = load_constant<WIDTH>(x + i + u * SHARE * WIDTH);
        seen.add([&](auto f) {
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
                if (i + u * SHARE * WIDTH < part.tail) {
                    float values[WIDTH];
                    to_floats(values, held[u]);
#pragma unroll
                    for (int j = 0; j < WIDTH; ++j) f(&values[j]);
                }
        });
    }
    await_cluster();
    if (CLUSTER > 1) let_next_start();  // few rows: what adds them up waits in room that is left
    seen = joined(seen, seen, room);
    if (thread != 0 || row >= rows) return;
    const Target t(target[row], n, ignored);
    const float chosen = t.counts && t.is_class ? to_float(x[t.value]) : 0.0f;
    lse[row] = seen.log_sum();
    loss[row] = MEAN_OF_ONE && !t.counts ? nanf("") : seen.loss(t, chosen, n, smoothing);
}
