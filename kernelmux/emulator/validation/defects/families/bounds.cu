// Indices that leave their array, and grids that do not cover it.

// y = x + 1, one element per thread.
extern "C" __global__ void add_one(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
#ifdef NO_TAIL_MASK
  const bool inside = true;
#elif defined TAIL_MASK_ONE_TOO_FAR
  const bool inside = i <= n;
#elif defined TAIL_MASK_ONE_TOO_SHORT
  const bool inside = i < n - 1;
#else
  const bool inside = i < n;
#endif
  if (inside) {
    const float value = x[i];  // reported: NO_TAIL_MASK, TAIL_MASK_ONE_TOO_FAR
    y[i] = value + 1.f;
  }
}

// y[i] = x[i - 1] + x[i] + x[i + 1], zero outside.
extern "C" __global__ void smooth(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
#ifdef INDEX_MINUS_ONE
  const float left = x[i - 1];  // reported: INDEX_MINUS_ONE
#else
  const float left = i > 0 ? x[i - 1] : 0.f;
#endif
#ifdef INDEX_PLUS_ONE
  const float right = x[i + 1];  // reported: INDEX_PLUS_ONE
#else
  const float right = i + 1 < n ? x[i + 1] : 0.f;
#endif
  y[i] = left + x[i] + right;
}

// y = 2 x, four at a time where four are left.
extern "C" __global__ void twice_by_four(const float* x, float* y, int n) {
  const int i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
#ifdef VECTOR_OVER_THE_END
  if (i < n) {
#else
  if (i + 4 <= n) {
#endif
    float4 v = *(const float4*)(x + i);  // reported: VECTOR_OVER_THE_END
    *(float4*)(y + i) = make_float4(2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w);
  } else {
    for (int j = i; j < n; j++) y[j] = 2.f * x[j];
  }
}

// Rows of one shard of a large array: `row` counts in the whole array, the shard begins at element `first`.
extern "C" __global__ void shard(const float* x, float* y, int row, int row_length, long long first) {
  const int r = row + blockIdx.x;
#ifdef INT32_OVERFLOW
  const long long at = r * row_length - first;
#else
  const long long at = (long long)r * row_length - first;
#endif
  y[blockIdx.x * row_length + threadIdx.x] = x[at + threadIdx.x];  // reported: INT32_OVERFLOW
}

// y[i] = x[(i * step) % n], a walk through a ring; i * step passes 2^32.
extern "C" __global__ void ring(const float* x, float* y, unsigned n, unsigned step) {
#ifdef INT32_OVERFLOW_INSIDE
  const unsigned at = threadIdx.x * step % n;
#else
  const unsigned at = (unsigned long long)threadIdx.x * step % n;
#endif
  y[threadIdx.x] = x[at];
}

// y [N, M] = x [M, N] transposed.
extern "C" __global__ void transpose(const float* x, float* y, int M, int N) {
  const int column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
#ifdef LIMITS_SWAPPED
  if (row < N && column < M) y[column * M + row] = x[row * N + column];  // reported: LIMITS_SWAPPED
#elif defined STRIDES_SWAPPED
  if (row < M && column < N) y[column * N + row] = x[row * M + column];  // reported: STRIDES_SWAPPED
#else
  if (row < M && column < N) y[column * M + row] = x[row * N + column];
#endif
}

// y = x + bias; the bias may be missing.
extern "C" __global__ void add_bias(const float* x, const float* bias, float* y) {
  const int i = threadIdx.x;
#ifdef OPTIONAL_POINTER_NOT_CHECKED
  y[i] = x[i] + bias[i];  // reported: OPTIONAL_POINTER_NOT_CHECKED
#else
  y[i] = x[i] + (bias ? bias[i] : 0.f);
#endif
}

// y = x, by threads that go on by the size of the grid.
extern "C" __global__ void grid_stride(const float* x, float* y, int n) {
#ifdef STRIDE_TOO_LARGE
  const int stride = (gridDim.x + 1) * blockDim.x;
#else
  const int stride = gridDim.x * blockDim.x;
#endif
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) y[i] = x[i];
}

// Two arrays of shared memory beside each other, the second one a table of weights.
extern "C" __global__ void weighted(const float* x, float* y) {
  __shared__ float tile[64], weight[64];
  const int i = threadIdx.x;
  weight[i] = 1.f;
  tile[i] = x[i];
  __syncthreads();
#ifdef OVERRUN_INTO_NEXT_ARRAY
  const int next = i + 1;
#else
  const int next = (i + 1) % 64;
#endif
  const float value = tile[next] - tile[i];  // reported: OVERRUN_INTO_NEXT_ARRAY
  y[i] = value * weight[i];
}

// A tile of 8 rows of 8 in shared memory.
extern "C" __global__ void rows(const float* x, float* y) {
  __shared__ float tile[8][8];
  const int row = threadIdx.y, column = threadIdx.x;
#ifdef SHARED_ROW_TOO_MANY
  tile[row + 1][column] = x[row * 8 + column];  // reported: SHARED_ROW_TOO_MANY
  __syncthreads();
  y[row * 8 + column] = tile[row + 1][column];
#else
  tile[row][column] = x[row * 8 + column];
  __syncthreads();
#ifdef OVERRUN_INTO_NEXT_ROW
  const int right = min(column + 1, 63 - row * 8);
#else
  const int right = min(column + 1, 7);
#endif
  const float weight = column < 7 ? 0.5f : 0.f;
  y[row * 8 + column] = tile[row][column] + weight * tile[row][right];
#endif
}

// A local array of 8 values, turned around by `shift`.
extern "C" __global__ void rotate(const float* x, float* y, int shift) {
  float kept[8];
  const int i = threadIdx.x;
  for (int j = 0; j < 8; j++) kept[j] = x[i * 8 + j];
#pragma unroll 1
  for (int j = 0; j < 8; j++) {
#ifdef LOCAL_INDEX_TOO_LARGE
    y[i * 8 + j] = kept[j + shift];  // reported: LOCAL_INDEX_TOO_LARGE
#else
    y[i * 8 + j] = kept[(j + shift) % 8];
#endif
  }
}
