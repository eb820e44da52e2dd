// Tiles by TMA: loads that report to an mbarrier, stores in bulk groups, a producer and a consumer warp.
constexpr int STAGES = 2, ROWS = 8, COLUMNS = 32, TILE_BYTES = ROWS * COLUMNS * 4;

struct alignas(64) Map { char bytes[128]; };

struct alignas(128) Ring {
  float tile[STAGES][ROWS][COLUMNS];
  unsigned long long full[STAGES], empty[STAGES];
};

__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void init(unsigned long long* bar, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at(bar)), "r"(count) : "memory");
}
__device__ void expect(unsigned long long* bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at(bar)), "r"(bytes) : "memory");
}
__device__ void arrive(unsigned long long* bar) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(at(bar)) : "memory");
}
__device__ void wait(unsigned long long* bar, int parity) {
  asm volatile(
      "{\n.reg .pred p;\nagain: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra again;\n}" ::"r"(at(bar)),
      "r"(parity)
      : "memory");
}
__device__ void load(void* to, const Map& map, int x, int y, unsigned long long* bar) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          at(to)),
      "l"(&map), "r"(x), "r"(y), "r"(at(bar))
      : "memory");
}
__device__ void store(const Map& map, int x, int y, const void* from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(x),
               "r"(y), "r"(at(from))
               : "memory");
}

__device__ void produce(Ring& ring, const Map& map, int tiles) {
  for (int t = 0; t < tiles; t++) {
    const int stage = t % STAGES, round = t / STAGES;
#ifndef STAGE_NOT_AWAITED
    if (round > 0) wait(&ring.empty[stage], (round - 1) & 1);  // reported: PARITY_INVERTED, PARITY_NEVER_CHANGES, MORE_BYTES_EXPECTED, FEWER_BYTES_EXPECTED, NO_BYTES_EXPECTED, NO_ARRIVAL_OF_PRODUCER, STAGE_NEVER_FREED, FREED_TWICE, REPORTS_TO_OTHER_STAGE
#endif
#ifdef MORE_BYTES_EXPECTED
    expect(&ring.full[stage], TILE_BYTES + 16);
#elif defined FEWER_BYTES_EXPECTED
    expect(&ring.full[stage], TILE_BYTES - 16);
#elif defined NO_BYTES_EXPECTED
    arrive(&ring.full[stage]);
#elif !defined NO_ARRIVAL_OF_PRODUCER
    expect(&ring.full[stage], TILE_BYTES);  // reported: FULL_NOT_INITIALISED
#endif
#ifdef TILE_NOT_ALIGNED
    load(&ring.tile[stage][0][16], map, 0, t * ROWS, &ring.full[stage]);  // reported: TILE_NOT_ALIGNED
#elif defined COORDINATES_SWAPPED
    load(ring.tile[stage], map, t * ROWS, 0, &ring.full[stage]);
#elif defined REPORTS_TO_OTHER_STAGE
    load(ring.tile[stage], map, 0, t * ROWS, &ring.full[0]);
#else
    load(ring.tile[stage], map, 0, t * ROWS, &ring.full[stage]);
#endif
  }
}

__device__ void consume(Ring& ring, float* y, int tiles) {
  const int c = threadIdx.x % 32;
  for (int t = 0; t < tiles; t++) {
    const int stage = t % STAGES, round = t / STAGES;
#ifdef PARITY_NEVER_CHANGES
    wait(&ring.full[stage], 0);
#elif defined PARITY_INVERTED
    wait(&ring.full[stage], 1 - (round & 1));
#elif !defined NO_WAIT_FOR_TILE
    wait(&ring.full[stage], round & 1);
#endif
    float sum = 0;
#pragma unroll 1
    for (int r = 0; r < ROWS; r++) sum += ring.tile[stage][r][c];  // reported: NO_WAIT_FOR_TILE
    y[t * COLUMNS + c] = sum;
#ifdef FREED_TWICE
    arrive(&ring.empty[stage]);
    arrive(&ring.empty[stage]);
#elif !defined STAGE_NEVER_FREED
    arrive(&ring.empty[stage]);
#endif
  }
}

// y [tiles, 32] = sums over the 8 rows of each tile of x.
extern "C" __global__ void tile_sums(const __grid_constant__ Map map, float* y, int tiles) {
  __shared__ Ring ring;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) {
#ifdef FULL_NOT_INITIALISED
      if (s > 0)
#endif
        init(&ring.full[s], 1);
      init(&ring.empty[s], 32);
    }
#ifndef NO_FENCE_AFTER_INIT
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  __syncthreads();
  if (threadIdx.x == 0) produce(ring, map, tiles);
  if (threadIdx.x >= 32) consume(ring, y, tiles);
}

