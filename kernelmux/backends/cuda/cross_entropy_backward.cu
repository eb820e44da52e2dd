// grad = g * (exp(x - lse) - (1 - s) * (1 at the target) - s / n) for each row; g = grad_loss, / count for the mean. A group of GROUP
// threads takes a chunk of UNROLL vectors for each of a row, ROWS rows side by side; grads are contiguous, logits lie `step` apart.
#include "rows.cuh"
#include "targets.cuh"

#ifndef ALIGNED  // every row starts at a vector and ends with one
#define ALIGNED 0
#endif
#ifndef COUNTED  // the gradient of the mean of no more rows than a block has threads, which count those that are not ignored
#define COUNTED 0
#endif

// Of a row. One that does not count, or whose target is no class, has `value` everywhere, and a target of -1.
struct Gradient {
    float lse, g, spread, at_target, value;
    int target;

    __device__ __forceinline__ float elsewhere(float x) const {
        return target < 0 ? value : g * (fast_exp2((x - lse) * 1.44269504f) - spread);
    }
    __device__ __forceinline__ float of(float x, int column) const {
        return column == target ? g * (fast_exp2((x - lse) * 1.44269504f) - spread - at_target) : elsewhere(x);
    }
    __device__ __forceinline__ Elements of(const Elements& x, int column) const {
        float values[WIDTH], found[WIDTH];
        to_floats(values, x);
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) found[j] = elsewhere(values[j]);
        if ((unsigned)(target - column) < WIDTH)
#pragma unroll
            for (int j = 0; j < WIDTH; ++j)
                if (column + j == target) found[j] = of(values[j], column + j);
        return from_floats<T>(found);
    }
};

extern "C" __global__ void __launch_bounds__(GROUP * ROWS)
cross_entropy_backward_vectorized(
    const float* __restrict__ grad_loss, const T* __restrict__ logits, const i64* __restrict__ target,
    const float* __restrict__ lse, const float* __restrict__ count, T* __restrict__ grad, i64 rows, int n, i64 step,
    i64 each, i64 ignored, float smoothing, int chunks) {
    const i64 row = blockIdx.x / chunks * (i64)ROWS + threadIdx.y;
    if (!COUNTED && row >= rows) return;
    const int chunk = blockIdx.x % chunks;
    const T* const x = logits + row * step;
    T* const y = grad + row * n;
    const Peel part = ALIGNED ? Peel{0, n, 0} : Peel::of<WIDTH>(x, n);
    const int first = part.head + (chunk * UNROLL * GROUP + threadIdx.x) * WIDTH, left = part.tail - first;
    const T* const from = x + first;
    T* const to = y + first;
    Elements held[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
        if ((!COUNTED || row < rows) && u * GROUP * WIDTH < left)
            held[u] = load_constant<WIDTH>(from + u * GROUP * WIDTH);

    int counted = 0;
    if (COUNTED) {
        const int i = threadIdx.y * GROUP + threadIdx.x;
        counted = __syncthreads_count(i < rows && target[i] != ignored);
        if (row >= rows) return;
    }
    const Target t(target[row], n, ignored);
    const float g = grad_loss[row * each] / (COUNTED ? (float)counted : count ? count[0] : 1.0f);
    const int at = t.counts && t.is_class ? (int)t.value : -1;
    const Gradient gradient{lse[row], g, smoothing / n, 1.0f - smoothing, t.counts ? nanf("") : 0.0f, at};
    const bool wide = ALIGNED || reinterpret_cast<unsigned long long>(y + part.head) % sizeof(Elements) == 0;
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        if (u * GROUP * WIDTH >= left) continue;
        const Elements found = gradient.of(held[u], first + u * GROUP * WIDTH);
        if (wide) __stwb(reinterpret_cast<Elements::Raw*>(to + u * GROUP * WIDTH), bits<Elements::Raw>(found));
        else
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) to[u * GROUP * WIDTH + j] = found.v[j];
    }
    if (!ALIGNED && chunk == 0)
        for (int k = threadIdx.x; k < part.few; k += GROUP) {
            const int i = part.beside(k);
            y[i] = from_float<T>(gradient.of(to_float(x[i]), i));
        }
}
