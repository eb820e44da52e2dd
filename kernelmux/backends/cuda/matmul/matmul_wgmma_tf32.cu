// matmul in tf32 of a row-major b, which wgmma reads from shared memory only with K contiguous: c^T = b^T a^T needs no
// transposed copy, for the left factor of a product may come from registers.
//
// One thread fills a ring of STAGES through TMA, which rounds to the nearest tf32. M of the headers counts columns of b
// here, and N rows of a: a consumer warpgroup multiplies HEIGHT x 64 columns of b by BLOCK_N rows of a. Which column is
// which row of the product is free to choose: a thread has 2 * HEIGHT neighbours, which it reads and stores by one
// access each. Blocks are persistent, and TMA reads zeros outside an operand.
#define STRIPS_IN_RING 1  // sums go from registers to c: there are no strips
#include "warpgroup.cuh"

// d (+)= a b, a in registers as for mma m16n8k8, b in shared memory with K contiguous; not `add` starts a new sum.
#define TF32_PRODUCT(N, A0, A1, A2, A3, B, ADD)                                                                        \
    __device__ __forceinline__ void wgmma(float(&d)[N / 8][4], const unsigned(&a)[4], Descriptor b, bool add) {        \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #ADD                                                           \
                     ", 0; " INSTRUCTION(N, 8, "tf32") "{%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1; }" \
                     : SUMS_##N                                                                                        \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));                             \
    }
#define NAMES_32 TEN() "%10, %11, %12, %13, %14, %15"
#define SUMS_32 SIXTEEN_SUMS(0)
SHARED_PRODUCT(32, 8, "tf32", float, 16, 17, 18, "")  // named by the header below, never called
SHARED_PRODUCT(64, 8, "tf32", float, 32, 33, 34, "")

#include "matmul_wgmma.cuh"

TF32_PRODUCT(32, 16, 17, 18, 19, 20, 21)
TF32_PRODUCT(64, 32, 33, 34, 35, 36, 37)
TF32_PRODUCT(128, 64, 65, 66, 67, 68, 69)
TF32_PRODUCT(160, 80, 81, 82, 83, 84, 85)
TF32_PRODUCT(192, 96, 97, 98, 99, 100, 101)
TF32_PRODUCT(256, 128, 129, 130, 131, 132, 133)

constexpr int OWN = 2 * HEIGHT;  // neighbouring columns of b of a thread: rows lane / 4 and + 8 of each 64
constexpr int PANEL = 32;        // columns of b in a line of shared memory
constexpr int PANEL_BYTES = BLOCK_K * 128, STEP_BYTES = 8 * 128;
constexpr int HALF = BLOCK_K / 8 / 2;  // steps of K for which registers are loaded at one time
constexpr int WIDTH = C_VECTOR < OWN ? C_VECTOR : OWN;
using Left = unsigned[HALF][HEIGHT][4];
static_assert(HEIGHT <= 2, "a thread reads 16 bytes at most");

// A thread's columns of b: where they are in a tile, and in shared memory.
struct Columns {
    int first;      // of OWN, within the tile of the block
    int low, high;  // bytes from the start of the stage to k = lane % 4 and lane % 4 + 4 of a step

    // A warp of HEIGHT 2 has a panel, one of HEIGHT 1 half the 16-byte chunks of one. Under the swizzle chunk c of line
    // k is at c ^ k % 8. The lanes of one phase of a read have lines 0 to 3 or 4 to 7 and two chunks, which meet all
    // banks if these are i and i + 4.
    __device__ __forceinline__ Columns() {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4, row = lane / 4, k = lane % 4;
        const int panel = warp * HEIGHT / 2, unit = HEIGHT == 2 ? row : warp % 2 * 4 + row / 2;
        const int chunk = unit / 2 + unit % 2 * 4, within = HEIGHT == 2 ? 0 : row % 2 * 2;
        first = panel * PANEL + chunk * 4 + within;
        low = panel * PANEL_BYTES + k * 128 + (chunk ^ k) * 16 + within * 4;
        high = panel * PANEL_BYTES + (k + 4) * 128 + (chunk ^ k ^ 4) * 16 + within * 4;
    }

    // The left factor of HALF steps from `step` on.
    __device__ __forceinline__ void read(Left& left, const unsigned char* tile, int step) const {
#pragma unroll
        for (int s = 0; s < HALF; s++)
#pragma unroll
            for (int upper = 0; upper < 2; upper++) {
                const unsigned char* at = tile + (upper ? high : low) + (step + s) * STEP_BYTES;
                const Vec<unsigned, OWN> found = load<OWN>(reinterpret_cast<const unsigned*>(at));
#pragma unroll
                for (int i = 0; i < OWN; i++) left[s][i / 2][2 * upper + i % 2] = found.v[i];
            }
    }
};

