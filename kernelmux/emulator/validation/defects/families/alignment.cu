// Accesses of several bytes at addresses that are no multiple of their size.

// y[i] = sum of four neighbours of x, which begins `skip` elements into its array.
extern "C" __global__ void sums_of_four(const float* x, float* y, int skip) {
  const int i = threadIdx.x;
#ifdef FLOAT4_AT_ODD_OFFSET
  const float4 v = *(const float4*)(x + skip + i * 4);  // reported: FLOAT4_AT_ODD_OFFSET
  y[i] = v.x + v.y + v.z + v.w;
#else
  const float* p = x + skip + i * 4;
  y[i] = p[0] + p[1] + p[2] + p[3];
#endif
}

// Pairs of 16-bit values; the rows have an odd length.
extern "C" __global__ void sum_of_bits(const unsigned short* x, int* y, int row_length) {
  const unsigned short* row = x + threadIdx.x * row_length;
#ifdef PAIR_IN_ODD_ROW
  const unsigned pair = *(const unsigned*)row;  // reported: PAIR_IN_ODD_ROW
  y[threadIdx.x] = (pair & 0xffff) + (pair >> 16);
#else
  y[threadIdx.x] = row[0] + row[1];
#endif
}

// A tile in shared memory with padded rows, read by vectors of four.
extern "C" __global__ void padded_rows(const float* x, float* y) {
#ifdef PADDING_BREAKS_VECTORS
  constexpr int WIDTH = 33;
#else
  constexpr int WIDTH = 36;
#endif
  __shared__ __align__(16) float tile[8 * WIDTH];
  const int row = threadIdx.x / 8, column = threadIdx.x % 8 * 4;
  for (int j = 0; j < 4; j++) tile[row * WIDTH + column + j] = x[row * 32 + column + j];
  __syncthreads();
  const float4 v = *(const float4*)(tile + row * WIDTH + column);  // reported: PADDING_BREAKS_VECTORS
  y[threadIdx.x] = v.x + v.y + v.z + v.w;
}

// 16 bytes per thread from global to shared memory by cp.async.
extern "C" __global__ void copy_rows(const float* x, float* y, int skip) {
  __shared__ __align__(16) float tile[32 * 4];
  const int i = threadIdx.x;
  const unsigned to = (unsigned)__cvta_generic_to_shared(tile + i * 4);
#ifdef ASYNC_COPY_AT_ODD_OFFSET
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(x + skip + i * 4));  // reported: ASYNC_COPY_AT_ODD_OFFSET
#else
  for (int j = 0; j < 4; j++)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to + j * 4), "l"(x + skip + i * 4 + j));
#endif
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  y[i] = tile[i * 4];
}

// Four 8 x 8 matrices of 16-bit values, loaded by ldmatrix; every lane gives the address of a row of 16 bytes.
extern "C" __global__ void load_matrices(const unsigned short* x, unsigned* y) {
#ifdef LDMATRIX_ROW_NOT_ALIGNED
  constexpr int WIDTH = 9;
#else
  constexpr int WIDTH = 8;
#endif
  __shared__ __align__(16) unsigned short tile[32 * WIDTH];
  const int i = threadIdx.x;
  for (int j = 0; j < 8; j++) tile[i * WIDTH + j] = x[i * 8 + j];
  __syncthreads();
  unsigned r[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"  // reported: LDMATRIX_ROW_NOT_ALIGNED
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"((unsigned)__cvta_generic_to_shared(tile + i * WIDTH)));
  for (int j = 0; j < 4; j++) y[j * 32 + i] = r[j];
}
