// Memory and registers that are read before they are written, and outputs that are never written.
#include <mma.h>

// y = x smoothed over three values; the ends of the tile are zero.
extern "C" __global__ void smooth(const float* x, float* y) {
  __shared__ float tile[66];
  const int i = threadIdx.x;
  tile[i + 1] = x[i];
#ifndef HALO_NOT_FILLED
  if (i < 2) tile[i * 65] = 0.f;
#endif
  __syncthreads();
  y[i] = tile[i] + tile[i + 1] + tile[i + 2];  // reported: HALO_NOT_FILLED
}

// y = a row of n <= 64 values backwards, padded with zeros.
extern "C" __global__ void reverse_padded(const float* x, float* y, int n) {
  __shared__ float tile[64];
  const int i = threadIdx.x;
#ifdef TAIL_NOT_PADDED
  if (i < n) tile[i] = x[i];
#else
  tile[i] = i < n ? x[i] : 0.f;
#endif
  __syncthreads();
  y[i] = tile[63 - i];  // reported: TAIL_NOT_PADDED
}

// counts [8] of the values 0 to 7.
extern "C" __global__ void histogram(const int* x, int* counts) {
  __shared__ int bins[8];
  const int i = threadIdx.x;
#ifndef BINS_NOT_CLEARED
  if (i < 8) bins[i] = 0;
  __syncthreads();
#endif
  atomicAdd(&bins[x[i]], 1);  // reported: BINS_NOT_CLEARED
  __syncthreads();
  if (i < 8) counts[i] = bins[i];
}

// Dynamic shared memory: a tile of 256 floats, of which the launch asks for `bytes`.
extern "C" __global__ void reverse_dynamic(const float* x, float* y) {
  extern __shared__ float tile[];
#ifdef TOO_LITTLE_DYNAMIC_MEMORY
  const int row = 5;
#else
  const int row = 4;
#endif
  const int i = threadIdx.x;
  for (int r = 0; r < row; r++) tile[r * 64 + i] = x[i] + r;  // reported: TOO_LITTLE_DYNAMIC_MEMORY
  __syncthreads();
  y[i] = tile[63 - i];
}

// y[i] = the last value of x in the slot of thread i; each thread keeps 4 slots.
extern "C" __global__ void slots(const float* x, float* y, const int* slot, int n) {
  float kept[4];
  const int i = threadIdx.x;
#ifndef LOCAL_ARRAY_NOT_CLEARED
  for (int j = 0; j < 4; j++) kept[j] = 0.f;
#endif
  for (int j = i; j < n; j += 32) kept[slot[j]] = x[j];
  y[i] = kept[slot[i] ^ 1];  // reported: LOCAL_ARRAY_NOT_CLEARED
}

// y[i] = sum of column i of x [n, 64].
extern "C" __global__ void column_sums(const float* x, float* y, int n) {
  const int i = threadIdx.x;
#ifdef SUM_NOT_CLEARED
  float sum;
#else
  float sum = 0.f;
#endif
#pragma unroll 1
  for (int r = 0; r < n; r++) sum += x[r * 64 + i];
  y[i] = sum;
}

// d [16, 8] = a b with one tensor-core instruction; every thread holds its fragments.
extern "C" __global__ void product(const unsigned* a, const unsigned* b, float* d) {
  const int i = threadIdx.x;
#ifdef FRAGMENT_NOT_CLEARED
  float c[4];
#else
  float c[4] = {0.f, 0.f, 0.f, 0.f};
#endif
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[i * 2]), "r"(a[i * 2 + 1]), "r"(b[i]));
  for (int j = 0; j < 4; j++) d[i * 4 + j] = c[j];
}

// d [16, 16] = a b by warp matrix functions, K = 32.
extern "C" __global__ void wmma_product(const __half* a, const __half* b, float* d) {
  using namespace nvcuda;
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> left;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> right;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
#ifndef WMMA_SUM_NOT_CLEARED
  wmma::fill_fragment(sum, 0.f);
#endif
  for (int k = 0; k < 32; k += 16) {
    wmma::load_matrix_sync(left, a + k, 32);
    wmma::load_matrix_sync(right, b + k * 16, 16);
    wmma::mma_sync(sum, left, right, sum);
  }
  wmma::store_matrix_sync(d, sum, 16, wmma::mem_row_major);
}

// y = 2 x, four at a time.
extern "C" __global__ void twice(const float* x, float* y, int n) {
  const int i = (blockIdx.x * 32 + threadIdx.x) * 4;
  if (i + 4 <= n) {
    for (int j = 0; j < 4; j++) y[i + j] = 2.f * x[i + j];
#ifndef TAIL_NOT_WRITTEN
  } else {
    for (int j = i; j < n; j++) y[j] = 2.f * x[j];
#endif
  }
}
