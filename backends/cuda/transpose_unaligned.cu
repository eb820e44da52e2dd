// transpose in 16-byte accesses where rows start anywhere: y[n, m] = x[m, n]. x: [M, N] with rows ldx apart, y: [N, M]
// contiguous; odd sizes put every row at another place within 16 bytes.
//
// A row of the tile is cut at multiples of 16 bytes of its own addresses, so it takes one slot more than its length
// needs. What a first or last slot holds besides belongs to the neighbours: it is read with the slot and not used;
// on the way out the slots at both ends are written element by element.
#include "common.cuh"

#ifndef ELEMENT
#define ELEMENT unsigned short
#endif
#ifndef TILE_M
#define TILE_M 64
#endif
#ifndef TILE_N
#define TILE_N 64
#endif
#ifndef BLOCK
#define BLOCK 256
#endif

using T = ELEMENT;
constexpr int SIZE = sizeof(T), VECTOR = 16 / SIZE;
constexpr int PITCH = TILE_N + (SIZE < 4 ? 4 / SIZE : 1);  // one bank more per row
constexpr int SLOTS_N = TILE_N / VECTOR + 1, SLOTS_M = TILE_M / VECTOR + 1;
constexpr int READS = cdiv(TILE_M * SLOTS_N, BLOCK), WRITES = cdiv(TILE_N * SLOTS_M, BLOCK);

// How many elements p lies behind a multiple of 16 bytes.
__device__ __forceinline__ int misaligned(const T* p) { return (int)(reinterpret_cast<unsigned long long>(p) % 16) / SIZE; }

// 16 bytes at `p`, of which only those in [begin, end) may be touched.
__device__ __forceinline__ Vec<T, VECTOR> load_within(const T* p, const T* begin, const T* end) {
    if (p >= begin && p + VECTOR <= end) return load_streaming<VECTOR>(p);
    Vec<T, VECTOR> slot = {};
#pragma unroll
    for (int j = 0; j < VECTOR; ++j)
        if (p + j >= begin && p + j < end) slot.v[j] = p[j];
    return slot;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
transpose_unaligned(const T* __restrict__ x, T* __restrict__ y, int M, int N, i64 ldx) {
    __shared__ T tile[TILE_M][PITCH];
    const int tiles_n = cdiv(N, TILE_N);
    const int m0 = blockIdx.x / tiles_n * TILE_M, n0 = blockIdx.x % tiles_n * TILE_N;
    const T* const end = x + (M - 1) * ldx + N;
    Vec<T, VECTOR> slots[READS];
#pragma unroll
    for (int u = 0; u < READS; ++u) {
        const int m = (u * BLOCK + threadIdx.x) / SLOTS_N, slot = (u * BLOCK + threadIdx.x) % SLOTS_N;
        const T* const row = x + (m0 + m) * ldx + n0;
        if (m < TILE_M && m0 + m < M) slots[u] = load_within(row + slot * VECTOR - misaligned(row), x, end);
    }
#pragma unroll
    for (int u = 0; u < READS; ++u) {
        const int m = (u * BLOCK + threadIdx.x) / SLOTS_N, slot = (u * BLOCK + threadIdx.x) % SLOTS_N;
        const int n = slot * VECTOR - misaligned(x + (m0 + m) * ldx + n0);
        if (m < TILE_M && m0 + m < M)
#pragma unroll
            for (int j = 0; j < VECTOR; ++j)
                if (n + j >= 0 && n + j < TILE_N) tile[m][n + j] = slots[u].v[j];
    }
    __syncthreads();
    const int height = min(TILE_M, M - m0);
#pragma unroll
    for (int u = 0; u < WRITES; ++u) {
        const int index = u * BLOCK + threadIdx.x, band = index / (8 * SLOTS_M);  // a warp: 8 rows of y, 64 bytes of each
        const int n = band * 8 + index % 8, slot = index / 8 % SLOTS_M;
        if (n >= TILE_N || n0 + n >= N) continue;
        T* const row = y + (i64)(n0 + n) * M + m0;
        const int m = slot * VECTOR - misaligned(row);
        if (m >= 0 && m + VECTOR <= height) {
            Vec<T, VECTOR> column;
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) column.v[j] = tile[m + j][n];
            store_streaming(row + m, column);
        } else {
#pragma unroll
            for (int j = 0; j < VECTOR; ++j)
                if (m + j >= 0 && m + j < height) row[m + j] = tile[m + j][n];
        }
    }
}
