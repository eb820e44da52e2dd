// The gradient of rms_norm for one row, y = x * r * weight, r = 1 / sqrt(mean(x^2) + eps):
//   grad_x      = r * g * weight - x * c,  c = r^3 * mean(g * weight * x)
//   grad_weight = sum over the rows of g * x * r
#pragma once

#include "row_gradients.cuh"

struct RmsNormGradient {
    float r, c;

    struct State {
        float squares = 0.0f, dot = 0.0f;  // sums of x^2 and of g * weight * x

        __device__ __forceinline__ void add(float x, float g, float w) {
            squares = fmaf(x, x, squares);
            dot = fmaf(g * w, x, dot);
        }
        template <typename Op, typename L>
        __device__ __forceinline__ void join(const Op&, L lanes) {
            squares = lanes.sum(squares);
            dot = lanes.sum(dot);
        }
    };
    static __device__ __forceinline__ RmsNormGradient of(const State& s, int n, float eps) {
        const float r = rsqrtf(__fdividef(s.squares, n) + eps);
        return {r, r * r * r * __fdividef(s.dot, n)};
    }
    // grad_x of one column; adds to grad_weight.
    __device__ __forceinline__ float operator()(float x, float g, float w, float& grad_weight) const {
        const float gr = g * r;
        grad_weight = fmaf(gr, x, grad_weight);
        return gr * w - x * c;
    }
};
