// matmul on Hopper where tiles are fewer than multiprocessors: of few rows, whose time is that of reading b, and of what whole
// rounds of tiles leave over.
//
// The SHARES blocks of a cluster have one tile of c and a share of K each. Their sums meet in shared memory, which blocks
// of a cluster read from one another, and are added in order: a split of K without a second pass over memory.
//
// With TURNED the product is c^T = b^T a^T: the columns of b, which are many, are the rows of the products, and no more of a's
// few rows than there are is multiplied. M and N are those of c^T then, and so are all names but those of the maps and c.
//
// With TURNS above 1 the columns of b are K-major lines that begin anywhere. Those that are TURNS apart lie a multiple of 16
// bytes apart, so that a map can have them as its rows. A tile has columns of one turn. Behind the end of a line is the next
// one, so what the last step read beyond K is set to zero.
#define STRIPS_IN_RING 1
#include "warpgroup.cuh"

#define NAMES_8 "%0, %1, %2, %3"
#define NAMES_16 NAMES_8 ", %4, %5, %6, %7"
#define NAMES_32 TEN() "%10, %11, %12, %13, %14, %15"
#define SUMS_8 FOUR_SUMS(0)
#define SUMS_16 FOUR_SUMS(0), FOUR_SUMS(1)
#define SUMS_32 SIXTEEN_SUMS(0)
#define FEW_PRODUCTS(TYPE, ELEMENT_TYPE)                              \
    SHARED_PRODUCT(8, 16, TYPE, ELEMENT_TYPE, 4, 5, 6, ", %7, %8")    \
    SHARED_PRODUCT(16, 16, TYPE, ELEMENT_TYPE, 8, 9, 10, ", %11, %12") \
    SHARED_PRODUCT(32, 16, TYPE, ELEMENT_TYPE, 16, 17, 18, ", %19, %20")
FEW_PRODUCTS("f16", __half)
FEW_PRODUCTS("bf16", __nv_bfloat16)

#include "matmul_wgmma.cuh"

#ifndef SHARES
#define SHARES 4
#endif
#ifndef BLOCKS_PER_SM
#define BLOCKS_PER_SM 1
#endif
#ifndef TURNED
#define TURNED 0
#endif
#ifndef TURNS
#define TURNS 1
#endif
#if TURNS > 1
#define FEWER_MAP const __grid_constant__ TensorMap fewer_map,
#define LINE_PARAMETER , int line
#else
#define FEWER_MAP
#define LINE_PARAMETER
#define fewer_map b_map
#define line 0
#endif
#ifndef IS_REST  // the launch before this one computes the tiles before these; this one may begin when its blocks end
#define IS_REST 0
#endif

constexpr int ROWS = TURNED ? BLOCK_N : BLOCK_M, COLUMNS = TURNED ? BLOCK_M : BLOCK_N;  // of c
constexpr int PITCH = COLUMNS + (TURNED ? 4 : 8);  // of a row of sums, so that the values of a store are in different banks
constexpr int CONSUMER_THREADS = 128 * CONSUMERS;
static_assert(ROWS * PITCH * 4 <= STAGES * STAGE_BYTES, "the sums lie where the stages were");

__device__ __forceinline__ void consumers_sync() {
    asm volatile("bar.sync 1, %0;" ::"n"(CONSUMER_THREADS) : "memory");
}

// Waits for all blocks that share a tile, and for their sums.
__device__ __forceinline__ void share_sync() {
    if constexpr (SHARES > 1) {
        asm volatile("barrier.cluster.arrive.release;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
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

// first: where the lines of the left factor begin in the rows of its map.
__device__ __forceinline__ void fetch(const Ring& ring, const Work& work, const TensorMap& left, const TensorMap& right,
                                      int first) {
    Place place;
    for (int k = work.k_begin; k < work.k_end; k += BLOCK_K) {
        Barrier& full = ring.full[place.stage];
        barrier_wait(ring.empty[place.stage], place.phase ^ 1);
        barrier_expect(full, LOADED_BYTES);
#pragma unroll
        for (int i = 0; i < (A_K_MAJOR ? 1 : BLOCK_M / 64); i++) {
            unsigned char* to = ring.a(place.stage) + i * BOX_BYTES;
            const int at = work.m + 64 * i, x = A_K_MAJOR ? first + k : at, y = A_K_MAJOR ? at : k;
            if constexpr (TURNED) tma_load_once(to, left, full, x, y);
            else tma_load(to, left, full, x, y);
        }
#pragma unroll
        for (int i = 0; i < (B_K_MAJOR ? 1 : cdiv(BLOCK_N, 64)); i++) {
            const int at = work.n + 64 * i;
            tma_load(ring.b(place.stage) + i * BOX_BYTES, right, full, B_K_MAJOR ? k : at, B_K_MAJOR ? at : k);
        }
        place.advance();
    }
}

// The last product, of a step that is partly beyond K.
__device__ __forceinline__ void multiply_last(Sums& sum, const Ring& ring, const Place& place, int inside) {
    unsigned char* a = ring.a(place.stage);
    barrier_wait(ring.full[place.stage], place.phase);
    for (int i = threadIdx.x - 128; i < BLOCK_M * (BLOCK_K - inside); i += CONSUMER_THREADS) {
        const int row = i / (BLOCK_K - inside), k = inside + i % (BLOCK_K - inside);
        reinterpret_cast<Element*>(a + row * 128 + (k / 8 ^ row % 8) * 16)[k % 8] = Element(0.0f);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    consumers_sync();
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 128 / 32; step++)
#pragma unroll
        for (int i = 0; i < HEIGHT; i++)
            wgmma<A_K_MAJOR, B_K_MAJOR>(sum[i], describe<A_K_MAJOR>(a + i * BOX_BYTES, step),
                                        describe<B_K_MAJOR>(ring.b(place.stage), step), true, Element());
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < HEIGHT; i++) pin(sum[i]);
}

// Leaves the sums of a consumer where the stages were, by the rows and columns of c.
__device__ __forceinline__ void leave(float* sums, const Sums& sum) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4;
#pragma unroll
    for (int i = 0; i < HEIGHT; i++) {
        const int m = (warp / 4 * HEIGHT + i) * 64 + warp % 4 * 16 + lane / 4, n = lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < BLOCK_N / 8; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float pair[2] = {sum[i][j][2 * half], sum[i][j][2 * half + 1]};
                if constexpr (TURNED) {
                    float* mine = sums + (n + 8 * j) * PITCH + m + 8 * half;
                    mine[0] = pair[0], mine[PITCH] = pair[1];
                } else {
                    store(sums + (m + 8 * half) * PITCH + n + 8 * j, from_floats<float>(pair));
                }
            }
    }
}

