// Products of 8-bit operands on Hopper's asynchronous tensor cores: c[M, N] = a[M, K] b[K, N], K contiguous in both.
//
// One thread of the producer warpgroup keeps a ring of STAGES tiles filled through TMA; two consumer warpgroups multiply
// 64 x BLOCK_N of every stage each, straight from swizzled shared memory. Blocks are persistent: the next tile of c travels
// while the last one is stored. TMA reads zeros outside an operand, so ragged extents need no code here.
//
// Who includes this has defined NUMBER, the type of sums, IN_REGISTERS, their constraint, TYPES and FLAGS of the product.
#pragma once
#include "matmul.cuh"
#include "warpgroup.cuh"

#ifndef BLOCK_N
#define BLOCK_N 128
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef HALVES  // the last tiles, which would fill half a round of blocks at most, are two works of half the columns each
#define HALVES 0
#endif
#ifndef DOWN  // blocks of a cluster that lie below one another: each fetches its share of their columns of b for all
#define DOWN 1
#endif
#ifndef MAPPED  // the copy engine writes the results, whose rows begin at multiples of 16 bytes
#define MAPPED 0
#endif

constexpr int CONSUMERS = 2, BLOCK_M = 64 * CONSUMERS, BLOCK_K = 128;  // the widest swizzle
constexpr int THREADS = 128 * (1 + CONSUMERS);
constexpr int A_BYTES = BLOCK_M * BLOCK_K, STAGE_BYTES = A_BYTES + BLOCK_N * BLOCK_K;
constexpr int HALF_N = HALVES ? BLOCK_N / 2 : BLOCK_N;  // columns of the narrowest work
constexpr int BOX_N = HALF_N / DOWN;                    // that one copy brings

#if DOWN > 1
#define CLUSTER __cluster_dims__(DOWN, 1, 1)
#else
#define CLUSTER
#endif

// Waits for the other blocks of a cluster: none may write into, or have left, shared memory that another uses.
__device__ __forceinline__ void cluster_sync() {
    if constexpr (DOWN > 1) {
        asm volatile("barrier.cluster.arrive.release;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
    }
}

// A box into the shared memory of all blocks of the cluster, at the same place; the barrier of each counts the bytes.
__device__ __forceinline__ void tma_load_for_all(void* to, const TensorMap& map, Barrier& barrier, int x, int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(to)),
        "l"(&map), "r"(shared_address(&barrier)), "r"(x), "r"(y), "h"((short)((1 << DOWN) - 1))
        : "memory");
}

// A stage is full when its bytes have landed, empty when all consumer warps of the cluster have multiplied it.
struct Ring {
    unsigned char* stages;
    Barrier *full, *empty;
    RingPlace<STAGES> place;

    __device__ __forceinline__ Ring(unsigned char* stages, Barrier* barriers)
        : stages(stages), full(barriers), empty(barriers + STAGES) {
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; i++) barrier_init(full[i], 1), barrier_init(empty[i], 4 * CONSUMERS * DOWN);
            barrier_init_fence();
        }
        __syncthreads();
        cluster_sync();
    }

    __device__ __forceinline__ void produce(const TensorMap& a, const TensorMap& b, int m, int n, int columns, int K) {
        for (int k = 0; k < K; k += BLOCK_K) {
            unsigned char* stage = stages + place.stage * STAGE_BYTES;
            Barrier& landed = full[place.stage];
            barrier_wait(empty[place.stage], place.phase ^ 1);
            barrier_expect(landed, A_BYTES + columns * BLOCK_K);
            tma_load(stage, a, landed, k, m);
            const int first = DOWN > 1 ? blockIdx.x % DOWN * (columns / DOWN) : 0;
            load_columns(stage, b, landed, k, n, first);
            if (HALVES && columns > HALF_N) load_columns(stage, b, landed, k, n, first + BOX_N);
            place.advance();
        }
    }

    __device__ __forceinline__ void await() const { barrier_wait(full[place.stage], place.phase); }

    // A box of the columns of b from n on, that of the column `first` among them.
    __device__ __forceinline__ void load_columns(
        unsigned char* stage, const TensorMap& b, Barrier& landed, int k, int n, int first) {
        unsigned char* to = stage + A_BYTES + first * BLOCK_K;
        if constexpr (DOWN > 1) tma_load_for_all(to, b, landed, k, n + first);
        else tma_load(to, b, landed, k, n + first);
    }

    // Called by whole warps.
    __device__ __forceinline__ void release(int stage) const {
        const int lane = threadIdx.x % 32;
        if constexpr (DOWN > 1) barrier_arrive_at(lane < DOWN, empty[stage], lane % DOWN);
        else barrier_arrive_if(lane == 0, empty[stage]);
    }
};