__device__ __forceinline__ void produce(const Ring& ring, Place& place, const Work& work, const TensorMap& a,
                                        const TensorMap& b) {
    for (int k = work.k_begin; k < work.k_end; k += BLOCK_K) {
        Barrier& full = ring.full[place.stage];
        barrier_wait(ring.empty[place.stage], place.phase ^ 1);
        barrier_expect(full, STAGE_BYTES);
#pragma unroll
        for (int i = 0; i < BLOCK_M / PANEL; i++)
            tma_load(ring.a(place.stage) + i * PANEL_BYTES, b, full, work.m + i * PANEL, k);
        tma_load(ring.b(place.stage), a, full, k, work.n);
        place.advance();
    }
}

// The products of HALF steps, in flight on return.
__device__ __forceinline__ void issue(Sums& sum, Left& left, const unsigned char* rows, int step, bool add) {
#pragma unroll
    for (int s = 0; s < HALF; s++) pin(left[s]);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < HALF; s++)
#pragma unroll
        for (int i = 0; i < HEIGHT; i++) wgmma(sum[i], left[s][i], describe<true>(rows, step + s), add || s > 0);
    wgmma_commit();
}

// Returns when the products before those of the last issue are over; `left` is what they read.
__device__ __forceinline__ void await_previous(Left& left) {
    wgmma_wait<1>();
#pragma unroll
    for (int s = 0; s < HALF; s++) pin(left[s]);
}

// While the products of half a stage run, the registers for those of the next half are loaded.
__device__ __forceinline__ void multiply(Sums& sum, const Ring& ring, Place& place, const Work& work,
                                         const Columns& columns) {
    Left even = {}, odd = {};
    int previous = -1;
    barrier_wait(ring.full[place.stage], place.phase);
    columns.read(even, ring.a(place.stage), 0);
    for (int k = work.k_begin; k < work.k_end; k += BLOCK_K) {
        const unsigned char* rows = ring.b(place.stage);
        issue(sum, even, rows, 0, k > work.k_begin);
        await_previous(odd);
        if (previous >= 0) ring.release(previous);
        columns.read(odd, ring.a(place.stage), HALF);
        issue(sum, odd, rows, HALF, true);
        await_previous(even);
        previous = place.stage;
        place.advance();
        if (k + BLOCK_K < work.k_end) {
            barrier_wait(ring.full[place.stage], place.phase);
            columns.read(even, ring.a(place.stage), 0);
        }
    }
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < HEIGHT; i++) pin(sum[i]);
    ring.release(previous);
}

// Predicated rather than in a branch: behind branches ptxas may let each product end before the next one begins.
__device__ __forceinline__ void store_if(bool mine, float* to, const float (&x)[1]) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %1, 0; @p st.global.f32 [%0], %2; }" ::"l"(to), "r"((int)mine),
                 "f"(x[0])
                 : "memory");
}
__device__ __forceinline__ void store_if(bool mine, float* to, const float (&x)[2]) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %1, 0; @p st.global.v2.f32 [%0], {%2, %3}; }" ::"l"(to),
                 "r"((int)mine), "f"(x[0]), "f"(x[1])
                 : "memory");
}
__device__ __forceinline__ void store_if(bool mine, float* to, const float (&x)[4]) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %1, 0; @p st.global.v4.f32 [%0], {%2, %3, %4, %5}; }" ::"l"(to),
                 "r"((int)mine), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
                 : "memory");
}

// The sums of OWN columns of b and BLOCK_N rows of a, as wgmma leaves them. A warp stores whole lines of four rows of
// c, or half lines if HEIGHT is 1.
__device__ __forceinline__ void store_out(const Sums& sum, float* c, const Work& work, const Sizes& sizes,
                                          const Columns& columns) {
    const int column = work.m + columns.first, row = work.n + threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < BLOCK_N / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
            for (int i = 0; i < OWN; i += WIDTH) {
                const int m = row + 8 * j + e, n = column + i;
                float x[WIDTH];
#pragma unroll
                for (int v = 0; v < WIDTH; v++) x[v] = sum[(i + v) / 2][j][(i + v) % 2 * 2 + e];
                store_if(m < sizes.N && n < sizes.M, c + (i64)m * sizes.M + n, x);
            }
}

// Block i computes the works i, i + gridDim.x, ...: (tiles) x (splits of K), each split with an [M, N] slice of its
// own.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul_wgmma_tf32(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* __restrict__ c,
                      int M, int N, int K, int k_split, int works) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Ring ring(shared);
    const Sizes sizes = {N, M, K, k_split, 1};
    Place place;
    if (threadIdx.x < 128) {
        if constexpr (CONSUMERS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0)
            for (int i = blockIdx.x; i < works; i += gridDim.x) produce(ring, place, Work(i, sizes), a, b);
    } else {
        if constexpr (CONSUMERS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const Columns columns;
        Sums sum = {};
        for (int i = blockIdx.x; i < works; i += gridDim.x) {
            const Work work(i, sizes);
            multiply(sum, ring, place, work, columns);
            store_out(sum, c + (i64)work.slice * M * N, work, sizes, columns);
        }
    }
}
