// The sum of the losses of all rows, their mean, or how many rows count. A block takes `share` rows.
#include "dependent_launch.cuh"
#include "targets.cuh"

#define SUM 1
#define MEAN 2
#define COUNT 3
#ifndef WANTED  // in the end
#define WANTED SUM
#endif
#ifndef SEVERAL  // blocks, whose sums a second launch adds up
#define SEVERAL 0
#endif
#ifndef BLOCK
#define BLOCK 512
#endif

__device__ __forceinline__ void put(float* out, float2 sums) {
    out[0] = WANTED == SUM ? sums.x : WANTED == COUNT ? sums.y : sums.x / sums.y;
}

// loss: missing where the count is wanted.
extern "C" __global__ void __launch_bounds__(BLOCK)
cross_entropy_sums(const float* __restrict__ loss, const i64* __restrict__ target, float* __restrict__ out, i64 rows, i64 ignored, i64 share) {
    __shared__ float2 scratch[32];
    const i64 first = blockIdx.x * share, end = min(rows, first + share);
    follow_previous();
    float2 sums = {0.0f, 0.0f};
#pragma unroll 8
    for (i64 row = first + threadIdx.x; row < end; row += BLOCK) {
        if (WANTED != COUNT) sums.x += loss[row];
        if (WANTED != SUM) sums.y += target[row] != ignored;
    }
    sums = group_sum<BLOCK>(sums, scratch);
    if (threadIdx.x != 0) return;
    if (SEVERAL) out[2 * blockIdx.x] = sums.x, out[2 * blockIdx.x + 1] = sums.y;
    else put(out, sums);
}

extern "C" __global__ void __launch_bounds__(BLOCK) cross_entropy_total(const float* __restrict__ parts, float* __restrict__ out, int n) {
    __shared__ float2 scratch[32];
    float2 sums = {0.0f, 0.0f};
    follow_previous();
    for (int i = threadIdx.x; i < n; i += BLOCK) sums.x += parts[2 * i], sums.y += parts[2 * i + 1];
    sums = group_sum<BLOCK>(sums, scratch);
    if (threadIdx.x == 0) put(out, sums);
}
