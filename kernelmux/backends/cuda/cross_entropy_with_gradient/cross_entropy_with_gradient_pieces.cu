// The gradient of few long rows in parts, behind cross_entropy_look, and the loss of each; where these are added up, block 0 does that
// while the others write. Inputs are read before the launch ahead has ended: it has not changed them.
#include "loss_parts.cuh"
#include "row_counts.cuh"

#ifndef ADDED  // whether the losses become one number
#define ADDED 0
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
cross_entropy_with_gradient_pieces(
    const T* __restrict__ logits, const i64* __restrict__ target, const float2* states, float* __restrict__ loss,
    float* __restrict__ total, T* __restrict__ grad, int rows, int n, i64 step, i64 ignored, float smoothing, int blocks, int parts) {
    if (ADDED && blockIdx.x == 0) {
        auto loss_of = [&](int, const Logits& seen, const Target& t, float chosen) {
            const RowLoss found(seen, t, n, smoothing, 1.0f);
            return found.constant ? found.value : found.loss(chosen, smoothing);
        };
        const float2 sums = all_losses<THREADS>(logits, target, states, rows, n, step, ignored, parts, loss_of);
        if (threadIdx.x == 0) total[0] = MEAN ? sums.x / sums.y : sums.x;
        return;
    }
    const i64 row = (blockIdx.x - ADDED) / blocks;
    const T* const x = logits + row * step;
    const Slice slice(x, n, (blockIdx.x - ADDED) % blocks);
    Elements held[UNROLL];
    slice.each([&](int u, int i) { held[u] = load_streaming<WIDTH>(x + slice.first + i); });
    const int beside = slice.beside();
    const float single = beside >= 0 ? to_float(x[beside]) : 0.0f;
    const Target wanted(target[row], n, ignored);
    const float g = weight_of_rows(nullptr, target, rows, ignored, threadIdx.x);
    wait_for_previous();
    RowStates states_of_row;
    states_of_row.ask(states + row * parts * WORDS, parts);
    const RowLoss found(states_of_row.total(), wanted, n, smoothing, g);
    T* const y = grad + row * n;
    if (beside >= 0) y[beside] = from_float<T>(found.single(single, beside, smoothing, loss + row));
    const bool wide = ALIGNED || starts_vector(y + slice.peel.head);
    slice.each([&](int u, int i) {
        const Elements gradients = found.gradients(held[u], slice.first + i, smoothing, loss + row);
        if (wide) store_whole(y + slice.first + i, gradients);
        else store_row(y + slice.first + i, gradients, false);
    });
    if (found.constant && slice.piece == 0 && slice.thread == 0) loss[row] = found.value;
}
