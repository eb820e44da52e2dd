// Copies from global to shared memory by cp.async, in a ring of stages.
constexpr int STAGES = 3, WIDTH = 32;

__device__ void copy(float* to, const float* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from),
               "r"(bytes)
               : "memory");
}
__device__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ void wait_for_all_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// y[c] = sum over rows of x [rows, 32] backwards: thread c copies column c and adds up column 31 - c.
extern "C" __global__ void column_sums(const float* x, float* y, int rows) {
  __shared__ float ring[STAGES][WIDTH];
  const int c = threadIdx.x;
  for (int r = 0; r < STAGES - 1; r++) {
    copy(&ring[r][c], x + r * WIDTH + c, 4);
#ifndef NO_COMMIT
    commit();
#endif
  }
  float sum = 0;
#pragma unroll 1
  for (int r = 0; r < rows; r++) {
#ifdef WAIT_LEAVES_ONE_TOO_MANY
    wait_for_all_but<STAGES - 1>();
#elif !defined NO_WAIT
    wait_for_all_but<STAGES - 2>();
#endif
#ifndef NO_BARRIER_AFTER_WAIT
    __syncthreads();
#endif
#ifdef NEXT_STAGE_IS_IN_USE
    const int next = r, stage = r % STAGES;
    if (next + STAGES - 1 < rows) copy(&ring[stage][c], x + (next + STAGES - 1) * WIDTH + c, 4);  // reported: NO_BARRIER_AFTER_WAIT
#else
    const int next = r + STAGES - 1;
    if (next < rows) copy(&ring[next % STAGES][c], x + next * WIDTH + c, 4);  // reported: NO_BARRIER_AFTER_WAIT
#endif
#ifndef NO_COMMIT
    commit();
#endif
#ifdef STAGE_NUMBER_NOT_WRAPPED
    sum += ring[r & 3][WIDTH - 1 - c];  // reported: STAGE_NUMBER_NOT_WRAPPED
#else
    // The next line reads what the copies have brought.
    sum += ring[r % STAGES][WIDTH - 1 - c];  // reported: NO_WAIT, WAIT_LEAVES_ONE_TOO_MANY, NO_COMMIT, NO_BARRIER_AFTER_WAIT, NEXT_STAGE_IS_IN_USE
#endif
  }
  y[c] = sum;
}

// y = n values, padded with zeros to 64: the source size of cp.async says how many bytes to read.
extern "C" __global__ void padded(const float* x, float* y, int n) {
  __shared__ float tile[64];
  const int i = threadIdx.x;
#ifdef SOURCE_SIZE_NOT_ZERO
  copy(&tile[i], x + i, 4);  // reported: SOURCE_SIZE_NOT_ZERO
#else
  copy(&tile[i], x + (i < n ? i : 0), i < n ? 4 : 0);
#endif
  commit();
  wait_for_all_but<0>();
  __syncthreads();
  y[i] = tile[63 - i];
}

// Two rounds through one buffer.
extern "C" __global__ void two_rounds(const float* x, float* y) {
  __shared__ float tile[32];
  const int i = threadIdx.x;
  for (int round = 0; round < 2; round++) {
    copy(&tile[i], x + round * 32 + i, 4);  // reported: COPY_BEFORE_BUFFER_IS_FREE
    commit();
    wait_for_all_but<0>();
    __syncthreads();
    y[round * 32 + i] = tile[31 - i];
#ifndef COPY_BEFORE_BUFFER_IS_FREE
    __syncthreads();
#endif
  }
}
