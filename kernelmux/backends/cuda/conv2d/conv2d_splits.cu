// The end of a convolution whose K was split over blocks: the parts are added in order, so that the result does not
// depend on which block was first.
#include "convolution.cuh"

// parts [splits, phases, part_size]; a thread per element of a part, of which later phases may have fewer.
extern "C" __global__ void __launch_bounds__(256)
    conv2d_sum_splits(const float* __restrict__ parts, const Element* __restrict__ bias, Element* __restrict__ out,
                      const __grid_constant__ Convolution c, int splits) {
    const i64 index = blockIdx.x * 256LL + threadIdx.x, size = part_size(c);
    if (index >= size * c.phases) return;
    const Product product(c, index / size);
    const i64 at = index % size;
    if (at >= (i64)product.M * product.N) return;
    const int inner = M_CONTIGUOUS ? product.M : product.N, low = at % inner, high = at / inner;
    const int m = M_CONTIGUOUS ? low : high, n = M_CONTIGUOUS ? high : low;
    float sum = 0;
    for (int i = 0; i < splits; i++) sum = add_gradual(sum, parts[i * c.phases * size + index]);
    out[product.result(m, n)] = from_float<Element>(biased(sum, bias, n));
}
