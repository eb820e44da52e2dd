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
