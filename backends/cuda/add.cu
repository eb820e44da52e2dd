// add: z = x + y, in fp32 with one rounding to T, subnormals and all. x, y, z: n elements.
#include "elementwise.cuh"

struct Add {
    __device__ __forceinline__ float operator()(float x, float y) const { return add_gradual(x, y); }
};

ELEMENTWISE(add, Add, 2, 1)
