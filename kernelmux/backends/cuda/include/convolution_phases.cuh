// The gradient of images by strides: which taps and places of grad_out each phase of pixels meets, as a work of its own.
//
// Windows are known when the kernel is compiled: what they are divided by took longer than the products of a short phase.
#pragma once
#include "convolution_copies.cuh"

#ifndef STRIDE_H
#define STRIDE_H 2
#define PADDING_H 1
#define DILATION_H 1
#define TAPS_H 3
#define COMMON_H 1
#define LOWEST_H 0
#define STRIDE_W 2
#define PADDING_W 1
#define DILATION_W 1
#define TAPS_W 3
#define COMMON_W 1
#define LOWEST_W 0
#endif

// Of the result along an axis. positions: of a phase, the largest one. Lowest: where in grad_out the first position of any
// phase meets the one of its taps that is furthest back. Common: the greatest divisor of stride and dilation.
template <int Stride, int Padding, int Dilation, int Taps, int Common, int Lowest>
struct Axis {
    static constexpr int Phases = Stride, First = Lowest, Apart = Stride / Common, Back = Dilation / Common;
    int size, positions;

    // residue: of a phase's pixels. tap, count: the first tap that they meet, and how many, each Apart taps and Back places
    // from the one before. place: where in grad_out, from Lowest on, position 0 meets the first.
    struct Phase {
        int residue, tap, count, place;

        // In the order of their taps: i is the first tap; those without any come last.
        __device__ __forceinline__ explicit Phase(int i) : tap(i % Apart) {
            const int meets = tap * Dilation + i / Apart - Padding;
            residue = (meets % Stride + Stride) % Stride;
            count = i < Apart && tap < Taps ? cdiv(Taps - tap, Apart) : 0;
            place = (residue - meets) / Stride - Lowest;
        }
    };
};

using Rows = Axis<STRIDE_H, PADDING_H, DILATION_H, TAPS_H, COMMON_H, LOWEST_H>;
using Columns = Axis<STRIDE_W, PADDING_W, DILATION_W, TAPS_W, COMMON_W, LOWEST_W>;

// The tile of a work, longest works first.
struct PhaseWork {
    Rows::Phase h;
    Columns::Phase w;
    Work tile;

    __device__ __forceinline__ PhaseWork(int index, int tiles, const Sizes& sizes)
        : h(index / tiles / Columns::Phases), w(index / tiles % Columns::Phases), tile(index % tiles, sizes) {
        tile.k_end = h.count * w.count * sizes.K;
    }
};

// A block takes one from the left and one from the right of a round in turn, so that the one with the longest work of a
// round has the shortest of the next.
__device__ __forceinline__ int work_of_round(int round) {
    return round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
}

// Of a position, its pixel of the result, counted over all images; -1 for none.
__device__ __forceinline__ int pixel_of(int m, const PhaseWork& work, const Sizes& sizes, const Rows& rows,
                                        const Columns& columns) {
    const int line = m / columns.positions, x = m % columns.positions * Columns::Phases + work.w.residue;
    const int n = line / rows.positions, y = line % rows.positions * Rows::Phases + work.h.residue;
    return m < sizes.M && y < rows.size && x < columns.size ? (n * rows.size + y) * columns.size + x : -1;
}
