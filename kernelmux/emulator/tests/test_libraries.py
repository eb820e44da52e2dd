"""Kernels written with CUDA's own libraries: cooperative groups, cuda::barrier and pipeline, cuda::ptx, CUB."""

from typing import Any

import numpy as np
import pytest

from kernelmux.emulator import checks, compile_ptx, load, nvrtc

pytestmark = pytest.mark.skipif(
    nvrtc.unavailable() is not None or not any((f / "cuda" / "barrier").is_file() for f in nvrtc._headers()),
    reason="the headers of libcu++ are not installed",
)


def launch(source: str, kernel: str, grid: Any, block: int, *arguments: Any) -> None:
    ptx = compile_ptx(source, ("-std=c++17",), arch="sm_90a", filename="library.cu")
    with checks("full"):
        load(ptx).kernel(kernel).launch(grid, block, arguments)


GROUPS = """
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;
extern "C" __global__ void __cluster_dims__(2, 2, 1) groups(const int* x, int* y) {
  __shared__ int tile[64];
  auto cluster = cg::this_cluster();
  auto block = cg::this_thread_block();
  auto warp = cg::tiled_partition<32>(block);
  auto half = cg::tiled_partition<16>(warp);
  int b = blockIdx.y * gridDim.x + blockIdx.x, t = threadIdx.x;
  cg::memcpy_async(block, tile, x + b * 64, sizeof(int) * 64);
  cg::wait(block);
  int s = cg::reduce(warp, tile[t], cg::plus<int>()) + cg::reduce(half, t, cg::greater<int>());
  s += cg::inclusive_scan(half, t) + cg::reduce(cg::coalesced_threads(), 1, cg::plus<int>());
  auto part = cg::labeled_partition(warp, t % 3);
  s += 100000 * part.size() + 1000000 * part.thread_rank();
  block.sync();
  tile[t] = s;
  cluster.sync();
  int* other = cluster.map_shared_rank(tile, (cluster.block_rank() + 1) % cluster.num_blocks());
  y[b * 64 + t] = other[t] + 100000000 * cluster.query_shared_rank(other);
  cluster.sync();
}"""


