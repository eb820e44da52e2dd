// gelu: y = x * Phi(x), Phi the distribution function of the standard normal, or its tanh approximation. n elements.
#include "elementwise.cuh"

#ifndef TANH
#define TANH 0
#endif

// Phi(-a) = exp(-a^2 / 2) * P(1 / (1 + 0.325 a)) for a >= 0, P our own least-squares fit in float64: absolute error
// 9e-9, relative error 3e-5 up to a = 6. erff costs twice the instructions, and then gelu is bound by them, not memory.
struct Erf {
    __device__ __forceinline__ float operator()(const float (&inputs)[1]) const {
        const float x = inputs[0];
        const float t = fast_reciprocal(fmaf(0.325f, fabsf(x), 1.0f));
        float p = 0.04612083f;
        p = fmaf(p, t, -0.23280295f);
        p = fmaf(p, t, 0.3730279f);
        p = fmaf(p, t, -0.13039893f);
        p = fmaf(p, t, 0.20109384f);
        p = fmaf(p, t, 0.11170174f);
        p = fmaf(p, t, 0.13125756f);
        const float tail = p * t * fast_exp2(-0.72134752f * (x * x));  // log2(e) / 2
        return x * (x < 0.0f ? tail : 1.0f - tail);
    }
};

// (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)), u = sqrt(2 / pi) * (x + 0.044715 x^3); constants times 2 log2(e).
struct Tanh {
    __device__ __forceinline__ float operator()(const float (&inputs)[1]) const {
        const float x = inputs[0];
        const float u = x * fmaf(0.10294324f, x * x, 2.3022082f);
        return x * fast_reciprocal(1.0f + fast_exp2(-u));
    }
};

#if TANH
using Gelu = Tanh;
#else
using Gelu = Erf;
#endif

extern "C" __global__ void __launch_bounds__(BLOCK) gelu_contiguous(const T* __restrict__ x, T* __restrict__ y, i64 n) {
    map_contiguous(Gelu(), {x}, y, n);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
gelu_strided(const T* __restrict__ x, T* __restrict__ y, const Layout<1> layout, i64 n) {
    map_strided(Gelu(), {x}, y, n, layout);
}
