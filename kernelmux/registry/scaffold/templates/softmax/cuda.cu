// newop: a block of GROUP threads per row. x, y: [outer, n, inner]; the elements of a row lie `inner` apart.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(GROUP)
newop_rows(const ELEMENT* __restrict__ x, ELEMENT* __restrict__ y, i64 n, i64 inner) {
    __shared__ float scratch[2][32];  // one for each reduction
    const i64 start = blockIdx.x / inner * n * inner + blockIdx.x % inner;

    // TODO(newop): what is known of a whole row: each thread reduces its elements, then the block reduces theirs
    float m = -infinity();
    for (i64 i = threadIdx.x; i < n; i += GROUP) m = fmaxf(m, to_float(x[start + i * inner]));
    m = block_reduce<GROUP>(m, scratch[0], Max());

    float total = 0.0f;
    for (i64 i = threadIdx.x; i < n; i += GROUP) total += expf(to_float(x[start + i * inner]) - m);
    total = block_reduce<GROUP>(total, scratch[1], Sum());

    for (i64 i = threadIdx.x; i < n; i += GROUP) {
        const float value = to_float(x[start + i * inner]);
        const float result = expf(value - m) / total;  // TODO(newop): the result of an element
        y[start + i * inner] = from_float<ELEMENT>(result);
    }
}
