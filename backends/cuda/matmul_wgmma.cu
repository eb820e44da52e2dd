// matmul on Hopper's asynchronous tensor cores: one warpgroup feeds, the others multiply.
//
// One thread of the producer warpgroup keeps a ring of STAGES tiles filled through TMA; each consumer warpgroup multiplies
// 64 x BLOCK_N of every stage with wgmma, straight from swizzled shared memory. Blocks are persistent: the next tile of c
// travels while the last one is stored. TMA reads zeros outside an operand, so ragged extents need no code here.
#include "matmul.cuh"

#ifndef BLOCK_N
#define BLOCK_N 256
#endif
#ifndef CONSUMERS
#define CONSUMERS 2
#endif
#ifndef STAGES
#define STAGES 4
#endif

constexpr int BLOCK_M = 64 * CONSUMERS, BLOCK_K = 64;    // BLOCK_K: 128 bytes, the widest swizzle
constexpr int THREADS = 128 * (1 + CONSUMERS);
constexpr int BOX_BYTES = 64 * BLOCK_K * 2;              // 64 lines of 128 bytes: 64 rows K-major, or 64 k's of 64 columns
constexpr int A_BYTES = BLOCK_M / 64 * BOX_BYTES, STAGE_BYTES = A_BYTES + BLOCK_N / 64 * BOX_BYTES;
constexpr int STRIP_N = 128 / sizeof(Output);            // whole cache lines
constexpr int STRIP_BYTES = Strip<STRIP_N>::BYTES * 4 * CONSUMERS;

struct alignas(64) TensorMap {
    unsigned long long words[16];
};

// The ring's barriers: a stage is full when its bytes have landed, empty when every consumer warp has multiplied it.
struct Barriers {
    unsigned long long full[STAGES], empty[STAGES];
};

// A place in the ring, the same for producer and consumers; `phase` flips each time round.
struct Place {
    int stage = 0;
    unsigned phase = 0;

    __device__ __forceinline__ void advance() {
        stage++;
        if (stage == STAGES) stage = 0, phase ^= 1;
    }
};

// One tile of c, or one split of it.
struct Work {
    Tile tile;
    int split, k_begin, k_end;

    __device__ __forceinline__ Work(int index, int M, int N, int K, int k_split) {
        const int tiles_m = ceil_div(M, BLOCK_M), tiles_n = ceil_div(N, BLOCK_N);
        split = index / (tiles_m * tiles_n);
        tile = grouped_tile(index % (tiles_m * tiles_n), tiles_m, tiles_n);
        k_begin = split * k_split;
        k_end = min(K, k_begin + k_split);
    }
};

