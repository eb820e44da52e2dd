// Copies images for conv2d_implicit_gemm_tma.cu: y[n, h, w, c] = x[n, c, h, w - left], zero where x has nothing.
// y: [N, H, columns, CHANNELS], dense, its rows whole vectors; x: [N, channels, H, W] with any strides. In y the pixels
// that a row of a kernel meets lie side by side. A thread writes EACH vectors; `blocks` blocks write a row.
#include "common.cuh"

#ifndef ELEMENT
#define ELEMENT unsigned short
#endif
#ifndef CHANNELS  // a power of two below VECTOR, or a multiple of it
#define CHANNELS 4
#endif
#ifndef READ  // channels of x that are read at once; divides `channels` and those of a vector
#define READ 1
#endif
#ifndef EACH  // vectors of a thread, a block's threads apart
#define EACH 4
#endif

using T = ELEMENT;
constexpr int VECTOR = 16 / sizeof(T);
constexpr int VECTORS = CHANNELS > VECTOR ? CHANNELS / VECTOR : 1, PIXELS = CHANNELS < VECTOR ? VECTOR / CHANNELS : 1;

extern "C" __global__ void conv2d_fold(const T* __restrict__ x, T* __restrict__ y, int channels, int H, int W, int left,
                                       int columns, int blocks, i64 by_n, i64 by_c, i64 by_h, i64 by_w) {
    const int row = blockIdx.x / blocks, first = blockIdx.x % blocks * EACH * blockDim.x + threadIdx.x;
    const int vectors = (int)((i64)columns * CHANNELS / VECTOR);
    x += row / H * by_n + row % H * by_h;
    y += (i64)row * vectors * VECTOR;
    Vec<T, VECTOR> out[EACH] = {};
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int v = first + e * blockDim.x, w = v / VECTORS * PIXELS - left, c = v % VECTORS * VECTOR;
        const T* from = x + w * by_w + c * by_c;
#pragma unroll
        for (int i = 0; i < VECTOR; i += READ) {
            const int pixel = i * PIXELS / VECTOR, channel = i % (VECTOR / PIXELS);
            if (c + channel >= channels || (unsigned)(w + pixel) >= (unsigned)W) continue;
            const Vec<T, READ> read = load<READ>(from + pixel * by_w + channel * (READ > 1 ? 1 : by_c));
#pragma unroll
            for (int j = 0; j < READ; j++) out[e].v[i + j] = read.v[j];
        }
    }
#pragma unroll
    for (int e = 0; e < EACH; e++)
        if (first + e * (int)blockDim.x < vectors) store(y + (i64)(first + e * blockDim.x) * VECTOR, out[e]);
}
