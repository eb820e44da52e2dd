// fp32 images of any strides as planes of bf16 (planes.cu), channels side by side: y[n, pixel, plane, c].
//
// A block turns tiles of 64 channels and PIXELS pixels of an image, through shared memory: what lies side by side is read so
// and written so. Channels from the last one to `plane` are zero.
#include "dependent_launch.cuh"
#include "planes.cuh"

#ifndef PIXELS
#define PIXELS 32
#endif

constexpr int THREADS = 256, CHANNELS = 64, UNIT = 8;  // elements of a store to each plane
constexpr int EACH = cdiv(CHANNELS * PIXELS, THREADS);     // elements of a thread

// Pixel i of an image is in row i / columns and column i % columns. Block i says in flags[i] whether it met a number that
// planes cannot hold.
extern "C" __global__ void __launch_bounds__(THREADS)
    conv2d_planes(const float* __restrict__ x, __nv_bfloat16* __restrict__ y, int* __restrict__ flags, int tiles, int channels,
                  int plane, int pixels, int columns, i64 by_n, i64 by_c, i64 by_h, i64 by_w) {
    __shared__ float tile[CHANNELS][PIXELS + 1];
    let_next_start();
    const int across = plane / CHANNELS, along = cdiv(pixels, PIXELS);
    bool found = false;
    for (int index = blockIdx.x; index < tiles; index += gridDim.x) {
        const int c0 = index % across * CHANNELS, first = index / across % along * PIXELS, n = index / across / along;
        const float* from = x + n * by_n;
        float values[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int at = threadIdx.x + i * THREADS, c = c0 + at / PIXELS, pixel = first + at % PIXELS;
            const bool inside = at < CHANNELS * PIXELS && c < channels && pixel < pixels;
            values[i] = inside ? __ldg(from + pixel / columns * by_h + pixel % columns * by_w + c * by_c) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int at = threadIdx.x + i * THREADS;
            found |= beyond_planes(values[i]);
            if (at < CHANNELS * PIXELS) tile[at / PIXELS][at % PIXELS] = scaled_for_planes(values[i]);
        }
        __syncthreads();
#pragma unroll
        for (int i = threadIdx.x; i < PIXELS * CHANNELS / UNIT; i += THREADS) {
            const int pixel = i / (CHANNELS / UNIT), c = i % (CHANNELS / UNIT) * UNIT;
            if (first + pixel >= pixels) continue;
            float held[UNIT];
#pragma unroll
            for (int v = 0; v < UNIT; v++) held[v] = tile[c + v][pixel];
            store_planes(y + ((i64)n * pixels + first + pixel) * 3 * plane + c0 + c, plane, held);
        }
        __syncthreads();
    }
    found = __syncthreads_or(found);
    if (threadIdx.x == 0) flags[blockIdx.x] = found;
}
