// The mean of a row and the squares of the distances from it, as layer_norm and its gradients need them.
#pragma once

#include "common.cuh"

// The values of one thread are read twice, the second time as distances from their mean; parts of a row are then moved to the mean
// of both (Chan, Golub and LeVeque, 1979). No square of a value itself is ever added, so a mean far from zero costs nothing.
struct Moments {
    float mean = 0.0f, squares = 0.0f, count = 0.0f;

    template <typename Each>
    __device__ __forceinline__ void add(Each each) {
        float sum = 0.0f, around = 0.0f;
        int more = 0;
        each([&](const float* x) {
            sum += x[0];
            ++more;
        });
        if (more == 0) return;
        const float centre = __fdividef(sum, more);
        each([&](const float* x) { around = fmaf(x[0] - centre, x[0] - centre, around); });
        const float total = count + more, share = __fdividef(more, total), apart = count > 0.0f ? centre - mean : 0.0f;
        mean = count > 0.0f ? fmaf(apart, share, mean) : centre;
        squares += fmaf(apart * apart, count * share, around);
        count = total;
    }
    template <typename Op, typename L>
    __device__ __forceinline__ void join(const Op&, L lanes) {
        const float total = lanes.sum(count), share = total > 0.0f ? __fdividef(count, total) : 0.0f, here = mean;
        mean = lanes.sum(here * share);
        squares = lanes.sum(squares_around(count > 0.0f ? here - mean : 0.0f));
        count = total;
    }
    // The squares of the distances from a point so far below the mean.
    __device__ __forceinline__ float squares_around(float apart) const { return fmaf(apart * apart, count, squares); }
};
