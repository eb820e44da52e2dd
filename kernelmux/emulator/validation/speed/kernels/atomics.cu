// Atomics: a histogram in shared memory, a sum finished by the last block, a spin lock.
extern "C" __global__ void histogram(const unsigned char* x, int* counts, int n) {
    extern __shared__ int bins[];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) bins[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&bins[x[i]], 1);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&counts[i], bins[i]);
}

__device__ unsigned ticket = 0;

extern "C" __global__ void sum_last_block(const float* x, float* partial, float* out, int n) {
    __shared__ float sums[256];
    __shared__ bool last;
    float sum = 0.f;
    for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) sum += x[i];
    sums[threadIdx.x] = sum;
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sums[0];
        __threadfence();
        last = atomicAdd(&ticket, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        float total = 0.f;
        for (int i = 0; i < gridDim.x; i++) total += ((volatile float*)partial)[i];
        *out = total, ticket = 0;
    }
}

__device__ int lock = 0;

extern "C" __global__ void locked_increment(int* count) {
    if (threadIdx.x % 32 == 0) {
        while (atomicCAS(&lock, 0, 1)) {}
        *(volatile int*)count += 1;
        __threadfence();
        atomicExch(&lock, 0);
    }
    __syncthreads();
}

extern "C" __global__ void positions(const int* keys, int* next, int* place, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) place[i] = atomicAdd(&next[keys[i]], 1);
}

__device__ unsigned arrived = 0;

// A barrier of the whole grid: right as long as all blocks are resident.
extern "C" __global__ void reverse_blocks(int* x) {
    const int own = x[blockIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(&arrived, 1u);
        while (*(volatile unsigned*)&arrived < gridDim.x) {}
    }
    __syncthreads();
    x[gridDim.x - 1 - blockIdx.x] = own;
}
