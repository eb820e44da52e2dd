// Rows that run along the middle of [rows, n, inner]: TILE_INNER threads side by side own WIDTH columns each, and
// GROUP / TILE_INNER of them share a column, which they read twice.
#pragma once

#include "row_values.cuh"

#ifndef TILE_INNER
#define TILE_INNER 32
#endif

constexpr int SHARERS = GROUP / TILE_INNER;  // of a column

// Makes one state of those that the threads of a column hold; lanes of a warp read what the sharers left.
template <typename Op, typename State>
__device__ __forceinline__ void join_columns(const Op& op, State (&state)[WIDTH]) {
    constexpr int COLUMNS = TILE_INNER * WIDTH;
    __shared__ State partial[SHARERS][COLUMNS + 1];  // the last keeps lanes of a warp in different banks
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) partial[threadIdx.y][threadIdx.x * WIDTH + j] = state[j];
    __syncthreads();
    const int thread = threadIdx.y * TILE_INNER + threadIdx.x, lane = thread % SHARERS;
#pragma unroll
    for (int c = thread / SHARERS; c < COLUMNS; c += GROUP / SHARERS) {
        State all = partial[lane][c];
        all.join(op, Lanes<SHARERS>());
        if (lane == 0) partial[0][c] = all;
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) state[j] = partial[0][threadIdx.x * WIDTH + j];
}

// f(u, row) for those of the UNROLL rows first, first + SHARERS, ... that there are.
template <typename F>
__device__ __forceinline__ void for_each_row(int first, int n, F f) {
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
        if (first + u * SHARERS < n) f(u, first + u * SHARERS);
}

// Such rows of every input, of a thread whose columns start at element `start`.
template <bool Streaming, int In>
__device__ __forceinline__ void load_rows(
    Elements (&held)[UNROLL][In], const T* const (&x)[In], i64 start, int first, int n, i64 inner) {
    for_each_row(first, n, [&](int u, int row) {
#pragma unroll
        for (int k = 0; k < In; ++k) {
            const T* const from = x[k] + start + row * inner;
            held[u][k] = Streaming ? load_streaming<WIDTH>(from) : load<WIDTH>(from);
        }
    });
}

template <typename Op, int In, int Out>
__device__ __forceinline__ void columns(const Rows<Op, In, 0, Out>& all, i64, int n, i64 inner) {
    static_assert(SHARERS <= 32 && GROUP % TILE_INNER == 0, "the sharers of a column fit a warp");
    const i64 tiles = (inner + TILE_INNER * WIDTH - 1) / (TILE_INNER * WIDTH);
    const i64 c = (blockIdx.x % tiles * TILE_INNER + threadIdx.x) * WIDTH;
    const i64 start = blockIdx.x / tiles * n * inner + c;
    typename Op::State state[WIDTH];
    for (int first = threadIdx.y; first < n && c < inner; first += UNROLL * SHARERS) {
        Elements held[UNROLL][In];
        load_rows<false>(held, all.x, start, first, n, inner);
#pragma unroll
        for (int j = 0; j < WIDTH; ++j)
            all.op.add(state[j], [&](auto f) {
                for_each_row(first, n, [&](int u, int) {
                    float a[In];
#pragma unroll
                    for (int k = 0; k < In; ++k) a[k] = to_float(held[u][k].v[j]);
                    f(a);
                });
            });
    }
    join_columns(all.op, state);
    if (c >= inner) return;
    typename Op::Row found[WIDTH];
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) found[j] = all.op.finish(state[j], n);
    const Elements none[1] = {};
    // Backwards: the rows read last are still in L2.
    for (int first = (n - 1) / (UNROLL * SHARERS) * UNROLL * SHARERS + threadIdx.y; first >= 0; first -= UNROLL * SHARERS) {
        Elements held[UNROLL][In];
        load_rows<true>(held, all.x, start, first, n, inner);
        for_each_row(first, n, [&](int u, int row) {
            all.template write<true>([&](int j) { return found[j]; }, held[u], none, start + row * inner);
        });
    }
}
