"""Global memory shared by threads and blocks in no order."""

from pathlib import Path

import numpy as np

from kernelmux.emulator.validation.arrays import aligned, empty, ramp
from kernelmux.emulator.validation.defects.model import CudaLaunch, Defect

FAMILY = "global-memory races"
BLOCKS = 640  # at a barrier of the grid: with 48 KB each, more than 132 multiprocessors of 228 KB hold
SOURCE = Path(__file__).with_suffix(".cu")


def sum_rows() -> CudaLaunch:
    x, y = ramp(4, 64), aligned(np.zeros(64, np.float32))
    return CudaLaunch(SOURCE, "sum_rows", 4, 64, {"x": x, "y": y}, {"y": x.sum(0)})


def sum_all() -> CudaLaunch:
    x, y = ramp(64), aligned(np.zeros(1, np.float32))
    return CudaLaunch(SOURCE, "sum_all", 1, 64, {"x": x, "y": y}, {"y": x.sum()})


def scale_tiles() -> CudaLaunch:
    x, y = ramp(128) + 1, empty(128)
    arguments = {"x": x, "y": y, "n": np.int32(128)}
    return CudaLaunch(SOURCE, "scale_tiles", 2, 64, arguments, {"y": x * (np.arange(128) // 64 + 1)})


def add_right() -> CudaLaunch:
    x, y = ramp(128), empty(128)
    expected = np.append(x[:-1] + x[1:], np.float32(np.nan))
    y[-1] = expected[-1] = 0
    return CudaLaunch(SOURCE, "add_right", 2, 64, {"x": x, "y": y, "n": np.int32(128)}, {"y": expected})


def reverse_by_scratch() -> CudaLaunch:
    x, scratch, y = ramp(2, 64), empty(2, 64), empty(2, 64)
    arguments = {"x": x, "scratch": scratch, "y": y}
    return CudaLaunch(SOURCE, "reverse_by_scratch", 2, 64, arguments, {"y": x[:, ::-1], "scratch": x})


def last_block_sums() -> CudaLaunch:
    x, partial, count, y = ramp(4, 32), empty(4), aligned(np.zeros(1, np.int32)), empty(1)
    arguments = {"x": x, "partial": partial, "count": count, "y": y}
    expected = {"y": x.sum(), "partial": x.sum(1), "count": np.int32(4)}
    return CudaLaunch(SOURCE, "last_block_sums", 4, 32, arguments, expected)


def publish() -> CudaLaunch:
    x, flag, box, y = ramp(1) + 7, aligned(np.zeros(1, np.int32)), empty(1), empty(4)
    arguments = {"x": aligned(x), "flag": flag, "box": box, "y": y}
    return CudaLaunch(SOURCE, "publish", 4, 32, arguments, {"y": x, "box": x, "flag": np.int32(1)})


def meet() -> CudaLaunch:
    count, y = aligned(np.zeros(1, np.int32)), empty(BLOCKS, dtype=np.int32)
    expected = {"count": np.int32(BLOCKS), "y": np.int32(BLOCKS)}
    return CudaLaunch(SOURCE, "meet", BLOCKS, 32, {"count": count, "y": y}, expected)


def relu() -> CudaLaunch:
    x, y = aligned(ramp(64) - 32), empty(64)
    return CudaLaunch(SOURCE, "relu", 1, 64, {"x": x, "y": y}, {"y": np.maximum(x, 0)})


def compact() -> CudaLaunch:
    x, values, length = ramp(64), empty(64), aligned(np.zeros(1, np.int32))
    expected = {"length": np.int32(63), "values": np.append(x[1:], np.float32(0))}
    values[-1] = 0
    return CudaLaunch(SOURCE, "compact", 2, 32, {"x": x, "values": values, "length": length}, expected)


RACE = ("race",)
LOST = "Terms are lost: a wrong sum that changes from run to run."
ORDER = "Right or wrong depending on which block comes first."

DEFECTS = (
    Defect("blocks_add_without_atomics", "Blocks add to one output without atomics.", LOST, sum_rows, RACE),
    Defect(
        "threads_add_without_atomics", "The threads of a block add to one output without atomics.", LOST, sum_all, RACE
    ),
    Defect("two_blocks_one_tile", "Two blocks compute different values for one tile.", ORDER, scale_tiles, RACE),
    Defect(
        "stencil_in_place",
        "A stencil works in place: blocks overwrite what their neighbours still read.",
        ORDER,
        add_right,
        RACE,
    ),
    Defect(
        "scratch_read_without_barrier",
        "A block reads its scratch in global memory with no __syncthreads after writing it.",
        "Some threads read what was there before.",
        reverse_by_scratch,
        RACE,
    ),
    Defect(
        "scratch_of_next_block",
        "A block reads scratch that another block writes in the same launch.",
        ORDER,
        reverse_by_scratch,
        RACE,
    ),
    Defect(
        "no_fence_before_count",
        "A block counts itself as done with no __threadfence after writing its partial sum.",
        "The last block may add partial sums that it does not see yet.",
        last_block_sums,
        RACE,
    ),
    Defect(
        "no_fence_before_flag",
        "A block sets a flag with no __threadfence after writing what the flag stands for.",
        "Others may see the flag before the value.",
        publish,
        RACE,
    ),
    Defect(
        "no_fence_after_flag",
        "A block has seen a flag and reads what it stands for, with no __threadfence between.",
        "It may read a value from before the flag.",
        publish,
        blind="memory is sequentially consistent; the fence of the block that writes is checked, not of the reader",
    ),
    Defect(
        "more_blocks_than_fit",
        "A barrier of the whole grid waits for blocks that have no room on the GPU at the same time.",
        "The kernel hangs.",
        meet,
        blind="up to 262,144 threads run side by side, whatever shared memory and registers they need",
    ),
    Defect(
        "count_without_atomic",
        "Blocks count themselves without atomics.",
        "Counts are lost: no block, or several, believe to be the last.",
        last_block_sums,
        RACE,
    ),
    Defect(
        "length_read_then_added",
        "The end of a list is read, then moved by an atomic.",
        "Entries overwrite each other.",
        compact,
        RACE,
    ),
    Defect("input_overwritten", "The kernel writes into its input.", "The caller's data change.", relu),
)
