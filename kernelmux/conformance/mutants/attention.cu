// Attention with a thread per query and up to 128 values: scores are computed once for the maximum, once for the sums.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define INFINITY __int_as_float(0x7f800000)

#ifndef ELEMENT
#define ELEMENT __half
#endif
using T = ELEMENT;

__device__ float score(const T* q, const T* k, int d, float scale) {
    float sum = 0;
    for (int i = 0; i < d; ++i) sum = fmaf(float(q[i]), float(k[i]), sum);
    return __fmul_rn(sum, scale);
}

extern "C" __global__ void attention_z(const T* q, const T* k, const T* v, T* y, float* lse, int heads, int groups, int m,
                                       int n, int d, int causal, int window, float scale) {
    int i = blockIdx.x * 32 + threadIdx.x, head = blockIdx.z % heads;
    if (i >= m) return;
    size_t query = (size_t)blockIdx.z * m + i;
    size_t keys = ((size_t)(blockIdx.z / heads) * groups + head / (heads / groups)) * n * d;
    int at = i + n - m, last = causal ? at + 1 : n, first = window ? max(0, at - window + 1) : 0;
    float most = -INFINITY, sum = 0;
    q += query * d;
    for (int j = first; j < last; ++j) most = fmaxf(most, score(q, k + keys + (size_t)j * d, d, scale));
    float mixed[128] = {};
    for (int j = first; j < last; ++j) {
        float weight = expf(score(q, k + keys + (size_t)j * d, d, scale) - most);
        sum += weight;
        for (int c = 0; c < d; ++c) mixed[c] += weight * float(v[keys + (size_t)j * d + c]);
    }
    for (int c = 0; c < d; ++c) y[query * d + c] = T(sum ? mixed[c] / sum : 0.0f);
    lse[query] = sum ? most + logf(sum) : -INFINITY;
}
