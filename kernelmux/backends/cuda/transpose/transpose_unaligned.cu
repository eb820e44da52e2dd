// transpose in 16-byte accesses where rows start anywhere: y[n, m] = x[m, n]. x: [M, N] with rows ldx apart, y: [N, M]
// contiguous; odd sizes put every row at another place within its memory sector. Block (i, b) has tile i of matrix b; the
// matrices of x lie `apart` elements apart.
//
// Reads: a row of the tile is cut at multiples of 16 bytes of its own addresses, so it takes one slot more than its length
// needs; what the outer slots hold of the neighbours is read and not used. Writes: each row of y moves its share of the
// tile up to its next sector, at most SECTOR - 1 elements, for which the tile holds that many rows of x more. So all
// writes are whole sectors, but for both ends of y's rows. (Sectors written in part by two blocks cost more than that:
// they have to be read before their error-correcting code can be written.)
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
constexpr int SIZE = sizeof(T), VECTOR = 16 / SIZE, SECTOR = 32 / SIZE, HEIGHT = TILE_M + SECTOR - 1;
// Found by counting bank conflicts over odd and even sizes: 3.3 wavefronts per element and its way back, of 2 at best.
constexpr int PITCH = TILE_N + (SIZE == 1 ? 5 : SIZE == 2 ? 3 : 2), SIDE = SIZE < 4 ? 4 : 8;
constexpr int SLOTS_N = TILE_N / VECTOR + 1, SLOTS_M = TILE_M / VECTOR;
constexpr int READS = cdiv(HEIGHT * SLOTS_N, BLOCK), WRITES = TILE_N * SLOTS_M / BLOCK;
static_assert(TILE_M % SECTOR == 0 && TILE_N % SIDE == 0 && TILE_N * SLOTS_M % BLOCK == 0, "every thread writes equally much");

// How many elements p lies behind a multiple of Bytes.
template <int Bytes>
__device__ __forceinline__ int behind(const T* p) {
    return (int)(reinterpret_cast<unsigned long long>(p) % Bytes) / SIZE;
}

// 16 bytes at p, of which only those in [begin, end) may be touched.
__device__ __forceinline__ Vec<T, VECTOR> load_within(const T* p, const T* begin, const T* end) {
    if (p >= begin && p + VECTOR <= end) return load_constant<VECTOR>(p);
    Vec<T, VECTOR> slot = {};
#pragma unroll
    for (int j = 0; j < VECTOR; ++j)
        if (p + j >= begin && p + j < end) slot.v[j] = p[j];
    return slot;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
transpose_unaligned(const T* __restrict__ x, T* __restrict__ y, int M, int N, i64 ldx, i64 apart) {
    x += blockIdx.y * apart;
    y += blockIdx.y * ((i64)M * N);
    __shared__ T tile[HEIGHT][PITCH];
    const int tiles_n = cdiv(N, TILE_N);
    const int m0 = blockIdx.x / tiles_n * TILE_M, n0 = blockIdx.x % tiles_n * TILE_N;
    const T* const end = x + (M - 1) * ldx + N;
    Vec<T, VECTOR> slots[READS];
#pragma unroll
    for (int u = 0; u < READS; ++u) {
        const int m = (u * BLOCK + threadIdx.x) / SLOTS_N, slot = (u * BLOCK + threadIdx.x) % SLOTS_N;
        const T* const row = x + (m0 + m) * ldx + n0;
        if (m < HEIGHT && m0 + m < M) slots[u] = load_within(row + slot * VECTOR - behind<16>(row), x, end);
    }
#pragma unroll
    for (int u = 0; u < READS; ++u) {
        const int m = (u * BLOCK + threadIdx.x) / SLOTS_N, slot = (u * BLOCK + threadIdx.x) % SLOTS_N;
        const int n = slot * VECTOR - behind<16>(x + (m0 + m) * ldx + n0);
        if (m < HEIGHT && m0 + m < M)
#pragma unroll
            for (int j = 0; j < VECTOR; ++j)
                if (n + j >= 0 && n + j < TILE_N) tile[m][n + j] = slots[u].v[j];
    }
    __syncthreads();
#pragma unroll
    for (int u = 0; u < WRITES; ++u) {
        const int index = u * BLOCK + threadIdx.x;  // SIDE rows of y side by side in a warp
        const int n = index / (SIDE * SLOTS_M) * SIDE + index % SIDE, slot = index / SIDE % SLOTS_M;
        if (n0 + n >= N) continue;
        T* const row = y + (i64)(n0 + n) * M + m0;
        const int skipped = (SECTOR - behind<32>(row)) % SECTOR, m = skipped + slot * VECTOR;
        if (m0 + m + VECTOR <= M) {
            Vec<T, VECTOR> column;
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) column.v[j] = tile[m + j][n];
            store(row + m, column);
        } else {
            for (int j = 0; m0 + m + j < M; ++j) row[m + j] = tile[m + j][n];
        }
        if (m0 == 0)  // the beginning of the row, which no tile before this one writes
            for (int j = slot; j < min(skipped, M); j += SLOTS_M)
#if __CUDA_ARCH__ >= 1000  // there NVRTC 13.5 reads the address of tile[0][n], of four bytes, before it has one
                row[j] = (&tile[0][n])[j * PITCH];
#else
                row[j] = tile[j][n];
#endif
    }
}
