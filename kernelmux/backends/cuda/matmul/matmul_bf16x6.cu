// matmul of fp32 on Hopper's tensor cores of bf16: each operand comes as three planes (planes.cu), of which six products are
// made (planes_products.cuh).
#include "dependent_launch.cuh"
#include "planes_products.cuh"

#if BATCHED  // apart: bits that say along which axes of the batch there are several matrices of a (1, 2) and of b (4, 8)
#define MAPS_PARAMETERS , int products, int inner, int apart
#define MAPS products, inner, apart
#else
#define MAPS_PARAMETERS
#define MAPS 1, 1, 0
#endif

// The planes of an operand, one behind the other along its contiguous index; which matrix of a batch.
template <bool KMajor, int Extent>
struct Planes {
    const TensorMap& map;
    int plane, outer, inner;

    __device__ __forceinline__ Planes(const TensorMap& map, int plane, int product, int per_outer, int apart)
        : map(map), plane(plane), outer(apart & 1 ? product / per_outer : 0), inner(apart & 2 ? product % per_outer : 0) {}

    // The tile of plane p that begins at (mn, k): K-major one box of all its lines, otherwise 64 columns to a box.
    __device__ __forceinline__ void load(unsigned char* to, Barrier& full, int p, int mn, int k) const {
#pragma unroll
        for (int i = 0; i < (KMajor ? 1 : Extent / 64); i++) {
            const int x = p * plane + (KMajor ? k : mn + 64 * i), y = KMajor ? mn : k;
            if constexpr (BATCHED) tma_load(to + i * BOX_BYTES, map, full, x, y, inner, outer);
            else tma_load(to + i * BOX_BYTES, map, full, x, y);
        }
    }
};

__device__ __forceinline__ void produce(const Ring& ring, Place& place, const Work& work,
                                        const Planes<A_K_MAJOR, BLOCK_M>& a, const Planes<B_K_MAJOR, BLOCK_N>& b) {
    for (int k = work.k_begin; k < work.k_end; k += BLOCK_K)
#pragma unroll
        for (int i = 0; i < 3; i++) {
            Barrier& full = ring.full[place.stage];
            barrier_wait(ring.empty[place.stage], place.phase ^ 1);
            barrier_expect(full, STAGE_BYTES);
            a.load(ring.a(place.stage), full, PLANES_IN_RING[i], work.m, k);
            b.load(ring.b(place.stage), full, PLANES_IN_RING[i], work.n, k);
            place.advance();
        }
}

// Block i computes the works i, i + gridDim.x, ...; there are (tiles) x (products) x (splits of K), each split with its own
// [M, N] slices of c. a_plane, b_plane: elements of a plane of a line.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul_bf16x6(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                  Output* __restrict__ c EPILOGUE_PARAMETERS(Output), int M, int N, int K, int k_split, int works,
                  int a_plane, int b_plane MAPS_PARAMETERS) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Ring ring(shared);
    wait_for_previous();
    let_next_start();
    const int batch[] = {MAPS};
    const Sizes sizes = {M, N, K, k_split, batch[0]};
    Place place;
    if (threadIdx.x < 128) {
        fetches();
        if (threadIdx.x == 0)
            for (int i = blockIdx.x; i < works; i += gridDim.x) {
                const Work work(i, sizes);
                const Planes<A_K_MAJOR, BLOCK_M> a(a_map, a_plane, work.product, batch[1], batch[2]);
                const Planes<B_K_MAJOR, BLOCK_N> b(b_map, b_plane, work.product, batch[1], batch[2] >> 2);
                produce(ring, place, work, a, b);
            }
    } else {
        multiplies();
        const int warp = threadIdx.x / 32 - 4;
        Output* strip = reinterpret_cast<Output*>(ring.stages + STAGES * STAGE_BYTES + warp * Strip<STRIP_N>::Bytes);
        for (int i = blockIdx.x; i < works; i += gridDim.x) {
            const Work work(i, sizes);
            Sums total = {};
            multiply_all_planes(total, ring, place, work);
#pragma unroll
            for (int h = 0; h < HEIGHT; h++)
#pragma unroll
                for (int n = 0; n < BLOCK_N; n += STRIP_N)
                    Strip<STRIP_N>::store_out(strip, total[h] + n / 8, c + (i64)work.slice * M * N, EPILOGUE(Output),
                                              work.m + (warp / 4 * HEIGHT + h) * 64 + warp % 4 * 16, work.n + n, M, N);
        }
    }
}
