"""Blocks in other orders, and some of the blocks of a grid."""

from __future__ import annotations

import numpy as np
import pytest

from kernelmux.emulator import EmulatorError, block_order, checks, compile_ptx, load, only_blocks
from kernelmux.emulator.running.block_orders import Order, order
from kernelmux.emulator.tests.launching import needs_nvrtc

ORDERS = ("forward", "reverse", 1, 7)

# Each block notes when it began; the largest grids of these tests have several chunks.
NOTE = """extern "C" __global__ void note(int* turn, int* seen) {
  if (threadIdx.x == 0) seen[blockIdx.x + gridDim.x * blockIdx.y] = atomicAdd(turn, 1);
}"""
SUM = """extern "C" __global__ void sum(const float* x, float* y) { atomicAdd(y, x[blockIdx.x]); }"""
CLUSTERS = """#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void __cluster_dims__(2, 1, 1) swap(int* y) {
  __shared__ int mine;
  cg::cluster_group c = cg::this_cluster();
  if (threadIdx.x == 0) mine = blockIdx.x;
  c.sync();
  if (threadIdx.x == 0) y[blockIdx.x] = *c.map_shared_rank(&mine, c.block_rank() ^ 1);
  c.sync();
}"""
# Each block waits for the one before it.
CHAIN = """extern "C" __global__ void chain(volatile int* done, int* y) {
  if (threadIdx.x) return;
  if (blockIdx.x) while (!done[blockIdx.x - 1]);
  __threadfence();
  y[blockIdx.x] = blockIdx.x;
  __threadfence();
  done[blockIdx.x] = 1;
}"""
RACE = """extern "C" __global__ void both(int* y) { y[blockIdx.x ? blockIdx.x : 16] = blockIdx.x; }"""


def _launch(text: str, name: str, grid: object, block: int, *args: np.ndarray) -> None:
    with checks("full"):
        load(compile_ptx(text, arch="sm_90a", filename="kernel.cu")).kernel(name).launch(grid, block, args)


def _turns(wanted: str | int, grid: tuple[int, int], threads: int = 32) -> list[int]:
    turn, seen = np.zeros(1, np.int32), np.full(grid[0] * grid[1], -1, np.int32)
    with block_order(wanted):
        _launch(NOTE, "note", grid, threads, turn, seen)
    return list(np.argsort(seen, kind="stable")) if sorted(seen) == list(range(len(seen))) else []


@needs_nvrtc
@pytest.mark.parametrize("threads", [32, 1024])
def test_every_order_runs_each_block_once(threads: int) -> None:
    grid = (7, 5)
    found = {str(wanted): _turns(wanted, grid, threads) for wanted in ORDERS}
    assert all(sorted(turns) == list(range(35)) for turns in found.values())
    assert found["forward"] == list(range(35)) and found["reverse"] == list(range(34, -1, -1))
    assert len({tuple(turns) for turns in found.values()}) == len(ORDERS)


@needs_nvrtc
def test_sums_by_atomics_depend_on_the_order() -> None:
    x = np.array([1e8, 1, -1e8, 3], np.float32)
    found = set()
    for wanted in ORDERS:
        y = np.zeros(1, np.float32)
        with block_order(wanted):
            _launch(SUM, "sum", 4, 1, x, y)
        found.add(float(y[0]))
    assert len(found) > 1


@needs_nvrtc
@pytest.mark.parametrize("wanted", ORDERS)
def test_clusters_stay_together(wanted: str | int) -> None:
    y = np.full(1024, -1, np.int32)
    with block_order(wanted):
        _launch(CLUSTERS, "swap", 1024, 32, y)
    assert (y == np.arange(1024) ^ 1).all()


@needs_nvrtc
@pytest.mark.parametrize("wanted", ORDERS)
@pytest.mark.parametrize("threads", [32, 1024])
def test_blocks_that_wait_for_earlier_ones_still_find_them(wanted: str | int, threads: int) -> None:
    done, y = np.zeros(300, np.int32), np.full(300, -1, np.int32)
    with block_order(wanted):
        _launch(CHAIN, "chain", 300, threads, done, y)  # 300 blocks of 1024 threads are two chunks
    assert (y == np.arange(300)).all()


@needs_nvrtc
def test_a_race_names_the_block_of_the_grid() -> None:
    with block_order("reverse"), pytest.raises(EmulatorError, match="thread 1023 of block 16 wrote") as raised:
        _launch(RACE, "both", 17, 1024, np.zeros(17, np.int32))  # block 0 runs last, in a chunk of its own
    assert raised.value.kind == "race" and raised.value.block == (0, 0, 0)


@needs_nvrtc
def test_only_some_blocks() -> None:
    turn, seen = np.zeros(1, np.int32), np.full(100_000, -1, np.int32)
    with only_blocks(first=2, last=3):
        _launch(NOTE, "note", (50_000, 2), 32, turn, seen)
    assert list(np.flatnonzero(seen >= 0)) == [0, 1, 99_997, 99_998, 99_999]
    assert turn[0] == 5


@pytest.mark.parametrize("clusters", [2, 3, 64, 65535, 2**31 - 1])
@pytest.mark.parametrize("wanted", ["reverse", 0, 5])
def test_an_order_is_a_permutation(clusters: int, wanted: str | int) -> None:
    with block_order(wanted):
        found = order(2 * clusters, 2)
    assert isinstance(found, Order)
    places = np.arange(min(2 * clusters, 100_000), dtype=np.int64)
    numbers = found(places)
    assert len(np.unique(numbers)) == len(places) and numbers.min() >= 0 and numbers.max() < 2 * clusters
    assert (numbers[::2] % 2 == 0).all() and (numbers[1::2] == numbers[::2] + 1).all()


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="block_order: expected one of"), block_order("sideways"):
        pass
    with pytest.raises(ValueError, match="only_blocks: expected at least one block"), only_blocks():
        pass
