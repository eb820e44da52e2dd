// polynomial: y = a x^3 + b x^2 + c x + d by Horner's rule in fp32; the coefficients arrive with each launch.
#include "elementwise.cuh"

struct Polynomial {
    float a, b, c, d;
    __device__ __forceinline__ float operator()(float x) const { return fmaf(fmaf(fmaf(a, x, b), x, c), x, d); }
};

ELEMENTWISE_OF(polynomial, Polynomial, 1, 1)
