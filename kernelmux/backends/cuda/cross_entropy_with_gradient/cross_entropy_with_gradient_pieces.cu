// The gradient of few long rows in pieces, behind cross_entropy_look, and the loss of each; where these are added up, block 0 does that
// while the others write. Inputs are read before the launch ahead has ended: it has not changed them.
#include "loss_pieces.cuh"
#include "row_counts.cuh"

#ifndef ADDED  // whether the losses become one number
#define ADDED 0
#endif

extern "C" __global__ void __launch_bounds__(GROUP)
cross_entropy_with_gradient_pieces(
    const T* __restrict__ logits, const i64* __restrict__ target, const float2* states, float* __restrict__ loss,
    float* __restrict__ total, T* __restrict__ grad, int rows, int n, i64 step, i64 ignored, float smoothing, int pieces) {
    if (ADDED && blockIdx.x == 0) {
        auto loss_of = [&](int, const Logits& seen, const Target& t, float chosen) { return seen.loss(t, chosen, n, smoothing); };
        const float2 sums = all_losses<GROUP>(logits, target, states, rows, n, step, ignored, pieces, loss_of);
        if (threadIdx.x == 0) total[0] = MEAN ? sums.x / sums.y : sums.x;
        return;
    }
    const i64 row = (blockIdx.x - ADDED) / pieces;
    const int piece = (blockIdx.x - ADDED) % pieces;
    const HeldPiece held(logits + row * step, n, piece, load_streaming<WIDTH, T>);
    const Target wanted(target[row], n, ignored);
    const float g = weight_of_rows(nullptr, target, rows, ignored, threadIdx.x);
    wait_for_previous();
    RowStates states_of_row;
    states_of_row.ask(states + row * pieces * WORDS, pieces);
    const RowLoss found(states_of_row.total(), wanted, n, smoothing, g);
    held.write(grad + row * n, found, smoothing, loss + row);
    if (found.constant && piece == 0 && threadIdx.x == 0) loss[row] = found.value;
}
