// What is subtracted per query row, for all kernels of attention's gradient: from a score, in powers of two, the
// logarithm of the row's sum; from a gradient of a weight sum(grad_out * y). Rows that see no key (lse = -inf) and rows
// past M get +inf, so that their weights are exp2(-inf) = 0. offsets [B * H, 2, pitch]
#include "attention_backward.cuh"

#ifndef VECTOR
#define VECTOR 8  // elements per load
#endif

#define LANES 16
#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_backward_offsets(const Element* __restrict__ grad_out, const Element* __restrict__ y,
                               const float* __restrict__ lse, float* __restrict__ offsets,
                               const __grid_constant__ Strides grad_step, const __grid_constant__ Strides y_step,
                               i64 rows, int heads, int M, int pitch) {
    const i64 index = (i64)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    const int row = index % pitch, lane = threadIdx.x % LANES;
    const i64 slice = index / pitch, batch = slice / heads, head = slice % heads;
    const bool inside = index < rows && row < M;
    float sum = 0.0f;
    if (inside) {
        const Element* grad = grad_out + batch * grad_step.batch + head * grad_step.head + row * grad_step.row;
        const Element* out = y + batch * y_step.batch + head * y_step.head + row * y_step.row;
        for (int d = VECTOR * lane; d < HEAD_DIM; d += VECTOR * LANES) {
            float a[VECTOR], b[VECTOR];
            to_floats(a, load<VECTOR>(grad + d)), to_floats(b, load<VECTOR>(out + d));
#pragma unroll
            for (int i = 0; i < VECTOR; i++) sum += a[i] * b[i];
        }
    }
    sum = warp_reduce<LANES>(sum, Sum());
    if (lane == 0 && index < rows) {
        const float log_sum = inside ? lse[slice * M + row] : -infinity();
        float* place = offsets + slice * 2 * pitch + row;
        place[0] = log_sum == -infinity() ? infinity() : log_sum * 1.4426950408889634f;
        place[pitch] = sum;
    }
}
