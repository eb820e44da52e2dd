// Global memory that threads of one block, or blocks, share with nothing that orders them.

// y [64] = sum of the rows of x [rows, 64], one block per row.
extern "C" __global__ void sum_rows(const float* x, float* y) {
  const int i = threadIdx.x;
  const float value = x[blockIdx.x * 64 + i];
#ifdef BLOCKS_ADD_WITHOUT_ATOMICS
  y[i] += value;  // reported: BLOCKS_ADD_WITHOUT_ATOMICS
#else
  atomicAdd(&y[i], value);
#endif
}

// y[0] = sum of 64 values.
extern "C" __global__ void sum_all(const float* x, float* y) {
#ifdef THREADS_ADD_WITHOUT_ATOMICS
  y[0] += x[threadIdx.x];  // reported: THREADS_ADD_WITHOUT_ATOMICS
#else
  atomicAdd(y, x[threadIdx.x]);
#endif
}

// y [n] = x in tiles of 64 per block; two blocks may be given one tile.
extern "C" __global__ void scale_tiles(const float* x, float* y, int n) {
#ifdef TWO_BLOCKS_ONE_TILE
  const int tile = blockIdx.x / 2;
#else
  const int tile = blockIdx.x;
#endif
  const int i = tile * 64 + threadIdx.x;
  if (i < n) y[i] = x[i] * (blockIdx.x + 1);  // reported: TWO_BLOCKS_ONE_TILE
}

// y[i] = x[i] + x[i + 1] for all but the last.
extern "C" __global__ void add_right(float* x, float* y, int n) {
  const int i = blockIdx.x * 64 + threadIdx.x;
#ifdef STENCIL_IN_PLACE
  if (i < n - 1) x[i] = x[i] + x[i + 1];  // reported: STENCIL_IN_PLACE
  if (i < n - 1) y[i] = x[i];
#else
  if (i < n - 1) y[i] = x[i] + x[i + 1];
#endif
}

// y = x backwards within each block, by way of a scratch array in global memory.
extern "C" __global__ void reverse_by_scratch(const float* x, float* scratch, float* y) {
  const int first = blockIdx.x * 64, i = threadIdx.x;
  scratch[first + i] = x[first + i];
#ifndef SCRATCH_READ_WITHOUT_BARRIER
  __syncthreads();
#endif
#ifdef SCRATCH_OF_NEXT_BLOCK
  const int other = (first + 127 - i) % (gridDim.x * 64);
  y[first + i] = scratch[other] * 0.f + x[first + 63 - i];  // reported: SCRATCH_OF_NEXT_BLOCK
#else
  y[first + i] = scratch[first + 63 - i];  // reported: SCRATCH_READ_WITHOUT_BARRIER
#endif
}

// y[0] = sum of x: each block leaves a partial sum, the last one to come adds them up.
extern "C" __global__ void last_block_sums(const float* x, float* partial, int* count, float* y) {
  __shared__ bool last;
  float sum = x[blockIdx.x * 32 + threadIdx.x];
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
#ifndef NO_FENCE_BEFORE_COUNT
    __threadfence();
#endif
#ifdef COUNT_WITHOUT_ATOMIC
    last = count[0]++ == gridDim.x - 1;  // reported: COUNT_WITHOUT_ATOMIC
#else
    last = atomicAdd(count, 1) == gridDim.x - 1;
#endif
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    __threadfence();
    float total = 0;
    for (int b = 0; b < gridDim.x; b++) total += partial[b];  // reported: NO_FENCE_BEFORE_COUNT
    y[0] = total;
  }
}

// y [blocks] = the value that block 0 has published; the others wait for its flag.
extern "C" __global__ void publish(const float* x, volatile int* flag, float* box, float* y) {
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) {
    box[0] = x[0];
#ifndef NO_FENCE_BEFORE_FLAG
    __threadfence();
#endif
    flag[0] = 1;
    y[0] = x[0];
    return;
  }
  while (flag[0] == 0) {
  }
#ifndef NO_FENCE_AFTER_FLAG
  __threadfence();
#endif
  y[blockIdx.x] = box[0];  // reported: NO_FENCE_BEFORE_FLAG
}

// y [blocks] = number of blocks, after all have met at a barrier of the whole grid.
extern "C" __global__ void meet(int* count, int* y) {
#ifdef MORE_BLOCKS_THAN_FIT
  __shared__ volatile int large[12000];
  large[threadIdx.x] = 1;
#endif
  if (threadIdx.x == 0) {
    atomicAdd(count, 1);
    while (atomicAdd(count, 0) < gridDim.x) {
    }
    y[blockIdx.x] = gridDim.x;
  }
}

// y = x with negative values set to zero; x is an input.
extern "C" __global__ void relu(const float* x, float* y) {
  const int i = threadIdx.x;
#ifdef INPUT_OVERWRITTEN
  ((float*)x)[i] = fmaxf(x[i], 0.f);
#endif
  y[i] = fmaxf(x[i], 0.f);
}

// values = the positive values of x in any order, length = how many.
extern "C" __global__ void compact(const float* x, float* values, int* length) {
  const int i = blockIdx.x * 32 + threadIdx.x;
  if (x[i] > 0) {
#ifdef LENGTH_READ_THEN_ADDED
    const int at = length[0];
    atomicAdd(length, 1);
#else
    const int at = atomicAdd(length, 1);
#endif
    values[at] = x[i];  // reported: LENGTH_READ_THEN_ADDED
  }
}
