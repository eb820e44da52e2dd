// conv2d_backward_weight, the first rung: a thread walks all outputs that one element of the weight went into.
#include "convolution.cuh"

// grad_out [N, O, P, Q], image: x [N, C, H, W], out: grad_weight [O, C, R, S].
extern "C" __global__ void __launch_bounds__(256)
    conv2d_backward_weight_direct(const Element* __restrict__ grad_out, const Element* __restrict__ image, const Element*,
                                  Element* __restrict__ out, const __grid_constant__ Convolution c) {
    const i64 index = blockIdx.x * 256LL + threadIdx.x, taps = c.h.taps * c.w.taps;
    const i64 o = index / (c.channels * taps), channel = index / taps % c.channels;
    const i64 r = index / c.w.taps % c.h.taps, s = index % c.w.taps;
    if (o >= c.filters) return;
    float sum = 0;
    for (i64 n = 0; n < c.batch; n++)
        for (i64 p = 0; p < c.h.count; p++)
            for (i64 q = 0; q < c.w.count; q++) {
                const i64 h = p * c.h.stride - c.h.padding + r * c.h.dilation;
                const i64 w = q * c.w.stride - c.w.padding + s * c.w.dilation;
                if (h < 0 || h >= c.h.size || w < 0 || w >= c.w.size) continue;
                const Element g = grad_out[n * c.other.n + o * c.other.c + p * c.other.h + q * c.other.w];
                const Element x = image[n * c.image.n + channel * c.image.c + h * c.image.h + w * c.image.w];
                sum = fma_gradual(to_float(g), to_float(x), sum);
            }
    out[o * c.out.n + channel * c.out.c + r * c.out.h + s * c.out.w] = from_float<Element>(sum);
}
