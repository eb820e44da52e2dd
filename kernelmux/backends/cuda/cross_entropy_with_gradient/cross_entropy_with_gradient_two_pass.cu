// The loss of each row of logits, and its gradient times g = 1 / count, or 1 without a count. GROUP threads share a row and read it
// twice, ROWS rows side by side; the second time they begin at its end, which is still in L2. Logits lie `step` apart from row to
// row; gradients are contiguous.
#include "row_counts.cuh"
#include "row_losses.cuh"

extern "C" __global__ void __launch_bounds__(GROUP * ROWS)
cross_entropy_with_gradient_two_pass(
    const T* __restrict__ logits, const i64* __restrict__ target, const float* __restrict__ counted, float* __restrict__ loss,
    T* __restrict__ grad, i64 rows, int n, i64 step, i64 ignored, float smoothing) {
    constexpr int STEP = UNROLL * GROUP * WIDTH;
    __shared__ JoinRoom<Logits> room;
    if (FEW) let_next_start();
    const i64 row = blockIdx.x * (i64)ROWS + threadIdx.y;
    const T* const x = logits + row * step;
    const Peel part = Peel::of<WIDTH>(x, row < rows ? n : 0);
    const i64 wanted = row < rows ? target[row] : ignored;
    Logits seen;
    for (int k = threadIdx.x; k < part.few; k += GROUP) {
        const float value = to_float(x[part.beside(k)]);
        seen.add([&](auto f) { f(&value); });
    }
    const int begin = part.head + threadIdx.x * WIDTH;
    for (int i = begin; i < part.tail; i += STEP) {
        Elements held[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (i + u * GROUP * WIDTH < part.tail) held[u] = load<WIDTH>(x + i + u * GROUP * WIDTH);
        seen.add([&](auto f) {
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
                if (i + u * GROUP * WIDTH < part.tail)
#pragma unroll
                    for (int j = 0; j < WIDTH; ++j) {
                        const float value = to_float(held[u].v[j]);
                        f(&value);
                    }
        });
    }
    const float g = weight_of_rows(counted, target, rows, ignored, threadIdx.y * GROUP + threadIdx.x);
    seen = joined(seen, seen, room);
    if (row >= rows) return;
    const RowLoss found(seen, Target(wanted, n, ignored), n, smoothing, g);
    T* const y = grad + row * n;
    const bool wide = starts_vector(y + part.head);
    for (int first = part.head + (part.tail - part.head) / STEP * STEP + threadIdx.x * WIDTH; first >= begin; first -= STEP) {
        Elements held[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (first + u * GROUP * WIDTH < part.tail) held[u] = load_streaming<WIDTH>(x + first + u * GROUP * WIDTH);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int i = first + u * GROUP * WIDTH;
            if (i < part.tail) store_row(y + i, found.gradients(held[u], i, smoothing, loss + row), wide);
        }
    }
    for (int k = threadIdx.x; k < part.few; k += GROUP) {
        const int i = part.beside(k);
        y[i] = from_float<T>(found.single(to_float(x[i]), i, smoothing, loss + row));
    }
    if (found.constant && threadIdx.x == 0) loss[row] = loss_without_class(found.value, rows);
}
