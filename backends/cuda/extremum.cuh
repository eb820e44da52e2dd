// The largest or the smallest element; NaN if there is one.
//
//     EXTREMUM(reduce_max, "max.NaN.f32", -infinity())    // entries, instruction, what loses to every number
//
// fmaxf and fminf drop NaN, and flush subnormal numbers.
#pragma once

#include "reduce.cuh"

#define EXTREMUM(name, instruction, start)                                                     \
    struct Extremum {                                                                          \
        static __device__ __forceinline__ float identity() { return start; }                   \
        __device__ __forceinline__ float operator()(float a, float b) const {                  \
            float found;                                                                       \
            asm(instruction " %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));                    \
            return found;                                                                      \
        }                                                                                      \
    };                                                                                         \
    REDUCTION(name, Values<Extremum>)
