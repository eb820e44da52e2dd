// transpose in 16-byte accesses where rows start anywhere: y[n, m] = x[m, n]. x: [M, N] with rows ldx apart, y: [N, M]
// contiguous. Block (i, b) has tile i of matrix b; the matrices of x lie `apart` elements apart.
//
//   -DODD_X=1   rows of x start anywhere: 16 bytes of a row are shifted together from the two aligned pieces they lie in.
//               Both lie within x: what is in none that does, at its beginning and its end, goes alone. M, N and ldx are
//               VECTOR at least
//   -DODD_Y=1   rows of y start anywhere: 16 bytes are shifted together from the words of the tile. Each row moves its
//               share of the tile up to its next sector, for which the tile holds up to SECTOR - 1 rows of x more. So all
//               writes are whole sectors, but for both ends of y's rows. (Sectors written in part by two blocks cost more:
//               they have to be read before their error-correcting code can be written.)
//
// Between, as where rows are aligned, a thread has 16 bytes of PACK rows (PACK * item size = 4 bytes) and stores for each
// of its VECTOR columns one word of PACK neighbours in m into the tile as y wants them, [n, m].
//
// Banks: a warp stores the words of SPAN vectors x PACKS packs at a time. Rows of the tile that are VECTOR apart lie PACKS
// words further in the banks, by SKEW words more behind each vector of columns.
#include "shifted.cuh"

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
#ifndef ODD_X
#define ODD_X 1
#endif
#ifndef ODD_Y
#define ODD_Y 1
#endif

using T = ELEMENT;
constexpr int SIZE = sizeof(T), VECTOR = 16 / SIZE, SECTOR = 32 / SIZE, PACK = 4 / SIZE, BITS = 8 * SIZE;
constexpr int VECTORS_N = TILE_N / VECTOR, SPAN = VECTORS_N < 8 ? VECTORS_N : 8, PACKS = 32 / SPAN;
constexpr int HEIGHT = TILE_M + (ODD_Y ? SECTOR : 0);           // one row more than needed: packs are whole
constexpr int GROUPS = cdiv(HEIGHT / PACK, PACKS) * PACKS;      // packs, those of the last warp that are not there too
constexpr int PITCH = HEIGHT / PACK + (ODD_Y ? 1 : 4 - HEIGHT / PACK % 4);  // words per row of the tile
constexpr int SKEW = ((PACKS - VECTOR * PITCH) % 32 + 32) % 32;
constexpr int READS = cdiv(GROUPS * VECTORS_N, BLOCK);
constexpr int SLOTS_M = TILE_M / VECTOR, SIDE = !ODD_Y ? 1 : SLOTS_M >= 8 ? 4 : 32 / SLOTS_M;
constexpr int WRITES = cdiv(TILE_N * SLOTS_M, BLOCK);
static_assert(SIZE <= 4, "units are words");
static_assert(TILE_N % (SPAN * VECTOR) == 0 && 32 % SPAN == 0, "warps read whole pieces of the tile");
static_assert(TILE_M % SECTOR == 0 && TILE_N % SIDE == 0, "warps write whole pieces of the tile");

struct Words {
    unsigned v[4];
};

// How many bytes p lies behind a multiple of Bytes.
template <int Bytes>
__device__ __forceinline__ int behind(const T* p) {
    return (int)(reinterpret_cast<unsigned long long>(p) % Bytes);
}

__device__ __forceinline__ T& element(unsigned* tile, int m, int n) {
    return reinterpret_cast<T*>(tile + n * PITCH + n / VECTOR * SKEW)[m];
}

