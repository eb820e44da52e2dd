// grad_weight += grad_out x by pieces of the sum: each block takes 16 places for 64 elements of the kernels.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef ELEMENT
#define ELEMENT float
#endif
using T = ELEMENT;

struct Sizes {
    int N, C, H, W, O, R, S, P, Q, stride[2], padding[2], dilation[2];
};

extern "C" __global__ void atomic_parts(const T* grad_out, const T* x, float* grad_weight, const Sizes* sizes) {
    const Sizes& z = *sizes;
    const int index = blockIdx.x * 64 + threadIdx.x, taps = z.R * z.S;
    if (index >= z.O * z.C * taps) return;
    const int o = index / (z.C * taps), c = index / taps % z.C, r = index / z.S % z.R, s = index % z.S;
    const int last = min(z.N * z.P * z.Q, 16 * ((int)blockIdx.y + 1));
    float sum = 0;
    for (int place = 16 * blockIdx.y; place < last; place++) {
        const int n = place / (z.P * z.Q), p = place / z.Q % z.P, q = place % z.Q;
        const int h = p * z.stride[0] - z.padding[0] + r * z.dilation[0], w = q * z.stride[1] - z.padding[1] + s * z.dilation[1];
        if (h < 0 || h >= z.H || w < 0 || w >= z.W) continue;
        const float g = grad_out[((size_t)(n * z.O + o) * z.P + p) * z.Q + q];
        sum = fmaf(g, float(x[((size_t)(n * z.C + c) * z.H + h) * z.W + w]), sum);
    }
    atomicAdd(grad_weight + index, sum);
}
