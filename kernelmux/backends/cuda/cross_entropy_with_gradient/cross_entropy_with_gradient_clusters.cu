// The loss of each row of logits, and its gradient times g = 1 / count, or 1 without a count: one read and one write, in the order
// of memory. A cluster of CLUSTER blocks, or one block, has a row, and each holds a piece in registers, UNROLL vectors of each
// thread. Logits lie `step` apart from row to row; gradients are contiguous.
#include "loss_pieces.cuh"
#include "row_counts.cuh"
#include "row_parameters.cuh"

extern "C" __global__ void CLUSTER_SHAPE __launch_bounds__(GROUP, MIN_BLOCKS)
cross_entropy_with_gradient_clusters(
    const T* __restrict__ logits, const i64* __restrict__ target, const float* __restrict__ counted, float* __restrict__ loss,
    T* __restrict__ grad, i64 rows, int n, i64 step, i64 ignored, float smoothing) {
    __shared__ JoinRoom<Logits> room;
    join_cluster(room);
    if (FEW) let_next_start();
    const int piece = block_in_cluster();
    const i64 row = blockIdx.x / CLUSTER;
    HeldPiece held(logits + row * step, n, piece, load_constant<WIDTH, T>);
    const Target wanted(target[row], n, ignored);
    const float g = weight_of_rows(counted, target, rows, ignored, threadIdx.x);
    const Logits seen = held.seen();
#pragma unroll
    for (Elements& some : held.held) stay_packed(some);
    await_cluster();
    const RowLoss found(joined(seen, seen, room), wanted, n, smoothing, g);
    held.write(grad + row * n, found, smoothing, loss + row);
    if (found.constant && piece == 0 && threadIdx.x == 0) loss[row] = loss_without_class(found.value, rows);
}
