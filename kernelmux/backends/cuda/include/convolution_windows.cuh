// How the copy engine walks over images: windows, positions, and steps of 64 channels at a tap.
#pragma once
#include "convolution_copies.cuh"

// Where the windows lie. rows, columns: of positions. channels: of the image that is read at taps, rounded up to 64.
struct Windows {
    int rows, columns, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w, taps_h, taps_w, channels;
};

struct Position {
    int n, p, q;

    __device__ __forceinline__ Position(int i, const Windows& w)
        : n(i / w.columns / w.rows), p(i / w.columns % w.rows), q(i % w.columns) {}

    // Row and column of the image, at the first tap.
    __device__ __forceinline__ int y(const Windows& w) const { return p * w.stride_h - w.padding_h; }
    __device__ __forceinline__ int x(const Windows& w) const { return q * w.stride_w - w.padding_w; }

    // As many positions further on as position `by` is from the first one.
    __device__ __forceinline__ void advance(const Position& by, const Windows& w) {
        n += by.n, p += by.p, q += by.q;
        if (q >= w.columns) q -= w.columns, p++;
        if (p >= w.rows) p -= w.rows, n++;
    }
};

// 64 channels, from c on, of a tap.
struct Step {
    int r, s, c;

    Step() = default;
    __device__ __forceinline__ Step(int i, const Windows& w)
        : r(i / w.channels / w.taps_w), s(i / w.channels % w.taps_w), c(i % w.channels) {}

    __device__ __forceinline__ void advance(const Windows& w) {
        c += 64;
        if (c < w.channels) return;
        c = 0;
        if (++s == w.taps_w) s = 0, r++;
    }
};

// 64 channels of the pixels at a tap.
__device__ __forceinline__ void load_tap(void* to, const TensorMap& image, Barrier& full, const Position& at,
                                         const Step& step, const Windows& w) {
    load_pixels(to, image, full, at.n, at.y(w), at.x(w), step.c, step.r * w.dilation_h, step.s * w.dilation_w);
}
