// Gradients of rms_norm as in rms_norm_backward_registers.cu, but rows of x and grad_out arrive through a ring in shared
// memory: while a block works on one row, the next STAGES - 1 are on their way. A thread reads back what it asked for
// itself, so the ring needs no barrier, and both passes over a row read it there instead of holding it in registers.
#include "rms_norm_backward.cuh"
#include "tensor_cores.cuh"

#ifndef STAGES
#define STAGES 3
#endif

constexpr int THREADS = GROUP * ROWS;
alignas(16) extern __shared__ unsigned char ring[];  // [STAGES][x, grad_out][VECTORS][THREADS] of Elements

__device__ __forceinline__ T* place(int stage, int tensor, int vector) {
    const int thread = threadIdx.y * GROUP + threadIdx.x;
    return reinterpret_cast<T*>(ring) + (((stage * 2 + tensor) * VECTORS + vector) * THREADS + thread) * WIDTH;
}

__device__ __forceinline__ void ask(int stage, const T* x, const T* grad_out, int n) {
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        copy_async<sizeof(Elements)>(shared_address(place(stage, 0, v)), x + column(v), column(v) < n);
        copy_async<sizeof(Elements)>(shared_address(place(stage, 1, v)), grad_out + column(v), column(v) < n);
    }
    copy_async_commit();
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
rms_norm_backward_pipelined(
    const T* __restrict__ grad_out, const T* __restrict__ x, const T* __restrict__ weight, T* __restrict__ grad_x,
    float* __restrict__ partial, i64 rows, int n, float eps) {
    __shared__ float2 scratch[2][32];  // used in turn: one barrier per row suffices
    Elements w[VECTORS];
    float sum[VECTORS][WIDTH] = {};
    for_each_vector(n, [&](int i, int v) { w[v] = load<WIDTH>(weight + i); });
    const i64 step = gridDim.x * (i64)ROWS;
    i64 row = blockIdx.x * (i64)ROWS + threadIdx.y;
    for (int s = 0; s < STAGES - 1; ++s) {
        const i64 ahead = row + s * step;
        ask(s, x + ahead * n, grad_out + ahead * n, ahead < rows ? n : 0);
    }
    int stage = 0, turn = 0;
    for (i64 first = blockIdx.x * (i64)ROWS; first < rows; first += step, row += step, turn ^= 1) {
        const int valid = row < rows ? n : 0;
        const i64 ahead = row + (STAGES - 1) * step;
        ask((stage + STAGES - 1) % STAGES, x + ahead * n, grad_out + ahead * n, ahead < rows ? n : 0);
        copy_async_wait<STAGES - 1>();
        float2 both = {};  // sums of x^2 and of grad_out * weight * x
        for_each_vector(valid, [&](int, int v) {
            add_products(both, load<WIDTH>(place(stage, 0, v)), load<WIDTH>(place(stage, 1, v)), w[v]);
        });
        both = group_sum<GROUP>(both, scratch[turn]);
        stay_packed(w);
        const float r = 1.0f / sqrtf(both.x / n + eps), c = r * r * r * (both.y / n);
        for_each_vector(valid, [&](int i, int v) {
            const Elements held = load<WIDTH>(place(stage, 0, v)), g = load<WIDTH>(place(stage, 1, v));
            store(grad_x + row * n + i, gradient(held, g, w[v], r, c, sum[v]));
        });
        stage = (stage + 1) % STAGES;
    }
    add_to_partial(sum, partial + blockIdx.x * (i64)n, n);
}
