"""Blocks of a cluster that use one another's shared memory."""

from pathlib import Path

import numpy as np

from kernelmux.emulator.defects.arrays import empty, ramp
from kernelmux.emulator.defects.model import CudaLaunch, Defect

FAMILY = "clusters"
SOURCE = Path(__file__).with_suffix(".cu")


def exchange() -> CudaLaunch:
    x, y = ramp(4, 32), empty(4, 32)
    return CudaLaunch(SOURCE, "exchange", 4, 32, {"x": x, "y": y}, {"y": x[np.arange(4) ^ 1]})


DEFECTS = (
    Defect(
        "no_cluster_barrier",
        "A block reads the shared memory of its neighbour with no cluster barrier before.",
        "It reads what was there before the neighbour wrote, or before it started.",
        exchange,
        ("race", "uninitialised"),
    ),
    Defect(
        "cluster_barrier_not_awaited",
        "A block arrives at the cluster barrier and reads its neighbour's shared memory before it waits.",
        "It reads what was there before the neighbour wrote.",
        exchange,
        ("race", "uninitialised"),
    ),
    Defect(
        "rank_out_of_range",
        "A block asks for a rank that its cluster does not have.",
        "An illegal address.",
        exchange,
        ("out of bounds",),
    ),
    Defect(
        "block_leaves_early",
        "A block ends while its neighbour may still read its shared memory.",
        "The memory may belong to another block by then.",
        exchange,
        blind="the blocks of a cluster run side by side, and shared memory lasts as long as the longest of them",
    ),
)
