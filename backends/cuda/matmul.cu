// matmul on the FP32 pipes, three rungs of the ladder.
//
// naive           every operand element travels from L1 or L2 to a register once per product
// tiled           a block keeps a tile of both operands in shared memory: global traffic falls by the tile's width
// register_tiled  a thread keeps 8x8 sums: 16 shared loads feed 64 products, the next tile travels meanwhile
#include "matmul.cuh"

#ifndef A_VECTOR  // elements per global load; divides the leading dimension, the contiguous extent and the address
#define A_VECTOR 1
#endif
#ifndef B_VECTOR
#define B_VECTOR 1
#endif

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_naive(const Element* __restrict__ a, const Element* __restrict__ b, Element* __restrict__ c, int M, int N,
                 int K, long long lda, long long ldb) {
    const long long index = blockIdx.x * (long long)THREADS + threadIdx.x;
    if (index >= (long long)M * N) return;
    const int m = index / N, n = index % N;
    float sum = 0;
    for (int k = 0; k < K; k++)
        sum += to_float(a[position<A_K_MAJOR>(m, k, lda)]) * to_float(b[position<B_K_MAJOR>(n, k, ldb)]);
    round_to(c[index], sum);
}

constexpr int TILE = 32;

// One TILE x TILE tile [k][mn], zero outside the operand. The lanes follow the contiguous index; the 33rd column puts
// the elements of a column into different banks.
template <bool K_MAJOR>
__device__ __forceinline__ void load_tile(float (&tile)[TILE][TILE + 1], const Element* x, long long ld, int mn0, int k0,
                                          int extent, int K) {
    for (int outer = threadIdx.y; outer < TILE; outer += THREADS / TILE) {
        const int inner = threadIdx.x, mn = K_MAJOR ? outer : inner, k = K_MAJOR ? inner : outer;
        const bool inside = mn0 + mn < extent && k0 + k < K;
        tile[k][mn] = inside ? to_float(x[position<K_MAJOR>(mn0 + mn, k0 + k, ld)]) : 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_tiled(const Element* __restrict__ a, const Element* __restrict__ b, Element* __restrict__ c, int M, int N,
                 int K, long long lda, long long ldb) {
    constexpr int ROWS = THREADS / TILE, SUMS = TILE / ROWS;
    __shared__ float a_tile[TILE][TILE + 1], b_tile[TILE][TILE + 1];  // [k][m], [k][n]
    const int tiles_n = ceil_div(N, TILE);
    const int m0 = blockIdx.x / tiles_n * TILE, n0 = blockIdx.x % tiles_n * TILE;
    float sum[SUMS] = {};
    for (int k0 = 0; k0 < K; k0 += TILE) {
        load_tile<A_K_MAJOR>(a_tile, a, lda, m0, k0, M, K);
        load_tile<B_K_MAJOR>(b_tile, b, ldb, n0, k0, N, K);
        __syncthreads();
#pragma unroll 8
        for (int k = 0; k < TILE; k++)
#pragma unroll
            for (int i = 0; i < SUMS; i++) sum[i] += a_tile[k][threadIdx.y + i * ROWS] * b_tile[k][threadIdx.x];
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
        const int m = m0 + threadIdx.y + i * ROWS, n = n0 + threadIdx.x;
        if (m < M && n < N) round_to(c[(long long)m * N + n], sum[i]);
    }
}

#ifndef BLOCK_K
#define BLOCK_K 8
#endif
constexpr int BLOCK = 128;               // rows and columns of c per block
constexpr int PITCH = BLOCK + 4;         // the transposing stores of 8 k's reach 2 rows apart: 4 words of skew separate them
constexpr int ELEMENTS = BLOCK * BLOCK_K / THREADS;  // of each operand, per thread and tile
using Panel = float[BLOCK_K][PITCH];

// A thread's share of a BLOCK x BLOCK_K operand tile, on its way from global to shared memory through registers.
template <bool K_MAJOR, int VECTOR>
struct Share {
    static constexpr int LINE = (K_MAJOR ? BLOCK_K : BLOCK) / VECTOR;  // vectors per contiguous line
    Vector<Element, VECTOR> held[ELEMENTS / VECTOR];

    static __device__ __forceinline__ int outer(int i) { return (threadIdx.x + i * THREADS) / LINE; }
    static __device__ __forceinline__ int inner(int i) { return (threadIdx.x + i * THREADS) % LINE * VECTOR; }

    __device__ __forceinline__ void load(const Element* x, long long ld, int mn0, int k0, int extent, int K) {
#pragma unroll
        for (int i = 0; i < ELEMENTS / VECTOR; i++) {
            const int mn = mn0 + (K_MAJOR ? outer(i) : inner(i)), k = k0 + (K_MAJOR ? inner(i) : outer(i));
            held[i] = {};
            if (mn < extent && k < K)
                held[i] = *reinterpret_cast<const Vector<Element, VECTOR>*>(x + position<K_MAJOR>(mn, k, ld));
        }
    }

    __device__ __forceinline__ void store(Panel& panel) const {
#pragma unroll
        for (int i = 0; i < ELEMENTS / VECTOR; i++) {
            Vector<float, VECTOR> line;
#pragma unroll
            for (int v = 0; v < VECTOR; v++) line.at[v] = to_float(held[i].at[v]);
            if constexpr (K_MAJOR) {
#pragma unroll
                for (int v = 0; v < VECTOR; v++) panel[inner(i) + v][outer(i)] = line.at[v];
            } else {
                *reinterpret_cast<Vector<float, VECTOR>*>(&panel[outer(i)][inner(i)]) = line;
            }
        }
    }
};

// 8 values of one row of a panel in two 16-byte loads, `apart` elements from one another.
__device__ __forceinline__ void load_row(float (&x)[8], const float* row, int apart) {
    *reinterpret_cast<float4*>(x) = *reinterpret_cast<const float4*>(row);
    *reinterpret_cast<float4*>(x + 4) = *reinterpret_cast<const float4*>(row + apart);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)  // 2 blocks: while one waits at a barrier the other computes
    matmul_register_tiled(const Element* __restrict__ a, const Element* __restrict__ b, Element* __restrict__ c, int M,
                          int N, int K, long long lda, long long ldb) {
    __shared__ alignas(16) Panel a_panel[2], b_panel[2];  // [k][m], [k][n]
    const Tile tile = grouped_tile(blockIdx.x, ceil_div(M, BLOCK), ceil_div(N, BLOCK));
    const int m0 = tile.m * BLOCK, n0 = tile.n * BLOCK;
    // 2 x 4 warps of 64 x 32, 8 x 4 lanes of 8 x 8: a warp's 16-byte loads touch 128 + 64 bytes, the rest is broadcast.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp / 4 * 64 + lane / 4 * 4, column = warp % 4 * 32 + lane % 4 * 4;
    Share<A_K_MAJOR, A_VECTOR> a_share;
    Share<B_K_MAJOR, B_VECTOR> b_share;
    float sum[8][8] = {};
    a_share.load(a, lda, m0, 0, M, K);
    b_share.load(b, ldb, n0, 0, N, K);
    for (int k0 = 0, stage = 0; k0 < K; k0 += BLOCK_K, stage ^= 1) {
        a_share.store(a_panel[stage]);
        b_share.store(b_panel[stage]);
        __syncthreads();  // one per tile: the other stage was last read before the previous one
        if (k0 + BLOCK_K < K) {
            a_share.load(a, lda, m0, k0 + BLOCK_K, M, K);
            b_share.load(b, ldb, n0, k0 + BLOCK_K, N, K);
        }
#pragma unroll
        for (int k = 0; k < BLOCK_K; k++) {
            float x[8], y[8];
            load_row(x, &a_panel[stage][k][row], 32);
            load_row(y, &b_panel[stage][k][column], 16);
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int j = 0; j < 8; j++) sum[i][j] += x[i] * y[j];
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 8; j += C_VECTOR) {
            const int m = m0 + row + i % 4 + i / 4 * 32, n = n0 + column + j % 4 + j / 4 * 16;
            Vector<Element, C_VECTOR> out;
#pragma unroll
            for (int v = 0; v < C_VECTOR; v++) round_to(out.at[v], sum[i][j + v]);
            if (m < M && n < N) *reinterpret_cast<Vector<Element, C_VECTOR>*>(c + (long long)m * N + n) = out;
        }
}
