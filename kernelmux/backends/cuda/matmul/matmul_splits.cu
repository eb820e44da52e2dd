// The end of a matmul whose K was split over blocks: the partial products are added in order, so that the result does
// not depend on which block was first.
#include "matmul.cuh"

extern "C" __global__ void __launch_bounds__(256)
    matmul_sum_splits(const float* __restrict__ parts, Element* __restrict__ c EPILOGUE_PARAMETERS(Element), i64 size,
                      int splits, int N) {
    const i64 index = blockIdx.x * 256LL + threadIdx.x;
    if (index >= size) return;
    float sum = 0;
#pragma unroll 4
    for (int i = 0; i < splits; i++) sum = add_gradual(sum, parts[i * size + index]);
    EPILOGUE(Element).store(c, index, (int)(index % N), {sum});
}
