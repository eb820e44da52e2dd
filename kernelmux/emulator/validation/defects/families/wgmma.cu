// C [64, 8] = A [64, 128] B [8, 128]^T in fp16 with fp32 sums by one warpgroup: two tiles of 64 columns, each four steps of wgmma.
#include <cuda_fp16.h>

constexpr int TILES = 2, WIDTH = 64, ROW_BYTES = WIDTH * 2, A_BYTES = 64 * ROW_BYTES, B_BYTES = 8 * ROW_BYTES;

struct alignas(64) Map { char bytes[128]; };

struct alignas(1024) Tiles {
  char a[TILES][A_BYTES];
  char b[TILES][B_BYTES];
};

__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ void load(void* to, const Map& map, int x, unsigned long long* bar) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, 0}], [%3];" ::"r"(
          at(to)),
      "l"(&map), "r"(x), "r"(at(bar))
      : "memory");
}

// Rows of 128 bytes, 128-byte swizzle, patterns of eight rows 1024 bytes apart.
__device__ unsigned long long descriptor(const void* p) {
#ifdef DESCRIPTOR_STRIDE_OF_512
  const unsigned long long stride = 512;
#else
  const unsigned long long stride = 1024;
#endif
#ifdef DESCRIPTOR_SWIZZLE_OF_64
  const unsigned long long swizzle = 2;
#elif defined DESCRIPTOR_WITHOUT_SWIZZLE
  const unsigned long long swizzle = 0;
#else
  const unsigned long long swizzle = 1;
#endif
  return (unsigned long long)(at(p) >> 4) | (1ull << 16) | (stride >> 4 << 32) | (swizzle << 62);
}

__device__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
__device__ void wait_for_all_but() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
__device__ void multiply(float (&d)[4], unsigned long long a, unsigned long long b, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, p, 1, 1, 0, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "l"(a), "l"(b), "r"(add));
}

__device__ void multiply_tile(float (&d)[4], const char* a, const char* b, int add) {
#ifdef K_STEP_OF_16_BYTES
  constexpr int STEP = 16;
#else
  constexpr int STEP = 32;
#endif
#pragma unroll
  for (int k = 0; k < 4; k++)
    multiply(d, descriptor(a + k * STEP), descriptor(b + k * STEP), add || k);  // reported: NO_WGMMA_FENCE, DESCRIPTOR_BEHIND_MEMORY
}

__device__ void store(float* c, const float (&d)[4]) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, column = lane % 4 * 2;
  for (int i = 0; i < 4; i++) c[(row + i / 2 * 8) * 8 + column + i % 2] = d[i];  // reported: SUM_READ_BEFORE_WAIT, WAIT_LEAVES_ONE_GROUP
}

// Both tiles come by TMA.
extern "C" __global__ void product(const __grid_constant__ Map a, const __grid_constant__ Map b, float* c) {
  extern __shared__ __align__(1024) char memory[];
  Tiles& tiles = *(Tiles*)memory;
  __shared__ unsigned long long full;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" ::"r"(at(&full)) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at(&full)), "r"(TILES * (A_BYTES + B_BYTES))
                 : "memory");
    for (int t = 0; t < TILES; t++) {
      load(tiles.a[t], a, t * WIDTH, &full);
      load(tiles.b[t], b, t * WIDTH, &full);
    }
  }
  __syncthreads();
  asm volatile("{\n.reg .pred p;\nagain: mbarrier.try_wait.parity.shared.b64 p, [%0], 0;\n@!p bra again;\n}" ::"r"(at(&full))
               : "memory");
  float d[4];
#ifndef NO_WGMMA_FENCE
  fence();
#endif
#ifdef FIRST_PRODUCT_ADDS
  const int first = 1;
#else
  const int first = 0;
#endif
#ifdef DESCRIPTOR_BEHIND_MEMORY
  multiply_tile(d, tiles.a[0], tiles.b[TILES], first);
#else
  multiply_tile(d, tiles.a[0], tiles.b[0], first);
#endif
#ifndef NO_COMMIT_OF_PRODUCTS
  commit();
#endif
  multiply_tile(d, tiles.a[1], tiles.b[1], 1);
#ifndef NO_COMMIT_OF_PRODUCTS
  commit();
#endif
#ifdef WAIT_LEAVES_ONE_GROUP
  wait_for_all_but<1>();
#elif !defined PRODUCT_NEVER_AWAITED && !defined SUM_READ_BEFORE_WAIT
  wait_for_all_but<0>();
#endif
#ifdef PRODUCT_NEVER_AWAITED
  c[threadIdx.x] = c[threadIdx.x + 128] = c[threadIdx.x + 256] = c[threadIdx.x + 384] = 0.f;
#else
  store(c, d);
#endif
#if defined SUM_READ_BEFORE_WAIT || defined WAIT_LEAVES_ONE_GROUP
  wait_for_all_but<0>();
#endif
}

// Threads write the tiles, in the swizzled order; the sums of the first tile are doubled before the second is added.
extern "C" __global__ void product_of_copies(const __half* a, const __half* b, float* c) {
  extern __shared__ __align__(1024) char memory[];
  Tiles& tiles = *(Tiles*)memory;
  const int i = threadIdx.x;
  float d[4] = {0.f, 0.f, 0.f, 0.f};
  for (int t = 0; t < TILES; t++) {
    for (int j = i; j < 72 * WIDTH; j += 128) {
      const int row = j / WIDTH, column = j % WIDTH;
      const __half value = row < 64 ? a[row * 128 + t * WIDTH + column] : b[(row - 64) * 128 + t * WIDTH + column];
      char* tile = row < 64 ? tiles.a[0] + row * ROW_BYTES : tiles.b[0] + (row - 64) * ROW_BYTES;
#ifdef TILE_WRITTEN_UNSWIZZLED
      *(__half*)(tile + column * 2) = value;
#else
      *(__half*)(tile + ((column / 8 ^ row & 7) * 8 + column % 8) * 2) = value;
#endif
    }
#ifndef NO_PROXY_FENCE_BEFORE_WGMMA
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
#ifndef NO_BARRIER_BEFORE_WGMMA
    __syncthreads();
#endif
#ifdef NO_FENCE_AFTER_SUMS_CHANGED
    if (t == 0) fence();
#else
    fence();
#endif
    multiply_tile(d, tiles.a[0], tiles.b[0], 1);  // reported: NO_PROXY_FENCE_BEFORE_WGMMA, NO_BARRIER_BEFORE_WGMMA
    commit();
#ifndef OPERAND_OVERWRITTEN
    wait_for_all_but<0>();
#else
    if (t == 1) wait_for_all_but<0>();  // reported: OPERAND_OVERWRITTEN
#endif
    __syncthreads();
#ifndef OPERAND_OVERWRITTEN
    for (int j = 0; j < 4; j++) d[j] *= t == 0 ? 2.f : 1.f;
#endif
  }
#ifdef OPERAND_OVERWRITTEN
  for (int j = 0; j < 4; j++) d[j] *= 2.f;
#endif
  store(c, d);
}
