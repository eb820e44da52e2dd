"""CUDA text of kernels that move a tile by TMA."""

HEAD = """
struct alignas(64) Map { char bytes[128]; };
__device__ unsigned offset_of(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void init(unsigned long long* bar) {
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(offset_of(bar)) : "memory");
}
__device__ void expect(unsigned long long* bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(offset_of(bar)), "r"(bytes) : "memory");
}
__device__ void wait(unsigned long long* bar) {
  asm volatile("{.reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra again;}"
               :: "r"(offset_of(bar)) : "memory");
}
"""


def tile_source(rank: int) -> str:
    """A kernel that loads a tile by TMA, copies it out as it lies in shared memory, and stores it by TMA elsewhere."""
    coordinates = ", ".join(f"%{i + 3}" for i in range(rank))
    at = ", ".join(f'"r"(c{i})' for i in range(rank))
    places = ", ".join(f"%{i + 2}" for i in range(rank))
    return f"""{HEAD}
extern "C" __global__ void tile(const __grid_constant__ Map x, const __grid_constant__ Map y, int* image, int bytes,
                                int c0, int c1, int c2, int c3, int c4) {{
  extern __shared__ __align__(1024) int memory[];
  __shared__ unsigned long long bar;
  if (threadIdx.x == 0) {{
    init(&bar);
    expect(&bar, bytes);
    asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {{{coordinates}}}], [%2];"
                 :: "r"(offset_of(memory)), "l"(&x), "r"(offset_of(&bar)), {at} : "memory");
  }}
  __syncthreads();
  wait(&bar);
  for (int i = threadIdx.x; i < bytes / 4; i += 32) image[i] = memory[i];
  if (threadIdx.x == 0) {{
    asm volatile("cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group [%0, {{{places}}}], [%1];"
                 :: "l"(&y), "r"(offset_of(memory)), {at} : "memory");
    asm volatile("cp.async.bulk.commit_group;");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }}
}}"""
