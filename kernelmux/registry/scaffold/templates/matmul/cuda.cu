// newop: a block per TILE x TILE tile of c; tiles of both factors pass through shared memory. a: strides am, ak in elements;
// b: bk, bn; c: [M, N].
#include "common.cuh"

// A tile [k][mn], zero outside of the factor. The odd pitch puts the elements of a column into different banks.
__device__ __forceinline__ void load_tile(float (&tile)[TILE][TILE + 1], const ELEMENT* x, i64 mn0, i64 k0, i64 extent,
                                          i64 K, i64 stride_mn, i64 stride_k) {
    const bool along_k = stride_k == 1;  // neighbouring threads read neighbouring elements
    for (int outer = threadIdx.y; outer < TILE; outer += ROWS) {
        const int mn = along_k ? outer : threadIdx.x, k = along_k ? threadIdx.x : outer;
        const bool inside = mn0 + mn < extent && k0 + k < K;
        tile[k][mn] = inside ? to_float(x[(mn0 + mn) * stride_mn + (k0 + k) * stride_k]) : 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(TILE * ROWS)
newop_tiled(const ELEMENT* __restrict__ a, const ELEMENT* __restrict__ b, ELEMENT* __restrict__ c, i64 M, i64 N, i64 K,
            i64 am, i64 ak, i64 bk, i64 bn) {
    constexpr int SUMS = TILE / ROWS;  // of a thread: rows threadIdx.y, threadIdx.y + ROWS, ...
    __shared__ float a_tile[TILE][TILE + 1], b_tile[TILE][TILE + 1];  // [k][m], [k][n]
    const i64 tiles_n = (N + TILE - 1) / TILE;
    const i64 m0 = blockIdx.x / tiles_n * TILE, n0 = blockIdx.x % tiles_n * TILE;
    float sum[SUMS] = {};
    for (i64 k0 = 0; k0 < K; k0 += TILE) {
        load_tile(a_tile, a, m0, k0, M, K, am, ak);
        load_tile(b_tile, b, n0, k0, N, K, bn, bk);
        __syncthreads();
#pragma unroll 8
        for (int k = 0; k < TILE; ++k)
#pragma unroll
            for (int i = 0; i < SUMS; ++i)
                sum[i] = fmaf(a_tile[k][threadIdx.y + i * ROWS], b_tile[k][threadIdx.x], sum[i]);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < SUMS; ++i) {
        const i64 m = m0 + threadIdx.y + i * ROWS, n = n0 + threadIdx.x;
        const float result = sum[i];  // TODO(newop): what is done to a sum before it is rounded, in fp32
        if (m < M && n < N) c[m * N + n] = from_float<ELEMENT>(result);
    }
}
