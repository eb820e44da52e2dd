"""Warp operations without all of their lanes."""

from pathlib import Path

import numpy as np

from kernelmux.emulator.validation.arrays import aligned, empty, ramp
from kernelmux.emulator.validation.defects.model import CudaLaunch, Defect

FAMILY = "warp operations"
SOURCE = Path(__file__).with_suffix(".cu")


def warp_sum() -> CudaLaunch:
    x, y = ramp(20), empty(1)
    return CudaLaunch(SOURCE, "warp_sum", 1, 32, {"x": x, "y": y, "n": np.int32(20)}, {"y": x.sum()})


def exchange_odd() -> CudaLaunch:
    x, y, i = ramp(32), empty(32), np.arange(32)
    return CudaLaunch(SOURCE, "exchange_odd", 1, 32, {"x": x, "y": y}, {"y": np.where(i % 2, x + x[i ^ 2], x)})


def count_positive() -> CudaLaunch:
    x, y = aligned(ramp(32) - 10), empty(32, dtype=np.int32)
    return CudaLaunch(SOURCE, "count_positive", 1, 32, {"x": x, "y": y}, {"y": np.int32(21)})


def product() -> CudaLaunch:
    one = 0x3C003C00  # two times 1.0 in fp16
    a, b, d = (
        aligned(np.where(np.arange(64) == 5, 0, one).astype(np.uint32)),
        aligned(np.full(32, one, np.uint32)),
        empty(32, 4),
    )
    expected = np.full((32, 4), 8, np.float32)
    expected[:4, 2:] = 6  # word 5 is the second register of lane 2: row 8 of a, whose results are in lanes 0 to 3
    return CudaLaunch(SOURCE, "product", 1, 32, {"a": a, "b": b, "d": d}, {"d": expected})


def load_matrix() -> CudaLaunch:
    x, y = ramp(64, dtype=np.uint16), empty(32, dtype=np.uint32)
    return CudaLaunch(SOURCE, "load_matrix", 1, 32, {"x": x, "y": y}, {"y": x.view(np.uint32)})


DIVERGENCE = ("divergence", "deadlock")
UNDEFINED = "Undefined: the lanes that are missing give any value, or the warp hangs."

DEFECTS = (
    Defect(
        "shuffle_in_partial_warp",
        "Lanes beyond n have returned, and the others shuffle with __activemask() from lanes that are not there.",
        "Undefined values enter the sum.",
        warp_sum,
        DIVERGENCE,
    ),
    Defect(
        "first_step_missing",
        "A butterfly sum begins with step 8: lanes 16 to 31 are left out.",
        "A wrong sum.",
        warp_sum,
    ),
    Defect("shuffle_up_for_down", "A sum to lane 0 shuffles up instead of down.", "A wrong sum.", warp_sum),
    Defect(
        "full_mask_in_branch",
        "A shuffle inside a branch names all lanes, of which half are elsewhere.",
        "The warp hangs, or lanes exchange values at different places.",
        exchange_odd,
        DIVERGENCE,
    ),
    Defect(
        "mask_without_caller",
        "The mask of a shuffle does not name the lanes that run it.",
        UNDEFINED,
        exchange_odd,
        DIVERGENCE,
    ),
    Defect(
        "shuffle_from_absent_lane",
        "A shuffle reads from lanes that its mask does not name.",
        UNDEFINED,
        exchange_odd,
        DIVERGENCE,
    ),
    Defect(
        "ballot_in_branch",
        "A ballot of all lanes stands behind the condition that it should count.",
        "The warp hangs.",
        count_positive,
        DIVERGENCE,
    ),
    Defect("mma_in_branch", "mma.sync is run by some lanes of a warp only.", UNDEFINED, product, DIVERGENCE),
    Defect(
        "ldmatrix_in_branch",
        "ldmatrix is run by the lanes that give addresses only.",
        UNDEFINED,
        load_matrix,
        DIVERGENCE,
    ),
)
