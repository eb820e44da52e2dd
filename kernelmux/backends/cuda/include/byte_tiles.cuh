// What the products of 8-bit operands through mma.sync share: tiles in shared memory, the order of products and sums.
//
// A block of eight warps computes ROWS x 128 of c, a warp half of the rows and 32 columns. The tiles of the operands wait in
// shared memory as lines along K, whatever their order outside: the next ones are in registers while a tile is multiplied.
// Lines of 64 bytes and 16 more keep the words of a fragment in different banks.
//
//   -DROWS=64 or 128
//   -DA_VECTOR, B_VECTOR=1 or 16   bytes per access; 16: K is contiguous and every line starts at a multiple of it
#pragma once
#include "matmul.cuh"

using Byte = unsigned char;

constexpr int COLUMNS = 128, BLOCK_K = 64, PITCH = BLOCK_K + 16, THREADS = 256;
constexpr int GROUPS = ROWS / 32;  // of 16 rows, of a warp

// An operand as lines along K. Strides in bytes, which are elements.
struct Lines {
    const Byte* x;
    i64 line, k;
    int count;
};

// Sixteen neighbours along K of one line; zeros outside.
template <int Vector>
__device__ __forceinline__ uint4 piece(const Lines& from, int line, int k, int K) {
    const Byte* x = from.x + line * from.line + k * from.k;
    if constexpr (Vector == 16) return line < from.count && k < K ? __ldg(reinterpret_cast<const uint4*>(x)) : uint4{};
    unsigned words[4] = {};
#pragma unroll
    for (int i = 0; i < 16; i++)
        if (line < from.count && k + i < K) words[i / 4] |= (unsigned)x[i * from.k] << (i % 4 * 8);
    return {words[0], words[1], words[2], words[3]};
}

// A tile of Extent lines on its way from global to shared memory.
template <int Extent, int Vector>
struct Carried {
    static constexpr int Pieces = Extent * BLOCK_K / 16 / THREADS;  // of 16 bytes, in one thread
    uint4 held[Pieces];

    // Line and place along K of piece i. Neighbouring threads are neighbours where memory is contiguous.
    static __device__ __forceinline__ int2 place(int i, i64 k_stride) {
        const int unit = threadIdx.x + i * THREADS;
        if (k_stride == 1) return {unit / (BLOCK_K / 16), unit % (BLOCK_K / 16) * 16};
        return {unit % Extent, unit / Extent * 16};
    }

    __device__ __forceinline__ void fetch(const Lines& from, int first, int k, int K) {
#pragma unroll
        for (int i = 0; i < Pieces; i++) {
            const int2 at = place(i, from.k);
            held[i] = piece<Vector>(from, first + at.x, k + at.y, K);
        }
    }

    __device__ __forceinline__ void keep(Byte* tile, i64 k_stride) const {
#pragma unroll
        for (int i = 0; i < Pieces; i++) {
            const int2 at = place(i, k_stride);
            *reinterpret_cast<uint4*>(tile + at.x * PITCH + at.y) = held[i];
        }
    }
};

__device__ __forceinline__ unsigned word(const Byte* tile, int line, int k) {
    return *reinterpret_cast<const unsigned*>(tile + line * PITCH + k);
}

// Where this warp's part of a block begins.
__device__ __forceinline__ Tile part_of_warp() {
    const int warp = threadIdx.x / 32;
    return {warp / 4 * (ROWS / 2), warp % 4 * 32};
}

// This warp's part of a tile; multiply(d, a, b0, b1) is one m16n8k32.
template <typename Number, typename Multiply>
__device__ __forceinline__ void multiply_tile(Number (&sum)[GROUPS][4][4], const Byte* a, const Byte* b, Multiply multiply) {
    const Tile warp = part_of_warp();
    const int group = threadIdx.x % 32 / 4, k = threadIdx.x % 4 * 4;
#pragma unroll
    for (int step = 0; step < BLOCK_K; step += 32) {
        unsigned right[4][2];
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) right[j][i] = word(b, warp.n + 8 * j + group, step + k + 16 * i);
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            unsigned left[4];
#pragma unroll
            for (int q = 0; q < 4; q++) left[q] = word(a, warp.m + 16 * i + group + q % 2 * 8, step + k + q / 2 * 16);
#pragma unroll
            for (int j = 0; j < 4; j++) multiply(sum[i][j], left, right[j][0], right[j][1]);
        }
    }
}

// Runs step(a, b, k) with the tiles of K from k on, for all of K.
template <typename Step>
__device__ __forceinline__ void for_each_step(const Lines& a, const Lines& b, Tile tile, int K, Step step) {
    __shared__ __align__(16) Byte rows[ROWS * PITCH], columns[COLUMNS * PITCH];
    Carried<ROWS, A_VECTOR> left;
    Carried<COLUMNS, B_VECTOR> right;
    left.fetch(a, tile.m * ROWS, 0, K);
    right.fetch(b, tile.n * COLUMNS, 0, K);
    for (int k = 0; k < K; k += BLOCK_K) {
        __syncthreads();
        left.keep(rows, a.k);
        right.keep(columns, b.k);
        __syncthreads();
        if (k + BLOCK_K < K) {
            left.fetch(a, tile.m * ROWS, k + BLOCK_K, K);
            right.fetch(b, tile.n * COLUMNS, k + BLOCK_K, K);
        }
        step(rows, columns, k);
    }
}

// Runs visit(row, i, half) for the rows, visit(column, j, q) for the columns of this thread's sums [i][j][2 half + q].
template <typename Visit>
__device__ __forceinline__ void for_each_row(Tile tile, Visit visit) {
    const int first = tile.m * ROWS + part_of_warp().m + threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < GROUPS; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) visit(first + 16 * i + 8 * half, i, half);
}
template <typename Visit>
__device__ __forceinline__ void for_each_column(Tile tile, Visit visit) {
    const int first = tile.n * COLUMNS + part_of_warp().n + threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int q = 0; q < 2; q++) visit(first + 8 * j + q, j, q);
}
