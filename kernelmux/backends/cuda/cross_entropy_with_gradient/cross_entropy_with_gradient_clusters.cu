// The loss of each row of logits, and its gradient times g = 1 / count, or 1 without a count: one read and one write, in the order
// of memory. A cluster of CLUSTER blocks, or one block, has a row, and each holds a piece in registers, UNROLL vectors of each
// thread. Logits lie `step` apart from row to row; gradients are contiguous.
#include "row_counts.cuh"
#include "row_parameters.cuh"
#include "row_pieces.cuh"

extern "C" __global__ void CLUSTER_SHAPE __launch_bounds__(GROUP, MIN_BLOCKS)
cross_entropy_with_gradient_clusters(
    const T* __restrict__ logits, const i64* __restrict__ target, const float* __restrict__ counted, float* __restrict__ loss,
    T* __restrict__ grad, i64 rows, int n, i64 step, i64 ignored, float smoothing) {
    __shared__ JoinRoom<Logits> room;
    join_cluster(room);
    if (FEW) let_next_start();
    const int piece = block_in_cluster();
    const i64 row = blockIdx.x / CLUSTER;
    const T* const x = logits + row * step;
    const Part part(x, n, piece);
    Elements held[UNROLL];
    part.each([&](int u, int i) { held[u] = load_constant<WIDTH>(x + part.first + i); });
    const int beside = part.beside(piece);
    const float single = beside >= 0 ? to_float(x[beside]) : 0.0f;
    const Target wanted(target[row], n, ignored);
    const float g = weight_of_rows(counted, target, rows, ignored, threadIdx.x);
    Logits seen;
    seen.add([&](auto f) {
        part.each([&](int u, int) {
            float values[WIDTH];
            to_floats(values, held[u]);
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) f(&values[j]);
        });
        if (beside >= 0) f(&single);
    });
#pragma unroll
    for (Elements& some : held) stay_packed(some);
    await_cluster();
    const RowLoss found(joined(seen, seen, room), wanted, n, smoothing, g);
    T* const y = grad + row * n;
    if (beside >= 0) y[beside] = from_float<T>(found.single(single, beside, smoothing, loss + row));
    const bool wide = ALIGNED || starts_vector(y + part.peel.head);
    part.each([&](int u, int i) {
        const Elements gradients = found.gradients(held[u], part.first + i, smoothing, loss + row);
        if (wide) store_whole(y + part.first + i, gradients);
        else store_row(y + part.first + i, gradients, false);
    });
    if (found.constant && piece == 0 && threadIdx.x == 0) loss[row] = loss_without_class(found.value, rows);
}
