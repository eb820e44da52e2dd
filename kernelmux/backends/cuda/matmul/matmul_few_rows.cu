// matmul of few rows on Hopper: the time is that of reading b, for which every multiprocessor has to ask.
//
// The SHARES blocks of a cluster have one tile of c and a share of K each. Their sums meet in shared memory, which blocks
// of a cluster read from one another, and are added in order: a split of K without a second pass over memory.
#define STRIPS_IN_RING 1
#include "matmul_wgmma.cuh"

#ifndef SHARES
#define SHARES 4
#endif
#ifndef BLOCKS_PER_SM
#define BLOCKS_PER_SM 1
#endif

constexpr int PITCH = BLOCK_N + 8;  // of a row of sums, so that the rows of a store are in different banks
static_assert(BLOCK_M * PITCH * 4 <= STAGES * STAGE_BYTES, "the sums lie where the stages were");

__device__ __forceinline__ void share_sync() {
    if constexpr (SHARES > 1) {
        asm volatile("barrier.cluster.arrive.release;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
    } else {
        __syncthreads();
    }
}

// Four sums of the block of this rank, at the same place of its shared memory.
__device__ __forceinline__ void load_sums(float (&x)[4], const float* from, int rank) {
    asm volatile(
        "{ .reg .b32 there; mapa.shared::cluster.u32 there, %4, %5; ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there]; }"
        : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
        : "r"(shared_address(from)), "r"(rank)
        : "memory");
}

__device__ __forceinline__ void fetch(const Ring& ring, const Work& work, const TensorMap& a_map, const TensorMap& b_map) {
    Place place;
    for (int k = work.k_begin; k < work.k_end; k += BLOCK_K) {
        Barrier& full = ring.full[place.stage];
        barrier_wait(ring.empty[place.stage], place.phase ^ 1);
        barrier_expect(full, LOADED_BYTES);
#pragma unroll
        for (int i = 0; i < (B_K_MAJOR ? 1 : cdiv(BLOCK_N, 64)); i++)
            tma_load_once(ring.b(place.stage) + i * BOX_BYTES, b_map, full, B_K_MAJOR ? k : work.n + 64 * i,
                          B_K_MAJOR ? work.n : k);
        tma_load(ring.a(place.stage), a_map, full, A_K_MAJOR ? k : work.m, A_K_MAJOR ? work.m : k);
        place.advance();
    }
}

// Block SHARES * tile + rank computes share `rank` of a tile. k_split is a multiple of BLOCK_K, and no share is empty.
extern "C" __global__ void __cluster_dims__(SHARES, 1, 1) __launch_bounds__(THREADS, BLOCKS_PER_SM)
    matmul_few_rows(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                    Element* __restrict__ c EPILOGUE_PARAMETERS(Element), int M, int N, int K, int k_split, int works) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Ring ring(shared);
    const int rank = blockIdx.x % SHARES;
    const Work work(rank * (works / SHARES) + blockIdx.x / SHARES, {M, N, K, k_split, 1});
    float* sums = reinterpret_cast<float*>(shared);
    if (threadIdx.x < 128) {
        if (threadIdx.x == 0) fetch(ring, work, a_map, b_map);
    } else {
        Sums sum = {};
        Place place;
        multiply(sum, ring, place, work);
        asm volatile("bar.sync 1, 128;" ::: "memory");  // all consumers have left the stages
        const int lane = threadIdx.x % 32, row = (threadIdx.x / 32 - 4) * 16 + lane / 4;
#pragma unroll
        for (int j = 0; j < BLOCK_N / 8; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float pair[2] = {sum[0][j][2 * half], sum[0][j][2 * half + 1]};
                store(sums + (row + 8 * half) * PITCH + 8 * j + lane % 4 * 2, from_floats<float>(pair));
            }
    }
    share_sync();
    constexpr int UNITS = BLOCK_N / 4;  // of a row
    const int rows = min(BLOCK_M, M - work.m);
    for (int i = rank * THREADS + threadIdx.x; i < rows * UNITS; i += SHARES * THREADS) {
        const int row = i / UNITS, column = i % UNITS * 4;
        float total[4] = {}, part[SHARES][4];
#pragma unroll
        for (int s = 0; s < SHARES; s++) load_sums(part[s], sums + row * PITCH + column, s);
#pragma unroll
        for (int s = 0; s < SHARES; s++)
#pragma unroll
            for (int j = 0; j < 4; j++) total[j] = s ? add_gradual(total[j], part[s][j]) : part[s][j];
#pragma unroll
        for (int j = 0; j < 4; j += C_VECTOR) {
            const int n = work.n + column + j;
            float piece[C_VECTOR];
#pragma unroll
            for (int v = 0; v < C_VECTOR; v++) piece[v] = total[j + v];
            if (n < N) EPILOGUE(Element).store(c, (i64)(work.m + row) * N + n, n, piece);
        }
    }
    share_sync();  // nobody leaves while another reads its sums
}