// What a block does at one time: so many columns from (m, n) on.
struct Work {
    int m, n, columns;

    // The first `whole` tiles of a cluster are a work each.
    __device__ __forceinline__ Work(int index, int whole, int tiles_m, int tiles_n) {
        const int rest = HALVES ? max(0, index - whole) : 0;
        const Tile tile = grouped_tile(index - (rest + 1) / 2, tiles_m, tiles_n);
        const bool halved = HALVES && index >= whole;
        m = (tile.m * DOWN + blockIdx.x % DOWN) * BLOCK_M;
        n = tile.n * BLOCK_N + (halved && rest % 2 ? HALF_N : 0);
        columns = halved ? HALF_N : BLOCK_N;
    }
};

template <int N>
struct Columns {
    static constexpr int count = N;
};

// Once the copy engine has read what this thread gave it.
__device__ __forceinline__ void stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// Runs `produce` in the first thread and consume(row, column, Columns) in the consumers, for each work of this block.
template <typename Consume>
__device__ __forceinline__ void for_each_work(
    Ring& ring, const TensorMap& a, const TensorMap& b, int M, int N, int K, int whole, Consume consume) {
    const int tiles_m = cdiv(M, BLOCK_M * DOWN), tiles_n = cdiv(N, BLOCK_N), tiles = tiles_m * tiles_n;
    const int works = HALVES ? 2 * tiles - whole : tiles;
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0)
            for (int i = blockIdx.x / DOWN; i < works; i += gridDim.x / DOWN) {
                const Work work(i, whole, tiles_m, tiles_n);
                ring.produce(a, b, work.m, work.n, work.columns, K);
            }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        for (int i = blockIdx.x / DOWN; i < works; i += gridDim.x / DOWN) {
            const Work work(i, whole, tiles_m, tiles_n);
            const int row = work.m + (threadIdx.x / 32 - 4) * 16;
            if (work.columns == BLOCK_N) consume(row, work.n, Columns<BLOCK_N>());
            else consume(row, work.n, Columns<HALF_N>());
        }
        if (MAPPED && threadIdx.x % 32 == 0) stores_read();
    }
    __syncwarp();
    cluster_sync();
}

template <int Count>
__device__ __forceinline__ void pin(int (&d)[Count][4]) {
#pragma unroll
    for (int i = 0; i < 4 * Count; i++) asm volatile("" : "+r"(d[i / 4][i % 4])::"memory");
}

