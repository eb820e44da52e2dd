// The gradient of images of few channels where windows do not overlap: one product, whose rows are windows. Its sums go
// where their pixels are, in the order of the image: columns are (r, s, c) if LAST, else (c, r, s), so that some of them
// lie side by side there too.
//
//   left [place, o], of grad_out;   right [o, term], the weight
#include "matmul_wgmma.cuh"

#ifndef CHANNELS
#define CHANNELS 3
#define TAPS_H 16
#define TAPS_W 16
#define STRIDE_H 16
#define STRIDE_W 16
#define PADDING_H 0
#define PADDING_W 0
#define LAST 1
#define GROUP 1  // neighbouring threads that have the same terms of neighbouring places: these fill sectors together
#endif

// The result [N, CHANNELS, height, width], and rows and columns of windows.
struct Images {
    i64 by_n;
    int by_c, by_h, by_w, height, width, rows, columns;
};

// A window: its first pixel, and where that is in the image; -1 for none.
struct Corner {
    i64 at;
    int y, x;

    __device__ __forceinline__ Corner(int place, int M, const Images& g) {
        const int line = place / g.columns, n = line / g.rows;
        y = (line - n * g.rows) * STRIDE_H - PADDING_H, x = (place - line * g.columns) * STRIDE_W - PADDING_W;
        at = n * g.by_n + (i64)y * g.by_h + (i64)x * g.by_w;
        if (place >= M) y = -STRIDE_H;
    }
};

// 16 rows of sums to their pixels, by way of the warp's strip of shared memory. corner: lane i % 16 has that of row i.
__device__ __forceinline__ void store_patches(Output* strip, const float (*sum)[4], Output* out, const Corner& corner,
                                              int column, int N, const Images& g) {
    constexpr int Pitch = Strip<STRIP_N>::Pitch, Vectors = STRIP_N / C_VECTOR;
    const int lane = threadIdx.x % 32;
    Output* mine = strip + lane / 4 * Pitch + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < STRIP_N / 8; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float pair[2] = {sum[j][2 * half], sum[j][2 * half + 1]};
            store(mine + 8 * j + 8 * half * Pitch, from_floats<Output>(pair));
        }
    __syncwarp();
    for (int i = lane; i < 16 * Vectors; i += 32) {
        const int row = i / (Vectors * GROUP) * GROUP + i % GROUP, local = i / GROUP % Vectors * C_VECTOR;
        const i64 at = __shfl_sync(~0u, corner.at, row);
        const int y = __shfl_sync(~0u, corner.y, row), x = PADDING_W ? __shfl_sync(~0u, corner.x, row) : 0;
        const int n = column + local;
        const int r = LAST ? n / (TAPS_W * CHANNELS) : n / TAPS_W % TAPS_H, s = LAST ? n / CHANNELS % TAPS_W : n % TAPS_W;
        const int c = LAST ? n % CHANNELS : n / (TAPS_W * TAPS_H);
        const bool there = PADDING_H ? (unsigned)(y + r) < (unsigned)g.height : y >= 0;
        if (n < N && there && (PADDING_W == 0 || (unsigned)(x + s) < (unsigned)g.width))
            store(out + at + ((i64)c * g.by_c + r * g.by_h + s * g.by_w), load<C_VECTOR>(strip + row * Pitch + local));
    }
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    conv2d_backward_input_patches(const __grid_constant__ TensorMap left, const __grid_constant__ TensorMap right,
                                  Output* __restrict__ out, const Images g, int M, int N, int K, int works) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Ring ring(shared);
    const Sizes sizes = {M, N, K, K, 1};
    Place place;
    if (threadIdx.x < 128) {
        if constexpr (CONSUMERS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0)
            for (int i = blockIdx.x; i < works; i += gridDim.x) {
                const Work work(i, sizes);
                for (int k = 0; k < K; k += BLOCK_K, place.advance()) {
                    Barrier& full = ring.full[place.stage];
                    barrier_wait(ring.empty[place.stage], place.phase ^ 1);
                    barrier_expect(full, STAGE_BYTES);
                    tma_load(ring.a(place.stage), left, full, k, work.m);
#pragma unroll
                    for (int j = 0; j < cdiv(BLOCK_N, 64); j++)
                        tma_load(ring.b(place.stage) + j * BOX_BYTES, right, full, work.n + 64 * j, k);
                }
            }
    } else {
        if constexpr (CONSUMERS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int warp = threadIdx.x / 32 - 4;
        Output* strip = reinterpret_cast<Output*>(ring.stages + STAGES * STAGE_BYTES + warp * Strip<STRIP_N>::Bytes);
        Sums sum = {};
        for (int i = blockIdx.x; i < works; i += gridDim.x) {
            const Work work(i, sizes);
            multiply(sum, ring, place, work);
#pragma unroll
            for (int i = 0; i < HEIGHT; i++) {
                const Corner corner(work.m + (warp / 4 * HEIGHT + i) * 64 + warp % 4 * 16 + threadIdx.x % 16, M, g);
#pragma unroll
                for (int n = 0; n < BLOCK_N; n += STRIP_N)
                    store_patches(strip, sum[i] + n / 8, out, corner, work.n + n, N, g);
            }
        }
    }
}
