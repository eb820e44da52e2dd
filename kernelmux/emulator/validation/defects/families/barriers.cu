// Barriers that some threads do not reach, or reach in another number than the others.

__device__ void sync(int number, int count) { asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(count) : "memory"); }
__device__ void arrive(int number, int count) { asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(count) : "memory"); }

// y = x backwards.
extern "C" __global__ void reverse(const float* x, float* y) {
  __shared__ float tile[64];
  const int i = threadIdx.x;
  tile[i] = x[i];
#ifdef BARRIER_IN_ONE_BRANCH
  if (i < 32) {
    __syncthreads();  // reported: BARRIER_IN_ONE_BRANCH
    y[i] = tile[63 - i];
  } else {
    __syncthreads();  // reported: BARRIER_IN_ONE_BRANCH
    y[i] = tile[63 - i] + 0.f;
  }
#else
  __syncthreads();
  y[i] = tile[63 - i];
#endif
}

// Sums over a row of 128; every warp takes as many steps as its part of the row needs.
extern "C" __global__ void warp_parts(const float* x, float* y) {
  __shared__ float part[4];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float sum = 0;
#ifdef BARRIER_IN_LOOP_OF_OWN_LENGTH
#pragma unroll 1
  for (int k = 0; k <= warp; k++) {
    if (k == warp) sum = x[threadIdx.x];
    __syncthreads();  // reported: BARRIER_IN_LOOP_OF_OWN_LENGTH
    if (warp == 0) __syncwarp();
  }
  if (warp == 0) __syncthreads();  // reported: BARRIER_IN_LOOP_OF_OWN_LENGTH
#else
  sum = x[threadIdx.x];
#endif
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  if (lane == 0) part[warp] = sum;
  __syncthreads();
  if (threadIdx.x == 0) y[0] = part[0] + part[1] + part[2] + part[3];
}

// Warp 0 fills a buffer, warp 1 takes it away; barrier 1 says full, barrier 2 says empty.
extern "C" __global__ void hand_over(const float* x, float* y) {
  __shared__ float buffer[32];
  const int lane = threadIdx.x % 32;
#ifdef TOO_FEW_AT_NAMED_BARRIER
  const int count = 32;
#elif defined TOO_MANY_AT_NAMED_BARRIER
  const int count = 96;
#else
  const int count = 64;
#endif
#ifdef ANOTHER_NAMED_BARRIER
  const int full = 3;
#elif defined NAMED_BARRIER_OUT_OF_RANGE
  const int full = 16;
#else
  const int full = 1;
#endif
  if (threadIdx.x < 32) {
#pragma unroll 1
    for (int k = 0; k < 4; k++) {
      if (k > 0) sync(2, 64);  // reported: ANOTHER_NAMED_BARRIER, NO_ARRIVAL, TOO_MANY_AT_NAMED_BARRIER
      buffer[lane] = x[k * 32 + lane];
      arrive(full, count);  // reported: NAMED_BARRIER_OUT_OF_RANGE
    }
  } else {
#pragma unroll 1
    for (int k = 0; k < 4; k++) {
      sync(1, count);  // reported: TOO_MANY_AT_NAMED_BARRIER
      y[k * 32 + lane] = buffer[31 - lane];
#ifndef NO_ARRIVAL
      if (k < 3) arrive(2, 64);
#endif
    }
  }
}

// y = x + the value of the right neighbour in the block; the grid is larger than n.
extern "C" __global__ void add_neighbour(const float* x, float* y, int n) {
  __shared__ float tile[65];
  const int i = blockIdx.x * 64 + threadIdx.x;
#ifdef RETURN_BEFORE_TILE_IS_FULL
  if (i >= n) return;
  tile[threadIdx.x] = x[i];
#else
  tile[threadIdx.x] = i < n ? x[i] : 0.f;
#endif
  if (threadIdx.x == 63) tile[64] = 0.f;
  __syncthreads();
  if (i < n) y[i] = tile[threadIdx.x] + tile[threadIdx.x + 1];  // reported: RETURN_BEFORE_TILE_IS_FULL
}
