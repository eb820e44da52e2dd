// Copies images for conv2d_implicit_gemm_tma.cu: y[n, h, w, c] = x[n, c, h, w - left], zero where x has nothing.
// y: [N, H, columns, CHANNELS], dense, its rows whole vectors; x: [N, channels, H, W] with any strides. In y the pixels
// that a row of a kernel meets lie side by side. A thread writes a vector; `blocks` of them write a row.
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

using T = ELEMENT;
constexpr int VECTOR = 16 / sizeof(T);
constexpr int VECTORS = CHANNELS > VECTOR ? CHANNELS / VECTOR : 1, PIXELS = CHANNELS < VECTOR ? VECTOR / CHANNELS : 1;

extern "C" __global__ void conv2d_fold(const T* __restrict__ x, T* __restrict__ y, int channels, int H, int W, int left,
                                       int columns, int blocks, i64 by_n, i64 by_c, i64 by_h, i64 by_w) {
    const int row = blockIdx.x / blocks;
    const i64 length = (i64)columns * CHANNELS, v = blockIdx.x % blocks * (i64)blockDim.x + threadIdx.x;
    if (v * VECTOR >= length) return;
    const int w = (int)(v / VECTORS) * PIXELS - left, c = (int)(v % VECTORS) * VECTOR;
    x += row / H * by_n + row % H * by_h + w * by_w + c * by_c;
    Vec<T, VECTOR> out = {};
#pragma unroll
    for (int i = 0; i < VECTOR; i += READ) {
        const int pixel = i * PIXELS / VECTOR, channel = i % (VECTOR / PIXELS);
        if (c + channel >= channels || (unsigned)(w + pixel) >= (unsigned)W) continue;
        const Vec<T, READ> read = load<READ>(x + pixel * by_w + channel * by_c);
#pragma unroll
        for (int j = 0; j < READ; j++) out.v[i + j] = read.v[j];
    }
    store(y + row * length + v * VECTOR, out);
}
