// Tiles of halves in shared memory as tensor cores read them, gathered from where they lie, and the way of the sums
// out.
//
// Where 8 neighbours of an operand lie side by side, whatever the tap (channels-last), cp.async copies them; other
// operands come in single elements, which the lanes of a warp read along the index with unit stride. Tiles keep their
// major order.
#pragma once
#include "convolution_tiles.cuh"
#include "tensor_cores.cuh"

#ifndef BLOCK_M
#define BLOCK_M 128
#endif
#ifndef BLOCK_N
#define BLOCK_N 128
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

constexpr int BLOCK_K = 64, LINE = 128;  // bytes of 64 halves, the widest swizzle of wgmma
constexpr int BOX_BYTES = 64 * LINE;     // 64 lines: 64 rows if K-major, else 64 k's of 64 rows
constexpr int LEFT_BYTES = BLOCK_M / 64 * BOX_BYTES, STAGE_BYTES = LEFT_BYTES + BLOCK_N / 64 * BOX_BYTES;
using Lookup = Tables<BLOCK_M, BLOCK_N, BLOCK_K>;

// Where 16 bytes, or a part of them, are in a tile: they change places with their line, so that the 8 rows of an 8 x 8
// matrix, which come from 8 lines, lie in different banks. inner: the contiguous index in bytes, outer: the other one.
__device__ __forceinline__ int tile_offset(int outer, int inner) {
    return inner / LINE * BOX_BYTES + outer * LINE + (inner % LINE ^ outer % 8 * 16);
}

// Gathers a tile of Extent x BLOCK_K elements; a thread the same unit of every Hop-th line. rows, columns: of what the
// places are in.
template <int Extent, bool KMajor, int Copy, int Threads>
__device__ __forceinline__ void load_tile(unsigned tile, const Element* x, const Place* mn, const Place* k, int rows,
                                          int columns) {
    constexpr int Lines = KMajor ? Extent : BLOCK_K, PerLine = (KMajor ? BLOCK_K : Extent) * 2 / Copy;
    constexpr int Hop = Threads / PerLine, Count = Lines / Hop;
    constexpr int Batch = Count < 8 ? Count : 8;  // loads on their way together
    static_assert(Threads % PerLine == 0 && Lines % Hop == 0 && Count % Batch == 0, "every thread copies as many units");
    const int line = threadIdx.x / PerLine, inner = threadIdx.x % PerLine * Copy;
    const Place unit = (KMajor ? k : mn)[inner / 2];
    const Place* lines = KMajor ? mn : k;
#pragma unroll 1
    for (int first = line; first < Lines; first += Batch * Hop) {
        unsigned short held[Batch];
#pragma unroll
        for (int i = 0; i < Batch; i++) {
            const Place at = unit + lines[first + i * Hop];
            const bool inside = at.within(rows, columns);
            const Element* from = x + at.offset;
            if constexpr (Copy == 16) copy_async<16>(tile + tile_offset(first + i * Hop, inner), from, inside);
            else held[i] = inside ? __ldg(reinterpret_cast<const unsigned short*>(from)) : (unsigned short)0;
        }
        if constexpr (Copy == 2) {
#pragma unroll
            for (int i = 0; i < Batch; i++)
                asm volatile("st.shared.u16 [%0], %1;" ::"r"(tile + tile_offset(first + i * Hop, inner)), "h"(held[i])
                             : "memory");
        }
    }
}

// The k of both operands whose table is complete.
template <int Threads>
__device__ __forceinline__ void load_stage(unsigned stage, const Element* left, const Element* right, const Lookup& tables,
                                           const Product& product, int t) {
    load_tile<BLOCK_M, LEFT_K_MAJOR, LEFT_COPY, Threads>(
        stage, left, tables.m, tables.left_k[t % 2], product.left_rows(), product.left_columns());
    load_tile<BLOCK_N, RIGHT_K_MAJOR, RIGHT_COPY, Threads>(
        stage + LEFT_BYTES, right, tables.n, tables.right_k[t % 2], product.right_rows(), product.right_columns());
}

// The sums of a block cross shared memory, in fp32: lanes hold pairs along n, memory wants runs along the contiguous
// index. The pitch puts the 8 rows and 4 pairs that a warp stores at a time into different banks.
constexpr int INNER = M_CONTIGUOUS ? BLOCK_M : BLOCK_N, OUTER = M_CONTIGUOUS ? BLOCK_N : BLOCK_M;
constexpr int PITCH = INNER + (M_CONTIGUOUS ? 4 : 8);
static_assert(OUTER * PITCH * 4 <= STAGES * STAGE_BYTES + (int)sizeof(Lookup), "sums take the place of stages and tables");

// A warp's 16 x 8 Count sums, from row m and column n of the block on.
template <int Count>
__device__ __forceinline__ void stage_sums(float* staged, const float (&sum)[Count][4], int m, int n) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < Count; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = m + half * 8 + lane / 4, column = n + 8 * j + lane % 4 * 2;
            const Vec<float, 2> pair = {sum[j][2 * half], sum[j][2 * half + 1]};
            if constexpr (M_CONTIGUOUS) {
                staged[column * PITCH + row] = pair.v[0];
                staged[(column + 1) * PITCH + row] = pair.v[1];
            } else {
                store(staged + row * PITCH + column, pair);
            }
        }
}

template <int Threads>
__device__ __forceinline__ void store_staged(const float* staged, const Product& product,
                                             const Work<BLOCK_M, BLOCK_N>& work, const Result& result) {
    for (int i = threadIdx.x * VECTOR; i < INNER * OUTER; i += Threads * VECTOR) {
        const int inner = i % INNER, outer = i / INNER;
        constexpr int Width = VECTOR < 4 ? VECTOR : 4;  // elements per load
        float out[VECTOR];
#pragma unroll
        for (int v = 0; v < VECTOR; v += Width) {
            const Vec<float, Width> some = load<Width>(staged + outer * PITCH + inner + v);
#pragma unroll
            for (int i = 0; i < Width; i++) out[v + i] = some.v[i];
        }
        result.store(product, work.m0 + (M_CONTIGUOUS ? inner : outer), work.n0 + (M_CONTIGUOUS ? outer : inner), out);
    }
}
