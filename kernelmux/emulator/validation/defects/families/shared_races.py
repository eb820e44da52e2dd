"""Threads of a block that read and write shared memory in no order."""

from pathlib import Path

import numpy as np

from kernelmux.emulator.validation.arrays import empty, normal, ramp
from kernelmux.emulator.validation.defects.model import CudaLaunch, Defect

FAMILY = "shared-memory races"
SOURCE = Path(__file__).with_suffix(".cu")


def reverse_twice() -> CudaLaunch:
    x, y = ramp(64), empty(64)
    return CudaLaunch(SOURCE, "reverse_twice", 1, 64, {"x": x, "y": y}, {"y": 2 * x})


def tree_sum() -> CudaLaunch:
    x, y = ramp(128), empty(1)
    return CudaLaunch(SOURCE, "tree_sum", 1, 128, {"x": x, "y": y}, {"y": x.sum()})


def transpose() -> CudaLaunch:
    x, y = ramp(32, 64), empty(64, 32)
    return CudaLaunch(SOURCE, "transpose", 2, (32, 8), {"x": x, "y": y}, {"y": x.T})


def matmul() -> CudaLaunch:
    a, b, c = normal(16, 64), normal(64, 16), empty(16, 16)
    return CudaLaunch(SOURCE, "matmul", 1, (16, 16), {"a": a, "b": b, "c": c}, {"c": a @ b}, tolerance=1e-4)


def double_buffer() -> CudaLaunch:
    x, y = ramp(8, 64), empty(64)
    return CudaLaunch(SOURCE, "double_buffer", 1, 64, {"x": x, "y": y}, {"y": x.sum(0)[::-1]})


def softmax() -> CudaLaunch:
    x, y = normal(64), empty(64)
    expected = np.exp(x) / np.exp(x).sum()
    return CudaLaunch(SOURCE, "softmax", 1, 64, {"x": x, "y": y}, {"y": expected}, tolerance=1e-6)


def histogram() -> CudaLaunch:
    x, counts = np.arange(64, dtype=np.int32) ** 2 % 8, np.zeros(8, np.int32)
    arguments = {"x": x, "counts": counts}
    return CudaLaunch(SOURCE, "histogram", 1, 64, arguments, {"counts": np.bincount(x, minlength=8)})


def scan() -> CudaLaunch:
    x, y = ramp(64), empty(64)
    return CudaLaunch(SOURCE, "scan", 1, 64, {"x": x, "y": y}, {"y": x.cumsum()})


def argmax() -> CudaLaunch:
    x, y = normal(64), np.zeros(1, np.int32)
    return CudaLaunch(SOURCE, "argmax", 1, 64, {"x": x, "y": y}, {"y": x.argmax()})


RACE = ("race",)
STALE = "Some threads read what was there before: wrong values that change from run to run."

DEFECTS = (
    Defect(
        "no_barrier_after_fill",
        "A tile is read by other threads than those that filled it, with no __syncthreads between.",
        STALE,
        reverse_twice,
        RACE,
    ),
    Defect(
        "no_barrier_before_refill",
        "A tile is filled again while slower warps still read its first content.",
        STALE,
        reverse_twice,
        RACE,
    ),
    Defect(
        "no_barrier_in_tree",
        "A tree reduction has no __syncthreads between its levels.",
        "A warp adds partial sums that another one has not finished.",
        tree_sum,
        RACE,
    ),
    Defect(
        "stride_overlaps",
        "At each level of a tree reduction threads write partial sums that others read at the same level.",
        "Terms are added twice or not at all, depending on the order of the warps.",
        tree_sum,
        RACE,
    ),
    Defect(
        "no_syncwarp_after_write",
        "The last warp of a reduction counts on lockstep and leaves out __syncwarp after the write.",
        "Right on GPUs before Volta; later ones may run the lanes of a warp apart.",
        tree_sum,
        RACE,
    ),
    Defect(
        "no_syncwarp_before_write",
        "The last warp of a reduction leaves out __syncwarp between read and write.",
        "Right on GPUs before Volta; later ones may run the lanes of a warp apart.",
        tree_sum,
        RACE,
    ),
    Defect(
        "no_barrier_in_transpose",
        "A tile is written out in columns with no __syncthreads after it was read in rows.",
        STALE,
        transpose,
        RACE,
    ),
    Defect(
        "no_barrier_after_tile",
        "A tiled product begins to multiply with no __syncthreads after the tiles were loaded.",
        STALE,
        matmul,
        RACE,
    ),
    Defect(
        "no_barrier_before_next_tile",
        "A tiled product loads the next tiles with no __syncthreads at the end of the loop.",
        "Fast warps overwrite tiles that slow ones still multiply.",
        matmul,
        RACE,
    ),
    Defect(
        "same_buffer_twice",
        "A double buffer computes its next stage with the wrong parity and fills the one that is being read.",
        STALE,
        double_buffer,
        RACE,
    ),
    Defect(
        "broadcast_slot_reused",
        "The word that broadcast the maximum is overwritten with the sum before all threads have read it.",
        STALE,
        softmax,
        RACE,
    ),
    Defect(
        "no_shared_atomic",
        "A histogram in shared memory adds without atomics.",
        "Counts are lost when two threads add to one bin.",
        histogram,
        RACE,
    ),
    Defect(
        "scan_reads_and_writes_together",
        "A scan in place has no __syncthreads between reading the neighbour and writing.",
        STALE,
        scan,
        RACE,
    ),
    Defect(
        "all_threads_write_one_word",
        "All threads write their own value to one word of shared memory.",
        "Any one of the values stays.",
        argmax,
        RACE,
    ),
)
