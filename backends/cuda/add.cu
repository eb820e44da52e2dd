// add: z = x + y, in fp32 with one rounding to T, subnormals and all. x, y, z: n elements.
#include "elementwise.cuh"

struct Add {
    __device__ __forceinline__ float operator()(const float (&x)[2]) const { return add_gradual(x[0], x[1]); }
};

extern "C" __global__ void __launch_bounds__(BLOCK)
add_contiguous(const T* __restrict__ x, const T* __restrict__ y, T* __restrict__ z, i64 n) {
    map_contiguous(Add(), {x, y}, z, n);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
add_strided(const T* __restrict__ x, const T* __restrict__ y, T* __restrict__ z, const Layout<2> layout, i64 n) {
    map_strided(Add(), {x, y}, z, n, layout);
}