// y = 2 x, tile by tile: loaded by TMA, doubled by threads, stored by TMA.
extern "C" __global__ void twice(const __grid_constant__ Map x, const __grid_constant__ Map y, int tiles) {
  __shared__ __align__(128) float in[ROWS][COLUMNS], out[ROWS][COLUMNS];
  __shared__ unsigned long long full;
  const int i = threadIdx.x;
#ifdef NO_EXPECTED_BYTES_IN_LAST_ROUND
  const int last = tiles - 1;
#else
  const int last = tiles;
#endif
  if (i == 0) init(&full, 1);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  __syncthreads();
  for (int t = 0; t < tiles; t++) {
    if (i == 0) {
      if (t < last) expect(&full, TILE_BYTES);
      else arrive(&full);
      load(in, x, 0, t * ROWS, &full);  // reported: NO_EXPECTED_BYTES_IN_LAST_ROUND
    }
    wait(&full, t & 1);
    for (int r = i / 32; r < ROWS; r += 2) out[r][i % 32] = 2.f * in[r][i % 32];
#ifndef NO_PROXY_FENCE
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
#ifndef STORE_BEFORE_BARRIER
    __syncthreads();
#endif
    if (i == 0) {
      store(y, 0, t * ROWS, out);  // reported: NO_PROXY_FENCE, STORE_NOT_AWAITED, STORE_BEFORE_BARRIER, STORE_NOT_COMMITTED
#ifndef STORE_NOT_COMMITTED
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
#if !defined STORE_NOT_AWAITED && !defined SOURCE_OVERWRITTEN
      asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#elif defined SOURCE_OVERWRITTEN
      asm volatile("cp.async.bulk.wait_group 1;" ::: "memory");  // reported: SOURCE_OVERWRITTEN
      if (t == tiles - 1) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
    }
    __syncthreads();
  }
}

// y = a tile of 8 x 32 in the order it has in the array: TMA has swizzled the 16-byte units of each row.
extern "C" __global__ void unswizzle(const __grid_constant__ Map map, float* y) {
  __shared__ __align__(1024) float tile[ROWS][COLUMNS];
  __shared__ unsigned long long full;
  const int c = threadIdx.x;
  if (c == 0) {
    init(&full, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    expect(&full, TILE_BYTES);
    load(tile, map, 0, 0, &full);
  }
  __syncthreads();
  wait(&full, 0);
  for (int r = 0; r < ROWS; r++) {
#ifdef SWIZZLE_FORGOTTEN
    const int unit = c / 4;
#elif defined SWIZZLE_OF_64_BYTES
    const int unit = c / 4 ^ (r / 2 & 3);
#else
    const int unit = c / 4 ^ (r & 7);
#endif
    y[r * COLUMNS + c] = tile[r][unit * 4 + c % 4];
  }
}

// y = x through shared memory by a plain bulk copy of n floats.
extern "C" __global__ void bulk(const float* x, float* y, int n) {
  __shared__ __align__(16) float tile[64];
  __shared__ unsigned long long full;
  const int i = threadIdx.x;
#ifdef BULK_COPY_TOO_LONG
  const int bytes = n * 4 + 16;
#elif defined BULK_COPY_NOT_OF_16
  const int bytes = n * 4 - 4;
#else
  const int bytes = n * 4;
#endif
  if (i == 0) {
    init(&full, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    expect(&full, bytes);
    asm volatile(  // reported: BULK_COPY_TOO_LONG, BULK_COPY_NOT_OF_16
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(at(tile)),
        "l"(x), "r"(bytes), "r"(at(&full))
        : "memory");
  }
  __syncthreads();
  wait(&full, 0);
  if (i < n) y[i] = tile[n - 1 - i];
}

// y += x, tile by tile, without reading y: bulk reductions of doubled and halved tiles.
extern "C" __global__ void accumulate(const float* x, float* y, int tiles) {
  __shared__ __align__(128) float tile[COLUMNS * 2];
  const int i = threadIdx.x;
  for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
    tile[i] = x[t * 64 + i];
#ifndef NO_PROXY_FENCE_BEFORE_SUM
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncthreads();
    if (i == 0) {
      asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 256;" ::"l"(y), "r"(at(tile)) : "memory");  // reported: NO_PROXY_FENCE_BEFORE_SUM, SUM_NOT_AWAITED, SUM_NOT_COMMITTED
#ifndef SUM_NOT_COMMITTED
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
#ifdef SUM_SOURCE_OVERWRITTEN
      if (t + gridDim.x >= tiles)
#endif
#ifndef SUM_NOT_AWAITED
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");  // reported: SUM_SOURCE_OVERWRITTEN
#endif
    }
    __syncthreads();
  }
}

// y += x by one tensor reduction for each tile.
extern "C" __global__ void accumulate_tiles(const float* x, const __grid_constant__ Map y, int tiles) {
  __shared__ __align__(128) float tile[ROWS][COLUMNS];
  const int i = threadIdx.x;
  for (int t = 0; t < tiles; t++) {
    for (int r = i / 32; r < ROWS; r += 2) tile[r][i % 32] = x[(t * ROWS + r) * COLUMNS + i % 32];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#ifndef SUM_BEFORE_BARRIER
    __syncthreads();
#endif
    if (i == 0) {
      asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&y), "r"(0), "r"(t * ROWS), "r"(at(tile)) : "memory");  // reported: SUM_BEFORE_BARRIER
      asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
    }
    __syncthreads();
  }
}
