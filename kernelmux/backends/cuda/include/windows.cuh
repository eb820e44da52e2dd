// Windows of images: sizes, the elements of a window, the largest one. Shared by max_pool2d and its gradient.
#pragma once

#include "peel.cuh"
#include "tensor_cores.cuh"  // copies to shared memory

#ifndef ELEMENT
#define ELEMENT float
#endif
#ifndef BLOCK
#define BLOCK 256
#endif
#ifndef INDEX  // what counts threads; 32 bits where they suffice, since divisions are slow in 64
#define INDEX i64
#endif
#ifndef CHANNELS  // whether the channels of a pixel lie side by side, in the results too
#define CHANNELS 0
#endif
#ifndef WIDTH  // channels of a thread
#define WIDTH 1
#endif
#ifndef ROWS  // rows of windows of a thread, each of 8, in the kernels of that name
#define ROWS 0
#endif
#ifndef KH  // rows and columns of a window and from one to the next; 0 where these are known at run time alone
#define KH 0
#define KW 0
#define SH 0
#define SW 0
#define PH 0  // rows and columns of padding, known where the window's are
#define PW 0
#endif

using T = ELEMENT;
constexpr int Wide = 16 / sizeof(T);  // elements of the widest access

// Images [N, channels, h, w] with their strides, and windows [oh, ow] in each.
struct Geometry {
    i64 strides[4];
    int channels, h, w, oh, ow, kernel[2], stride[2], padding[2];

    __device__ __forceinline__ int kh() const { return KH ? KH : kernel[0]; }
    __device__ __forceinline__ int kw() const { return KW ? KW : kernel[1]; }
    __device__ __forceinline__ int sh() const { return SH ? SH : stride[0]; }
    __device__ __forceinline__ int sw() const { return SW ? SW : stride[1]; }
    __device__ __forceinline__ int top(int row) const { return row * sh() - padding[0]; }
    __device__ __forceinline__ int left(int column) const { return column * sw() - padding[1]; }
};

// What a block of the staged kernels takes: some whole planes, or some rows of one. The reciprocals are 2^31 / n + 1.
struct Tile {
    i64 planes;                                       // of all images
    int together, rows, per_plane;                    // planes and rows of a block, blocks of a plane
    unsigned reciprocal_of_row, reciprocal_of_plane;  // of the windows of a row and of a plane
};

// Division of numbers below 2^31 by one that the host knows: 2^shift / n, rounded up.
struct Divisor {
    unsigned factor;
    int shift;

    __device__ __forceinline__ int of(int i) const { return (int)((unsigned long long)(unsigned)i * factor >> shift); }
};

// i / n for i * n < 2^31.
__device__ __forceinline__ int quotient(int i, unsigned reciprocal) {
    return (int)(((unsigned long long)(unsigned)i * reciprocal) >> 31);
}

// The elements of a window, row by row. Where the size is known, those outside of the image stand for its nearest ones, which
// are in the window too: one of them twice, one after the other in its row or a row after itself, changes neither which is
// the largest nor which of equals is the first, and takes no branch.
template <typename Visit>
__device__ __forceinline__ void each_of_window(const Geometry& g, int top, int left, Visit visit) {
    if constexpr (KH > 0) {
#pragma unroll
        for (int i = 0; i < KH; ++i)
#pragma unroll
            for (int j = 0; j < KW; ++j) visit(min(max(top + i, 0), g.h - 1), min(max(left + j, 0), g.w - 1));
    } else {
        const int bottom = min(top + g.kernel[0], g.h), right = min(left + g.kernel[1], g.w);
        for (int h = max(top, 0); h < bottom; ++h)
            for (int w = max(left, 0); w < right; ++w) visit(h, w);
    }
}

// Whether x takes the place of the best so far: it is larger or NaN. The comparisons of C++ would take subnormals for 0.
__device__ __forceinline__ bool beats(float best, float x) {
    int found;
    asm("{\n.reg .pred nan, p;\nsetp.nan.f32 nan, %2, %2;\nsetp.gt.or.f32 p, %2, %1, nan;\nselp.s32 %0, 1, 0, p;\n}"
        : "=r"(found)
        : "f"(best), "f"(x));
    return found;
}

// The first and the last of the windows that have elements of [begin, end), for one axis.
__device__ __forceinline__ int first_window(int begin, int kernel, int stride, int padding) {
    const int past = begin + padding - kernel;
    return past < 0 ? 0 : past / stride + 1;
}
__device__ __forceinline__ int last_window(int end, int stride, int padding, int windows) {
    return min((end - 1 + padding) / stride, windows - 1);
}
