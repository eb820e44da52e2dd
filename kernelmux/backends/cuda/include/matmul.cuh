// What the matmul kernels share: c[M, N] = a[M, K] b[K, N], the order of the tiles and the way out of the registers.
//
// An operand is a matrix with one contiguous index. K-major: K is contiguous (row-major a, or the view b.t());
// otherwise the index of the output is (row-major b, or a.t()). `ld` is the stride of the other index, in elements.
#pragma once
#include "epilogue.cuh"

#ifndef ELEMENT
#define ELEMENT __nv_bfloat16
#endif
#ifndef OUTPUT  // the element type, or float for the partial sums of a split K
#define OUTPUT ELEMENT
#endif
#ifndef A_K_MAJOR
#define A_K_MAJOR 1
#endif
#ifndef B_K_MAJOR
#define B_K_MAJOR 0
#endif
#ifndef C_VECTOR  // elements per global store; divides N
#define C_VECTOR 1
#endif
#ifndef GROUP_M
#define GROUP_M 8
#endif

#ifndef BATCHED
#define BATCHED 0
#endif
#ifndef IN_TURN  // a batch of two products: those of the even rows of a and of the odd ones, whose results take turns too
#define IN_TURN 0
#endif
#ifndef ODD_ROWS  // of those there is one even row more
#define ODD_ROWS 0
#endif

#if BATCHED  // parameters of a kernel and what it hands on; a single product has neither
#define BATCH_PARAMETERS , int products, int inner, i64 a_outer, i64 a_inner, i64 b_outer, i64 b_inner
#define BATCH Batch{products, inner, a_outer, a_inner, b_outer, b_inner}
#else
#define BATCH_PARAMETERS
#define BATCH Batch{}
#endif

using Element = ELEMENT;
using Output = OUTPUT;

// Where a product of a batch begins, in elements, and which of its works it is that a block does.
struct Member {
    i64 work, a, b, c;
};

// The factors of product i are at (i / inner, i % inner) times the strides, its results right behind those of i - 1.
struct Batch {
    int products = 1, inner = 1;
    i64 a_outer, a_inner, b_outer, b_inner;

    // Of the works of all products, `each` for every one, that of this index.
    __device__ __forceinline__ Member member(i64 index, i64 each, int M, int N) const {
        static_assert(!(BATCHED && SAVES) || IN_TURN, "z would have to be moved along with c");
        if constexpr (!BATCHED) return {index, 0, 0, 0};
        const i64 i = index / each, y = i / inner, x = i % inner;
        return {index % each, y * a_outer + x * a_inner, y * b_outer + x * b_inner, i * M * N};
    }
};

// Position of element (mn, k) of an operand, mn being its index in the output.
template <bool KMajor>
__device__ __forceinline__ i64 position(i64 mn, i64 k, i64 ld) {
    return KMajor ? mn * ld + k : k * ld + mn;
}

struct Tile {
    int m, n;
};

// Tiles in columns of GROUP_M: the tiles in flight at one time form a block that is nearly square, which shares more of
// its operands in L2 than a row of tiles does.
__device__ __forceinline__ Tile grouped_tile(int index, int tiles_m, int tiles_n) {
    const int group = index / (GROUP_M * tiles_n), within = index % (GROUP_M * tiles_n);
    const int rows = min(GROUP_M, tiles_m - group * GROUP_M);
    return {group * GROUP_M + within % rows, within / rows};
}

// A warp's accumulators of 16 x Width: value i of group j of a lane is at row lane / 4 + i / 2 * 8 and column
// 8 j + lane % 4 * 2 + i % 2 (mma m16n8 and wgmma m64nN alike). They cross a strip of shared memory of the warp's own:
// lanes hold two neighbours, DRAM wants whole lines. Eight elements of skew keep the eight rows of a store in different
// banks.
template <int Width>
struct Strip {
    static constexpr int Pitch = Width + 8, Bytes = 16 * Pitch * sizeof(Output);
    using Sums = const float (*)[4];  // [Width / 8]

    // Ends the product of the tile at (row, column) of c, whose rows are `pitch` elements apart, N unless said.
    static __device__ __forceinline__ void store_out(Output* strip, Sums sum, Output* c, const Epilogue<Output>& epilogue,
                                                     int row, int column, int M, int N) {
        store_out(strip, sum, c, epilogue, row, column, M, N, N);
    }
    static __device__ __forceinline__ void store_out(Output* strip, Sums sum, Output* c, const Epilogue<Output>& epilogue,
                                                     int row, int column, int M, int N, i64 pitch) {
        float bias[Width / 8][2];
#pragma unroll
        for (int j = 0; j < Width / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int n = column + 8 * j + threadIdx.x % 4 * 2 + i;
                bias[j][i] = n < N ? epilogue.bias_of(n) : 0.0f;
            }
        if constexpr (SAVES) pass<Identity>(strip, sum, bias, epilogue.z, row, column, M, N, pitch);
        pass<ACTIVATION>(strip, sum, bias, c, row, column, M, N, pitch);
    }

    template <typename Activation>
    static __device__ __forceinline__ void pass(Output* strip, Sums sum, const float (&bias)[Width / 8][2], Output* out,
                                                int row, int column, int M, int N, i64 pitch) {
        const int lane = threadIdx.x % 32;
        Output* mine = strip + lane / 4 * Pitch + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < Width / 8; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float pair[2];
#pragma unroll
                for (int i = 0; i < 2; i++)
                    pair[i] = Activation::value(Epilogue<Output>::biased(sum[j][2 * half + i], bias[j][i]));
                store(mine + 8 * j + 8 * half * Pitch, from_floats<Output>(pair));
            }
        __syncwarp();
        for (int i = lane * C_VECTOR; i < 16 * Width; i += 32 * C_VECTOR) {
            const int m = row + i / Width, n = column + i % Width;
            if (m < M && n < N) store(out + m * pitch + n, load<C_VECTOR>(strip + i / Width * Pitch + i % Width));
        }
        __syncwarp();
    }
};