extern "C" __global__ void __launch_bounds__(BLOCK)
transpose_shifted(const T* __restrict__ x, T* __restrict__ y, int M, int N, i64 ldx, i64 apart) {
    x += blockIdx.y * apart;
    y += blockIdx.y * ((i64)M * N);
    __shared__ alignas(16) unsigned tile[TILE_N * PITCH + (VECTORS_N - 1) * SKEW];
    const int tiles_n = cdiv(N, TILE_N);
    const int m0 = blockIdx.x / tiles_n * TILE_M, n0 = blockIdx.x % tiles_n * TILE_N;
    // Where the first and the last aligned piece within x begin.
    const T* const first = x + (16 - behind<16>(x)) % 16 / SIZE;
    const T* const end = x + (M - 1) * ldx + N;
    const T* const last = end - behind<16>(end) / SIZE - VECTOR;
    constexpr int Pieces = ODD_X ? 2 : 1;
    Words rows[READS][PACK][Pieces];
    int m[READS], n[READS];
#pragma unroll
    for (int u = 0; u < READS; ++u) {
        const int slot = u * BLOCK + threadIdx.x, group = slot / 32;
        m[u] = (group / (VECTORS_N / SPAN) * PACKS + slot / SPAN % PACKS) * PACK;
        n[u] = (group % (VECTORS_N / SPAN) * SPAN + slot % SPAN) * VECTOR;
        if (m[u] >= HEIGHT || m0 + m[u] >= M || n0 + n[u] >= N) continue;
        const T* from = x + (m0 + m[u]) * ldx + n0 + n[u];
#pragma unroll
        for (int k = 0; k < PACK; ++k, from += ldx) {
            if (!ODD_X) {
                if (!ODD_Y || m0 + m[u] + k < M) rows[u][k][0] = bits<Words>(load_constant<VECTOR>(from));
                continue;
            }
            const T* const aligned = from - behind<16>(from) / SIZE;
#pragma unroll
            for (int i = 0; i < Pieces; ++i) {
                const T* const piece = aligned + i * VECTOR;
                rows[u][k][i] = bits<Words>(load_constant<VECTOR>(piece < first ? first : piece > last ? last : piece));
            }
        }
    }
#pragma unroll
    for (int u = 0; u < READS; ++u)
        if (m[u] < HEIGHT && m0 + m[u] < M && n0 + n[u] < N) {
            const T* const from = x + (m0 + m[u]) * ldx + n0 + n[u];
            if (ODD_X)
#pragma unroll
                for (int k = 0; k < PACK; ++k)
                    rows[u][k][0] = shifted<SIZE>(rows[u][k][0], rows[u][k][Pieces - 1], behind<16>(from + k * ldx));
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) {
                Vec<T, PACK> unit;
#pragma unroll
                for (int k = 0; k < PACK; ++k) unit.v[k] = bits<Vec<T, VECTOR>>(rows[u][k][0]).v[i];
                tile[(n[u] + i) * PITCH + n[u] / VECTOR * SKEW + m[u] / PACK] = bits<unsigned>(unit);
            }
        }
    __syncthreads();
    if (ODD_X && ((m0 == 0 && n0 == 0) || (m0 + HEIGHT >= M && n0 + TILE_N + VECTOR > N))) {
        const int j = threadIdx.x, right = N - VECTOR + j - n0;  // the columns of both ends of x
        if (m0 == 0 && n0 == 0 && j < VECTOR) element(tile, 0, j) = x[j];
        if (m0 + HEIGHT >= M && j < VECTOR && right >= 0 && right < TILE_N)
            element(tile, M - 1 - m0, right) = end[j - VECTOR];
        __syncthreads();
    }
#pragma unroll
    for (int u = 0; u < WRITES; ++u) {
        const int index = u * BLOCK + threadIdx.x;  // SIDE rows of y side by side in a warp
        const int column = index / (SIDE * SLOTS_M) * SIDE + index % SIDE, slot = index / SIDE % SLOTS_M;
        if (column >= TILE_N || n0 + column >= N) continue;
        T* const row = y + (i64)(n0 + column) * M + m0;
        const unsigned* const words = tile + column * PITCH + column / VECTOR * SKEW;
        if (!ODD_Y) {
            const int at = slot * VECTOR;
            if (m0 + at < M) store(row + at, load<VECTOR>(reinterpret_cast<const T*>(words) + at));
            continue;
        }
        const int skipped = (SECTOR - behind<32>(row) / SIZE) % SECTOR, at = skipped + slot * VECTOR;
        const T* const held = reinterpret_cast<const T*>(words);
        if (m0 + at + VECTOR <= M) {
            unsigned w[5];
#pragma unroll
            for (int i = 0; i < (SIZE == 4 ? 4 : 5); ++i) w[i] = words[at / PACK + i];
            Words all;
#pragma unroll
            for (int i = 0; i < 4; ++i)
                all.v[i] = SIZE == 4 ? w[i] : __funnelshift_r(w[i], w[i + 1], at % PACK * BITS);
            store(row + at, bits<Vec<T, VECTOR>>(all));
        } else {
            for (int j = 0; m0 + at + j < M; ++j) row[at + j] = held[at + j];
        }
        if (m0 == 0)  // the beginning of the row, which no tile before this one writes
            for (int j = slot; j < min(skipped, M); j += SLOTS_M) row[j] = held[j];
    }
}
