// transpose of few rows, or of few columns: y[n, m] = x[m, n]. x: [M, N] with rows ldx apart, y: [N, M] contiguous.
// blockIdx.y is the matrix; the matrices of x lie `apart` elements apart.
//
//   few_rows      M <= FEW: a block moves TILE columns. They are one piece of y, which takes shape in shared memory
//   few_columns   N <= FEW and ldx is N: a block moves TILE rows. They are one piece of x, kept in shared memory as it is
//
// The piece moves in accesses of PIECE elements, the rows on the other side in accesses of WIDTH, which divides their
// length.
#include "common.cuh"

#ifndef ELEMENT
#define ELEMENT unsigned short
#endif
#ifndef FEW
#define FEW 8
#endif
#ifndef TILE
#define TILE 256
#endif
#ifndef WIDTH
#define WIDTH 1
#endif
#ifndef PIECE
#define PIECE 8
#endif
#ifndef BLOCK
#define BLOCK 256
#endif

using T = ELEMENT;
constexpr int LANES = TILE / WIDTH, SIDE = BLOCK / LANES;  // so many threads for a row, so many rows at a time
constexpr int TURNS = cdiv(FEW, SIDE);
static_assert(TILE % WIDTH == 0 && BLOCK % LANES == 0, "threads move whole rows of the tile");

// A piece, into shared memory or out of it.
__device__ __forceinline__ void move(T* to, const T* from, int count) {
#pragma unroll
    for (int u = 0; u < cdiv(FEW * TILE, BLOCK * PIECE); ++u) {
        const int i = (u * BLOCK + threadIdx.x) * PIECE;
        if (i + PIECE <= count) {
            store(to + i, load<PIECE>(from + i));
        } else {
            for (int j = i; j < count; ++j) to[j] = from[j];
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
transpose_few_rows(const T* __restrict__ x, T* __restrict__ y, int M, int N, i64 ldx, i64 apart) {
    __shared__ alignas(16) T tile[FEW * TILE];  // [n, m]
    const int n0 = blockIdx.x * TILE, columns = min(TILE, N - n0);
    const int n = threadIdx.x % LANES * WIDTH, top = threadIdx.x / LANES;
    x += blockIdx.y * apart + n0 + n;
    y += blockIdx.y * ((i64)M * N) + (i64)n0 * M;
    Vec<T, WIDTH> rows[TURNS];
#pragma unroll
    for (int u = 0; u < TURNS; ++u) {
        const int m = u * SIDE + top;
        if (m < M && n < columns) rows[u] = load_constant<WIDTH>(x + m * ldx);
    }
#pragma unroll
    for (int u = 0; u < TURNS; ++u) {
        const int m = u * SIDE + top;
        if (m < M && n < columns)
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) tile[(n + j) * M + m] = rows[u].v[j];
    }
    __syncthreads();
    move(y, tile, columns * M);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
transpose_few_columns(const T* __restrict__ x, T* __restrict__ y, int M, int N, i64 ldx, i64 apart) {
    __shared__ alignas(16) T tile[FEW * TILE];  // [m, n]
    const int m0 = blockIdx.x * TILE, rows = min(TILE, M - m0);
    const int m = threadIdx.x % LANES * WIDTH, left = threadIdx.x / LANES;
    x += blockIdx.y * apart + (i64)m0 * N;
    y += blockIdx.y * ((i64)M * N) + m0 + m;
    move(tile, x, rows * N);
    __syncthreads();
#pragma unroll
    for (int u = 0; u < TURNS; ++u) {
        const int n = u * SIDE + left;
        if (n >= N || m >= rows) continue;
        Vec<T, WIDTH> column;
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) column.v[j] = tile[(m + j) * N + n];
        store(y + (i64)n * M, column);
    }
}
