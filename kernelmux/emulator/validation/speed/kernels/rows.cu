// Softmax and RMS norm of rows: a block per row, reductions of the block through shared memory.
#define NOTHING __int_as_float(0xff800000)  // minus infinity
__device__ float warp_max(float v) {
    for (int lane = 16; lane > 0; lane /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffff, v, lane));
    return v;
}

__device__ float warp_sum(float v) {
    for (int lane = 16; lane > 0; lane /= 2) v += __shfl_xor_sync(0xffffffff, v, lane);
    return v;
}

extern "C" __global__ void softmax_rows(const float* x, float* y, int n) {
    __shared__ float partial[32];
    const float* row = x + (long long)blockIdx.x * n;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    float top = NOTHING;
    for (int i = threadIdx.x; i < n; i += blockDim.x) top = fmaxf(top, row[i]);
    top = warp_max(top);
    if (lane == 0) partial[warp] = top;
    __syncthreads();
    top = warp_max(lane < warps ? partial[lane] : NOTHING);
    __syncthreads();  // partial is used again
    float sum = 0.f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += expf(row[i] - top);
    sum = warp_sum(sum);
    if (lane == 0) partial[warp] = sum;
    __syncthreads();
    sum = warp_sum(lane < warps ? partial[lane] : 0.f);
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[(long long)blockIdx.x * n + i] = expf(row[i] - top) / sum;
}

extern "C" __global__ void rms_norm_rows(const float4* x, const float4* weight, float4* y, int n, float eps) {
    __shared__ float partial[32];
    const float4* row = x + (long long)blockIdx.x * n;  // n: float4s per row
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    float sum = 0.f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const float4 v = row[i];
        sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    sum = warp_sum(sum);
    if (lane == 0) partial[warp] = sum;
    __syncthreads();
    const float factor = rsqrtf(warp_sum(lane < warps ? partial[lane] : 0.f) / (4 * n) + eps);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const float4 v = row[i], w = weight[i];
        y[(long long)blockIdx.x * n + i] =
            make_float4(v.x * factor * w.x, v.y * factor * w.y, v.z * factor * w.z, v.w * factor * w.w);
    }
}
