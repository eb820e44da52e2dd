// Products of 8-bit operands with few rows of a on Hopper's asynchronous tensor cores: c[M, N] = a[M, K] b[K, N], K
// contiguous in both. What takes time is reading b, the weights, so they are the 64 lines of a warpgroup's product and the
// rows of a its columns: no more of these than there are is multiplied, and the sums of a tile are few.
//
// A block has 64 columns of c. One more warp keeps a ring of STAGES stages of 128 bytes of K filled through TMA. Where
// tiles are few, the SPLITS blocks of a cluster share the K of each. They leave their sums in shared memory, and each takes
// its share of the tile from all of them, in the order of their ranks, so that results repeat bit for bit.
//
//   -DROWS=8, 16, 32, 64 or 128   at least M   -DSTAGES=n   -DSPLITS=n
//
// Who includes this has defined NUMBER, the type of sums, IN_REGISTERS, their constraint, TYPES and FLAGS of the product.
#pragma once
#include "matmul.cuh"
#include "warpgroup.cuh"

constexpr int BLOCK_K = 128;  // bytes: the widest swizzle
constexpr int COLUMNS = 64, CONSUMERS = 128, THREADS = CONSUMERS + 32;
constexpr int BLOCKS_AT_ONCE = ROWS <= 64 ? 3 : 2;  // on a multiprocessor, by their registers
constexpr int WEIGHT_BYTES = COLUMNS * BLOCK_K, STAGE_BYTES = WEIGHT_BYTES + ROWS * BLOCK_K;
constexpr int PITCH = COLUMNS + 4;  // of the sums of a row in shared memory: the lanes of a warp meet different banks
constexpr int SUM_BYTES = ROWS * PITCH * 4;
constexpr int RING_BYTES = STAGES * STAGE_BYTES > SUM_BYTES ? STAGES * STAGE_BYTES : SUM_BYTES;  // sums take its place

using Number = NUMBER;
using Sums = Number[ROWS / 8][4];

using Four = Vec<Number, 4>;

#define NAMES_8 "%0, %1, %2, %3"
#define NAMES_16 NAMES_8 ", %4, %5, %6, %7"
#define NAMES_32 TEN() "%10, %11, %12, %13, %14, %15"
#define FOUR(j) IN_REGISTERS(d[j][0]), IN_REGISTERS(d[j][1]), IN_REGISTERS(d[j][2]), IN_REGISTERS(d[j][3])
#define SIXTEEN(j) FOUR(j), FOUR(j + 1), FOUR(j + 2), FOUR(j + 3)
#define FEW_8 FOUR(0)
#define FEW_16 FOUR(0), FOUR(1)
#define FEW_32 SIXTEEN(0)
#define FEW_64 SIXTEEN(0), SIXTEEN(4)
#define FEW_128 FEW_64, SIXTEEN(8), SIXTEEN(12)
// d (+)= weights rows, both K-major in shared memory, 32 of K; not `add` starts a new sum.
#define FEW_PRODUCT(N, A, B, ADD)                                                                                      \
    __device__ __forceinline__ void multiply(Number(&d)[N / 8][4], Descriptor weights, Descriptor rows, bool add) {    \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k32" TYPES   \
                     " {" NAMES_##N "}, %" #A ", %" #B ", p" FLAGS "; }"                                               \
                     : FEW_##N                                                                                         \
                     : "l"(weights), "l"(rows), "r"((int)add));                                                        \
    }
FEW_PRODUCT(8, 4, 5, 6)
FEW_PRODUCT(16, 8, 9, 10)
FEW_PRODUCT(32, 16, 17, 18)
FEW_PRODUCT(64, 32, 33, 34)
FEW_PRODUCT(128, 64, 65, 66)

// Waits for the other blocks of a cluster, and for their sums.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// Four neighbouring sums of block `rank` of the cluster, from where this block has its own.
__device__ __forceinline__ Four sums_of(const Number* own, int rank) {
    if constexpr (SPLITS == 1) return load<4>(own);
    unsigned there;
    uint4 x;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(own)), "r"(rank));
    asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(there)
                 : "memory");
    return bits<Four>(x);
}

// As tma_load, of what is read once: it is the first to leave L2, so that other data stay. H200, us without and so: fp8,
// 32 x 8192 by 8192 x 8192 28.6 and 26.0, 64 x 4096 by 4096 x 14336 26.1 and 23.4.
__device__ __forceinline__ void tma_load_streaming(void* to, const TensorMap& map, Barrier& barrier, int x, int y) {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4}], "
        "[%2], %5;" ::"r"(shared_address(to)),
        "l"(&map), "r"(shared_address(&barrier)), "r"(x), "r"(y), "l"(policy)
        : "memory");
}

