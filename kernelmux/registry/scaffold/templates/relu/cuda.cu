// newop, element by element, in fp32 with one rounding.
#include "elementwise.cuh"

struct Formula {
    __device__ __forceinline__ float operator()(float x) const {
        return x <= 0.0f ? 0.0f : x;  // TODO(newop): of one number
    }
};

ELEMENTWISE(newop, Formula, 1, 1)  // inputs, outputs
