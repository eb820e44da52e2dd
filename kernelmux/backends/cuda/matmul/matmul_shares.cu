// matmul on Hopper where tiles are fewer than multiprocessors: of few rows, whose time is that of reading b, and of what whole
// rounds of tiles leave over.
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
#ifndef B_ONCE  // there is one row of tiles, so that b is read once
#define B_ONCE 0
#endif
#ifndef IS_REST  // the launch before this one computes the tiles before these; this one may begin when its blocks end
#define IS_REST 0
#endif

constexpr int PITCH = BLOCK_N + 8;  // of a row of sums, so that the rows of a store are in different banks
constexpr int CONSUMER_THREADS = 128 * CONSUMERS;
static_assert(BLOCK_M * PITCH * 4 <= STAGES * STAGE_BYTES, "the sums lie where the stages were");

__device__ __forceinline__ void share_sync() {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
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
        for (int i = 0; i < (B_K_MAJOR ? 1 : cdiv(BLOCK_N, 64)); i++) {
            unsigned char* to = ring.b(place.stage) + i * BOX_BYTES;
            const int x = B_K_MAJOR ? k : work.n + 64 * i, y = B_K_MAJOR ? work.n : k;
            if constexpr (B_ONCE) tma_load_once(to, b_map, full, x, y);
            else tma_load(to, b_map, full, x, y);
        }
#pragma unroll
        for (int i = 0; i < (A_K_MAJOR ? 1 : BLOCK_M / 64); i++) {
            const int at = work.m + 64 * i;
            tma_load(ring.a(place.stage) + i * BOX_BYTES, a_map, full, A_K_MAJOR ? k : at, A_K_MAJOR ? at : k);
        }
        place.advance();
    }
}

// Leaves the sums of a consumer where the stages were.
__device__ __forceinline__ void leave(float* sums, const Sums& sum) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4;
#pragma unroll
    for (int i = 0; i < HEIGHT; i++) {
        float* mine = sums + ((warp / 4 * HEIGHT + i) * 64 + warp % 4 * 16 + lane / 4) * PITCH + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < BLOCK_N / 8; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float pair[2] = {sum[i][j][2 * half], sum[i][j][2 * half + 1]};
                store(mine + 8 * half * PITCH + 8 * j, from_floats<float>(pair));
            }
    }
}

// Adds what the blocks left of a part of the tile's rows, and ends it.
__device__ __forceinline__ void add(const float* sums, Element* c, const Epilogue<Element>& epilogue, const Work& work, int rank,
                                    int M, int N) {
    constexpr int UNITS = BLOCK_N / 4;  // of a row
    const int rows = min(BLOCK_M, M - work.m);
    for (int i = rank * CONSUMER_THREADS + threadIdx.x - 128; i < rows * UNITS; i += SHARES * CONSUMER_THREADS) {
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
            if (n < N) epilogue.store(c, (i64)(work.m + row) * N + n, n, piece);
        }
    }
}

// Block SHARES * tile + rank computes share `rank` of tile first + tile, of `works` tiles in all. k_split is a multiple of BLOCK_K,
// and no share is empty.
extern "C" __global__ void __cluster_dims__(SHARES, 1, 1) __launch_bounds__(THREADS, BLOCKS_PER_SM)
    matmul_shares(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
                  Element* __restrict__ c EPILOGUE_PARAMETERS(Element), int M, int N, int K, int k_split, int works, int first) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Ring ring(shared);
    const int rank = blockIdx.x % SHARES;
    const Work work(rank * works + first + blockIdx.x / SHARES, {M, N, K, k_split, 1});
    float* sums = reinterpret_cast<float*>(shared);
    if (threadIdx.x < 128) {
        if constexpr (CONSUMERS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) fetch(ring, work, a_map, b_map);
        share_sync();
    } else {
        if constexpr (CONSUMERS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        Sums sum = {};
        Place place;
        multiply(sum, ring, place, work);
        asm volatile("bar.sync 1, %0;" ::"n"(CONSUMER_THREADS) : "memory");  // all consumers have left the stages
        leave(sums, sum);
        share_sync();
        add(sums, c, EPILOGUE(Element), work, rank, M, N);
    }
    share_sync();  // nobody leaves while another reads its sums
    if constexpr (IS_REST) asm volatile("griddepcontrol.wait;" ::: "memory");
}
