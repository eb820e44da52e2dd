// Sums of rows [rows, n] in fp32 by clusters of two blocks, a half of the row each; what one block found reaches the other
// through its shared memory, in a sound way and in two that are not.
__device__ unsigned rank() {
    unsigned r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

__device__ void meet() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ float read_from(const float* p, unsigned block) {
    unsigned there;
    float value;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"((unsigned)__cvta_generic_to_shared(p)), "r"(block));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there) : "memory");
    return value;
}

template <bool BEFORE, bool AFTER>
__device__ void sum_rows(const float* x, float* total, int n) {
    __shared__ float mine;
    const int half = (n + 1) / 2, begin = rank() * half, end = min(n, begin + half);
    const float* row = x + blockIdx.x / 2 * (size_t)n;
    float sum = 0.0f;
    for (int i = begin + threadIdx.x; i < end; i += 32) sum += row[i];
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (threadIdx.x == 0) mine = sum;
    if (BEFORE) meet();
    if (threadIdx.x == 0 && rank() == 0) total[blockIdx.x / 2] = sum + read_from(&mine, 1);
    if (AFTER) meet();
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) sums_met(const float* x, float* total, int n) {
    sum_rows<true, true>(x, total, n);
}
extern "C" __global__ void __cluster_dims__(2, 1, 1) sums_unwaited(const float* x, float* total, int n) {
    sum_rows<false, true>(x, total, n);
}
extern "C" __global__ void __cluster_dims__(2, 1, 1) sums_left(const float* x, float* total, int n) {
    sum_rows<true, false>(x, total, n);
}
