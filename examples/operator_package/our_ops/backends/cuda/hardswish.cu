// hardswish: y = x * min(max(x + 3, 0), 6) / 6.
#include "elementwise.cuh"

struct Hardswish {
    __device__ __forceinline__ float operator()(float x) const { return x * (fminf(fmaxf(x + 3, 0), 6) / 6); }
};

ELEMENTWISE(hardswish, Hardswish, 1, 1)
