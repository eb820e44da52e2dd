// Causal attention of heads of 64: a block takes 32 queries and walks over tiles of 32 keys with a running softmax.
#include <cuda_fp16.h>

constexpr int D = 64, TILE = 32, PARTS = 4;  // four threads share a query

__device__ void load_tile(float (&tile)[TILE][D + 1], const __half* x, int first, int n) {
    for (int i = threadIdx.x; i < TILE * D; i += blockDim.x)
        tile[i / D][i % D] = first + i / D < n ? __half2float(x[(first + i / D) * D + i % D]) : 0.f;
}

extern "C" __global__ void attention(const __half* q, const __half* k, const __half* v, __half* out, int n,
                                     float scale) {
    __shared__ float queries[TILE][D + 1], keys[TILE][D + 1], values[TILE][D + 1], scores[TILE][TILE + 1];
    const int row = threadIdx.x / PARTS, part = threadIdx.x % PARTS, first = blockIdx.x * TILE;
    const int head = blockIdx.y * n * D;
    load_tile(queries, q + head, first, n);
    float top = __int_as_float(0xff800000), total = 0.f, sum[D / PARTS] = {};
    for (int start = 0; start <= first; start += TILE) {
        __syncthreads();  // before the tiles are overwritten
        load_tile(keys, k + head, start, n);
        load_tile(values, v + head, start, n);
        __syncthreads();
        float highest = top;
        for (int j = part; j < TILE; j += PARTS) {
            float score = 0.f;
            for (int d = 0; d < D; d++) score = fmaf(queries[row][d], keys[j][d], score);
            score = start + j <= first + row ? score * scale : __int_as_float(0xff800000);
            scores[row][j] = score, highest = fmaxf(highest, score);
        }
        for (int lane = 1; lane < PARTS; lane *= 2) highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, lane));
        const float shrink = expf(top - highest);
        for (int i = 0; i < D / PARTS; i++) sum[i] *= shrink;
        total *= shrink, top = highest;
        __syncwarp();
        for (int j = 0; j < TILE; j++) {
            const float weight = expf(scores[row][j] - top);
            total += weight;
            for (int i = 0; i < D / PARTS; i++) sum[i] = fmaf(weight, values[j][i * PARTS + part], sum[i]);
        }
    }
    if (first + row < n)
        for (int i = 0; i < D / PARTS; i++)
            out[head + (first + row) * D + i * PARTS + part] = __float2half(sum[i] / total);
}
