// SiLU and GELU with their derivatives, for fp32 arguments: x * p(x) for a distribution function p, and p(x) + x * p'(x).
// Nothing cancels for negative x: what is small is computed as such, and not as 1 minus the rest. NaN passes through p.
#pragma once

#include "common.cuh"

// Beyond it each p is 0 or 1 and each p' is 0; an infinity would make 0 * inf of the product with them.
constexpr float FAR = 1000.0f;
constexpr float LOG2_E = 1.44269504f;

__device__ __forceinline__ float bounded(float x) { return fminf(fmaxf(x, -FAR), FAR); }

// p(x) and its derivative.
struct Share {
    float value, slope;
};

// 1 / (1 + exp(-w)) for w in units of ln 2.
__device__ __forceinline__ float logistic(float w) { return fast_reciprocal(1.0f + fast_exp2(-w)); }

// The same with the derivative by w * ln 2.
__device__ __forceinline__ Share logistic_share(float w) {
    const float t = fast_exp2(-fabsf(w));
    const float r = fast_reciprocal(1.0f + t);
    return {w < 0.0f ? t * r : r, t * r * r};
}

// ---- SiLU: p is the logistic function

__device__ __forceinline__ float silu(float x) { return fmaxf(x, -FAR) * logistic(LOG2_E * x); }

struct Silu {
    static __device__ __forceinline__ float value(float x) { return silu(x); }
    static __device__ __forceinline__ Share share(float x) { return logistic_share(LOG2_E * x); }
    // Of x, given its share.
    static __device__ __forceinline__ float value(float x, const Share& p) { return fmaxf(x, -FAR) * p.value; }
};

// ---- GELU: p is the distribution function of the standard normal, or its tanh approximation

// P(X <= -a) = exp(-a^2 / 2) * P(1 / (1 + 0.325 a)) for a >= 0, P our own least-squares fit in float64: absolute error
// 9e-9, relative error 3e-5 up to a = 6. erff costs twice the instructions, and then gelu is bound by them, not memory.
struct GeluErf {
    static __device__ __forceinline__ Share share(float x) {
        const float t = fast_reciprocal(fmaf(0.325f, fabsf(x), 1.0f));
        float p = 0.04612083f;
        p = fmaf(p, t, -0.23280295f);
        p = fmaf(p, t, 0.3730279f);
        p = fmaf(p, t, -0.13039893f);
        p = fmaf(p, t, 0.20109384f);
        p = fmaf(p, t, 0.11170174f);
        p = fmaf(p, t, 0.13125756f);
        const float density = fast_exp2(-0.72134752f * (x * x));  // log2(e) / 2; times sqrt(2 pi)
        const float tail = p * t * density;
        return {x < 0.0f ? tail : 1.0f - tail, 0.39894228f * density};
    }
    static __device__ __forceinline__ float value(float x, const Share& p) { return x * p.value; }
    static __device__ __forceinline__ float value(float x) { return value(x, share(x)); }
};

// (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)), u = sqrt(2 / pi) * (x + 0.044715 x^3); constants times 2 log2(e).
struct GeluTanh {
    static __device__ __forceinline__ float exponent(float x) { return x * fmaf(0.10294324f, x * x, 2.3022082f); }
    static __device__ __forceinline__ Share share(float x) {
        const float z = bounded(x);
        const Share p = logistic_share(exponent(x));
        return {p.value, p.slope * fmaf(0.21406445f, z * z, 1.5957691f)};  // times the derivative of 2u
    }
    static __device__ __forceinline__ float value(float x, const Share& p) { return x * p.value; }
    static __device__ __forceinline__ float value(float x) { return x * logistic(exponent(x)); }
};

#ifndef TANH
#define TANH 0
#endif
#if TANH
using Gelu = GeluTanh;
#else
using Gelu = GeluErf;
#endif

// ---- what all of them have in common

__device__ __forceinline__ float derivative(float x, const Share& p) { return fmaf(bounded(x), p.slope, p.value); }
