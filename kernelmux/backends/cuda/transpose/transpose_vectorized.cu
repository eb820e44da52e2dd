// transpose in 16-byte accesses on both sides: y[n, m] = x[m, n]. M, N, ldx and the addresses are multiples of 16 bytes.
// Block (i, b) has tile i of matrix b; the matrices of x lie `apart` elements apart.
//
// A thread reads 16 bytes of PACK rows (PACK * item size = 4 bytes, or one row of larger items) and has for each of its
// VECTOR columns one unit of PACK neighbours in m. It stores the units into the tile as y wants them, [n, m], so that
// the second half reads 16 bytes of a row of y at once.
//
// Banks: a warp stores the units of SPAN vectors x PACKS packs at a time, 8 x 4 unless a tile has fewer columns. VECTOR
// rows of the tile are a multiple of 128 bytes, so units of different vectors would meet in one bank. The 16-byte slots of
// each 128 bytes are permuted by an exclusive or with the number of the vector that they came from. Then the units that a
// warp stores fall in 32 different banks, and reads of whole slots stay whole.
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
constexpr int SIZE = sizeof(T), VECTOR = 16 / SIZE, PACK = SIZE < 4 ? 4 / SIZE : 1;
constexpr int PITCH = TILE_M * SIZE;                                              // bytes per row of the tile
constexpr int VECTORS_N = TILE_N / VECTOR, SPAN = VECTORS_N < 8 ? VECTORS_N : 8, PACKS = 32 / SPAN;
constexpr int READS = (TILE_M / PACK) * VECTORS_N, WRITES = TILE_N * (TILE_M / VECTOR);  // per tile
static_assert(VECTOR * PITCH % 128 == 0, "the permutation works on lines of 128 bytes");
static_assert(TILE_N % (SPAN * VECTOR) == 0 && 32 % SPAN == 0 && TILE_M % (PACK * PACKS) == 0 && TILE_M % VECTOR == 0,
              "warps read whole pieces of the tile");
static_assert(READS % BLOCK == 0 && WRITES % BLOCK == 0, "every thread moves equally much");

// Where byte `offset` of row n of the tile lives.
__device__ __forceinline__ int place(int n, int offset) {
    return (n * PITCH + offset) ^ (n / VECTOR % SPAN * (128 / SPAN));
}

extern "C" __global__ void __launch_bounds__(BLOCK)
transpose_vectorized(const T* __restrict__ x, T* __restrict__ y, int M, int N, i64 ldx, i64 apart) {
    x += blockIdx.y * apart;
    y += blockIdx.y * ((i64)M * N);
    __shared__ alignas(128) unsigned char tile[TILE_N * PITCH];
    const int tiles_n = cdiv(N, TILE_N);
    const int m0 = blockIdx.x / tiles_n * TILE_M, n0 = blockIdx.x % tiles_n * TILE_N;
    Vec<T, VECTOR> rows[READS / BLOCK][PACK];
    int m[READS / BLOCK], n[READS / BLOCK];
#pragma unroll
    for (int u = 0; u < READS / BLOCK; ++u) {
        const int slot = u * BLOCK + threadIdx.x, group = slot / 32;
        m[u] = (group / (VECTORS_N / SPAN) * PACKS + slot / SPAN % PACKS) * PACK;
        n[u] = (group % (VECTORS_N / SPAN) * SPAN + slot % SPAN) * VECTOR;
        if (m0 + m[u] < M && n0 + n[u] < N)
#pragma unroll
            for (int k = 0; k < PACK; ++k) rows[u][k] = load_constant<VECTOR>(x + (i64)(m0 + m[u] + k) * ldx + n0 + n[u]);
    }
#pragma unroll
    for (int u = 0; u < READS / BLOCK; ++u)
        if (m0 + m[u] < M && n0 + n[u] < N)
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) {
                Vec<T, PACK> unit;
#pragma unroll
                for (int k = 0; k < PACK; ++k) unit.v[k] = rows[u][k].v[i];
                store(reinterpret_cast<T*>(tile + place(n[u] + i, m[u] * SIZE)), unit);
            }
    __syncthreads();
#pragma unroll
    for (int u = 0; u < WRITES / BLOCK; ++u) {
        const int slot = u * BLOCK + threadIdx.x;
        const int row = slot / (TILE_M / VECTOR), start = slot % (TILE_M / VECTOR) * VECTOR;
        if (n0 + row < N && m0 + start < M) {
            const auto column = load<VECTOR>(reinterpret_cast<const T*>(tile + place(row, start * SIZE)));
            store(y + (i64)(n0 + row) * M + m0 + start, column);
        }
    }
}
