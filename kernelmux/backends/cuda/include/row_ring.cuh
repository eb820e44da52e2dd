// A ring in shared memory for blocks that stay and walk down rows: the next rows are on their way while a block works on one.
#pragma once

#include "row_join.cuh"
#include "tensor_cores.cuh"

#ifndef STAGES  // rows in the ring
#define STAGES 2
#endif

// [STAGES][In][VECTORS][threads] of Elements. A thread reads back what it asked for itself: the ring needs no barrier.
alignas(16) extern __shared__ unsigned char ring[];

template <int In>
__device__ __forceinline__ T* place(int stage, int tensor, int vector) {
    const int thread = threadIdx.y * GROUP + threadIdx.x;
    return reinterpret_cast<T*>(ring) + (((stage * In + tensor) * VECTORS + vector) * GROUP * ROWS + thread) * WIDTH;
}

template <int In>
__device__ __forceinline__ void ask(int stage, const T* const (&x)[In], i64 start, int count) {
#if __CUDA_ARCH__ < 800  // no asynchronous copies: all loads before the first store
    Elements held[VECTORS][In] = {};
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
#pragma unroll
        for (int i = 0; i < In; ++i)
            if (v < INSIDE || column(v) < count) held[v][i] = load_constant<WIDTH>(x[i] + start + column(v));
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
#pragma unroll
        for (int i = 0; i < In; ++i) store(place<In>(stage, i, v), held[v][i]);
#else
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
#pragma unroll
        for (int i = 0; i < In; ++i)
            copy_async<sizeof(Elements)>(
                shared_address(place<In>(stage, i, v)), x[i] + start + column(v), v < INSIDE || column(v) < count);
    copy_async_commit();
#endif
}

template <int In>
__device__ __forceinline__ void take(Elements (&x)[In], int stage, int vector) {
#pragma unroll
    for (int i = 0; i < In; ++i) x[i] = load<WIDTH>(place<In>(stage, i, vector));
}
