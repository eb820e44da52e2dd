// C [M, N] = A [M, K] * B [K, N] in bf16 with fp32 sums: cp.async into two stages, ldmatrix, mma.sync m16n8k16.
// One block of two warps makes a 32 x 16 tile; M % 32 == N % 16 == K % 32 == 0.
#include <cuda_bf16.h>

constexpr int BLOCK_M = 32, BLOCK_N = 16, BLOCK_K = 32, PAD = 8;

struct Stage {
  alignas(16) __nv_bfloat16 a[BLOCK_M][BLOCK_K + PAD];
  alignas(16) __nv_bfloat16 b[BLOCK_K][BLOCK_N + PAD];
};

__device__ unsigned offset_of(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ void copy16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(offset_of(to)), "l"(from) : "memory");
}

__device__ void load_stage(Stage& stage, const __nv_bfloat16* a, const __nv_bfloat16* b, int k0, int N, int K) {
  for (int i = threadIdx.x; i < BLOCK_M * BLOCK_K / 8; i += blockDim.x) {
    int row = i / (BLOCK_K / 8), col = i % (BLOCK_K / 8) * 8;
    copy16(&stage.a[row][col], a + (blockIdx.y * BLOCK_M + row) * K + k0 + col);
  }
  for (int i = threadIdx.x; i < BLOCK_K * BLOCK_N / 8; i += blockDim.x) {
    int row = i / (BLOCK_N / 8), col = i % (BLOCK_N / 8) * 8;
    copy16(&stage.b[row][col], b + (k0 + row) * N + blockIdx.x * BLOCK_N + col);
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ void multiply(const Stage& stage, float (&c)[2][4]) {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int k = 0; k < BLOCK_K; k += 16) {
    unsigned a[4], b[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(offset_of(&stage.a[warp * 16 + lane % 16][k + lane / 16 * 8])));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(offset_of(&stage.b[k + lane % 16][lane / 16 * 8])));
    for (int j = 0; j < 2; j++)
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[2 * j]), "r"(b[2 * j + 1]));
  }
}

extern "C" __global__ void gemm(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c, int N, int K) {
  __shared__ Stage stages[2];
  float sum[2][4] = {};
  load_stage(stages[0], a, b, 0, N, K);
  for (int k0 = 0; k0 < K; k0 += BLOCK_K) {
    int now = k0 / BLOCK_K % 2;
    if (k0 + BLOCK_K < K) load_stage(stages[now ^ 1], a, b, k0 + BLOCK_K, N, K);
    else asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    multiply(stages[now], sum);
    __syncthreads();  // before the stage is filled again
  }
  int lane = threadIdx.x % 32, row = blockIdx.y * BLOCK_M + threadIdx.x / 32 * 16 + lane / 4;
  for (int j = 0; j < 2; j++)
    for (int i = 0; i < 4; i++)
      c[(row + i / 2 * 8) * N + blockIdx.x * BLOCK_N + j * 8 + lane % 4 * 2 + i % 2] = sum[j][i];
}
