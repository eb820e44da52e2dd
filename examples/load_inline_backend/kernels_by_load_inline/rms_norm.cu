// rms_norm: y = x * rsqrt(mean(x^2) + eps) * weight, in fp32, rounded once. A block walks over whole rows. x, y: [rows, n].
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

constexpr int THREADS = 256, WARPS = THREADS / 32, MOST_BLOCKS = 65535;

// By name: torch compiles extensions without implicit conversions of 16-bit floats.
__device__ float wide(float v) { return v; }
__device__ float wide(__half v) { return __half2float(v); }
__device__ float wide(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ void store(float* y, float v) { *y = v; }
__device__ void store(__half* y, float v) { *y = __float2half_rn(v); }
__device__ void store(__nv_bfloat16* y, float v) { *y = __float2bfloat16_rn(v); }

__device__ float sum_of_block(float v) {
    __shared__ float parts[WARPS];
    for (int step = 16; step; step /= 2) v += __shfl_xor_sync(~0u, v, step);
    __syncthreads();  // the parts of the row before have been read
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < WARPS; i++) sum += parts[i];
    return sum;
}

template <typename T>
__global__ void rms_norm(const T* __restrict__ x, const T* __restrict__ weight, T* __restrict__ y, int64_t rows, int64_t n,
                         float eps) {
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const T* from = x + row * n;
        float squares = 0;
        for (int64_t i = threadIdx.x; i < n; i += THREADS) squares = fmaf(wide(from[i]), wide(from[i]), squares);
        const float r = rsqrtf(sum_of_block(squares) / n + eps);
        for (int64_t i = threadIdx.x; i < n; i += THREADS) store(y + row * n + i, wide(from[i]) * r * wide(weight[i]));
    }
}

template <typename T>
void launch(const void* x, const void* weight, void* y, int64_t rows, int64_t n, float eps, cudaStream_t stream) {
    const int blocks = rows < MOST_BLOCKS ? rows : MOST_BLOCKS;
    rms_norm<T><<<blocks, THREADS, 0, stream>>>((const T*)x, (const T*)weight, (T*)y, rows, n, eps);
}

// kind: 0 fp32, 1 fp16, 2 bf16.
const char* launch_rms_norm(const void* x, const void* weight, void* y, int64_t rows, int64_t n, float eps, int kind,
                            void* stream) {
    const auto start = kind == 0 ? launch<float> : kind == 1 ? launch<__half> : launch<__nv_bfloat16>;
    start(x, weight, y, rows, n, eps, (cudaStream_t)stream);
    const cudaError_t status = cudaGetLastError();
    return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}
