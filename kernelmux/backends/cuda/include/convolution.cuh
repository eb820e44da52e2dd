// What the kernels of conv2d and of its gradients share: a convolution as a product of matrices, one of which is never
// written down (implicit im2col). A position is an output pixel (n, p, q), a tap a place in the filter (r, s).
//
//   CONV2D           y[position, o]       = sum over (tap, c) of x[position at tap, c] weight[o, tap, c]
//   BACKWARD_INPUT   grad_x[pixel, c]     = sum over (tap, o) of grad_out[pixel at tap, o] weight[o, tap, c]
//   BACKWARD_WEIGHT  grad_w[o, (tap, c)]  = sum over positions of grad_out[position, o] x[position at tap, c]
//
// "At tap" is pixel p * stride - padding + r * dilation, or in the second the p that solves this for a given pixel.
// Pixels that are equal modulo the stride, a phase, meet the same taps: each phase is a convolution of stride 1 with
// some of them, so that no product with a zero between two pixels is computed.
#pragma once
#include "common.cuh"

#define CONV2D 0
#define BACKWARD_INPUT 1
#define BACKWARD_WEIGHT 2
#ifndef OPERATOR
#define OPERATOR CONV2D
#endif
#ifndef ELEMENT
#define ELEMENT __nv_bfloat16
#endif
#ifndef PARTIAL  // sums of a piece of K go to fp32 parts, which conv2d_splits.cu adds
#define PARTIAL 0
#endif
#ifndef TAPS_OUTER  // the order of an index (tap, c): channels are its inner part, else taps are
#define TAPS_OUTER 0
#endif
#ifndef M_CONTIGUOUS  // which index of the result has unit stride
#define M_CONTIGUOUS 1
#endif

using Element = ELEMENT;

// In elements; of a weight, n and c are its output and input channels, h and w its taps.
struct Strides {
    i64 n, c, h, w;
};

// Along h or w. size: of the image that is read at taps. count: of positions, in BACKWARD_INPUT of pixels. period:
// every how many taps one meets the same phase, stride / gcd(stride, dilation).
struct Axis {
    i64 size, count, taps, stride, padding, dilation, period;
};

// image is read at taps; other: weight, in BACKWARD_WEIGHT grad_out. channels: of the image. filters: of the other one;
// in BACKWARD_INPUT the strides n and c of the weight have changed places, so that it is the input's.
struct Convolution {
    Strides image, other, out;
    i64 batch, channels, filters, phases, tiles, k_split;  // tiles: of a phase
    Axis h, w;
};

// Where a part of an index leads to: elements, and a row and a column of the image. Two such parts add up to an
// element.
struct alignas(16) Place {
    i64 offset;
    int h, w;

    __device__ __forceinline__ bool within(int H, int W) const {
        return (unsigned)h < (unsigned)H && (unsigned)w < (unsigned)W;
    }
};
__device__ __forceinline__ Place operator+(Place a, Place b) { return {a.offset + b.offset, a.h + b.h, a.w + b.w}; }

// Outside any image, whatever is added.
__device__ __forceinline__ Place nowhere() { return {0, -(1 << 30), 0}; }

// An axis in one phase: position i at tap t is pixel origin + i * step + t * hop; the output it belongs to is
// first + i * apart, the tap of the weight first_tap + t * tap_step.
struct Walk {
    int count, taps, origin, step, hop, first, apart, first_tap, tap_step;

    __device__ __forceinline__ Walk(const Axis& axis, int phase)
        : count(axis.count), taps(axis.taps), origin(-axis.padding), step(axis.stride), hop(axis.dilation), first(0),
          apart(1), first_tap(0), tap_step(1) {
        if constexpr (OPERATOR == BACKWARD_INPUT) {
            const int stride = step, dilation = hop, most = min((int)axis.period, taps);
            while (first_tap < most && (phase - origin - first_tap * dilation) % stride != 0) first_tap++;
            count = cdiv(count - phase, stride);
            first = phase;
            apart = stride;
            tap_step = axis.period;
            taps = first_tap < most ? cdiv(taps - first_tap, tap_step) : 0;
            origin = (phase - origin - first_tap * dilation) / stride;
            step = 1;
            hop = -(tap_step * dilation / stride);
        }
    }
};

// Along an axis.
__device__ __forceinline__ int phases(const Axis& axis) { return min(axis.stride, axis.count); }

// The product of one phase: sizes, and where the elements of its operands and of its result are.
struct Product {
    const Convolution& c;
    Walk h, w;
    int M, N, K;

