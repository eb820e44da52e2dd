// matmul of fp32 on Hopper's tensor cores of bf16: each operand comes as three planes (planes.cu), of which six products are
// made.
//
// A stage of the ring has one plane of both tiles for BLOCK_K k's, so that three of them serve all six products. The third
// planes come first and are given back first. The sums of BLOCK_K k's are by themselves, small terms first, and are added
// to those before by the FP32 pipes: a tensor core cuts what it adds to, which a long chain would show.
#include "dependent_launch.cuh"
#include "matmul_wgmma.cuh"

constexpr float UNSCALE = 1.0f / (1ll << 48);  // of both operands

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

constexpr int ORDER[] = {2, 0, 1};  // of the planes in the ring

__device__ __forceinline__ void produce(const Ring& ring, Place& place, const Work& work,
                                        const Planes<A_K_MAJOR, BLOCK_M>& a, const Planes<B_K_MAJOR, BLOCK_N>& b) {
    for (int k = work.k_begin; k < work.k_end; k += BLOCK_K)
#pragma unroll
        for (int i = 0; i < 3; i++) {
            Barrier& full = ring.full[place.stage];
            barrier_wait(ring.empty[place.stage], place.phase ^ 1);
            barrier_expect(full, STAGE_BYTES);
            a.load(ring.a(place.stage), full, ORDER[i], work.m, k);
            b.load(ring.b(place.stage), full, ORDER[i], work.n, k);
            place.advance();
        }
}

// The products of a plane of a's tile, in stage `left`, and one of b's, in stage `right`.
__device__ __forceinline__ void multiply_planes(Sums& sum, const Ring& ring, int left, int right, bool add) {
    const unsigned char* a = ring.a(left) + (threadIdx.x / 128 - 1) * HEIGHT * BOX_BYTES;
#pragma unroll
    for (int step = 0; step < 128 / 32; step++)
#pragma unroll
        for (int i = 0; i < HEIGHT; i++)
            wgmma<A_K_MAJOR, B_K_MAJOR>(sum[i], describe<A_K_MAJOR>(a + i * BOX_BYTES, step),
                                        describe<B_K_MAJOR>(ring.b(right), step), add || step > 0, Element());
}

__device__ __forceinline__ void multiply_all(Sums& total, const Ring& ring, Place& place, const Work& work) {
    for (int k = work.k_begin; k < work.k_end; k += BLOCK_K) {
        Sums sum;
        Place first = place;
        first.advance();
        Place second = first;
        second.advance();
        barrier_wait(ring.full[place.stage], place.phase);
        barrier_wait(ring.full[first.stage], first.phase);
#pragma unroll
        for (int i = 0; i < HEIGHT; i++) pin(sum[i]);
        wgmma_fence();
        multiply_planes(sum, ring, place.stage, first.stage, false);
        multiply_planes(sum, ring, first.stage, place.stage, true);
        wgmma_commit();
        barrier_wait(ring.full[second.stage], second.phase);
        multiply_planes(sum, ring, second.stage, second.stage, true);
        multiply_planes(sum, ring, second.stage, first.stage, true);
        multiply_planes(sum, ring, first.stage, second.stage, true);
        wgmma_commit();
        wgmma_wait<1>();
        ring.release(place.stage);
        multiply_planes(sum, ring, first.stage, first.stage, true);
        wgmma_commit();
        wgmma_wait<1>();
        ring.release(second.stage);
        wgmma_wait<0>();
        ring.release(first.stage);
        place = second;
        place.advance();
#pragma unroll
        for (int i = 0; i < HEIGHT; i++) {
            pin(sum[i]);
#pragma unroll
            for (int j = 0; j < BLOCK_N / 8; j++)
#pragma unroll
                for (int v = 0; v < 4; v++) total[i][j][v] = fma_gradual(sum[i][j][v], UNSCALE, total[i][j][v]);
        }
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
            multiply_all(total, ring, place, work);
#pragma unroll
            for (int h = 0; h < HEIGHT; h++)
#pragma unroll
                for (int n = 0; n < BLOCK_N; n += STRIP_N)
                    Strip<STRIP_N>::store_out(strip, total[h] + n / 8, c + (i64)work.slice * M * N, EPILOGUE(Output),
                                              work.m + (warp / 4 * HEIGHT + h) * 64 + warp % 4 * 16, work.n + n, M, N);
        }
    }
}
