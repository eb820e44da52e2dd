// matmul on the FP32 pipes, every thread with 8 x 16 or 12 x 8 sums in registers; the next tile travels meanwhile.
//
// Shared memory hands out 128 bytes per cycle, 4 cycles for a 16-byte load of a warp, while the FP32 pipes do 4 warps'
// multiplications. At 8x8 a thread does 64 products per 4 such loads and both run at their limit; at 8x16, 128 per 6, at
// 12x8, 96 per 5.
// fp32 4096^3 on an H200: 47.7 TFLOP/s, 8x8 at most 45, tiles of 8 k's 44.
#include "matmul.cuh"

#ifndef A_VECTOR  // elements per global load; divides the leading dimension, the contiguous extent and the address
#define A_VECTOR 1
#endif
#ifndef B_VECTOR
#define B_VECTOR 1
#endif

#ifndef THREAD_M  // rows and columns of c per thread
#define THREAD_M 8
#endif
#ifndef THREAD_N
#define THREAD_N 16
#endif
#ifndef WARPS_M
#define WARPS_M 2
#endif
#ifndef WARPS_N
#define WARPS_N 2
#endif
#ifndef BLOCKS_PER_SM  // while one waits at a barrier the others compute
#define BLOCKS_PER_SM 2
#endif

constexpr int WARP_M = 8 * THREAD_M, WARP_N = 4 * THREAD_N;  // 8 x 4 lanes
constexpr int BLOCK_M = WARPS_M * WARP_M, BLOCK_N = WARPS_N * WARP_N, BLOCK_K = 16, THREADS = 32 * WARPS_M * WARPS_N;
// A warp stores transposed to rows 4 apart: skewed by 4 words, 2 share a bank, not 4.
template <int Extent>
using Panel = float[BLOCK_K][Extent + 4];

// A thread's share of the Extent x BLOCK_K tiles of an operand, on their way from global to shared memory through
// registers: the same unit of every Hop-th contiguous line. The object is the thread's place in the walk along K.
template <bool KMajor, int Extent, int Width>
struct Slice {
    static constexpr int PerLine = (KMajor ? BLOCK_K : Extent) / Width, Hop = THREADS / PerLine;
    static constexpr int Count = Extent * BLOCK_K / THREADS / Width;
    static_assert(THREADS % PerLine == 0 && (KMajor ? Extent : BLOCK_K) % Hop == 0, "all threads load as many units");

    const Element* from;
    i64 ld;
    int line, unit, mn, k;
    Vec<Element, Width> held[Count];

    __device__ __forceinline__ Slice(const Element* x, i64 ld, int mn0)
        : ld(ld), line(threadIdx.x / PerLine), unit(threadIdx.x % PerLine * Width) {
        mn = mn0 + (KMajor ? line : unit);
        k = KMajor ? unit : line;
        from = x + position<KMajor>(mn, k, ld);
    }

    // Loads the next tile; `whole`: no part of it is outside.
    __device__ __forceinline__ void load(bool whole, int extent, int K) {
        if (whole) {
#pragma unroll
            for (int i = 0; i < Count; i++) held[i] = ::load<Width>(from + i * Hop * ld);
        } else {
#pragma unroll
            for (int i = 0; i < Count; i++) {
                const bool inside = KMajor ? mn + i * Hop < extent && k < K : mn < extent && k + i * Hop < K;
                held[i] = {};
                if (inside) held[i] = ::load<Width>(from + i * Hop * ld);
            }
        }
        from += KMajor ? BLOCK_K : BLOCK_K * ld;
        k += BLOCK_K;
    }

    __device__ __forceinline__ void store(Panel<Extent>& panel) const {
#pragma unroll
        for (int i = 0; i < Count; i++) {
            Vec<float, Width> values;
#pragma unroll
            for (int v = 0; v < Width; v++) values.v[v] = to_float(held[i].v[v]);
            if constexpr (KMajor) {
#pragma unroll
                for (int v = 0; v < Width; v++) panel[unit + v][line + i * Hop] = values.v[v];
            } else {
                ::store(&panel[line + i * Hop][unit], values);
            }
        }
    }
};

// Count values of one row of a panel in 16-byte loads `apart` elements from one another.
template <int Count>
__device__ __forceinline__ void load_row(float (&x)[Count], const float* row, int apart) {
#pragma unroll
    for (int i = 0; i < Count; i += 4)
        *reinterpret_cast<float4*>(x + i) = *reinterpret_cast<const float4*>(row + i / 4 * apart);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    matmul_register_tiled(const Element* __restrict__ a, const Element* __restrict__ b, Element* __restrict__ c
                          EPILOGUE_PARAMETERS(Element), int M, int N, int K, i64 lda, i64 ldb
                          BATCH_PARAMETERS) {
    __shared__ alignas(16) Panel<BLOCK_M> a_panel[2];  // [k][m]
    __shared__ alignas(16) Panel<BLOCK_N> b_panel[2];  // [k][n]
    const int tiles_m = cdiv(M, BLOCK_M), tiles_n = cdiv(N, BLOCK_N);
    const Member member = BATCH.member(blockIdx.x, (i64)tiles_m * tiles_n, M, N);
    const Tile tile = grouped_tile(member.work, tiles_m, tiles_n);
    const int m0 = tile.m * BLOCK_M, n0 = tile.n * BLOCK_N;
    // A lane's sums are groups of 4 x 4, 32 rows and 16 columns apart.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp / WARPS_N * WARP_M + lane / 4 * 4, column = warp % WARPS_N * WARP_N + lane % 4 * 4;
    Slice<A_K_MAJOR, BLOCK_M, A_VECTOR> a_share(a + member.a, lda, m0);
    Slice<B_K_MAJOR, BLOCK_N, B_VECTOR> b_share(b + member.b, ldb, n0);
    float sum[THREAD_M][THREAD_N] = {};
    const bool whole = m0 + BLOCK_M <= M && n0 + BLOCK_N <= N;
    a_share.load(whole && BLOCK_K <= K, M, K);
    b_share.load(whole && BLOCK_K <= K, N, K);
    for (int k0 = 0, stage = 0; k0 < K; k0 += BLOCK_K, stage ^= 1) {
        a_share.store(a_panel[stage]);
        b_share.store(b_panel[stage]);
        __syncthreads();  // one per tile: the other stage was last read before the previous one
        if (k0 + BLOCK_K < K) {
            a_share.load(whole && k0 + 2 * BLOCK_K <= K, M, K);
            b_share.load(whole && k0 + 2 * BLOCK_K <= K, N, K);
        }
#pragma unroll
        for (int k = 0; k < BLOCK_K; k++) {
            float x[THREAD_M], y[THREAD_N];
            load_row(x, &a_panel[stage][k][row], 32);
            load_row(y, &b_panel[stage][k][column], 16);
#pragma unroll
            for (int i = 0; i < THREAD_M; i++)
#pragma unroll
                for (int j = 0; j < THREAD_N; j++) sum[i][j] = fma_gradual(x[i], y[j], sum[i][j]);
        }
    }
#pragma unroll
    for (int i = 0; i < THREAD_M; i++)
#pragma unroll
        for (int j = 0; j < THREAD_N; j += C_VECTOR) {
            const int m = m0 + row + i % 4 + i / 4 * 32, n = n0 + column + j % 4 + j / 4 * 16;
            float out[C_VECTOR];
#pragma unroll
            for (int v = 0; v < C_VECTOR; v++) out[v] = sum[i][j + v];
            if (m < M && n < N) EPILOGUE(Element).store(c, member.c + (i64)m * N + n, n, out);
        }
}
