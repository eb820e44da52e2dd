// A step of AdamW in place, in fp32 with one rounding of each tensor; a thread takes WIDTH elements.
#include "common.cuh"

#ifndef ELEMENT
#define ELEMENT float
#endif
#ifndef WIDTH
#define WIDTH 1
#endif
#ifndef BLOCK
#define BLOCK 256
#endif

using T = ELEMENT;

// decay: 1 - lr * weight_decay; rest: 1 - beta, and log: that of beta, both of double precision, rounded.
struct Constants {
    float lr, decay, eps, beta1, rest1, log1, beta2, rest2, log2;
};

// 1 - beta^step, which is small in the first steps.
__device__ __forceinline__ float correction(float log_beta, float step) { return -expm1f(log_beta * step); }

extern "C" __global__ void __launch_bounds__(BLOCK)
adamw(T* __restrict__ p, const T* __restrict__ g, T* __restrict__ m, T* __restrict__ v, const float* __restrict__ step,
      const Constants by, i64 units) {
    const i64 unit = blockIdx.x * (i64)BLOCK + threadIdx.x;
    const i64 at = unit * WIDTH;
    Vec<T, WIDTH> value, gradient, mean, square;
    if (unit < units) {
        value = load_streaming<WIDTH>(p + at);
        gradient = load_streaming<WIDTH>(g + at);
        mean = load_streaming<WIDTH>(m + at);
        square = load_streaming<WIDTH>(v + at);
    }
    __shared__ float corrections[2];
    if (threadIdx.x == 0) {
        corrections[0] = by.lr / correction(by.log1, *step);
        corrections[1] = rsqrtf(correction(by.log2, *step));
    }
    __syncthreads();
    if (unit >= units) return;
    const float size = corrections[0], root = corrections[1];
    float values[WIDTH], means[WIDTH], squares[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        const float x = to_float(gradient.v[i]);
        means[i] = by.beta1 * to_float(mean.v[i]) + by.rest1 * x;
        squares[i] = by.beta2 * to_float(square.v[i]) + by.rest2 * x * x;
        values[i] = to_float(value.v[i]) * by.decay - size * means[i] / (sqrtf(squares[i]) * root + by.eps);
    }
    store(p + at, from_floats<T>(values));
    store(m + at, from_floats<T>(means));
    store(v + at, from_floats<T>(squares));
}
