// The gradients of rms_norm, y = x * r * weight, r = 1 / sqrt(mean(x^2) + eps), from g, that of y:
//   grad_x      = r * g * weight - x * c,  c = r^3 * mean(g * weight * x)
//   grad_weight = sum over the rows of g * x * r
#pragma once

#include "row_gradients.cuh"

// Inputs: g, then what is added to grad_x if there are three of them, then x.
template <int Inputs>
struct RmsNormBackward {
    float eps;
    struct State {
        float squares = 0.0f, dot = 0.0f;  // sums of x^2 and of g * weight * x
    };
    struct Row {
        float r, c;
    };
    template <typename Each>
    __device__ __forceinline__ void add(State& s, Each each) const {
        each([&](const float* in, float w) {
            const float g = in[0], x = in[Inputs - 1];
            s.squares = fmaf(x, x, s.squares);
            s.dot = fmaf(g * w, x, s.dot);
        });
    }
    template <typename Total>
    __device__ __forceinline__ State together(const State& s, int, Total& total) const {
        float sums[] = {s.squares, s.dot};
        total(sums);
        return {sums[0], sums[1]};
    }
    template <typename Total>
    __device__ __forceinline__ Row finish(const State& s, int n, Total& total) const {
        const State all = together(s, n, total);
        const float r = rsqrtf(__fdividef(all.squares, n) + eps);
        return {r, r * r * r * __fdividef(all.dot, n)};
    }
    __device__ __forceinline__ void apply(const float* in, float w, const Row& row, float& grad, float* sums) const {
        const float gr = in[0] * row.r, x = in[Inputs - 1];
        sums[0] = fmaf(gr, x, sums[0]);
        grad = gr * w - x * row.c;
        if (Inputs == 3) grad += in[1];
    }
};
