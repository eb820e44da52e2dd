// Elementwise kernels: an operator is a functor of n floats and one line.
//
//     struct Add {
//         __device__ __forceinline__ float operator()(float x, float y) const { return x + y; }
//     };
//     ELEMENTWISE(add, Add, 2, 1)    // two inputs, one output; a functor of several outputs returns Floats<m>
//
// ELEMENTWISE_OF is the same for a functor whose members are floats that each call gives: the kernels take it by value.
// Both make two entries, for inputs and outputs of the type ELEMENT, with one rounding from float:
//   <name>_contiguous  one access moves WIDTH elements, a thread issues UNROLL of them before it computes
//   <name>_strided     inputs of any RANK and strides, read where they are; the outputs are contiguous
#pragma once

#include "common.cuh"
#include "dependent_launch.cuh"

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

// What a functor returns: a float, or one float per output.
template <int Count>
struct Floats {
    float v[Count];
};
template <>
struct Floats<1> {
    float v[1];
    __device__ __forceinline__ Floats(float x) : v{x} {}
};

template <typename Op> __device__ __forceinline__ auto call(const Op& op, const float (&x)[1]) { return op(x[0]); }
template <typename Op> __device__ __forceinline__ auto call(const Op& op, const float (&x)[2]) { return op(x[0], x[1]); }
template <typename Op> __device__ __forceinline__ auto call(const Op& op, const float (&x)[3]) {
    return op(x[0], x[1], x[2]);
}

template <typename Op, int In, int Out>
__device__ __forceinline__ void apply(const Op& op, const Elements (&inputs)[In], T* const (&y)[Out], i64 at) {
    float results[Out][WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        float x[In];
#pragma unroll
        for (int a = 0; a < In; ++a) x[a] = to_float(inputs[a].v[i]);
        const Floats<Out> result = call(op, x);
#pragma unroll
        for (int b = 0; b < Out; ++b) results[b][i] = result.v[b];
    }
#pragma unroll
    for (int b = 0; b < Out; ++b) store(y[b] + at, from_floats<T>(results[b]));
}

template <typename Op, int In, int Out>
__device__ __forceinline__ void map_contiguous(const Op& op, const T* const (&x)[In], T* const (&y)[Out], i64 n) {
    follow_previous();
    const i64 first = blockIdx.x * (i64)(BLOCK * UNROLL * WIDTH) + threadIdx.x * WIDTH;
    Elements inputs[UNROLL][In];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const i64 i = first + u * BLOCK * WIDTH;
        if (i + WIDTH <= n) {
#pragma unroll
            for (int a = 0; a < In; ++a) inputs[u][a] = load_constant<WIDTH>(x[a] + i);
        }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const i64 i = first + u * BLOCK * WIDTH;
        if (i + WIDTH <= n) apply(op, inputs[u], y, i);
    }
    if (WIDTH > 1 && blockIdx.x == gridDim.x - 1 && threadIdx.x < n % WIDTH) {  // what is left of the last vector
        const i64 i = n - n % WIDTH + threadIdx.x;
        float rest[In];
#pragma unroll
        for (int a = 0; a < In; ++a) rest[a] = to_float(x[a][i]);
        const Floats<Out> result = call(op, rest);
#pragma unroll
        for (int b = 0; b < Out; ++b) y[b][i] = from_float<T>(result.v[b]);
    }
}

// Sizes and strides in units of WIDTH elements, outermost first; the innermost size is not 1.
template <int In>
struct Layout {
    i64 size[RANK];
    i64 stride[In][RANK];
};

// Where unit i of each input lies, in units.
template <int In>
__device__ __forceinline__ void locate(i64 (&offset)[In], INDEX i, const Layout<In>& layout) {
#pragma unroll
    for (int a = 0; a < In; ++a) offset[a] = 0;
#pragma unroll
    for (int d = RANK - 1; d >= 0; --d) {
        const INDEX size = (INDEX)layout.size[d];
        const INDEX k = d == 0 ? i : i % size;
        i = d == 0 ? 0 : i / size;
#pragma unroll
        for (int a = 0; a < In; ++a) offset[a] += k * layout.stride[a][d];
    }
}

template <typename Op, int In, int Out>
__device__ __forceinline__ void map_strided(
    const Op& op, const T* const (&x)[In], T* const (&y)[Out], i64 n, const Layout<In>& layout) {
    follow_previous();
    const i64 first = blockIdx.x * (i64)(UNROLL * BLOCK) + threadIdx.x;
    Elements inputs[UNROLL][In];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const i64 i = first + u * BLOCK;
        if (i < n) {
            i64 offset[In];
            locate(offset, (INDEX)i, layout);
#pragma unroll
            for (int a = 0; a < In; ++a) inputs[u][a] = load_constant<WIDTH>(x[a] + offset[a] * WIDTH);
        }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const i64 i = first + u * BLOCK;
        if (i < n) apply(op, inputs[u], y, i * WIDTH);
    }
}

// ---- the two entries of an operator; parameters are spelt out, one pointer each, as a launch passes them

#define INPUTS_1 const T* __restrict__ x0
#define INPUTS_2 INPUTS_1, const T* __restrict__ x1
#define INPUTS_3 INPUTS_2, const T* __restrict__ x2
#define OUTPUTS_1 T* __restrict__ y0
#define OUTPUTS_2 OUTPUTS_1, T* __restrict__ y1
#define X_1 {x0}
#define X_2 {x0, x1}
#define X_3 {x0, x1, x2}
#define Y_1 {y0}
#define Y_2 {y0, y1}

#define ELEMENTWISE(name, Op, In, Out)                                                                               \
    extern "C" __global__ void __launch_bounds__(BLOCK) name##_contiguous(INPUTS_##In, OUTPUTS_##Out, i64 n) {        \
        map_contiguous(Op(), X_##In, Y_##Out, n);                                                                     \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                               \
    name##_strided(INPUTS_##In, OUTPUTS_##Out, const Layout<In> layout, i64 n) {                                      \
        map_strided(Op(), X_##In, Y_##Out, n, layout);                                                                \
    }

#define ELEMENTWISE_OF(name, Op, In, Out)                                                                             \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                               \
    name##_contiguous(INPUTS_##In, OUTPUTS_##Out, const Op op, i64 n) {                                               \
        map_contiguous(op, X_##In, Y_##Out, n);                                                                       \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                               \
    name##_strided(INPUTS_##In, OUTPUTS_##Out, const Layout<In> layout, const Op op, i64 n) {                         \
        map_strided(op, X_##In, Y_##Out, n, layout);                                                                  \
    }
