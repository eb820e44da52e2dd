// C [M, N] = A [M, K] * B [N, K]^T in bf16 with fp32 sums and a bf16 result, the Hopper way: a producer warp loads tiles by
// TMA into a ring of stages, four consumer warps multiply them by wgmma, and the tile is stored by TMA.
// One block of 256 threads makes a 64 x 64 tile; full barriers count bytes, empty barriers count consumers.
constexpr int BLOCK = 64, STAGES = 2, TILE_BYTES = BLOCK * BLOCK * 2;

struct alignas(64) Map { char bytes[128]; };

struct alignas(1024) Shared {
  char a[STAGES][TILE_BYTES];
  char b[STAGES][TILE_BYTES];
  char c[TILE_BYTES];
  unsigned long long full[STAGES], empty[STAGES];
};

__device__ unsigned offset_of(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ void init(unsigned long long* bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(offset_of(bar)), "r"(count));
}
__device__ void expect(unsigned long long* bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(offset_of(bar)), "r"(bytes) : "memory");
}
__device__ void arrive(unsigned long long* bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(offset_of(bar)) : "memory");
}
__device__ void wait(unsigned long long* bar, int parity) {
  asm volatile(
      "{\n.reg .pred p;\nagain: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra again;\n}" ::"r"(
          offset_of(bar)),
      "r"(parity)
      : "memory");
}
__device__ void load_tile(void* to, const Map& map, int x, int y, unsigned long long* bar) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          offset_of(to)),
      "l"(&map), "r"(x), "r"(y), "r"(offset_of(bar))
      : "memory");
}
// Rows of 128 bytes, 128-byte swizzle, patterns of eight rows 1024 bytes apart.
__device__ unsigned long long descriptor(const void* p) {
  return (unsigned long long)(offset_of(p) >> 4) | (1ull << 16) | (1024ull >> 4 << 32) | (1ull << 62);
}

#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
__device__ void wgmma64(float (&d)[32], unsigned long long a, unsigned long long b, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "
      "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, 0, "
      "0;\n}"
      : D16(0), D16(16)
      : "l"(a), "l"(b), "r"(add));
}

__device__ void produce(Shared& s, const Map& map_a, const Map& map_b, int K) {
  for (int t = 0; t < K / BLOCK; t++) {
    int stage = t % STAGES, round = t / STAGES;
    if (round > 0) wait(&s.empty[stage], (round - 1) & 1);
    expect(&s.full[stage], 2 * TILE_BYTES);
    load_tile(s.a[stage], map_a, t * BLOCK, blockIdx.y * BLOCK, &s.full[stage]);
    load_tile(s.b[stage], map_b, t * BLOCK, blockIdx.x * BLOCK, &s.full[stage]);
  }
}

__device__ void consume(Shared& s, const Map& map_c, int K) {
  float d[32];
  for (int t = 0; t < K / BLOCK; t++) {
    int stage = t % STAGES;
    wait(&s.full[stage], t / STAGES & 1);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int k = 0; k < BLOCK; k += 16) wgmma64(d, descriptor(s.a[stage] + k * 2), descriptor(s.b[stage] + k * 2), t + k);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    arrive(&s.empty[stage]);
  }
  int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  for (int i = 0; i < 32; i += 2) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(d[i + 1]), "f"(d[i]));
    int r = row + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2;
    *(unsigned*)(s.c + r * 128 + column * 2) = pair;
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("bar.sync 1, 128;" ::: "memory");
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map_c),
                 "r"((int)blockIdx.x * BLOCK), "r"((int)blockIdx.y * BLOCK), "r"(offset_of(s.c))
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
}

extern "C" __global__ void gemm(const __grid_constant__ Map map_a, const __grid_constant__ Map map_b,
                                const __grid_constant__ Map map_c, int K) {
  extern __shared__ __align__(1024) char memory[];
  Shared& s = *(Shared*)memory;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      init(&s.full[i], 1);
      init(&s.empty[i], 128);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x < 128) consume(s, map_c, K);
  else if (threadIdx.x == 128) produce(s, map_a, map_b, K);
}
