// Two ends of the products of convolutions.
//
// SHARES above 1: the blocks of a cluster share the K of a tile. Their sums meet in shared memory, which blocks of a cluster
// read from one another, and are added in order: a split of K without a second pass over memory, and without its launch.
//
// TURNED: rows are channels and columns are positions, of which each image has `pixels`, or `padded` with some that do not
// exist. The sums of a row lie side by side in contiguous images [N, M, pixels], which need not be turned afterwards.
#pragma once
#include "matmul_wgmma.cuh"

#ifndef TURNED
#define TURNED 0
#endif

#ifndef SHARES
#define SHARES 1
#endif
#if SHARES > 1
#define CLUSTER_OF_SHARES __cluster_dims__(SHARES, 1, 1)
#else
#define CLUSTER_OF_SHARES
#endif

constexpr int SUMS_PITCH = BLOCK_N + 8;  // of a row of sums, so that the values of a store are in different banks
constexpr int CONSUMER_THREADS = 128 * CONSUMERS;
static_assert(SHARES == 1 || BLOCK_M * SUMS_PITCH * 4 <= STAGES * STAGE_BYTES, "the sums lie where the stages were");

// Where row m and column n of the result [M, N] are, or those of images; -1 for a position that does not exist.
__device__ __forceinline__ i64 place_of(int m, int n, int M, int N, int pixels, int padded) {
    if constexpr (!TURNED) return (i64)m * N + n;
    const int image = n / padded, pixel = n - image * padded;
    return pixel < pixels ? ((i64)image * M + m) * pixels + pixel : -1;
}

// Stores neighbours in a row of the result, which end with the bias of their channel.
template <int Width>
__device__ __forceinline__ void store_sums(Output* c, i64 at, const Epilogue<Output>& epilogue, int channel,
                                           const float (&sum)[Width]) {
    float x[Width];
#pragma unroll
    for (int i = 0; i < Width; i++) x[i] = Epilogue<Output>::biased(sum[i], epilogue.bias_of(TURNED ? channel : channel + i));
    store(c + at, from_floats<Output>(x));
}

// What a consumer warp does from beginning to end, as `consume` of matmul_wgmma.cuh, with rows of channels.
__device__ __forceinline__ void consume_turned(const Ring& ring, Output* c, const Epilogue<Output>& epilogue,
                                               const Sizes& sizes, int works, int pixels, int padded) {
    constexpr int Pitch = Strip<STRIP_N>::Pitch;
    const int warp = threadIdx.x / 32 - 4, lane = threadIdx.x % 32;
    Output* strip = reinterpret_cast<Output*>(ring.stages + STAGES * STAGE_BYTES + warp * Strip<STRIP_N>::Bytes);
    Output* mine = strip + lane / 4 * Pitch + lane % 4 * 2;
    Sums sum = {};
    Place place;
    for (int index = blockIdx.x; index < works; index += gridDim.x) {
        const Work work(index, sizes);
        multiply(sum, ring, place, work);
#pragma unroll
        for (int i = 0; i < HEIGHT; i++) {
            const int row = work.m + (warp / 4 * HEIGHT + i) * 64 + warp % 4 * 16;
            float bias[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int m = row + lane / 4 + 8 * half;
                bias[half] = m < sizes.M ? epilogue.bias_of(m) : 0.0f;
            }
#pragma unroll
            for (int n = 0; n < BLOCK_N; n += STRIP_N) {
#pragma unroll
                for (int j = 0; j < STRIP_N / 8; j++)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const float *from = sum[i][n / 8 + j] + 2 * half, b = bias[half];
                        const float pair[2] = {Epilogue<Output>::biased(from[0], b), Epilogue<Output>::biased(from[1], b)};
                        store(mine + 8 * j + 8 * half * Pitch, from_floats<Output>(pair));
                    }
                __syncwarp();
                for (int v = lane * C_VECTOR; v < 16 * STRIP_N; v += 32 * C_VECTOR) {
                    const int y = row + v / STRIP_N, x = work.n + n + v % STRIP_N;
                    const i64 at = place_of(y, x, sizes.M, sizes.N, pixels, padded);
                    if (y < sizes.M && x < sizes.N && at >= 0)
                        store(c + at, load<C_VECTOR>(strip + v / STRIP_N * Pitch + v % STRIP_N));
                }
                __syncwarp();
            }
        }
    }
}

// Waits for all blocks that share a tile, and for their sums.
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

// Leaves the sums of a consumer where the stages were, by rows and columns of the tile.
__device__ __forceinline__ void leave_sums(float* sums, const Sums& sum) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 4;
#pragma unroll
    for (int i = 0; i < HEIGHT; i++) {
        float* mine = sums + ((warp / 4 * HEIGHT + i) * 64 + warp % 4 * 16 + lane / 4) * SUMS_PITCH + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < BLOCK_N / 8; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float pair[2] = {sum[i][j][2 * half], sum[i][j][2 * half + 1]};
                store(mine + 8 * half * SUMS_PITCH + 8 * j, from_floats<float>(pair));
            }
    }
}

// Called by the consumers of all blocks that share a tile, while the others wait in `share_sync`: adds the sums of a part of
// the tile, and ends it. What other blocks have comes after a microsecond, so that a thread asks for much of it at a time.
__device__ __forceinline__ void add_shares(float* sums, const Sums& sum, Output* c, const Epilogue<Output>& epilogue, int rank,
                                           const Work& work, int M, int N, int pixels, int padded) {
    constexpr int UNITS = BLOCK_N / 4, STEP = SHARES * CONSUMER_THREADS;  // fours of a row
    constexpr int EACH = cdiv(BLOCK_M * UNITS, STEP), MOST = SHARES < 16 ? 16 / SHARES : 1, AHEAD = EACH < MOST ? EACH : MOST;
    asm volatile("bar.sync 1, %0;" ::"n"(CONSUMER_THREADS) : "memory");  // all have left the stages
    leave_sums(sums, sum);
    share_sync();
    const int units = min(BLOCK_M, M - work.m) * UNITS;
    for (int i = rank * CONSUMER_THREADS + threadIdx.x - 128; i < units; i += AHEAD * STEP) {
        float part[AHEAD][SHARES][4];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int at = min(i + j * STEP, units - 1);
#pragma unroll
            for (int s = 0; s < SHARES; s++) load_sums(part[j][s], sums + at / UNITS * SUMS_PITCH + at % UNITS * 4, s);
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int at = i + j * STEP, y = work.m + at / UNITS, x = work.n + at % UNITS * 4;
#pragma unroll
            for (int s = 1; s < SHARES; s++)
#pragma unroll
                for (int v = 0; v < 4; v++) part[j][0][v] = add_gradual(part[j][0][v], part[j][s][v]);
#pragma unroll
            for (int v = 0; v < 4; v += C_VECTOR)
                if (const i64 to = place_of(y, x + v, M, N, pixels, padded); at < units && x + v < N && to >= 0)
                    store_sums(c, to, epilogue, TURNED ? y : x + v,
                               reinterpret_cast<const float(&)[C_VECTOR]>(part[j][0][v]));
        }
    }
}
