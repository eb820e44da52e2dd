// What is subtracted per query row, for all kernels of attention's gradient: from a score, in powers of two, the
// logarithm of the row's sum; from a gradient of a weight sum(grad_out * y). Rows that see no key (lse = -inf) and rows
// past M get +inf, so that their weights are exp2(-inf) = 0. offsets [B * H, 2, pitch]. Counters of the next kernel
// become 0.
#include "attention_backward.cuh"
#include "dependent_launch.cuh"

#ifndef VECTOR
#define VECTOR 8  // elements per load
#endif

#define LANES 16
#define THREADS 256
// Of a block; divides pitch. H200, us of the kernel with 32, 64 and 128: 2 x 8 x 512 x 64 7.1, 8.7 and 11.9; 1 x 16 x
// 10000 x 64 21.2, 22.0 and 24.8; 8 x 16 x 1024 x 128 26.9, 26.8 and 27.0.
#define ROWS 32

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_backward_offsets(const Element* __restrict__ grad_out, const Element* __restrict__ y,
                               const float* __restrict__ lse, float* __restrict__ offsets, int* __restrict__ done,
                               const __grid_constant__ Strides grad_step, const __grid_constant__ Strides y_step,
                               int heads, int M, int pitch, int counters) {
    let_next_start();
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < counters; i += gridDim.x * THREADS) done[i] = 0;
    const int tiles = pitch / ROWS, slice = blockIdx.x / tiles, first = blockIdx.x % tiles * ROWS;
    const i64 batch = slice / heads, head = slice % heads;
    const int lane = threadIdx.x % LANES;
    const Element* grads = grad_out + batch * grad_step.batch + head * grad_step.head;
    const Element* outs = y + batch * y_step.batch + head * y_step.head;
#pragma unroll
    for (int row = first + threadIdx.x / LANES, i = 0; i < ROWS; i += THREADS / LANES, row += THREADS / LANES) {
        float sum = 0.0f;
        for (int d = VECTOR * lane; d < HEAD_DIM && row < M; d += VECTOR * LANES) {
            float a[VECTOR], b[VECTOR];
            to_floats(a, load<VECTOR>(grads + row * grad_step.row + d));
            to_floats(b, load<VECTOR>(outs + row * y_step.row + d));
#pragma unroll
            for (int j = 0; j < VECTOR; j++) sum += a[j] * b[j];
        }
        sum = warp_reduce<LANES>(sum, Sum());
        const float log_sum = row < M ? lse[(i64)slice * M + row] : -infinity();
        float* place = offsets + (i64)slice * 2 * pitch + row;
        if (lane == 0) {
            place[0] = log_sum == -infinity() ? infinity() : log_sum * 1.4426950408889634f;
            place[pitch] = sum;
        }
    }
}