// Adds what the blocks left of a part of the tile at (row, column) of c [M, N], and ends it; of a turn, its columns.
__device__ __forceinline__ void add(const float* sums, Element* c, const Epilogue<Element>& epilogue, int rank, int row,
                                    int column, int M, int N, int turn = 0) {
    constexpr int UNITS = COLUMNS / 4;  // of a row
    const int rows = min(ROWS, M - row);
    for (int i = rank * CONSUMER_THREADS + threadIdx.x - 128; i < rows * UNITS; i += SHARES * CONSUMER_THREADS) {
        const int y = i / UNITS, x = i % UNITS * 4;
        float total[4] = {}, part[SHARES][4];
#pragma unroll
        for (int s = 0; s < SHARES; s++) load_sums(part[s], sums + y * PITCH + x, s);
#pragma unroll
        for (int s = 0; s < SHARES; s++)
#pragma unroll
            for (int j = 0; j < 4; j++) total[j] = s ? add_gradual(total[j], part[s][j]) : part[s][j];
#pragma unroll
        for (int j = 0; j < 4; j += C_VECTOR) {
            const int n = (column + x + j) * TURNS + turn;
            float piece[C_VECTOR];
#pragma unroll
            for (int v = 0; v < C_VECTOR; v++) piece[v] = total[j + v];
            if (n < N) epilogue.store(c, (i64)(row + y) * N + n, n, piece);
        }
    }
}

// Block SHARES * tile + rank computes share `rank` of tile first + tile, of `works` tiles in all. k_split is a multiple of
// BLOCK_K, and no share is empty. fewer_map: as b_map, for turns that have one line less. line: elements from one to the next.
extern "C" __global__ void __cluster_dims__(SHARES, 1, 1) __launch_bounds__(THREADS, BLOCKS_PER_SM)
    matmul_shares(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, FEWER_MAP
                  Element* __restrict__ c EPILOGUE_PARAMETERS(Element), int M, int N, int K, int k_split, int works,
                  int first LINE_PARAMETER) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Ring ring(shared);
    const int rank = blockIdx.x % SHARES, tile = first + blockIdx.x / SHARES, turn = tile % TURNS;
    Work work(rank * works + tile, {TURNS > 1 ? works * BLOCK_M : M, N, K, k_split, 1});
    if constexpr (TURNS > 1) work.m = tile / TURNS * BLOCK_M;
    float* sums = reinterpret_cast<float*>(shared);
    if (threadIdx.x < 128) {
        fetches();
        const TensorMap& columns = turn <= (M - 1) % TURNS ? b_map : fewer_map;
        if (threadIdx.x == 0) fetch(ring, work, TURNED ? columns : a_map, TURNED ? a_map : b_map, turn * line);
        share_sync();
    } else {
        multiplies();
        Sums sum;  // the first product sets it
        Place place;
        const int rest = TURNS > 1 && work.k_end == K ? K % BLOCK_K : 0;
        work.k_end -= rest;
        multiply(sum, ring, place, work);
        if (rest) multiply_last(sum, ring, place, rest);
        consumers_sync();  // all have left the stages
        leave(sums, sum);
        if constexpr (SHARES > 1) share_sync();
        else consumers_sync();
        if constexpr (TURNED) add(sums, c, EPILOGUE(Element), rank, work.n, work.m, N, M, turn);
        else add(sums, c, EPILOGUE(Element), rank, work.m, work.n, M, N);
    }
    share_sync();  // nobody leaves while another reads its sums
    if constexpr (IS_REST) asm volatile("griddepcontrol.wait;" ::: "memory");
}