__device__ __forceinline__ void init_barrier(unsigned long long* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void arrive(unsigned long long* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void arrive_expecting(unsigned long long* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// Waits for the end of the phase of this parity; a fresh barrier has already ended phase 1.
__device__ __forceinline__ void wait(unsigned long long* barrier, unsigned parity) {
    unsigned done;
    do asm volatile(
            "{ .reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2; selp.u32 %0, 1, 0, done; }"
            : "=r"(done)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
    while (!done);
}

__device__ __forceinline__ void load_box(unsigned char* to, const TensorMap* map, int inner, int outer, unsigned long long* barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
                     shared_address(to)),
                 "l"(map), "r"(inner), "r"(outer), "r"(shared_address(barrier))
                 : "memory");
}

// EXTENT x BLOCK_K of an operand. K-major: one box of EXTENT rows; otherwise a box for every 64 columns.
template <int EXTENT, bool K_MAJOR>
__device__ __forceinline__ void load_operand(unsigned char* to, const TensorMap* map, int mn, int k, unsigned long long* barrier) {
    if constexpr (K_MAJOR) {
        load_box(to, map, k, mn, barrier);
    } else {
#pragma unroll
        for (int i = 0; i < EXTENT / 64; i++) load_box(to + i * BOX_BYTES, map, mn + 64 * i, k, barrier);
    }
}

// Describes 16 of K from `step` on to wgmma: lines of 128 bytes, swizzled, 8 lines 1024 bytes apart. K-major, the 16 are 32
// bytes of every line, and the hardware leaves bits 16 to 29 alone; otherwise they are 16 lines, and those bits give the
// way to the next 64 columns. Source: PTX ISA, "Matrix descriptor format".
template <bool K_MAJOR>
__device__ __forceinline__ unsigned long long describe(const unsigned char* operand, int step) {
    const unsigned address = shared_address(operand) + step * (K_MAJOR ? 32 : 16 * 128);
    const unsigned long long to_next_columns = (unsigned long long)(BOX_BYTES >> 4) << 16;
    return (1ull << 62) | (1024ull >> 4) << 32 | to_next_columns | (address & 0x3FFFF) >> 4;
}

#define NAMES_64 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
    ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_128 \
    NAMES_64 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SUMS_4(i) "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3])
#define SUMS_16(i) SUMS_4(i), SUMS_4(i + 4), SUMS_4(i + 8), SUMS_4(i + 12)
#define SUMS_64(i) SUMS_16(i), SUMS_16(i + 16), SUMS_16(i + 32), SUMS_16(i + 48)
#define WGMMA(TYPE, N, NAMES, A, B, ADD, TRANSPOSE_A, TRANSPOSE_B, ...)                                                 \
    asm volatile("{ .reg .pred add; setp.ne.b32 add, " ADD ", 0; wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE   \
                 "." TYPE " {" NAMES "}, " A ", " B ", add, 1, 1, " TRANSPOSE_A ", " TRANSPOSE_B "; }"                  \
                 : __VA_ARGS__                                                                                         \
                 : "l"(a), "l"(b), "r"((int)add), "n"(!A_K_MAJOR), "n"(!B_K_MAJOR))
#define WGMMA_128(TYPE) WGMMA(TYPE, "128", NAMES_64, "%64", "%65", "%66", "%67", "%68", SUMS_64(0))
#define WGMMA_256(TYPE) WGMMA(TYPE, "256", NAMES_128, "%128", "%129", "%130", "%131", "%132", SUMS_64(0), SUMS_64(64))

// sum[64][BLOCK_N] (+)= a[64][16] b[16][BLOCK_N], by the 128 threads of a warpgroup.
__device__ __forceinline__ void multiply(float (&sum)[64], unsigned long long a, unsigned long long b, bool add, __half) { WGMMA_128("f16"); }
__device__ __forceinline__ void multiply(float (&sum)[64], unsigned long long a, unsigned long long b, bool add, __nv_bfloat16) { WGMMA_128("bf16"); }
__device__ __forceinline__ void multiply(float (&sum)[128], unsigned long long a, unsigned long long b, bool add, __half) { WGMMA_256("f16"); }
__device__ __forceinline__ void multiply(float (&sum)[128], unsigned long long a, unsigned long long b, bool add, __nv_bfloat16) { WGMMA_256("bf16"); }

__device__ __forceinline__ void produce(const TensorMap* a_map, const TensorMap* b_map, unsigned char* stages, Barriers* barriers,
                                        Place& place, const Work& work) {
    for (int k = work.k_begin; k < work.k_end; k += BLOCK_K) {
        unsigned char* stage = stages + place.stage * STAGE_BYTES;
        unsigned long long* full = &barriers->full[place.stage];
        wait(&barriers->empty[place.stage], place.phase ^ 1);
        arrive_expecting(full, STAGE_BYTES);
        load_operand<BLOCK_M, A_K_MAJOR>(stage, a_map, work.tile.m * BLOCK_M, k, full);
        load_operand<BLOCK_N, B_K_MAJOR>(stage + A_BYTES, b_map, work.tile.n * BLOCK_N, k, full);
        place.advance();
    }
}

// The products of one stage stay in flight while the next one is awaited; a stage is given back one step late.
__device__ __forceinline__ void consume(float (&sum)[BLOCK_N / 2], const unsigned char* stages, Barriers* barriers, Place& place,
                                        const Work& work) {
    const int consumer = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
    int previous = -1;
    for (int k = work.k_begin; k < work.k_end; k += BLOCK_K) {
        const unsigned char* a = stages + place.stage * STAGE_BYTES + consumer * BOX_BYTES;
        const unsigned char* b = stages + place.stage * STAGE_BYTES + A_BYTES;
        wait(&barriers->full[place.stage], place.phase);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int step = 0; step < BLOCK_K / 16; step++)
            multiply(sum, describe<A_K_MAJOR>(a, step), describe<B_K_MAJOR>(b, step), k > work.k_begin || step, Element());
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (previous >= 0 && lane == 0) arrive(&barriers->empty[previous]);
        previous = place.stage;
        place.advance();
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    if (lane == 0) arrive(&barriers->empty[previous]);
}

// Block b computes the works b, b + gridDim.x, ...; there are (tiles of c) x (splits of K), each split with its own [M, N]
// slice of c. k_split is a multiple of BLOCK_K, or K.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul_wgmma(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, Output* __restrict__ c,
                 int M, int N, int K, int k_split, int works) {
    extern __shared__ __align__(1024) unsigned char stages[];  // then a strip per consumer warp, then the barriers
    Barriers* barriers = reinterpret_cast<Barriers*>(stages + STAGES * STAGE_BYTES + STRIP_BYTES);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            init_barrier(&barriers->full[i], 1);
            init_barrier(&barriers->empty[i], 4 * CONSUMERS);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // TMA signals them
    }
    __syncthreads();
    Place place;
    if (threadIdx.x < 128) {
        if constexpr (CONSUMERS > 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0)
            for (int i = blockIdx.x; i < works; i += gridDim.x)
                produce(&a_map, &b_map, stages, barriers, place, Work(i, M, N, K, k_split));
    } else {
        if constexpr (CONSUMERS > 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int warp = threadIdx.x / 32 - 4;
        Output* strip = reinterpret_cast<Output*>(stages + STAGES * STAGE_BYTES + warp * Strip<STRIP_N>::BYTES);
        float sum[BLOCK_N / 2] = {};
        for (int i = blockIdx.x; i < works; i += gridDim.x) {
            const Work work(i, M, N, K, k_split);
            consume(sum, stages, barriers, place, work);
            Output* slice = c + (long long)work.split * M * N;
#pragma unroll
            for (int n = 0; n < BLOCK_N; n += STRIP_N)
                Strip<STRIP_N>::store(strip, sum + n / 2, slice, work.tile.m * BLOCK_M + warp * 16, work.tile.n * BLOCK_N + n, M, N);
        }
    }
}
