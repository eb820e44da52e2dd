// square: y = x * x.
#include "map.cuh"

struct Square {
    __device__ __forceinline__ float operator()(float x) const { return x * x; }
};

ELEMENTWISE(square, Square, 1, 1)
