// add: z = x + y, in fp32 with one rounding, subnormals and all.
#include "elementwise.cuh"

struct Add {
    __device__ __forceinline__ float operator()(float x, float y) const { return add_gradual(x, y); }
};

ELEMENTWISE(add, Add, 2, 1)
