// Does what a table says: step i of every thread is a read or a write of a place of shared memory, or a barrier.
enum Step { READ, WRITE, BARRIER, WARP_BARRIER };

template <typename Item> __device__ void follow(const int* steps, const int* places, Item* out, int count) {
    __shared__ Item data[64];
    Item sum = 0;
    data[threadIdx.x] = threadIdx.x;
    __syncthreads();
    for (int i = 0; i < count; i++) {
        const int step = steps[i], place = places[i * blockDim.x + threadIdx.x];
        if (step == BARRIER) __syncthreads();
        else if (step == WARP_BARRIER) __syncwarp();
        else if (place >= 0 && step == WRITE) data[place] = i * 64 + threadIdx.x;
        else if (place >= 0) sum += data[place];
    }
    out[threadIdx.x] = sum;
}

extern "C" __global__ void words(const int* steps, const int* places, int* out, int count) {
    follow(steps, places, out, count);
}

// Each block has its own table; they meet their barriers at different times and end one after another.
extern "C" __global__ void words_of_blocks(const int* steps, const int* places, int* out, const int* counts, int most) {
    follow(steps + blockIdx.x * most, places + blockIdx.x * most * blockDim.x, out + blockIdx.x * blockDim.x,
           counts[blockIdx.x]);
}

extern "C" __global__ void halves(const int* steps, const int* places, short* out, int count) {
    follow(steps, places, out, count);
}
