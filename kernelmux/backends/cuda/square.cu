// square: y = x * x.
#include "elementwise.cuh"

struct Square {
    __device__ __forceinline__ float operator()(float x) const { return x * x; }
};

ELEMENTWISE(square, Square, 1, 1)
