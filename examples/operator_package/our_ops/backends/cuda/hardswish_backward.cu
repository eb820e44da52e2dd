// hardswish_backward: grad_x = grad_out * hardswish'(x).
#include "elementwise.cuh"

struct Gradient {
    __device__ __forceinline__ float operator()(float grad_out, float x) const {
        return grad_out * (x < -3 ? 0.0f : x > 3 ? 1.0f : x / 3 + 0.5f);
    }
};

ELEMENTWISE(hardswish_backward, Gradient, 2, 1)
