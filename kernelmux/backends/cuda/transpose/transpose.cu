// transpose: y[n, m] = x[m, n]. x: [M, N] with rows ldx apart, y: [N, M] contiguous. ELEMENT is an unsigned integer of
// the item size: the kernels move bits. A block moves one TILE x TILE tile, tiles are numbered along N first.
//   naive      reads along rows of x; the writes of a warp lie M apart, each in a sector of its own
//   coalesced  writes along rows of y; the scattered accesses are reads now, which the caches can hold
//   tiled      through shared memory: both sides along rows, but a column of the tile sits in a single bank
//   padded     one unused column more: a column of the tile spreads over all banks
#include "common.cuh"

#ifndef ELEMENT
#define ELEMENT unsigned int
#endif
#ifndef TILE
#define TILE 32
#endif
#ifndef TILE_ROWS  // rows of threads: a thread moves TILE / TILE_ROWS elements
#define TILE_ROWS 8
#endif

using T = ELEMENT;

struct Tile {
    i64 m0, n0;
    __device__ __forceinline__ explicit Tile(int N) {
        const int tiles_n = cdiv(N, TILE);
        m0 = (i64)(blockIdx.x / tiles_n) * TILE;
        n0 = (i64)(blockIdx.x % tiles_n) * TILE;
    }
};

extern "C" __global__ void transpose_naive(const T* __restrict__ x, T* __restrict__ y, int M, int N, i64 ldx) {
    const Tile tile(N);
    const i64 n = tile.n0 + threadIdx.x;
    for (i64 m = tile.m0 + threadIdx.y; m < min((i64)M, tile.m0 + TILE); m += TILE_ROWS)
        if (n < N) y[n * M + m] = x[m * ldx + n];
}

extern "C" __global__ void transpose_coalesced(const T* __restrict__ x, T* __restrict__ y, int M, int N, i64 ldx) {
    const Tile tile(N);
    const i64 m = tile.m0 + threadIdx.x;
    for (i64 n = tile.n0 + threadIdx.y; n < min((i64)N, tile.n0 + TILE); n += TILE_ROWS)
        if (m < M) y[n * M + m] = x[m * ldx + n];
}

template <int Padding>
__device__ __forceinline__ void through_shared(const T* __restrict__ x, T* __restrict__ y, int M, int N, i64 ldx) {
    __shared__ T held[TILE][TILE + Padding];  // [m, n]
    const Tile tile(N);
#pragma unroll
    for (int m = threadIdx.y; m < TILE; m += TILE_ROWS)
        if (tile.m0 + m < M && tile.n0 + threadIdx.x < N)
            held[m][threadIdx.x] = x[(tile.m0 + m) * ldx + tile.n0 + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int n = threadIdx.y; n < TILE; n += TILE_ROWS)
        if (tile.n0 + n < N && tile.m0 + threadIdx.x < M)
            y[(tile.n0 + n) * M + tile.m0 + threadIdx.x] = held[threadIdx.x][n];
}

extern "C" __global__ void transpose_tiled(const T* __restrict__ x, T* __restrict__ y, int M, int N, i64 ldx) {
    through_shared<0>(x, y, M, N, ldx);
}

extern "C" __global__ void transpose_padded(const T* __restrict__ x, T* __restrict__ y, int M, int N, i64 ldx) {
    through_shared<1>(x, y, M, N, ldx);
}
