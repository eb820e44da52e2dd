// matmul on the tensor cores through mma.sync: cp.async brings tiles STAGES ahead, ldmatrix feeds 16 x 8 products.
//
// Operands keep their major order in shared memory; a transposing ldmatrix (16-bit) or single-word loads (tf32) turn
// the MN-major ones into fragments. fp32 operands are rounded to tf32 as fragments, to nearest.
#include "matmul.cuh"

#ifndef BLOCK_M
#define BLOCK_M 128
#endif
#ifndef BLOCK_N
#define BLOCK_N 128
#endif
#ifndef BLOCK_K
#define BLOCK_K 32
#endif
#ifndef WARPS_M
#define WARPS_M 2
#endif
#ifndef WARPS_N
#define WARPS_N 4
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef BLOCKS_PER_SM
#define BLOCKS_PER_SM 1
#endif
#ifndef A_COPY  // bytes per copy; divides the leading dimension, the contiguous extent and the address
#define A_COPY 2
#endif
#ifndef B_COPY
#define B_COPY 2
#endif

constexpr int THREADS = WARPS_M * WARPS_N * 32;
constexpr int STEP = 32 / sizeof(Element);  // of K per mma: 16 halves or 8 floats
constexpr int STEPS = BLOCK_K / STEP;
constexpr int WARP_M = BLOCK_M / WARPS_M, WARP_N = BLOCK_N / WARPS_N;
constexpr bool TF32 = sizeof(Element) == 4;
static_assert(STEPS % 2 == 0, "two sets of fragments alternate, tile after tile");

// BYTES from global to shared memory, zeros if not `inside` (then nothing is read). cp.async takes 4 bytes at least.
template <int BYTES>
__device__ __forceinline__ void copy_async(unsigned char* to, const Element* from, bool inside) {
    if constexpr (BYTES == 2)
        *reinterpret_cast<unsigned short*>(to) = inside ? *reinterpret_cast<const unsigned short*>(from) : 0;
    else if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(inside ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from), "n"(BYTES),
                     "r"(inside ? BYTES : 0)
                     : "memory");
}

template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrices(unsigned (&x)[4], const unsigned char* row) {
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(shared_address(row))
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(shared_address(row))
                     : "memory");
}

// sum[16][8] += a[16][STEP] b[STEP][8]
#define MMA(SHAPE, TYPE)                                                                                     \
    asm volatile("mma.sync.aligned." SHAPE ".row.col.f32." TYPE "." TYPE ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, " \
                 "{%8, %9}, {%0, %1, %2, %3};"                                                               \
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
__device__ __forceinline__ void mma(__half, float* sum, const unsigned (&a)[4], unsigned b0, unsigned b1) { MMA("m16n8k16", "f16"); }
__device__ __forceinline__ void mma(__nv_bfloat16, float* sum, const unsigned (&a)[4], unsigned b0, unsigned b1) { MMA("m16n8k16", "bf16"); }
__device__ __forceinline__ void mma(float, float* sum, const unsigned (&a)[4], unsigned b0, unsigned b1) { MMA("m16n8k8", "tf32"); }

// One operand's tiles: EXTENT x BLOCK_K elements, in shared memory as lines along the contiguous index. The object is a
// thread's place in the walk along K; a thread copies the same unit of every HOP-th line.
template <int EXTENT, bool K_MAJOR, int COPY>
struct Operand {
    static constexpr int LINES = K_MAJOR ? EXTENT : BLOCK_K;
    static constexpr int LINE_BYTES = (K_MAJOR ? BLOCK_K : EXTENT) * (int)sizeof(Element);
    static constexpr int BYTES = LINES * LINE_BYTES;
    static constexpr int PER_LINE = LINE_BYTES / COPY, HOP = THREADS / PER_LINE;
    static_assert(THREADS % PER_LINE == 0 && LINES % HOP == 0, "every thread copies the same number of units");

    const Element* from;
    long long ld;
    int line, byte, mn, k, extent, k_end;

    __device__ __forceinline__ Operand(const Element* x, long long ld, int mn0, int k0, int extent, int k_end)
        : ld(ld), line(threadIdx.x / PER_LINE), byte(threadIdx.x % PER_LINE * COPY), extent(extent), k_end(k_end) {
        const int inner = byte / (int)sizeof(Element);
        mn = mn0 + (K_MAJOR ? line : inner);
        k = k0 + (K_MAJOR ? inner : line);
        from = x + position<K_MAJOR>(mn, k, ld);
    }

    // The 16-byte units of a line change places with the line, so that the 8 units of one ldmatrix, which come from 8
    // lines, lie in different banks; for the word loads of tf32, 4 lines of 32 bytes each.
    static __device__ __forceinline__ int offset(int line, int byte) {
        constexpr int UNITS = LINE_BYTES < 128 ? LINE_BYTES / 16 : 8, LINES_PER_ROW = LINE_BYTES < 128 ? 128 / LINE_BYTES : 1;
        const int twist = TF32 && !K_MAJOR ? line % 4 * 2 : line / LINES_PER_ROW % UNITS;
        return line * LINE_BYTES + (byte ^ twist * 16);
    }

    // Copies the next tile.
    __device__ __forceinline__ void load(unsigned char* tile) {
        constexpr int COUNT = LINES / HOP;
#pragma unroll(COUNT < 8 ? COUNT : 8)
        for (int i = 0; i < COUNT; i++) {
            const bool inside = K_MAJOR ? mn + i * HOP < extent && k < k_end : mn < extent && k + i * HOP < k_end;
            copy_async<COPY>(tile + offset(line + i * HOP, byte), from + i * HOP * ld, inside);
        }
        from += K_MAJOR ? BLOCK_K : BLOCK_K * ld;
        k += BLOCK_K;
    }

    // Four registers of the 16 x STEP piece at (mn, step): low mn and low k, high mn, high k, both high.
    static __device__ __forceinline__ void fragment(unsigned (&x)[4], const unsigned char* tile, int mn, int step) {
        const int lane = threadIdx.x % 32;
        if constexpr (K_MAJOR) {
            load_matrices<false>(x, tile + offset(mn + lane % 16, step * 32 + lane / 16 * 16));
        } else if constexpr (!TF32) {
            load_matrices<true>(x, tile + offset(step * STEP + lane / 16 * 8 + lane % 8, (mn + lane / 8 % 2 * 8) * 2));
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[i] = *reinterpret_cast<const unsigned*>(
                    tile + offset(step * STEP + lane % 4 + i / 2 * 4, (mn + lane / 4 + i % 2 * 8) * 4));
        }
        if constexpr (TF32) {
#pragma unroll
            for (int i = 0; i < 4; i++) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(x[i]) : "f"(__uint_as_float(x[i])));
        }
    }
};

