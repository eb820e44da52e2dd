// Elementwise kernels: `op` maps its inputs, as floats, to one; inputs and output have the type ELEMENT.
//   contiguous: one access moves WIDTH elements, a thread issues UNROLL of them before it computes
//   strided:    inputs of any RANK and strides, read where they are; the output is contiguous
#pragma once

#include "common.cuh"

#ifndef ELEMENT
#define ELEMENT float
#endif
#ifndef WIDTH
#define WIDTH 1
#endif
#ifndef UNROLL
#define UNROLL 2
#endif
#ifndef BLOCK
#define BLOCK 128
#endif
#ifndef RANK
#define RANK 1
#endif
#ifndef INDEX  // what counts the elements; 32 bits where they suffice, since divisions by sizes are slow in 64
#define INDEX i64
#endif

using T = ELEMENT;
using Elements = Vec<T, WIDTH>;

template <typename Op, int Arity>
__device__ __forceinline__ Elements apply(Op op, const Elements (&inputs)[Arity]) {
    float y[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        float x[Arity];
#pragma unroll
        for (int a = 0; a < Arity; ++a) x[a] = to_float(inputs[a].v[i]);
        y[i] = op(x);
    }
    return from_floats<T>(y);
}

template <typename Op, int Arity>
__device__ __forceinline__ void map_contiguous(Op op, const T* const (&x)[Arity], T* y, i64 n) {
    const i64 first = blockIdx.x * (i64)(BLOCK * UNROLL * WIDTH) + threadIdx.x * WIDTH;
    Elements inputs[UNROLL][Arity];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const i64 i = first + u * BLOCK * WIDTH;
        if (i + WIDTH <= n) {
#pragma unroll
            for (int a = 0; a < Arity; ++a) inputs[u][a] = load_constant<WIDTH>(x[a] + i);
        }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const i64 i = first + u * BLOCK * WIDTH;
        if (i + WIDTH <= n) store(y + i, apply(op, inputs[u]));
    }
    if (WIDTH > 1 && blockIdx.x == gridDim.x - 1 && threadIdx.x < n % WIDTH) {  // what is left of the last vector
        const i64 i = n - n % WIDTH + threadIdx.x;
        float rest[Arity];
#pragma unroll
        for (int a = 0; a < Arity; ++a) rest[a] = to_float(x[a][i]);
        y[i] = from_float<T>(op(rest));
    }
}

// Sizes and strides in units of WIDTH elements, outermost first; the innermost size is not 1.
template <int Arity>
struct Layout {
    i64 size[RANK];
    i64 stride[Arity][RANK];
};

template <typename Op, int Arity>
__device__ __forceinline__ void map_strided(Op op, const T* const (&x)[Arity], T* y, i64 n, const Layout<Arity>& layout) {
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const i64 i = (blockIdx.x * (i64)UNROLL + u) * BLOCK + threadIdx.x;
        if (i >= n) return;
        INDEX rest = (INDEX)i;
        i64 offset[Arity] = {};
#pragma unroll
        for (int d = RANK - 1; d >= 0; --d) {
            const INDEX size = (INDEX)layout.size[d];
            const INDEX k = d == 0 ? rest : rest % size;
            rest = d == 0 ? 0 : rest / size;
#pragma unroll
            for (int a = 0; a < Arity; ++a) offset[a] += k * layout.stride[a][d];
        }
        Elements inputs[Arity];
#pragma unroll
        for (int a = 0; a < Arity; ++a) inputs[a] = load_constant<WIDTH>(x[a] + offset[a] * WIDTH);
        store(y + i * WIDTH, apply(op, inputs));
    }
}
