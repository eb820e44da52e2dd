// A row operator with its tensors: vectors of elements come in, floats go through the operator, vectors go out.
#pragma once

#include "row_join.cuh"

__host__ __device__ constexpr int at_least_one(int n) { return n > 0 ? n : 1; }

template <typename Op, int In, int Weights, int Out>
struct Rows {
    Op op;
    const T* x[In];
    const T* w[at_least_one(Weights)];
    T* y[Out];

    // The results of one vector, to element `at` of the outputs; row(j) is what column j of the vector needs.
    template <bool Streaming, typename F>
    __device__ __forceinline__ void write(
        F row, const Elements (&held)[In], const Elements (&weight)[at_least_one(Weights)], i64 at) const {
        float a[In][WIDTH], b[at_least_one(Weights)][WIDTH], results[Out][WIDTH];
#pragma unroll
        for (int i = 0; i < In; ++i) to_floats(a[i], held[i]);
#pragma unroll
        for (int i = 0; i < Weights; ++i) to_floats(b[i], weight[i]);
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) {
            float x[In], w[at_least_one(Weights)], y[Out];
#pragma unroll
            for (int i = 0; i < In; ++i) x[i] = a[i][j];
#pragma unroll
            for (int i = 0; i < Weights; ++i) w[i] = b[i][j];
            op.apply(x, w, row(j), y);
#pragma unroll
            for (int i = 0; i < Out; ++i) results[i][j] = y[i];
        }
#pragma unroll
        for (int i = 0; i < Out; ++i) {
            const Elements packed = from_floats<T>(results[i]);
            if (Streaming) store_streaming(y[i] + at, packed);
            else store(y[i] + at, packed);
        }
    }

    // The results of column `i` of the row that starts at `start`.
    __device__ __forceinline__ void write_single(const typename Op::Row& row, const float (&x)[In], i64 start, int i) const {
        float results[Out], b[at_least_one(Weights)] = {};
#pragma unroll
        for (int k = 0; k < Weights; ++k) b[k] = to_float(w[k][i]);
        op.apply(x, b, row, results);
#pragma unroll
        for (int k = 0; k < Out; ++k) y[k][start + i] = from_float<T>(results[k]);
    }

    // f(values of the inputs) for each column of a vector.
    template <typename F>
    static __device__ __forceinline__ void each_of(const Elements (&held)[In], F f) {
        float a[In][WIDTH];
#pragma unroll
        for (int i = 0; i < In; ++i) to_floats(a[i], held[i]);
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) {
            float x[In];
#pragma unroll
            for (int i = 0; i < In; ++i) x[i] = a[i][j];
            f(x);
        }
    }

    // Not as constants: no barrier would keep these back, and where they are wanted late there are no registers for them early.
    __device__ __forceinline__ void load_weights(Elements (&to)[at_least_one(Weights)], int i, int head) const {
#pragma unroll
        for (int k = 0; k < Weights; ++k) to[k] = weights_of(w[k], i, head);
    }
};
