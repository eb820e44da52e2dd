// conv2d and its gradients on the tensor cores: mma.sync on tiles that are gathered from where they lie, STAGES ahead.
//
// Where 8 neighbours of an operand lie side by side, whatever the tap (channels-last), cp.async copies them; other operands
// come in single elements, which the lanes of a warp read along the index with unit stride. Tiles keep their major order in
// shared memory; a transposing ldmatrix turns the MN-major ones into fragments.
#include "convolution_tiles.cuh"
#include "tensor_cores.cuh"

#ifndef BLOCK_M
#define BLOCK_M 64
#endif
#ifndef BLOCK_N
#define BLOCK_N 64
#endif
#ifndef STAGES
#define STAGES 3
#endif
#ifndef LEFT_COPY  // bytes per copy: 16 or 2
#define LEFT_COPY 2
#endif
#ifndef RIGHT_COPY
#define RIGHT_COPY 2
#endif

constexpr int BLOCK_K = 64, WARPS_M = 2, WARPS_N = 2, THREADS = 32 * WARPS_M * WARPS_N;
constexpr int STEP = 16, STEPS = BLOCK_K / STEP;  // of K per mma
constexpr int WARP_M = BLOCK_M / WARPS_M, WARP_N = BLOCK_N / WARPS_N;
using Lookup = Tables<BLOCK_M, BLOCK_N, BLOCK_K>;

// One operand's tiles: Extent x BLOCK_K elements, in shared memory as lines along the contiguous index. A thread copies the
// same unit of every Hop-th line.
template <bool Right, int Extent, bool KMajor, int Copy>
struct Operand {
    static constexpr int Lines = KMajor ? Extent : BLOCK_K, LineBytes = (KMajor ? BLOCK_K : Extent) * 2;
    static constexpr int Bytes = Lines * LineBytes, PerLine = LineBytes / Copy, Hop = THREADS / PerLine;
    static_assert(LineBytes % 128 == 0 && THREADS % PerLine == 0 && Lines % Hop == 0, "whole lines, shared evenly");

    // The 8 units of one ldmatrix come from 8 lines; they change places with the line, so as to lie in different banks.
    static __device__ __forceinline__ int offset(int line, int byte) { return line * LineBytes + (byte ^ line % 8 * 16); }

    static __device__ __forceinline__ void load(unsigned tile, const Element* x, const Place* mn, const Place* k, int rows,
                                                int columns) {
        const int line = threadIdx.x / PerLine, byte = threadIdx.x % PerLine * Copy;
        const Place unit = (KMajor ? k : mn)[byte / 2];
        const Place* lines = (KMajor ? mn : k) + line;
        constexpr int Count = Lines / Hop, Batch = Count < 8 ? Count : 8;  // loads on their way together
#pragma unroll 1
        for (int first = 0; first < Count; first += Batch) {
            unsigned short held[Batch];
#pragma unroll
            for (int i = 0; i < Batch; i++) {
                const Place at = unit + lines[(first + i) * Hop];
                const bool inside = at.within(rows, columns);
                if constexpr (Copy == 16) copy_async<16>(tile + offset(line + (first + i) * Hop, byte), x + at.offset, inside);
                else held[i] = inside ? __ldg(reinterpret_cast<const unsigned short*>(x + at.offset)) : (unsigned short)0;
            }
            if constexpr (Copy == 2)
#pragma unroll
                for (int i = 0; i < Batch; i++)
                    asm volatile("st.shared.u16 [%0], %1;" ::"r"(tile + offset(line + (first + i) * Hop, byte)), "h"(held[i])
                                 : "memory");
        }
    }

    // The 16 x STEP piece at (mn, step) in four registers, one per quarter; the right operand has the two k's of the same mn
    // side by side.
    static __device__ __forceinline__ void fragment(unsigned (&x)[4], unsigned tile, int mn, int step) {
        const int lane = threadIdx.x % 32, quarter = lane / 8;
        const int high_mn = Right ? quarter / 2 : quarter % 2, high_k = Right ? quarter % 2 : quarter / 2;
        const int at_mn = mn + high_mn * 8, at_k = step * STEP + high_k * 8;
        if constexpr (KMajor) load_matrices<false>(x, tile + offset(at_mn + lane % 8, at_k * 2));
        else load_matrices<true>(x, tile + offset(at_k + lane % 8, at_mn * 2));
    }
};

using Left = Operand<false, BLOCK_M, LEFT_K_MAJOR, LEFT_COPY>;
using Right = Operand<true, BLOCK_N, RIGHT_K_MAJOR, RIGHT_COPY>;
constexpr int STAGE_BYTES = Left::Bytes + Right::Bytes;
using Sums = float[WARP_M / 16][WARP_N / 8][4];

struct Fragments {
    unsigned a[WARP_M / 16][4], b[WARP_N / 16][4];

    __device__ __forceinline__ void load(unsigned stage, int m, int n, int step) {
#pragma unroll
        for (int i = 0; i < WARP_M / 16; i++) Left::fragment(a[i], stage, m + 16 * i, step);
#pragma unroll
        for (int j = 0; j < WARP_N / 16; j++) Right::fragment(b[j], stage + Left::Bytes, n + 16 * j, step);
    }

