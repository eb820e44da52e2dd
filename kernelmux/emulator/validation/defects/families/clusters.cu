// Clusters of two blocks that read one another's shared memory.
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ unsigned rank() {
  unsigned r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
__device__ void sync() { asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory"); }

// y [blocks, 32] = x of the other block of the cluster.
extern "C" __global__ void __cluster_dims__(2, 1, 1) exchange(const float* x, float* y) {
  __shared__ float tile[32];
  const int i = threadIdx.x;
  tile[i] = x[blockIdx.x * 32 + i];
#ifdef CLUSTER_BARRIER_NOT_AWAITED
  asm volatile("barrier.cluster.arrive;" ::: "memory");
#elif !defined NO_CLUSTER_BARRIER
  sync();
#endif
#ifdef RANK_OUT_OF_RANGE
  const unsigned other = rank() + 1;
#else
  const unsigned other = rank() ^ 1;
#endif
  unsigned place;
  float value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place) : "r"(at(tile + i)), "r"(other));  // reported: RANK_OUT_OF_RANGE
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(place));  // reported: NO_CLUSTER_BARRIER, CLUSTER_BARRIER_NOT_AWAITED, RANK_OUT_OF_RANGE
  y[blockIdx.x * 32 + i] = value;
#ifdef CLUSTER_BARRIER_NOT_AWAITED
  asm volatile("barrier.cluster.wait;" ::: "memory");
#endif
#ifndef BLOCK_LEAVES_EARLY
  sync();
#endif
}

__device__ unsigned in_block(const void* p, unsigned block) {
  unsigned place;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place) : "r"(at(p)), "r"(block));
  return place;
}
__device__ void init(unsigned long long* bar) {
  asm volatile("mbarrier.init.shared.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" ::"r"(at(bar)) : "memory");
}
__device__ void expect(unsigned long long* bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at(bar)), "r"(bytes) : "memory");
}
__device__ void wait(unsigned long long* bar) {
  asm volatile(  // reported: FEWER_BYTES_SENT, MASK_WITHOUT_A_BLOCK
      "{\n.reg .pred p;\nagain: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0;\n@!p bra again;\n}"
      ::"r"(at(bar)) : "memory");
}

// y [blocks, 32] = x of the other block of the cluster, which sends it with st.async.
extern "C" __global__ void __cluster_dims__(1, 2, 1) send(const float* x, float* y) {
  __shared__ float tile[32];
  __shared__ unsigned long long full;
  const int i = threadIdx.x, block = blockIdx.y * gridDim.x + blockIdx.x;
  if (i == 0) {
    init(&full);
    expect(&full, 128);
  }
#ifndef SENT_BEFORE_INIT
  sync();
#endif
  const unsigned to = in_block(tile + i, rank() ^ 1);
#ifdef REPORTS_TO_OWN_BLOCK
  const unsigned bar = at(&full);
#else
  const unsigned bar = in_block(&full, rank() ^ 1);
#endif
#ifdef FEWER_BYTES_SENT
  if (i < 31)
#endif
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to), "f"(x[block * 32 + i]), "r"(bar) : "memory");  // reported: SENT_BEFORE_INIT, REPORTS_TO_OWN_BLOCK, STORES_NEVER_AWAITED
#ifdef STORES_NEVER_AWAITED
  y[block * 32 + i] = 0;
#else
#ifndef STORE_READ_TOO_EARLY
  wait(&full);
#endif
  y[block * 32 + i] = tile[i];  // reported: STORE_READ_TOO_EARLY
#ifdef STORE_READ_TOO_EARLY
  wait(&full);
#endif
#endif
  sync();
}

// y [blocks] = sums over x [blocks, 32] of the other block, added up by red.async.
extern "C" __global__ void __cluster_dims__(2, 1, 1) add_up(const int* x, int* y) {
  __shared__ int sum;
  __shared__ unsigned long long full;
  const int i = threadIdx.x;
  if (i == 0) {
#ifndef TARGET_NOT_CLEARED
    sum = 0;
#endif
    init(&full);
    expect(&full, 128);
  }
  sync();
  asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.s32 [%0], %1, [%2];" ::"r"(in_block(&sum, rank() ^ 1)), "r"(x[blockIdx.x * 32 + i]), "r"(in_block(&full, rank() ^ 1)) : "memory");  // reported: TARGET_NOT_CLEARED
#ifndef SUM_READ_TOO_EARLY
  wait(&full);
#endif
  if (i == 0) y[blockIdx.x] = sum;  // reported: SUM_READ_TOO_EARLY
#ifdef SUM_READ_TOO_EARLY
  wait(&full);
#endif
  sync();
}

// y [blocks, 32] = twice x of the other block of the cluster, sent as one bulk copy.
extern "C" __global__ void __cluster_dims__(2, 1, 1) pass_on(const float* x, float* y) {
  __shared__ __align__(16) float out[32], in[32];
  __shared__ unsigned long long full;
  const int i = threadIdx.x;
  if (i == 0) {
    init(&full);
    expect(&full, 128);
  }
  out[i] = 2.f * x[blockIdx.x * 32 + i];
#ifndef NO_FENCE_BEFORE_SENDING
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  sync();
  if (i == 0)
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];" ::"r"(in_block(in, rank() ^ 1)), "r"(at(out)), "r"(in_block(&full, rank() ^ 1)) : "memory");  // reported: NO_FENCE_BEFORE_SENDING
#ifdef SENT_ARRAY_CHANGED
  out[i] = 0.f;
#endif
  wait(&full);
  y[blockIdx.x * 32 + i] = in[i];
  sync();
}

// y [blocks, 32] = x [32], loaded once for all blocks of a cluster of two by two.
extern "C" __global__ void __cluster_dims__(2, 2, 1) share(const float* x, float* y) {
  __shared__ __align__(16) float tile[32];
  __shared__ unsigned long long full;
  const int i = threadIdx.x, block = blockIdx.y * gridDim.x + blockIdx.x;
  if (i == 0) {
    init(&full);
    expect(&full, 128);
  }
  sync();
#ifdef MASK_WITHOUT_A_BLOCK
  const unsigned short blocks = 0b0111;
#elif defined MASK_BEYOND_CLUSTER
  const unsigned short blocks = 0b11111;
#else
  const unsigned short blocks = 0b1111;
#endif
  if (i == 0 && rank() == 0)
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], 128, [%2], %3;" ::"r"(at(tile)), "l"(x), "r"(at(&full)), "h"(blocks) : "memory");  // reported: MASK_BEYOND_CLUSTER
  wait(&full);
  y[block * 32 + i] = tile[i];
  sync();
}