def test_cooperative_groups_of_a_cluster() -> None:
    x, y = np.arange(16 * 64, dtype=np.int32), np.zeros(16 * 64, np.int32)
    launch(GROUPS, "groups", (4, 4), 64, x, y)
    t = np.arange(64)
    tiles = x.reshape(16, 2, 32)
    own = np.array([sum(range(i // 16 * 16, i + 1)) for i in t]) + t // 16 * 16 + 15 + 32
    own += 100000 * np.array([sum(1 for j in range(32) if (j + i // 32 * 32) % 3 == i % 3) for i in t])
    own += 1000000 * np.array([sum(1 for j in range(i // 32 * 32, i) if j % 3 == i % 3) for i in t])
    sums = own + np.repeat(tiles.sum(2), 32, axis=1)  # [blocks, threads]
    for block in range(16):
        bx, by = block % 4, block // 4
        rank = (bx % 2 + 2 * (by % 2) + 1) % 4
        other = (by // 2 * 2 + rank // 2) * 4 + bx // 2 * 2 + rank % 2
        assert np.array_equal(y.reshape(16, 64)[block], sums[other] + 100000000 * rank)


BARRIERS = """
#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda/pipeline>
#pragma nv_diag_suppress static_var_with_dynamic_init
using Barrier = cuda::barrier<cuda::thread_scope_block>;

extern "C" __global__ void drop_out(const int* x, int* y) {
  __shared__ Barrier bar;
  __shared__ alignas(128) int tile[256];
  auto block = cooperative_groups::this_thread_block();
  if (threadIdx.x == 0) init(&bar, blockDim.x);
  block.sync();
  for (int r = 0; r < 3; r++) {
    cuda::memcpy_async(block, tile, x + r * 256, cuda::aligned_size_t<16>(1024), bar);
    bar.arrive_and_wait();
    y[r * 256 + threadIdx.x] = tile[255 - threadIdx.x];
    block.sync();
  }
  Barrier::arrival_token token = bar.arrive();
  bar.wait(std::move(token));
  if (threadIdx.x >= 128) {
    bar.arrive_and_drop();
    return;
  }
  bar.arrive_and_wait();
  y[threadIdx.x] += 1;
}

extern "C" __global__ void bytes(const int* x, int* y) {
  __shared__ Barrier bar;
  __shared__ alignas(128) int tile[256];
  if (threadIdx.x == 0) init(&bar, blockDim.x);
  __syncthreads();
  Barrier::arrival_token token;
  if (threadIdx.x == 0) {
    cuda::device::memcpy_async_tx(tile, x, cuda::aligned_size_t<16>(1024), bar);
    token = cuda::device::barrier_arrive_tx(bar, 1, 1024);
  } else {
    token = bar.arrive();
  }
  bar.wait(std::move(token));
  y[threadIdx.x] = tile[threadIdx.x] * 2;
}

extern "C" __global__ void pipeline(const int* x, int* y, int n) {
  constexpr int STAGES = 2;
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, STAGES> state;
  __shared__ int tile[STAGES][256];
  auto block = cooperative_groups::this_thread_block();
  auto pipe = cuda::make_pipeline(block, &state);
  for (int i = 0, next = 0; i < n; i++) {
    for (; next < n && next < i + STAGES; next++) {
      pipe.producer_acquire();
      cuda::memcpy_async(block, tile[next % STAGES], x + next * 256, 1024, pipe);
      pipe.producer_commit();
    }
    pipe.consumer_wait();
    y[i * 256 + threadIdx.x] = tile[i % STAGES][255 - threadIdx.x];
    pipe.consumer_release();
  }
}"""
NUMBERS = np.arange(1024, dtype=np.int32)


def test_cuda_barrier_with_copies_and_threads_that_drop_out() -> None:
    y = np.zeros_like(NUMBERS)
    launch(BARRIERS, "drop_out", 1, 256, NUMBERS, y)
    expected = NUMBERS[:768].reshape(3, 256)[:, ::-1].reshape(-1).copy()
    expected[:128] += 1
    assert np.array_equal(y[:768], expected)


def test_cuda_barrier_that_counts_bytes() -> None:
    y = np.zeros_like(NUMBERS)
    launch(BARRIERS, "bytes", 1, 256, NUMBERS, y)
    assert np.array_equal(y[:256], 2 * NUMBERS[:256])


def test_cuda_pipeline() -> None:
    y = np.zeros_like(NUMBERS)
    launch(BARRIERS, "pipeline", 1, 256, NUMBERS, y, np.int32(4))
    assert np.array_equal(y, NUMBERS.reshape(4, 256)[:, ::-1].reshape(-1))


CUB = """
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cuda/atomic>
extern "C" __global__ void blocks(const int* x, int* y) {
  using Reduce = cub::BlockReduce<int, 128>;
  using Scan = cub::BlockScan<int, 128>;
  using Sort = cub::BlockRadixSort<int, 128, 2>;
  __shared__ union {
    Reduce::TempStorage reduce;
    Scan::TempStorage scan;
    Sort::TempStorage sort;
  } storage;
  const int i = threadIdx.x, a = x[i];
  int sum;
  Scan(storage.scan).InclusiveSum(a, sum);
  __syncthreads();
  const int total = Reduce(storage.reduce).Sum(a);
  __syncthreads();
  int keys[2] = {x[i * 2] ^ 0x155, x[i * 2 + 1] ^ 0x2a};
  Sort(storage.sort).Sort(keys);
  y[i] = sum;
  if (i == 0) y[128] = total;
  y[256 + 2 * i] = keys[0];
  y[257 + 2 * i] = keys[1];
  cuda::atomic_ref<int, cuda::thread_scope_device> counter(y[129]);
  counter.fetch_add(1, cuda::memory_order_acq_rel);
  counter.fetch_max(5);
}"""


def test_cub_blocks() -> None:
    x, y = np.arange(256, dtype=np.int32), np.zeros(512, np.int32)
    launch(CUB, "blocks", 1, 128, x, y)
    assert np.array_equal(y[:128], np.cumsum(x[:128])) and y[128] == x[:128].sum() and y[129] >= 128
    keys = x.reshape(128, 2) ^ np.array([0x155, 0x2A])
    assert np.array_equal(y[256:], np.sort(keys.reshape(-1)))


PTX = """
#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda/ptx>
namespace ptx = cuda::ptx;
extern "C" __global__ void __cluster_dims__(2, 1, 1) exchange(const int* x, int* y) {
  __shared__ alignas(128) int out[32], stored[32], copied[32];
  __shared__ int sum[4];
  __shared__ uint64_t bar;
  auto cluster = cooperative_groups::this_cluster();
  const unsigned other = cluster.block_rank() ^ 1;
  const int t = threadIdx.x;
  if (t == 0) {
    ptx::mbarrier_init(&bar, 1);
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  if (t < 4) sum[t] = t;
  out[t] = x[blockIdx.x * 32 + t];
  ptx::fence_proxy_async(ptx::space_shared);
  cluster.sync();
  if (t == 0) ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cluster, ptx::space_shared, &bar, 3 * 128);
  uint64_t* remote = cluster.map_shared_rank(&bar, other);
  ptx::st_async(cluster.map_shared_rank(&stored[t], other), x[blockIdx.x * 32 + t] + 1, remote);
  ptx::red_async(ptx::op_add, cluster.map_shared_rank(&sum[t & 3], other), 1, remote);
  if (t == 0)
    ptx::cp_async_bulk(ptx::space_cluster, ptx::space_shared, cluster.map_shared_rank(copied, other), out, 128, remote);
  while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, &bar, 0)) {}
  y[blockIdx.x * 32 + t] = stored[t] + copied[t] * 1000 + sum[t & 3] * 1000000;
  if (t == 0) {
    ptx::cp_reduce_async_bulk(ptx::space_global, ptx::space_shared, ptx::op_add, y + 64, out, 128);
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
  }
  cluster.sync();
}"""


def test_cuda_ptx_in_a_cluster() -> None:
    x, y = np.arange(64, dtype=np.int32), np.zeros(96, np.int32)
    launch(PTX, "exchange", 2, 32, x, y)
    other, thread = x.reshape(2, 32)[::-1].reshape(-1), np.arange(64)
    assert np.array_equal(y[:64], other + 1 + 1000 * other + 1000000 * (thread % 4 + 8))
    assert np.array_equal(y[64:], x[:32] + x[32:])
