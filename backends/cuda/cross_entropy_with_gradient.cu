// The loss of each row of logits, and its gradient times g = 1 / count, or 1 without a count: one read and one write. Blocks stay
// and walk down rows, CLUSTER of them share each; the next rows are on their way to a ring in shared memory meanwhile.
// Logits lie `step` apart from row to row; gradients are contiguous.
#include "row_losses.cuh"
#include "row_ring.cuh"

#if CLUSTER > 1
#define CLUSTER_SHAPE __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTER_SHAPE
#endif

constexpr int PART = GROUP * VECTORS * WIDTH;  // columns of a block

// What this block has of a row: `count` columns from `first` on in whole vectors, and thread k column beside(k) if it is in block 0.
struct Part {
    Peel peel;
    int first, count, beside;
    __device__ __forceinline__ Part(const T* row, int n) : peel(Peel::of<WIDTH>(row, n)) {
        first = peel.head + block_in_cluster() * PART;
        count = min(peel.tail - first, PART);
        beside = block_in_cluster() == 0 && (int)threadIdx.x < peel.few ? peel.beside(threadIdx.x) : -1;
    }
};

extern "C" __global__ void CLUSTER_SHAPE __launch_bounds__(GROUP, MIN_BLOCKS)
cross_entropy_with_gradient_staying(
    const T* __restrict__ logits, const i64* __restrict__ target, const float* __restrict__ counted, float* __restrict__ loss,
    T* __restrict__ grad, i64 rows, int n, i64 step, i64 ignored, float smoothing) {
    __shared__ JoinRoom<Logits> room[2];
    cluster_arrive();
    const i64 stride = gridDim.x / CLUSTER;
    auto ask_row = [&](int stage, i64 row) {
        if (row >= rows) return copy_async_commit();
        const T* const x[1] = {logits + row * step};
        const Part part(x[0], n);
        ask(stage, x, part.first, part.count);
    };
    i64 row = blockIdx.x / CLUSTER;
    for (int s = 0; s < STAGES - 1; ++s) ask_row(s, row + s * stride);
    const float g = counted ? 1.0f / counted[0] : 1.0f;
    i64 next = target[min(row, rows - 1)];
    int stage = 0;
    cluster_wait();
    for (int turn = 0; row < rows; row += stride, turn ^= 1) {
        ask_row(stage == 0 ? STAGES - 1 : stage - 1, row + (STAGES - 1) * stride);
        const Target t(next, n, ignored);
        next = target[min(row + stride, rows - 1)];
        const T* const x = logits + row * step;
        const Part part(x, n);
        const float single = part.beside >= 0 ? to_float(x[part.beside]) : 0.0f;
        copy_async_wait<STAGES - 1>();
        Logits seen;
        seen.add([&](auto f) {
            for_each_vector(part.count, [&](int, int v) {
                float values[WIDTH];
                to_floats(values, load<WIDTH>(place<1>(stage, 0, v)));
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) f(&values[j]);
            });
            if (part.beside >= 0) f(&single);
        });
        const RowLoss found(joined(seen, seen, room[turn]), t, n, smoothing, g);
        T* const y = grad + row * n;
        const bool wide = starts_vector(y + part.peel.head);
        for_each_vector(part.count, [&](int i, int v) {
            const Elements held = load<WIDTH>(place<1>(stage, 0, v));
            store_row(y + part.first + i, found.gradients(held, part.first + i, smoothing, loss + row), wide);
        });
        if (part.beside >= 0) y[part.beside] = found.single(single, part.beside, smoothing, loss + row);
        if (found.constant && threadIdx.x == 0 && block_in_cluster() == 0) loss[row] = found.value;
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
}
