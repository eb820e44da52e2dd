// Few long rows in pieces, a block for each, and what one more block makes of them: lse, and the losses or what they add up to. The
// first kernel also serves cross_entropy_with_gradient.
#include "loss_pieces.cuh"

#define NONE 0
#define SUM 1
#define MEAN 2
#ifndef WANTED
#define WANTED SUM
#endif
#ifndef LAST_THREADS  // of the block that has all rows
#define LAST_THREADS 128
#endif

extern "C" __global__ void __launch_bounds__(GROUP)
cross_entropy_look(const T* __restrict__ logits, float2* __restrict__ states, int n, i64 step, int pieces) {
    __shared__ JoinRoom<Logits> room;
    let_next_start();
    const int piece = blockIdx.x % pieces;
    const HeldPiece held(logits + blockIdx.x / pieces * step, n, piece, load_constant<WIDTH, T>);
    const Logits seen = joined(Logits(), held.seen(), room);
    if (threadIdx.x != 0) return;
    float2* const to = states + (i64)blockIdx.x * WORDS;
    to[0] = make_float2(seen.exponentials.m, seen.exponentials.sum);
    if (SMOOTHED) to[1] = make_float2(seen.sum, 1.0f);
}

extern "C" __global__ void __launch_bounds__(LAST_THREADS)
cross_entropy_last(
    const T* __restrict__ logits, const i64* __restrict__ target, const float2* states, float* __restrict__ lse,
    float* __restrict__ loss, int rows, int n, i64 step, i64 ignored, float smoothing, int pieces) {
    auto loss_of = [&](int row, const Logits& seen, const Target& t, float chosen) {
        const float found = seen.loss(t, chosen, n, smoothing);
        lse[row] = seen.log_sum();
        if (WANTED == NONE) loss[row] = found;
        return found;
    };
    const float2 sums = all_losses<LAST_THREADS>(logits, target, states, rows, n, step, ignored, pieces, loss_of);
    if (WANTED != NONE && threadIdx.x == 0) loss[0] = WANTED == SUM ? sums.x : sums.x / sums.y;
}
