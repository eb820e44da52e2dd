// conv2d_backward_input, the first rung: a thread walks the taps through which one pixel went into outputs.
#include "convolution.cuh"

// image: grad_out [N, O, P, Q]. weight [O, C, R, S], the strides of its first axes exchanged. out: grad_x [N, C, H, W].
extern "C" __global__ void __launch_bounds__(256)
    conv2d_backward_input_direct(const Element* __restrict__ image, const Element* __restrict__ weight, const Element*,
                                 Element* __restrict__ out, const __grid_constant__ Convolution c) {
    const i64 index = blockIdx.x * 256LL + threadIdx.x, pixels = c.h.count * c.w.count;
    const i64 n = index / (c.filters * pixels), channel = index / pixels % c.filters;
    const i64 h = index / c.w.count % c.h.count, w = index % c.w.count;
    if (n >= c.batch) return;
    float sum = 0;
    for (i64 r = 0; r < c.h.taps; r++)
        for (i64 s = 0; s < c.w.taps; s++) {
            const i64 y = h + c.h.padding - r * c.h.dilation, x = w + c.w.padding - s * c.w.dilation;
            const i64 p = y / c.h.stride, q = x / c.w.stride;
            if (y < 0 || x < 0 || p * c.h.stride != y || q * c.w.stride != x) continue;  // between two positions
            if (p >= c.h.size || q >= c.w.size) continue;
            const Element* grad = image + n * c.image.n + p * c.image.h + q * c.image.w;
            const Element* filter = weight + channel * c.other.n + r * c.other.h + s * c.other.w;
            for (i64 o = 0; o < c.channels; o++)
                sum = fma_gradual(to_float(grad[o * c.image.c]), to_float(filter[o * c.other.c]), sum);
        }
    out[n * c.out.n + channel * c.out.c + h * c.out.h + w * c.out.w] = from_float<Element>(sum);
}
