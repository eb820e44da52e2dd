"""Pipelines of cp.async that wait too little, or overwrite what is still read."""

from pathlib import Path

import numpy as np

from kernelmux.emulator.validation.arrays import empty, ramp
from kernelmux.emulator.validation.defects.model import CudaLaunch, Defect

FAMILY = "cp.async pipelines"
SOURCE = Path(__file__).with_suffix(".cu")


def column_sums() -> CudaLaunch:
    x, y = ramp(8, 32), empty(32)
    return CudaLaunch(SOURCE, "column_sums", 1, 32, {"x": x, "y": y, "rows": np.int32(8)}, {"y": x.sum(0)[::-1]})


def padded() -> CudaLaunch:
    x, y = ramp(50), empty(64)
    arguments = {"x": x, "y": y, "n": np.int32(50)}
    return CudaLaunch(SOURCE, "padded", 1, 64, arguments, {"y": np.pad(x, (0, 14))[::-1]})


def two_rounds() -> CudaLaunch:
    x, y = ramp(2, 32), empty(2, 32)
    return CudaLaunch(SOURCE, "two_rounds", 1, 32, {"x": x, "y": y}, {"y": x[:, ::-1]})


EARLY = ("uninitialised",)
STALE = "Sums over rows that have not arrived: wrong values that depend on the timing."

DEFECTS = (
    Defect("no_wait", "No thread waits for the copies.", STALE, column_sums, EARLY),
    Defect(
        "wait_leaves_one_too_many",
        "cp.async.wait_group leaves one group more under way than the ring allows.",
        STALE,
        column_sums,
        EARLY,
    ),
    Defect("no_commit", "The copies are never committed, so wait_group waits for nothing.", STALE, column_sums, EARLY),
    Defect(
        "no_barrier_after_wait",
        "Each thread waits for its own copies and then reads those of others, with no __syncthreads between.",
        STALE,
        column_sums,
        ("race",),
    ),
    Defect(
        "next_stage_is_in_use",
        "The next copy goes to the stage that is read in this round.",
        STALE,
        column_sums,
        ("uninitialised", "race"),
    ),
    Defect(
        "stage_number_not_wrapped",
        "The stage is computed modulo 4 in a ring of 3.",
        "Shared memory behind the ring is read.",
        column_sums,
        ("out of bounds",),
    ),
    Defect(
        "source_size_not_zero",
        "The copies of the tail read four bytes where they should fill with zeros.",
        "Values of another allocation, or an illegal address.",
        padded,
        ("out of bounds",),
    ),
    Defect(
        "copy_before_buffer_is_free",
        "The second round copies into a buffer that others still read.",
        STALE,
        two_rounds,
        ("race",),
    ),
)