#define FOUR(j) IN_REGISTERS(d[j][0]), IN_REGISTERS(d[j][1]), IN_REGISTERS(d[j][2]), IN_REGISTERS(d[j][3])
#define SIXTEEN(j) FOUR(j), FOUR(j + 1), FOUR(j + 2), FOUR(j + 3)
#define NUMBERS_64 SIXTEEN(0), SIXTEEN(4)
#define NUMBERS_128 NUMBERS_64, SIXTEEN(8), SIXTEEN(12)
#define NUMBERS_192 NUMBERS_128, SIXTEEN(16), SIXTEEN(20)
#define NUMBERS_256 NUMBERS_192, SIXTEEN(24), SIXTEEN(28)
// d (+)= a b, both K-major in shared memory, 32 of K; not `add` starts a new sum.
#define BYTE_PRODUCT(N, A, B, ADD)                                                                                     \
    __device__ __forceinline__ void multiply(NUMBER(&d)[N / 8][4], Descriptor a, Descriptor b, bool add) {             \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k32" TYPES   \
                     " {" NAMES_##N "}, %" #A ", %" #B ", p" FLAGS "; }"                                               \
                     : NUMBERS_##N                                                                                     \
                     : "l"(a), "l"(b), "r"((int)add));                                                                 \
    }
BYTE_PRODUCT(64, 32, 33, 34)
BYTE_PRODUCT(128, 64, 65, 66)
BYTE_PRODUCT(192, 96, 97, 98)
BYTE_PRODUCT(256, 128, 129, 130)

template <int N>
using Sums = NUMBER[N / 8][4];

// The sums of the first columns of a tile.
template <int N>
__device__ __forceinline__ Sums<N>& first(Sums<BLOCK_N>& sum) {
    return reinterpret_cast<Sums<N>&>(sum);
}

// Descriptors of the first 32 bytes of K of the first stage, of this warpgroup's rows and of all columns. They count units
// of 16 bytes, so that of another stage or step is one sum away: the fewer instructions between the end of a stage's product
// and the start of the next, the less has the other warpgroup to fill.
struct Operands {
    Descriptor a, b;

    // The number of the warpgroup is taken from one lane, so that the compiler knows it to be that of all.
    __device__ __forceinline__ explicit Operands(const Ring& ring) {
        const int group = __shfl_sync(0xffffffff, threadIdx.x / 128 - 1, 0);
        a = matrix_descriptor(ring.stages + group * 64 * BLOCK_K, 0);
        b = matrix_descriptor(ring.stages + A_BYTES, 0);
    }

    // Starts the products of a stage; not `add`: a new sum.
    template <typename Sum>
    __device__ __forceinline__ void multiply_stage(Sum& d, int stage, bool add) const {
        const Descriptor at = stage * (STAGE_BYTES / 16);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < BLOCK_K / 32; step++) multiply(d, a + at + 2 * step, b + at + 2 * step, add || step > 0);
        wgmma_commit();
    }
};

// All of K in the accumulator of the tensor cores. The products of one stage stay under way while the next one is awaited;
// a stage is given back one step late.
template <typename Sum>
__device__ __forceinline__ void accumulate(Sum& sum, Ring& ring, int K) {
    const Operands operands(ring);
    int previous = -1;
    for (int k = 0; k < K; k += BLOCK_K) {
        ring.await();
        operands.multiply_stage(sum, ring.place.stage, k > 0);
        wgmma_wait<1>();
        if (previous >= 0) ring.release(previous);
        previous = ring.place.stage;
        ring.place.advance();
    }
    wgmma_wait<0>();
    pin(sum);
    ring.release(previous);
}

// Scales of the columns of a tile, that each warp copies while it multiplies: a load of each when the sums are there would
// keep the tensor cores waiting (H200, fp8 8192^3: 54 us of 807).
template <int Count>
__device__ __forceinline__ void fetch_scales(float* columns, const float* scales, int column, int N) {
    const unsigned to = shared_address(columns);
    __syncwarp();  // all lanes have read those of the last tile
#pragma unroll
    for (int i = threadIdx.x % 32; i < Count; i += 32)
        copy_async<4>(to + 4 * i, scales + min(column + i, N - 1), column + i < N);
    copy_async_commit();
}

