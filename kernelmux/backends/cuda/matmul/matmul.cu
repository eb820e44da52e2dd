// matmul on the FP32 pipes, the first two rungs.
//
// naive   every operand element travels from L1 or L2 to a register once per product
// tiled   a block keeps a tile of both operands in shared memory: global traffic falls by the tile's width
#include "matmul.cuh"

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_naive(const Element* __restrict__ a, const Element* __restrict__ b, Element* __restrict__ c
                 EPILOGUE_PARAMETERS(Element), int M, int N, int K, i64 lda, i64 ldb BATCH_PARAMETERS) {
    const i64 index = blockIdx.x * (i64)THREADS + threadIdx.x, each = (i64)M * N;
    if (index >= BATCH.products * each) return;
    const Member member = BATCH.member(index, each, M, N);
    const int m = member.work / N, n = member.work % N;
    a += member.a;
    b += member.b;
    float sum = 0;
    for (int k = 0; k < K; k++)
        sum = fma_gradual(to_float(a[position<A_K_MAJOR>(m, k, lda)]), to_float(b[position<B_K_MAJOR>(n, k, ldb)]), sum);
    EPILOGUE(Element).store(c, index, n, {sum});
}

constexpr int TILE = 32;

// One TILE x TILE tile [k][mn], zero outside the operand. The lanes follow the contiguous index; the 33rd column puts
// the elements of a column into different banks.
template <bool KMajor>
__device__ __forceinline__ void load_tile(float (&tile)[TILE][TILE + 1], const Element* x, i64 ld, int mn0, int k0,
                                          int extent, int K) {
    for (int outer = threadIdx.y; outer < TILE; outer += THREADS / TILE) {
        const int inner = threadIdx.x, mn = KMajor ? outer : inner, k = KMajor ? inner : outer;
        const bool inside = mn0 + mn < extent && k0 + k < K;
        tile[k][mn] = inside ? to_float(x[position<KMajor>(mn0 + mn, k0 + k, ld)]) : 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_tiled(const Element* __restrict__ a, const Element* __restrict__ b, Element* __restrict__ c
                 EPILOGUE_PARAMETERS(Element), int M, int N, int K, i64 lda, i64 ldb BATCH_PARAMETERS) {
    constexpr int ROWS = THREADS / TILE, SUMS = TILE / ROWS;
    __shared__ float a_tile[TILE][TILE + 1], b_tile[TILE][TILE + 1];  // [k][m], [k][n]
    const int tiles_n = cdiv(N, TILE);
    const Member member = BATCH.member(blockIdx.x, (i64)cdiv(M, TILE) * tiles_n, M, N);
    const int m0 = member.work / tiles_n * TILE, n0 = member.work % tiles_n * TILE;
    float sum[SUMS] = {};
    for (int k0 = 0; k0 < K; k0 += TILE) {
        load_tile<A_K_MAJOR>(a_tile, a + member.a, lda, m0, k0, M, K);
        load_tile<B_K_MAJOR>(b_tile, b + member.b, ldb, n0, k0, N, K);
        __syncthreads();
#pragma unroll 8
        for (int k = 0; k < TILE; k++)
#pragma unroll
            for (int i = 0; i < SUMS; i++) sum[i] = fma_gradual(a_tile[k][threadIdx.y + i * ROWS], b_tile[k][threadIdx.x], sum[i]);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
        const int m = m0 + threadIdx.y + i * ROWS, n = n0 + threadIdx.x;
        if (m < M && n < N) EPILOGUE(Element).store(c, member.c + (i64)m * N + n, n, {sum[i]});
    }
}