// A block's work. A stage is full when its bytes have landed, empty when all consumer warps have multiplied it.
struct FewRows {
    unsigned char* shared;  // the ring, later the sums; then the barriers, then the scales of columns, then those of rows
    Barrier *full, *empty;
    float *of_columns, *of_rows;
    RingPlace<STAGES> place;
    int rank, column, begin, end;  // in the cluster; of c; stages of K

    __device__ __forceinline__ FewRows(unsigned char* shared, int K) : shared(shared) {
        full = reinterpret_cast<Barrier*>(shared + RING_BYTES), empty = full + STAGES;
        of_columns = reinterpret_cast<float*>(empty + STAGES), of_rows = of_columns + COLUMNS;
        const int stages = cdiv(K, BLOCK_K);
        rank = blockIdx.x % SPLITS, column = blockIdx.x / SPLITS * COLUMNS;
        begin = stages * rank / SPLITS, end = stages * (rank + 1) / SPLITS;
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; i++) barrier_init(full[i], 1), barrier_init(empty[i], CONSUMERS / 32);
            barrier_init_fence();
        }
        __syncthreads();
    }

    __device__ __forceinline__ bool consumes() const { return threadIdx.x < CONSUMERS; }

    // By the warp that consumes nothing.
    __device__ __forceinline__ void produce(const TensorMap& rows, const TensorMap& weights) {
        if (threadIdx.x == CONSUMERS)
            for (int i = begin; i < end; i++) {
                unsigned char* stage = shared + place.stage * STAGE_BYTES;
                barrier_wait(empty[place.stage], place.phase ^ 1);
                barrier_expect(full[place.stage], STAGE_BYTES);
                tma_load_streaming(stage, weights, full[place.stage], i * BLOCK_K, column);
                tma_load(stage + WEIGHT_BYTES, rows, full[place.stage], i * BLOCK_K, 0);
                place.advance();
            }
        __syncwarp();
    }

    // Starts the products of the next stage, added to d or not.
    __device__ __forceinline__ void multiply_stage(Sums& d, bool add) const {
        const unsigned char* stage = shared + place.stage * STAGE_BYTES;
        const Descriptor weights = matrix_descriptor(stage, 0);
        const Descriptor rows = matrix_descriptor(stage + WEIGHT_BYTES, 0);
        barrier_wait(full[place.stage], place.phase);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < BLOCK_K / 32; step++) multiply(d, weights + 2 * step, rows + 2 * step, add || step > 0);
        wgmma_commit();
    }

    // After wgmma_wait.
    __device__ __forceinline__ void release() {
        barrier_arrive_if(threadIdx.x % 32 == 0, empty[place.stage]);
        place.advance();
    }

    // Runs finish(m, n, four) for each four neighbouring sums that are this thread's; n counts the columns of the tile.
    template <typename Finish>
    __device__ __forceinline__ void for_each_four(const Sums& sum, int M, Finish finish) const {
        Number* sums = reinterpret_cast<Number*>(shared);
        __syncthreads();  // no thread multiplies from there any more
        if (consumes()) {
            const int lane = threadIdx.x % 32;
            Number* mine = sums + lane % 4 * 2 * PITCH + threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
            for (int i = 0; i < ROWS / 2; i++) mine[(i / 4 * 8 + i % 2) * PITCH + i % 4 / 2 * 8] = sum[i / 4][i % 4];
        }
        if constexpr (SPLITS > 1) cluster_sync();
        else __syncthreads();
        for (int i = rank * THREADS + threadIdx.x; i < M * (COLUMNS / 4); i += SPLITS * THREADS) {
            const int m = i / (COLUMNS / 4), n = i % (COLUMNS / 4) * 4;
            Four parts[SPLITS];
#pragma unroll
            for (int block = 0; block < SPLITS; block++) parts[block] = sums_of(sums + m * PITCH + n, block);
            Number whole[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                whole[j] = parts[0].v[j];
#pragma unroll
                for (int block = 1; block < SPLITS; block++) whole[j] += parts[block].v[j];
            }
            finish(m, n, whole);
        }
        if constexpr (SPLITS > 1) cluster_sync();  // a block stays while others read its sums
    }
};

// Four neighbours of row m of c, of which those from N on do not exist.
__device__ __forceinline__ void store_four(Output* c, int m, int n, int N, const Output (&x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i += C_VECTOR) {
        Vec<Output, C_VECTOR> some;
#pragma unroll
        for (int j = 0; j < C_VECTOR; j++) some.v[j] = x[i + j];
        if (n + i < N) store(c + (i64)m * N + n + i, some);
    }
}