using A = Operand<BLOCK_M, A_K_MAJOR, A_COPY>;
using B = Operand<BLOCK_N, B_K_MAJOR, B_COPY>;
constexpr int STAGE_BYTES = A::BYTES + B::BYTES;

struct Fragments {
    unsigned a[WARP_M / 16][4], b[WARP_N / 16][4];

    __device__ __forceinline__ void load(const unsigned char* stage, int m, int n, int step) {
#pragma unroll
        for (int i = 0; i < WARP_M / 16; i++) A::fragment(a[i], stage, m + 16 * i, step);
#pragma unroll
        for (int j = 0; j < WARP_N / 16; j++) B::fragment(b[j], stage + A::BYTES, n + 16 * j, step);
    }

    __device__ __forceinline__ void multiply(float (&sum)[WARP_M / 16][WARP_N / 2]) const {
#pragma unroll
        for (int i = 0; i < WARP_M / 16; i++)
#pragma unroll
            for (int j = 0; j < WARP_N / 16; j++) {
                mma(Element(), &sum[i][8 * j], a[i], b[j][0], b[j][2]);
                mma(Element(), &sum[i][8 * j + 4], a[i], b[j][1], b[j][3]);
            }
    }
};

// Waits until the calling thread's copies of the next stage are done, then for everybody's.
__device__ __forceinline__ void await_stage() {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncthreads();
}

// blockIdx.y takes k_split of K and writes its own [M, N] slice of c; k_split is a multiple of BLOCK_K, or K.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    matmul_tensor_cores(const Element* __restrict__ a, const Element* __restrict__ b, Output* __restrict__ c, int M, int N,
                        int K, long long lda, long long ldb, int k_split) {
    extern __shared__ __align__(128) unsigned char stages[];  // STAGES x STAGE_BYTES, in the end a strip per warp
    const Tile tile = grouped_tile(blockIdx.x, ceil_div(M, BLOCK_M), ceil_div(N, BLOCK_N));
    const int m0 = tile.m * BLOCK_M, n0 = tile.n * BLOCK_N;
    const int k_begin = blockIdx.y * k_split, k_end = min(K, k_begin + k_split), tiles = ceil_div(k_end - k_begin, BLOCK_K);
    const int warp = threadIdx.x / 32, m = warp / WARPS_N * WARP_M, n = warp % WARPS_N * WARP_N;
    A a_tiles(a, lda, m0, k_begin, M, k_end);
    B b_tiles(b, ldb, n0, k_begin, N, k_end);
    const auto issue = [&](int t, int slot) {
        if (t < tiles) {
            a_tiles.load(stages + slot * STAGE_BYTES);
            b_tiles.load(stages + slot * STAGE_BYTES + A::BYTES);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");  // an empty group keeps the count
    };
    float sum[WARP_M / 16][WARP_N / 2] = {};
    Fragments fragments[2];
#pragma unroll 1
    for (int t = 0; t < STAGES - 1; t++) issue(t, t);
    await_stage();
    fragments[0].load(stages, m, n, 0);
    for (int t = 0, slot = 0; t < tiles; t++) {
        const int next = slot + 1 < STAGES ? slot + 1 : 0, previous = slot ? slot - 1 : STAGES - 1;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            // The fragments of the next step load while this one multiplies, across the border of two stages too.
            if (step + 1 < STEPS) {
                fragments[(step + 1) % 2].load(stages + slot * STAGE_BYTES, m, n, step + 1);
            } else if (t + 1 < tiles) {
                await_stage();
                fragments[0].load(stages + next * STAGE_BYTES, m, n, 0);
            }
            // All warps have left the previous tile since await_stage(): its slot may take the tile STAGES - 1 ahead.
            if (step == 0) issue(t + STAGES - 1, previous);
            fragments[step % 2].multiply(sum);
        }
        slot = next;
    }
    __syncthreads();
    Output* strip = reinterpret_cast<Output*>(stages + warp * Strip<WARP_N>::BYTES);
    c += (long long)blockIdx.y * M * N;
#pragma unroll
    for (int i = 0; i < WARP_M / 16; i++) Strip<WARP_N>::store(strip, sum[i], c, m0 + m + 16 * i, n0 + n, M, N);
}
