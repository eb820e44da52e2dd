"""Softmax in CUDA C++ through CuPy's RawKernel, on torch's current stream; a block for each row, as long as it is."""

import cupy
import torch

OP = "softmax"
FUNCTION = "softmax"
NEEDS = "gpu"

SOURCE = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define INF __int_as_float(0x7f800000)

template <typename T> __device__ float wide(T x) { return static_cast<float>(x); }

__device__ float of_block(float v, bool largest) {
    __shared__ float part[32];
    for (int step = 16; step; step /= 2) {
        float other = __shfl_xor_sync(~0u, v, step);
        v = largest ? (other > v || isnan(other) ? other : v) : v + other;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[0];
    for (int i = 1; i < blockDim.x / 32; ++i) v = largest ? (part[i] > v || isnan(part[i]) ? part[i] : v) : v + part[i];
    return v;
}

template <typename T>
__global__ void softmax(const T* x, T* y, long long n, long long inner, float scale) {
    const long long row = blockIdx.x, begin = row / inner * n * inner + row % inner;
    float top = -INF, total = 0;
    for (long long i = threadIdx.x; i < n; i += blockDim.x) {
        float z = wide(x[begin + i * inner]) * scale;
        top = z > top || isnan(z) ? z : top;
    }
    top = of_block(top, true);
    for (long long i = threadIdx.x; i < n; i += blockDim.x) total += expf(wide(x[begin + i * inner]) * scale - top);
    total = of_block(total, false);
    for (long long i = threadIdx.x; i < n; i += blockDim.x)
        y[begin + i * inner] = static_cast<T>(expf(wide(x[begin + i * inner]) * scale - top) / total);
}
"""
NAMES = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}
_module = cupy.RawModule(
    code=SOURCE, options=("-std=c++17", "--fmad=false"), name_expressions=[f"softmax<{n}>" for n in NAMES.values()]
)


def softmax(x, axis, scale):
    x = x.contiguous()
    y = torch.empty_like(x)
    n = x.shape[axis]
    if x.numel():
        inner = x[(0,) * (axis + 1)].numel()
        kernel = _module.get_function(f"softmax<{NAMES[x.dtype]}>")
        sizes = (cupy.int64(n), cupy.int64(inner), cupy.float32(scale))
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            kernel((x.numel() // n,), (256,), (x.data_ptr(), y.data_ptr(), *sizes))
    return y
