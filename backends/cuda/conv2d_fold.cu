// Copies images for conv2d_implicit_gemm_tma.cu: y[n, h, w, c] = x[n, c, h, w - left], zero where x has nothing.
// y: [N, H, columns, CHANNELS], dense, its rows whole vectors; x: [N, channels, H, W] with any strides. In y the pixels
// that a row of a kernel meets lie side by side. A thread writes a vector; `blocks` of them write a row.
#include "common.cuh"

#ifndef ELEMENT
#define ELEMENT unsigned short
#endif
#ifndef CHANNELS
#define CHANNELS 4
#endif

using T = ELEMENT;
constexpr int VECTOR = 16 / sizeof(T);

extern "C" __global__ void conv2d_fold(const T* __restrict__ x, T* __restrict__ y, int channels, int H, int W, int left,
                                       int columns, int blocks, i64 by_n, i64 by_c, i64 by_h, i64 by_w) {
    const int row = blockIdx.x / blocks;
    const i64 length = (i64)columns * CHANNELS, first = (blockIdx.x % blocks * (i64)blockDim.x + threadIdx.x) * VECTOR;
    if (first >= length) return;
    x += row / H * by_n + row % H * by_h;
    Vec<T, VECTOR> out;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        const int w = (int)((first + i) / CHANNELS) - left, c = (int)((first + i) % CHANNELS);
        out.v[i] = c < channels && 0 <= w && w < W ? x[c * by_c + w * by_w] : T(0);
    }
    store(y + row * length + first, out);
}