    __device__ __forceinline__ Product(const Convolution& c, int phase)
        : c(c), h(c.h, phase / phases(c.w)), w(c.w, phase % phases(c.w)) {
        const int positions = c.batch * h.count * w.count, taps = h.taps * w.taps;
        M = OPERATOR == BACKWARD_WEIGHT ? c.filters : positions;
        N = OPERATOR == BACKWARD_WEIGHT ? taps * c.channels : c.filters;
        K = OPERATOR == BACKWARD_WEIGHT ? positions : taps * c.channels;
    }

    struct Position {
        int n, p, q;
    };
    __device__ __forceinline__ Position position(int i) const {
        const int row = i / w.count;
        return {row / h.count, row % h.count, i % w.count};
    }

    struct Tap {
        int c, r, s;
    };
    __device__ __forceinline__ Tap tap(int i) const {
        const int inner = TAPS_OUTER ? c.channels : h.taps * w.taps, tap = TAPS_OUTER ? i / inner : i % inner;
        return {TAPS_OUTER ? i % inner : i / inner, tap / w.taps, tap % w.taps};
    }

    __device__ __forceinline__ Place image_at(int y, int x, i64 offset) const {
        return {offset + y * c.image.h + x * c.image.w, y, x};
    }
    __device__ __forceinline__ Place image_position(int i) const {
        const Position at = position(i);
        return image_at(h.origin + at.p * h.step, w.origin + at.q * w.step, at.n * c.image.n);
    }
    __device__ __forceinline__ Place image_tap(int i) const {
        const Tap at = tap(i);
        return image_at(at.r * h.hop, at.s * w.hop, at.c * c.image.c);
    }
    __device__ __forceinline__ i64 taps_of(const Strides& x, Tap at) const {
        return at.c * x.c + (h.first_tap + at.r * h.tap_step) * x.h + (w.first_tap + at.s * w.tap_step) * x.w;
    }
    __device__ __forceinline__ i64 positions_of(const Strides& x, Position at) const {
        return at.n * x.n + (h.first + at.p * h.apart) * x.h + (w.first + at.q * w.apart) * x.w;
    }

    // Element (m, k) of the left operand is at left_m(m) + left_k(k), (n, k) of the right one at right_n(n) +
    // right_k(k).
    __device__ __forceinline__ Place left_m(int m) const {
        if (m >= M) return nowhere();
        if constexpr (OPERATOR == BACKWARD_WEIGHT) return {m * c.other.c, 0, 0};
        else return image_position(m);
    }
    __device__ __forceinline__ Place left_k(int k, int end) const {
        if (k >= end) return nowhere();
        if constexpr (OPERATOR == BACKWARD_WEIGHT) return {positions_of(c.other, position(k)), 0, 0};
        else return image_tap(k);
    }
    __device__ __forceinline__ Place right_n(int n) const {
        if (n >= N) return nowhere();
        if constexpr (OPERATOR == BACKWARD_WEIGHT) return image_tap(n);
        else return {n * c.other.n, 0, 0};
    }
    __device__ __forceinline__ Place right_k(int k, int end) const {
        if (k >= end) return nowhere();
        if constexpr (OPERATOR == BACKWARD_WEIGHT) return image_position(k);
        else return {taps_of(c.other, tap(k)), 0, 0};
    }

    // Rows and columns of what the operands are places in; 1 where nothing can be outside.
    __device__ __forceinline__ int left_rows() const { return OPERATOR == BACKWARD_WEIGHT ? 1 : (int)c.h.size; }
    __device__ __forceinline__ int left_columns() const { return OPERATOR == BACKWARD_WEIGHT ? 1 : (int)c.w.size; }
    __device__ __forceinline__ int right_rows() const { return OPERATOR == BACKWARD_WEIGHT ? (int)c.h.size : 1; }
    __device__ __forceinline__ int right_columns() const { return OPERATOR == BACKWARD_WEIGHT ? (int)c.w.size : 1; }

    // Element (m, n) of the result.
    __device__ __forceinline__ i64 result(int m, int n) const {
        if constexpr (OPERATOR == BACKWARD_WEIGHT) return m * c.out.n + taps_of(c.out, tap(n));
        else return positions_of(c.out, position(m)) + n * c.out.c;
    }
    // In the parts of a split product.
    __device__ __forceinline__ i64 part(int m, int n) const { return M_CONTIGUOUS ? (i64)n * M + m : (i64)m * N + n; }
};

// Sums of a part [splits, phases, part_size], the size of phase 0, which is the largest.
__device__ __forceinline__ i64 part_size(const Convolution& c) {
    const Product first(c, 0);
    return (i64)first.M * first.N;
}

// The sum with the bias, if there is one, of column n.
__device__ __forceinline__ float biased(float sum, const Element* bias, int n) {
    return OPERATOR == CONV2D && bias ? add_gradual(sum, to_float(__ldg(bias + n))) : sum;
}