    __device__ __forceinline__ void multiply(Sums& sum) const {
#pragma unroll
        for (int i = 0; i < WARP_M / 16; i++)
#pragma unroll
            for (int j = 0; j < WARP_N / 8; j++) mma(sum[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], Element());
    }
};

// The sums of a block cross shared memory, in fp32: lanes hold pairs along n, memory wants runs along the contiguous index.
// The pitch puts the 8 rows and 4 pairs that a warp stores at a time into different banks.
constexpr int INNER = M_CONTIGUOUS ? BLOCK_M : BLOCK_N, OUTER = M_CONTIGUOUS ? BLOCK_N : BLOCK_M;
constexpr int PITCH = INNER + (M_CONTIGUOUS ? 4 : 8);
static_assert(OUTER * PITCH * 4 <= STAGES * STAGE_BYTES, "the sums take the place of the stages");

__device__ __forceinline__ void store_sums(float* staged, const Sums& sum, int m, int n, const Product& product,
                                           const Work<BLOCK_M, BLOCK_N>& work, const Result& result) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < WARP_M / 16; i++)
#pragma unroll
        for (int j = 0; j < WARP_N / 8; j++)
#pragma unroll
            for (int v = 0; v < 4; v++) {
                const int row = m + 16 * i + v / 2 * 8 + lane / 4, column = n + 8 * j + lane % 4 * 2 + v % 2;
                staged[M_CONTIGUOUS ? column * PITCH + row : row * PITCH + column] = sum[i][j][v];
            }
    __syncthreads();
    for (int i = threadIdx.x * VECTOR; i < INNER * OUTER; i += THREADS * VECTOR) {
        const int inner = i % INNER, outer = i / INNER;
        float out[VECTOR];
#pragma unroll
        for (int v = 0; v < VECTOR; v++) out[v] = staged[outer * PITCH + inner + v];
        result.store(product, work.m0 + (M_CONTIGUOUS ? inner : outer), work.n0 + (M_CONTIGUOUS ? outer : inner), out);
    }
}

// left [M, K], right [N, K], out [M, N] as `Product` says; blocks (tile of a phase, piece of K).
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    conv2d_implicit_gemm(const Element* __restrict__ left, const Element* __restrict__ right,
                         const Element* __restrict__ bias, Output* __restrict__ out, const __grid_constant__ Convolution c) {
    extern __shared__ __align__(128) unsigned char shared[];  // STAGES x STAGE_BYTES, then the tables
    Lookup& tables = *reinterpret_cast<Lookup*>(shared + STAGES * STAGE_BYTES);
    const unsigned stages = shared_address(shared);
    const Product product(c, phase_of_block(c));
    const Work<BLOCK_M, BLOCK_N> work(product);
    if (!work.any) return;
    const int warp = threadIdx.x / 32, m = warp / WARPS_N * WARP_M, n = warp % WARPS_N * WARP_N;
    const int tiles = cdiv(work.k_end - work.k_begin, BLOCK_K);
    const auto fill = [&](int t) { tables.template fill_k<THREADS>(product, t, work.k_begin, work.k_end); };
    const auto issue = [&](int t, int slot) {  // tile t, whose table is complete
        const unsigned stage = stages + slot * STAGE_BYTES;
        if (t < tiles) {
            Left::load(stage, left, tables.m, tables.left_k[t % 2], product.left_rows(), product.left_columns());
            Right::load(stage + Left::Bytes, right, tables.n, tables.right_k[t % 2], product.right_rows(), product.right_columns());
        }
        copy_async_commit();  // an empty group keeps the count
    };
    tables.template fill_rows<THREADS>(product, work.m0, work.n0);
    fill(0);
    __syncthreads();
#pragma unroll 1
    for (int t = 0; t < STAGES - 1; t++) {
        issue(t, t);
        fill(t + 1);
        __syncthreads();
    }
    Sums sum = {};
    Fragments fragments[2];
    copy_async_wait<STAGES - 2>();
    __syncthreads();
    if (tiles > 0) fragments[0].load(stages, m, n, 0);
    for (int t = 0, slot = 0; t < tiles; t++) {
        const int next = slot + 1 < STAGES ? slot + 1 : 0, previous = slot ? slot - 1 : STAGES - 1;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            // The fragments of the next step load while this one multiplies, across the border of two stages too.
            if (step + 1 < STEPS) {
                fragments[(step + 1) % 2].load(stages + slot * STAGE_BYTES, m, n, step + 1);
            } else {  // the last tile loads its own once more
                copy_async_wait<STAGES - 2>();
                __syncthreads();
                fragments[0].load(stages + (t + 1 < tiles ? next : slot) * STAGE_BYTES, m, n, 0);
            }
            // All warps have left the previous tile since that barrier: its slot may take the tile STAGES - 1 ahead.
            if (step == 0) {
                issue(t + STAGES - 1, previous);
                fill(t + STAGES);
            }
            fragments[step % 2].multiply(sum);
        }
        slot = next;
    }
    copy_async_wait<0>();
    __syncthreads();
    store_sums(reinterpret_cast<float*>(shared), sum, m, n, product, work, Result(out, bias, c));
}
