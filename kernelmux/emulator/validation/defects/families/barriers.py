"""Barriers that not all of their threads reach."""

from pathlib import Path

import numpy as np

from kernelmux.emulator.validation.arrays import empty, ramp
from kernelmux.emulator.validation.defects.model import CudaLaunch, Defect

FAMILY = "barriers"
SOURCE = Path(__file__).with_suffix(".cu")


def reverse() -> CudaLaunch:
    x, y = ramp(64), empty(64)
    return CudaLaunch(SOURCE, "reverse", 1, 64, {"x": x, "y": y}, {"y": x[::-1]})


def warp_parts() -> CudaLaunch:
    x, y = ramp(128), empty(1)
    return CudaLaunch(SOURCE, "warp_parts", 1, 128, {"x": x, "y": y}, {"y": x.sum()})


def hand_over() -> CudaLaunch:
    x, y = ramp(4, 32), empty(4, 32)
    return CudaLaunch(SOURCE, "hand_over", 1, 64, {"x": x, "y": y}, {"y": x[:, ::-1]})


def add_neighbour() -> CudaLaunch:
    n = 100
    x, y = ramp(n), empty(n)
    right = np.where(np.arange(1, n + 1) % 64 == 0, 0, np.append(x[1:], 0))
    arguments = {"x": x, "y": y, "n": np.int32(n)}
    return CudaLaunch(SOURCE, "add_neighbour", 2, 64, arguments, {"y": x + right})


DEFECTS = (
    Defect(
        "barrier_in_one_branch",
        "The two halves of a block wait at two different __syncthreads.",
        "Undefined: the barriers happen to meet, or the block hangs.",
        reverse,
        ("divergence",),
    ),
    Defect(
        "barrier_in_loop_of_own_length",
        "A __syncthreads stands in a loop that runs a different number of times in every warp.",
        "Barriers of different iterations meet, or the block hangs.",
        warp_parts,
        ("divergence", "deadlock"),
    ),
    Defect(
        "too_few_at_named_barrier",
        "bar.sync counts one warp where two take part.",
        "Consumers go on before the buffer is full.",
        hand_over,
    ),
    Defect(
        "too_many_at_named_barrier",
        "bar.sync counts three warps where two take part.",
        "The block hangs.",
        hand_over,
        ("deadlock",),
    ),
    Defect(
        "another_named_barrier",
        "The producer arrives at barrier 3, the consumer waits at barrier 1.",
        "The block hangs.",
        hand_over,
        ("deadlock",),
    ),
    Defect(
        "named_barrier_out_of_range",
        "A named barrier has the number 16; there are 0 to 15.",
        "The launch ends with an error.",
        hand_over,
        ("divergence",),
    ),
    Defect(
        "no_arrival",
        "The consumer does not arrive at the barrier by which the producer learns that the buffer is empty.",
        "The block hangs.",
        hand_over,
        ("deadlock",),
    ),
    Defect(
        "return_before_tile_is_full",
        "Threads behind the end return before they have filled their part of a tile.",
        "Their neighbours read what shared memory held before.",
        add_neighbour,
        ("uninitialised",),
    ),
)
