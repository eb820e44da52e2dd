// Windows that do not overlap, as rows of a matrix [places, PITCH], zero behind their terms. Terms are in the order of
// the image: (r, s, c) if LAST, else (c, r, s), so that READ of them lie side by side in both. A block has a part of the
// places of one row of windows. Of neighbouring threads, GROUP have the same terms of neighbouring places, where what
// lies side by side is shorter than a sector: then these read sectors together. A thread writes a vector: 64x3x224x224
// in windows of 16 x 16 takes 16.0 us on an H200, 18.4 with four of them, torch's copy of as many bytes 15.1.
#include "common.cuh"

#ifndef ELEMENT
#define ELEMENT unsigned short
#define CHANNELS 3
#define TAPS_H 16
#define TAPS_W 16
#define STRIDE_H 16
#define STRIDE_W 16
#define PADDING_H 0
#define PADDING_W 0
#define PITCH 768
#define LAST 1
#define READ 8  // of them that an access to the image takes, part of a run
#define GROUP 1
#define THREADS 256
#endif

using T = ELEMENT;
constexpr int VECTOR = 16 / sizeof(T), TERMS = CHANNELS * TAPS_H * TAPS_W, VECTORS = PITCH / VECTOR;

// An image [N, CHANNELS, height, width], rows and columns of windows.
struct Images {
    i64 by_n, by_c, by_h, by_w;
    int height, width, rows, columns;
};

// A vector of the matrix, of place q of a row of windows, or what is `further` in it.
struct Patch {
    int q, term, r, s, c;

    __device__ __forceinline__ Patch(int unit, int further) {
        q = unit / (VECTORS * GROUP) * GROUP + unit % GROUP;
        term = unit / GROUP % VECTORS * VECTOR + further;
        r = LAST ? term / (TAPS_W * CHANNELS) : term / TAPS_W % TAPS_H;
        s = LAST ? term / CHANNELS % TAPS_W : term % TAPS_W;
        c = LAST ? term % CHANNELS : term / (TAPS_W * TAPS_H);
    }
    __device__ __forceinline__ bool inside(int p, const Images& g) const {
        const int h = p * STRIDE_H - PADDING_H + r, w = q * STRIDE_W - PADDING_W + s;
        const bool outside = (unsigned)h >= (unsigned)g.height || (unsigned)w >= (unsigned)g.width;
        return term < TERMS && !((PADDING_H || PADDING_W) && outside);
    }
    // From the first element of the first window of the row.
    __device__ __forceinline__ i64 at(const Images& g) const {
        return r * g.by_h + (q * STRIDE_W + s) * g.by_w + c * g.by_c;
    }
};

// blocks: of a row of windows.
extern "C" __global__ void __launch_bounds__(THREADS)
    conv2d_patches(T* __restrict__ matrix, const T* __restrict__ images, const Images g, int blocks) {
    const int line = blockIdx.x / blocks, p = line % g.rows, unit = blockIdx.x % blocks * THREADS + threadIdx.x;
    const i64 first = line / g.rows * g.by_n + (p * STRIDE_H - PADDING_H) * g.by_h - PADDING_W * g.by_w;
    const Patch whole(unit, 0);
    if (whole.q >= g.columns) return;
    Vec<T, VECTOR> some = {};
#pragma unroll
    for (int j = 0; j < VECTOR; j += READ) {
        const Patch patch(unit, j);
        if (!patch.inside(p, g)) continue;
        const Vec<T, READ> read = load_constant<READ>(images + first + patch.at(g));
#pragma unroll
        for (int k = 0; k < READ; k++) some.v[j + k] = read.v[k];
    }
    store(matrix + ((i64)line * g.columns + whole.q) * PITCH + whole.term, some);
}