// The way out: a warp's results of 16 x STRIP_N, 128 bytes a row, cross a strip of shared memory of its own. Lanes hold two
// neighbours, DRAM wants whole lines. The copy engine takes strips whose chunks of 16 bytes are permuted as its swizzle
// does; else 8 elements of skew keep the rows of a store in different banks.
constexpr int STRIP_N = 128 / sizeof(Output), STRIP_PITCH = STRIP_N + (MAPPED ? 0 : 8);
constexpr int STRIP_BYTES = 4 * CONSUMERS * 16 * STRIP_PITCH * (int)sizeof(Output);  // of all consumer warps

#if MAPPED
#define RESULTS const __grid_constant__ TensorMap
using Results = const TensorMap&;
#else
#define RESULTS Output* __restrict__
using Results = Output*;
#endif

// Byte `at` of a row of a strip.
__device__ __forceinline__ unsigned strip_place(int row, int at) {
    return MAPPED ? row * 128 + (at ^ (row & 7) << 4) : row * STRIP_PITCH * (int)sizeof(Output) + at;
}

__device__ __forceinline__ void write_strip(Output* strip, const TensorMap& c, int row, int column, int, int) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&c),
                     "r"(shared_address(strip)), "r"(column), "r"(row)
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
}
__device__ __forceinline__ void write_strip(Output* strip, Output* c, int row, int column, int M, int N) {
    __syncwarp();
#pragma unroll
    for (int first = 0; first < 16 * STRIP_N; first += 32 * C_VECTOR) {
        const int i = first + threadIdx.x % 32 * C_VECTOR, m = i / STRIP_N, n = i % STRIP_N;
        if (row + m < M && column + n < N)
            store(c + (i64)(row + m) * N + column + n, load<C_VECTOR>(strip + m * STRIP_PITCH + n));
    }
    __syncwarp();
}

// Four 8 x 8 matrices of a warp; a lane names a row of 16 bytes.
__device__ __forceinline__ void store_matrices(unsigned row, const unsigned (&x)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(x[0]), "r"(x[1]),
                 "r"(x[2]), "r"(x[3])
                 : "memory");
}

// x [16][STRIP_N] to (row, column) of c. Value i of group j of a lane is at row lane / 4 + i / 2 * 8 and column 8 j +
// lane % 4 * 2 + i % 2.
template <typename Number>
__device__ __forceinline__ void store_strip(
    Output* strip, const Number (&x)[STRIP_N / 8][4], Results c, int row, int column, int M, int N) {
    const int lane = threadIdx.x % 32;
    if constexpr (MAPPED) {
        if (lane == 0) stores_read();
        __syncwarp();
    }
#pragma unroll
    for (int j = 0; j < STRIP_N / 8; j += 2) {
        if constexpr (sizeof(Output) == 2) {
            unsigned words[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const Number(&pair)[4] = x[j + i / 2];
                words[i] = pair_from_floats<Output>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
            }
            store_matrices(shared_address(strip) + strip_place(lane % 16, 16 * j + lane / 16 * 16), words);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int at = strip_place(lane / 4 + i % 2 * 8, 32 * (j + i / 2) + lane % 4 * 8);
                const Number(&pair)[4] = x[j + i / 2];
                store(strip + at / (int)sizeof(Output), Vec<Output, 2>{pair[i % 2 * 2], pair[i % 2 * 2 + 1]});
            }
        }
    }
    write_strip(strip, c, row, column, M, N);
}

// The sums of 16 rows, STRIP_N columns at a time: end(x, first) makes results of those from column `first` of the tile on.
template <typename Number, typename Sum, typename End>
__device__ __forceinline__ void store_sums(
    const Sum& sum, Output* strip, Results c, int row, int column, int M, int N, End end) {
#pragma unroll
    for (int first = 0; first < (int)(sizeof(Sum) / sizeof(sum[0])) * 8; first += STRIP_N) {
        Number x[STRIP_N / 8][4];
#pragma unroll
        for (int i = 0; i < STRIP_N / 2; i++) x[i / 4][i % 4] = sum[first / 8 + i / 4][i % 4];
        end(x, first);
        store_strip(strip, x, c, row, column + first, M, N);
    }
}
