// The largest or the smallest element; NaN if there is one.
//
//     EXTREMUM(reduce_max, "max", -infinity())    // entries, instruction, what loses to every number
//
// fmaxf and fminf drop NaN, and flush subnormal numbers.
#pragma once

#include "reduce.cuh"

#if __CUDA_ARCH__ >= 800
#define OR_NAN(instruction) instruction ".NaN.f32 %0, %1, %2;"
#else
#define OR_NAN(instruction)                                                                    \
    "{\n.reg .pred nan;\nsetp.nan.f32 nan, %1, %2;\n" instruction ".f32 %0, %1, %2;\n"         \
    "selp.f32 %0, 0f7FFFFFFF, %0, nan;\n}"
#endif

#define EXTREMUM(name, instruction, start)                                                     \
    struct Extremum {                                                                          \
        static __device__ __forceinline__ float identity() { return start; }                   \
        __device__ __forceinline__ float operator()(float a, float b) const {                  \
            float found;                                                                       \
            asm(OR_NAN(instruction) : "=f"(found) : "f"(a), "f"(b));                           \
            return found;                                                                      \
        }                                                                                      \
    };                                                                                         \
    REDUCTION(name, Values<Extremum>)
