// conv2d, the first rung: a thread walks the taps of one output. Every value is read again for each product, from L1 or
// L2.
#include "convolution.cuh"

// image [N, C, H, W], weight [O, C, R, S], out [N, O, P, Q].
extern "C" __global__ void __launch_bounds__(256)
    conv2d_direct(const Element* __restrict__ image, const Element* __restrict__ weight, const Element* __restrict__ bias,
                  Element* __restrict__ out, const __grid_constant__ Convolution c) {
    const i64 index = blockIdx.x * 256LL + threadIdx.x, places = c.h.count * c.w.count;
    const i64 n = index / (c.filters * places), o = index / places % c.filters;
    const i64 p = index / c.w.count % c.h.count, q = index % c.w.count;
    if (n >= c.batch) return;
    float sum = 0;
    for (i64 channel = 0; channel < c.channels; channel++)
        for (i64 r = 0; r < c.h.taps; r++)
            for (i64 s = 0; s < c.w.taps; s++) {
                const i64 h = p * c.h.stride - c.h.padding + r * c.h.dilation;
                const i64 w = q * c.w.stride - c.w.padding + s * c.w.dilation;
                if (h < 0 || h >= c.h.size || w < 0 || w >= c.w.size) continue;
                const Element x = image[n * c.image.n + channel * c.image.c + h * c.image.h + w * c.image.w];
                const Element y = weight[o * c.other.n + channel * c.other.c + r * c.other.h + s * c.other.w];
                sum = fma_gradual(to_float(x), to_float(y), sum);
            }
    out[n * c.out.n + o * c.out.c + p * c.out.h + q * c.out.w] = from_float<Element>(biased(sum, bias, o));
}
