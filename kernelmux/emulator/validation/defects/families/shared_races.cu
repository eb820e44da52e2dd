// Kernels that hand values from thread to thread through shared memory. A switch removes what orders them.

// y = x backwards, twice: through one array of shared memory.
extern "C" __global__ void reverse_twice(const float* x, float* y) {
  __shared__ float tile[64];
  const int i = threadIdx.x;
  tile[i] = x[i];
#ifndef NO_BARRIER_AFTER_FILL
  __syncthreads();
#endif
  const float value = tile[63 - i];  // reported: NO_BARRIER_AFTER_FILL
#ifndef NO_BARRIER_BEFORE_REFILL
  __syncthreads();
#endif
  tile[i] = 2.f * value;  // reported: NO_BARRIER_BEFORE_REFILL
  __syncthreads();
  y[i] = tile[63 - i];
}

// y[0] = sum of 128 values, as a tree; the last warp goes on alone.
extern "C" __global__ void tree_sum(const float* x, float* y) {
  __shared__ float partial[128];
  const int i = threadIdx.x;
  partial[i] = x[i];
  __syncthreads();
#ifdef STRIDE_OVERLAPS
  for (int stride = 64; stride >= 32; stride /= 2) {
    if (i < 2 * stride && i + stride < 128) partial[i] += partial[i + stride];  // reported: STRIDE_OVERLAPS
#else
  for (int stride = 64; stride >= 32; stride /= 2) {
    if (i < stride) partial[i] += partial[i + stride];  // reported: NO_BARRIER_IN_TREE
#endif
#ifndef NO_BARRIER_IN_TREE
    __syncthreads();
#endif
  }
  if (i < 32) {
    for (int stride = 16; stride > 0; stride /= 2) {
      const float other = partial[i + stride];  // reported: NO_SYNCWARP_AFTER_WRITE
#ifndef NO_SYNCWARP_BEFORE_WRITE
      __syncwarp();
#endif
      partial[i] += other;  // reported: NO_SYNCWARP_BEFORE_WRITE
#ifndef NO_SYNCWARP_AFTER_WRITE
      __syncwarp();
#endif
    }
  }
  if (i == 0) y[0] = partial[0];
}

// y [64, 32] = x [32, 64] transposed, by tiles of 32 x 32.
extern "C" __global__ void transpose(const float* x, float* y) {
  __shared__ float tile[32][33];
  for (int r = threadIdx.y; r < 32; r += 8) tile[r][threadIdx.x] = x[r * 64 + blockIdx.x * 32 + threadIdx.x];
#ifndef NO_BARRIER_IN_TRANSPOSE
  __syncthreads();
#endif
  for (int r = threadIdx.y; r < 32; r += 8)
    y[(blockIdx.x * 32 + r) * 32 + threadIdx.x] = tile[threadIdx.x][r];  // reported: NO_BARRIER_IN_TRANSPOSE
}

// c [16, 16] = a [16, 64] b [64, 16] through tiles of 16 x 16.
extern "C" __global__ void matmul(const float* a, const float* b, float* c) {
  __shared__ float tile_a[16][16], tile_b[16][16];
  const int row = threadIdx.y, column = threadIdx.x;
  float sum = 0;
  for (int k = 0; k < 64; k += 16) {
    tile_a[row][column] = a[row * 64 + k + column];  // reported: NO_BARRIER_BEFORE_NEXT_TILE
    tile_b[row][column] = b[(k + row) * 16 + column];
#ifndef NO_BARRIER_AFTER_TILE
    __syncthreads();
#endif
#pragma unroll 1
    for (int j = 0; j < 16; j++) sum += tile_a[row][j] * tile_b[j][column];  // reported: NO_BARRIER_AFTER_TILE
#ifndef NO_BARRIER_BEFORE_NEXT_TILE
    __syncthreads();
#endif
  }
  c[row * 16 + column] = sum;
}

// Sums of 8 rows of 64: each row is stored in one buffer while the other one is read.
extern "C" __global__ void double_buffer(const float* x, float* y) {
  __shared__ float rows[2][64];
  const int i = threadIdx.x;
  float sum = 0;
  rows[0][i] = x[i];
  __syncthreads();
#pragma unroll 1
  for (int r = 0; r < 8; r++) {
#ifdef SAME_BUFFER_TWICE
    const int next = r & 1;
#else
    const int next = (r + 1) & 1;
#endif
    if (r < 7) rows[next][i] = x[(r + 1) * 64 + i];
    sum += rows[r & 1][63 - i];  // reported: SAME_BUFFER_TWICE
    __syncthreads();
  }
  y[i] = sum;
}

// y = softmax of a row of 64; one word carries first the maximum, then the sum, to all threads.
extern "C" __global__ void softmax(const float* x, float* y) {
  __shared__ float slot;
  const int i = threadIdx.x;
  if (i == 0) {
    float most = x[0];
    for (int j = 1; j < 64; j++) most = fmaxf(most, x[j]);
    slot = most;
  }
  __syncthreads();
  const float e = expf(x[i] - slot);
#ifndef BROADCAST_SLOT_REUSED
  __syncthreads();
#endif
  if (i == 0) {
    float sum = 0;
    for (int j = 0; j < 64; j++) sum += expf(x[j] - slot);
    slot = sum;  // reported: BROADCAST_SLOT_REUSED
  }
  __syncthreads();
  y[i] = e / slot;
}

// counts [8] of the values 0 to 7.
extern "C" __global__ void histogram(const int* x, int* counts) {
  __shared__ int bins[8];
  const int i = threadIdx.x;
  if (i < 8) bins[i] = 0;
  __syncthreads();
#ifdef NO_SHARED_ATOMIC
  bins[x[i]] += 1;  // reported: NO_SHARED_ATOMIC
#else
  atomicAdd(&bins[x[i]], 1);
#endif
  __syncthreads();
  if (i < 8) counts[i] = bins[i];
}

// Running sums of 64 values in place.
extern "C" __global__ void scan(const float* x, float* y) {
  __shared__ float sums[64];
  const int i = threadIdx.x;
  sums[i] = x[i];
  __syncthreads();
#pragma unroll 1
  for (int step = 1; step < 64; step *= 2) {
    const float left = i >= step ? sums[i - step] : 0.f;
#ifndef SCAN_READS_AND_WRITES_TOGETHER
    __syncthreads();
#endif
    sums[i] += left;  // reported: SCAN_READS_AND_WRITES_TOGETHER
    __syncthreads();
  }
  y[i] = sums[i];
}

// y = the index of the largest of 64 values: every thread whose value is the largest would write.
extern "C" __global__ void argmax(const float* x, int* y) {
  __shared__ int winner;
  const int i = threadIdx.x;
#ifdef ALL_THREADS_WRITE_ONE_WORD
  winner = i;  // reported: ALL_THREADS_WRITE_ONE_WORD
#else
  if (i == 0) {
    winner = 0;
    for (int j = 1; j < 64; j++) winner = x[j] > x[winner] ? j : winner;
  }
#endif
  __syncthreads();
  if (i == 0) y[0] = winner;
}
