// grad = g * (exp(x - lse) - (1 - s) * (1 at the target) - s / n) for each row; g = grad_loss, / count for the mean. A group of GROUP
// threads takes a chunk of UNROLL vectors for each of a row, ROWS rows side by side; grads are contiguous, logits lie `step` apart.
#include "rows.cuh"
#include "targets.cuh"

struct Gradient {
    float lse, g, spread, at_target;
    int target;

    __device__ __forceinline__ float of(float x, int column) const {
        const float share = fast_exp2((x - lse) * 1.44269504f) - spread;
        return g * (column == target ? share - at_target : share);
    }
};

extern "C" __global__ void __launch_bounds__(GROUP * ROWS)
cross_entropy_backward_vectorized(
    const float* __restrict__ grad_loss, const T* __restrict__ logits, const i64* __restrict__ target,
    const float* __restrict__ lse, const float* __restrict__ count, T* __restrict__ grad, i64 rows, int n, i64 step,
    i64 each, i64 ignored, float smoothing, int chunks) {
    const i64 row = blockIdx.x / chunks * (i64)ROWS + threadIdx.y;
    if (row >= rows) return;
    const T* const x = logits + row * step;
    T* const y = grad + row * n;
    const int chunk = blockIdx.x % chunks;
    const Peel part = Peel::of<WIDTH>(x, n);
    const bool wide = (reinterpret_cast<unsigned long long>(y + part.head) % sizeof(Elements)) == 0;
    const int first = part.head + (chunk * UNROLL * GROUP + threadIdx.x) * WIDTH;
    Elements held[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
        if (first + u * GROUP * WIDTH < part.tail) held[u] = load<WIDTH>(x + first + u * GROUP * WIDTH);

    const Target t(target[row], n, ignored);
    const float g = grad_loss[row * each] / (count ? count[0] : 1.0f);
    const Gradient gradient{lse[row], g, smoothing / n, 1.0f - smoothing, t.is_class ? (int)t.value : -1};
    const float fixed = nanf("");
    auto result = [&](float x, int column) { return !t.counts ? 0.0f : !t.is_class ? fixed : gradient.of(x, column); };
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const int i = first + u * GROUP * WIDTH;
        if (i >= part.tail) continue;
        float found[WIDTH];
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) found[j] = result(to_float(held[u].v[j]), i + j);
        const Elements packed = from_floats<T>(found);
        if (wide) store_streaming(y + i, packed);
        else
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) y[i + j] = packed.v[j];
    }
    if (chunk == 0)
        for (int k = threadIdx.x; k < part.few; k += GROUP) {
            const int i = part.beside(k);
            y[i] = from_float<T>(result(to_float(x[i]), i));
        }
}
