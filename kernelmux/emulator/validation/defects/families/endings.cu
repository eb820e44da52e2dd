// Kernels that do not end, or end with a trap.

// y[i] = number of halvings until x[i] is 1 or less.
extern "C" __global__ void halvings(const int* x, int* y) {
  int value = x[threadIdx.x], steps = 0;
#pragma unroll 1
  while (value > 1) {  // reported: LOOP_WITHOUT_PROGRESS
#ifdef LOOP_WITHOUT_PROGRESS
    if (steps < 20) value = max(value / 2, 2);
#else
    value /= 2;
#endif
    steps++;
  }
  y[threadIdx.x] = steps;
}

// y = x + n of block 0, which says by a flag when it has written it.
extern "C" __global__ void wait_for_block(const int* x, int* flag, int* base, int* y) {
  if (threadIdx.x == 0) {
    if (blockIdx.x == 0) {
      *base = x[0];
      __threadfence();
#ifndef FLAG_NEVER_SET
      atomicExch(flag, 1);
#endif
    }
    while (atomicAdd(flag, 0) == 0) {  // reported: FLAG_NEVER_SET
    }
    __threadfence();
  }
  __syncthreads();
  y[blockIdx.x * 32 + threadIdx.x] = x[threadIdx.x] + *base;
}

// y[0] = sum of x under a lock that every warp takes once.
extern "C" __global__ void locked_sum(const float* x, int* lock, float* y) {
  if (threadIdx.x % 32 == 0) {
    while (atomicCAS(lock, 0, 1) != 0) {  // reported: LOCK_NEVER_FREED
    }
    __threadfence();
    atomicAdd(y, x[threadIdx.x / 32]);
    __threadfence();
#ifndef LOCK_NEVER_FREED
    atomicExch(lock, 0);
#endif
  }
}

// y[i] = sum of 1 to x[i].
__device__ __noinline__ int sum_to(int n) {
#ifdef RECURSION_WITHOUT_END
  return n + sum_to(n - 1);  // reported: RECURSION_WITHOUT_END
#else
  return n > 0 ? n + sum_to(n - 1) : 0;
#endif
}
extern "C" __global__ void sums_to(const int* x, int* y) { y[threadIdx.x] = sum_to(x[threadIdx.x] % 8); }

// y[i] = table[x[i]]; the table has 8 entries.
extern "C" __global__ void look_up(const int* x, int* y, const int* table) {
#ifdef ASSERTION_FAILS
  assert(x[threadIdx.x] < 7);  // reported: ASSERTION_FAILS
#elif defined TRAP_REACHED
  if (x[threadIdx.x] == 5) __trap();  // reported: TRAP_REACHED
#endif
  y[threadIdx.x] = table[x[threadIdx.x]];
}

// y[i] = x[i] divided among `parts`, which is zero for the last thread.
extern "C" __global__ void divide(const int* x, const int* parts, int* y) {
  const int i = threadIdx.x;
#ifdef DIVISION_BY_ZERO
  y[i] = x[i] / parts[i];
#else
  y[i] = parts[i] ? x[i] / parts[i] : 0;
#endif
}
