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
#ifndef KEYED  // whether elements have 16 bits and the size of a window is known
#define KEYED 0
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

#if KEYED
// ---- elements of 16 bits as integers: one comparison finds the largest and the first of equals
//
// A key is an element, as a signed integer in its order, above 16 bits that are smaller the later the element comes in its
// window, row by row: the complement of row * KeyRow + column.
__device__ __forceinline__ constexpr unsigned lowest_pair(__half) { return 0xfc00fc00u; }  // -inf, twice
__device__ __forceinline__ constexpr unsigned lowest_pair(__nv_bfloat16) { return 0xff80ff80u; }
constexpr int KeyRow = 64, LowestKey = -1 - 0x7fffffff;

// Two elements as signed 16-bit integers in their order: -0 is 0, NaN is above infinity.
__device__ __forceinline__ unsigned ordered(unsigned pair, __half) {
    return bits<unsigned>(__hadd2(bits<__half2>(pair), bits<__half2>(0u)));
}
__device__ __forceinline__ unsigned ordered(unsigned pair, __nv_bfloat16) {
    return bits<unsigned>(__hadd2(bits<__nv_bfloat162>(pair), bits<__nv_bfloat162>(0u)));
}
__device__ __forceinline__ unsigned ordered(unsigned pair) {
    const unsigned sum = ordered(pair, T());
    unsigned negative;  // each half all ones or all zeros
    asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(negative) : "r"(sum));
    return sum ^ (negative & 0x7fff7fffu);
}

// The key of one half of such a pair.
__device__ __forceinline__ int key_of(unsigned pair, bool upper, int row, int column) {
    const unsigned place = 0xffffu - (unsigned)(row * KeyRow + column);
    return (int)(upper ? __byte_perm(pair, place, 0x3254) : __byte_perm(pair, place, 0x1054));
}

constexpr int FirstNaN = 0x7fff0000;  // and every key above it: a NaN, but the first where the last is asked for
__device__ __forceinline__ bool is_zero(int key) { return (unsigned)key < 0x10000u; }

// Position h * W + w of the element of a key whose row and column are counted from (top, left). Rows before the image stand for
// its first one.
__device__ __forceinline__ int position(const Geometry& g, int key, int top, int left) {
    const int row = (~key & 0xffff) / KeyRow, column = ~key & (KeyRow - 1);
    return max(top + row, 0) * g.w + (left + column);
}

// The elements of two keys, low half first; of zeros the positive one.
__device__ __forceinline__ unsigned elements(int low, int high) {
    const unsigned pair = __byte_perm((unsigned)low, (unsigned)high, 0x7632);
    unsigned negative;
    asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(negative) : "r"(pair));
    return pair ^ (negative & 0x7fff7fffu);
}
__device__ __forceinline__ T element(int key) { return bits<T>((unsigned short)elements(key, 0)); }

// Of a window with NaN: the last one.
template <typename Element>
__device__ __forceinline__ void last_nan(T* y, int* index, const Geometry& g, int top, int left, Element element) {
#pragma unroll 1
    for (int h = max(top, 0); h < min(top + g.kh(), g.h); ++h)
#pragma unroll 1
        for (int w = max(left, 0); w < min(left + g.kw(), g.w); ++w) {
            const T x = element(h, w);
            if (isnan(to_float(x))) *y = x, *index = h * g.w + w;
        }
}
#endif

// The first and the last of the windows that have elements of [begin, end), for one axis.
__device__ __forceinline__ int first_window(int begin, int kernel, int stride, int padding) {
    const int past = begin + padding - kernel;
    return past < 0 ? 0 : past / stride + 1;
}
__device__ __forceinline__ int last_window(int end, int stride, int padding, int windows) {
    return min((end - 1 + padding) / stride, windows - 1);
}
