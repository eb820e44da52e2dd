// square of values that pass through shared memory, dynamic and as large as the launcher likes.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void square_staged(const ELEMENT* x, ELEMENT* y, long long n) {
    extern __shared__ float staged[];
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    staged[threadIdx.x] = float(x[i]);
    y[i] = ELEMENT(staged[threadIdx.x] * staged[threadIdx.x]);
}

// It waits for the kernel ahead of it, as kernels of Hopper and later do.
extern "C" __global__ void square_waits(const ELEMENT* x, ELEMENT* y, long long n) {
#if NEWER || __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = ELEMENT(float(x[i]) * float(x[i]));
}
