// Operations of a whole warp that not all of its lanes, or others than its mask names, come to.

// y[0] = sum of x over one block of n threads.
extern "C" __global__ void warp_sum(const float* x, float* y, int n) {
  const int i = threadIdx.x;
#ifdef SHUFFLE_IN_PARTIAL_WARP
  if (i >= n) return;
  float sum = x[i];
  for (int step = 16; step; step /= 2) {
    const int source = (i & 31) + step;
    sum += __shfl_down_sync(__activemask(), sum, step);  // reported: SHUFFLE_IN_PARTIAL_WARP
    if (source > 32) sum += 0.f;
  }
#else
  float sum = i < n ? x[i] : 0.f;
#ifdef FIRST_STEP_MISSING
  for (int step = 8; step; step /= 2)
#else
  for (int step = 16; step; step /= 2)
#endif
#ifdef SHUFFLE_UP_FOR_DOWN
    sum += __shfl_up_sync(0xffffffff, sum, step);
#else
    sum += __shfl_down_sync(0xffffffff, sum, step);
#endif
#endif
  if (i == 0) y[0] = sum;
}

// y = x; odd values get the value two lanes on added.
extern "C" __global__ void exchange_odd(const float* x, float* y) {
  const int i = threadIdx.x;
  float v = x[i];
#ifdef FULL_MASK_IN_BRANCH
  if (i & 1) v += __shfl_xor_sync(0xffffffff, v, 2);  // reported: FULL_MASK_IN_BRANCH
#elif defined MASK_WITHOUT_CALLER
  if (i & 1) v += __shfl_xor_sync(0x55555555, v, 2);  // reported: MASK_WITHOUT_CALLER
#elif defined SHUFFLE_FROM_ABSENT_LANE
  if (i & 1) v += __shfl_xor_sync(0xaaaaaaaa, v, 3);  // reported: SHUFFLE_FROM_ABSENT_LANE
#else
  if (i & 1) v += __shfl_xor_sync(0xaaaaaaaa, v, 2);
#endif
  __syncwarp();
  y[i] = v;
}

// y[i] = how many lanes of the warp have a positive x.
extern "C" __global__ void count_positive(const float* x, int* y) {
  const int i = threadIdx.x;
  unsigned votes;
#ifdef BALLOT_IN_BRANCH
  votes = 0;
  if (x[i] > 0)
    votes = __ballot_sync(0xffffffff, 1);  // reported: BALLOT_IN_BRANCH
#else
  votes = __ballot_sync(0xffffffff, x[i] > 0);
#endif
  __syncwarp();
  y[i] = __popc(votes);
}

// d = a b for 16 x 8 x 8 on the tensor cores, where the first `lanes` lanes come.
extern "C" __global__ void product(const unsigned* a, const unsigned* b, float* d) {
  const int i = threadIdx.x;
  float c[4] = {0.f, 0.f, 0.f, 0.f};
#ifdef MMA_IN_BRANCH
  if (a[i] != 0)
#endif
    asm volatile(  // reported: MMA_IN_BRANCH
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[i * 2]), "r"(a[i * 2 + 1]), "r"(b[i]));
  for (int j = 0; j < 4; j++) d[i * 4 + j] = c[j];
}

// An 8 x 8 matrix of 16-bit values by ldmatrix; lanes 0 to 7 give the addresses, all 32 take part.
extern "C" __global__ void load_matrix(const unsigned short* x, unsigned* y) {
  __shared__ __align__(16) unsigned short tile[64];
  const int i = threadIdx.x;
  tile[i * 2] = x[i * 2];
  tile[i * 2 + 1] = x[i * 2 + 1];
  __syncwarp();
  unsigned r = 0;
#ifdef LDMATRIX_IN_BRANCH
  if (i < 8)
#endif
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"  // reported: LDMATRIX_IN_BRANCH
                 : "=r"(r)
                 : "r"((unsigned)__cvta_generic_to_shared(tile + i % 8 * 8)));
  y[i] = r;
}
