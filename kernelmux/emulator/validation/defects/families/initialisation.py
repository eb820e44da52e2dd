"""Reads of what was never written, and outputs that are never written."""

from pathlib import Path

import numpy as np

from kernelmux.emulator.validation.arrays import empty, normal, ramp
from kernelmux.emulator.validation.defects.model import CudaLaunch, Defect

FAMILY = "initialisation"
SOURCE = Path(__file__).with_suffix(".cu")


def smooth() -> CudaLaunch:
    x, y = ramp(64), empty(64)
    return CudaLaunch(SOURCE, "smooth", 1, 64, {"x": x, "y": y}, {"y": np.convolve(x, np.ones(3), "same")})


def reverse_padded() -> CudaLaunch:
    x, y = ramp(50), empty(64)
    arguments = {"x": x, "y": y, "n": np.int32(50)}
    return CudaLaunch(SOURCE, "reverse_padded", 1, 64, arguments, {"y": np.pad(x, (0, 14))[::-1]})


def histogram() -> CudaLaunch:
    x, counts = np.arange(64, dtype=np.int32) ** 2 % 8, np.zeros(8, np.int32)
    arguments = {"x": x, "counts": counts}
    return CudaLaunch(SOURCE, "histogram", 1, 64, arguments, {"counts": np.bincount(x, minlength=8)})


def reverse_dynamic() -> CudaLaunch:
    x, y = ramp(64), empty(64)
    return CudaLaunch(SOURCE, "reverse_dynamic", 1, 64, {"x": x, "y": y}, {"y": x[::-1]}, shared=4 * 64 * 4)


def slots() -> CudaLaunch:
    x, y, slot = ramp(40) + 1, empty(32), np.arange(40, dtype=np.int32) % 4
    arguments = {"x": x, "y": y, "slot": slot, "n": np.int32(40)}
    return CudaLaunch(SOURCE, "slots", 1, 32, arguments, {"y": np.float32(0)})


def column_sums() -> CudaLaunch:
    x, y = ramp(5, 64), empty(64)
    return CudaLaunch(SOURCE, "column_sums", 1, 64, {"x": x, "y": y, "n": np.int32(5)}, {"y": x.sum(0)})


def product() -> CudaLaunch:
    ones = np.full(64, 0x3C003C00, np.uint32)  # pairs of 1.0 in fp16
    d = empty(32, 4)
    return CudaLaunch(SOURCE, "product", 1, 32, {"a": ones, "b": ones[:32], "d": d}, {"d": np.float32(8)})


def wmma_product() -> CudaLaunch:
    a, b, d = normal(16, 32, dtype=np.float16), normal(32, 16, dtype=np.float16), empty(16, 16)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    return CudaLaunch(SOURCE, "wmma_product", 1, 32, {"a": a, "b": b, "d": d}, {"d": expected}, tolerance=1e-4)


def twice() -> CudaLaunch:
    x, y = ramp(201), empty(201)
    return CudaLaunch(SOURCE, "twice", 2, 32, {"x": x, "y": y, "n": np.int32(201)}, {"y": 2 * x})


UNINITIALISED = ("uninitialised",)
LEFTOVER = "Whatever an earlier block left there, often zeros: right in the test, wrong in production."
JUNK = "The sum begins with what the register held: any number, often zero."

DEFECTS = (
    Defect("halo_not_filled", "The halo of a tile is read and was never filled.", LEFTOVER, smooth, UNINITIALISED),
    Defect(
        "tail_not_padded",
        "A tile is read whole, though only its first n elements were filled.",
        LEFTOVER,
        reverse_padded,
        UNINITIALISED,
    ),
    Defect(
        "bins_not_cleared", "A histogram in shared memory does not begin at zero.", LEFTOVER, histogram, UNINITIALISED
    ),
    Defect(
        "too_little_dynamic_memory",
        "The kernel uses more dynamic shared memory than the launch asks for.",
        "An illegal address, or the memory of another block.",
        reverse_dynamic,
        ("out of bounds",),
    ),
    Defect(
        "local_array_not_cleared",
        "A thread reads a slot of its local array that it has not filled.",
        "Whatever the stack held.",
        slots,
        UNINITIALISED,
    ),
    Defect("sum_not_cleared", "A sum in a register has no first value.", JUNK, column_sums),
    Defect("fragment_not_cleared", "The accumulator of mma.sync has no first value.", JUNK, product),
    Defect("wmma_sum_not_cleared", "The accumulator of a wmma loop is not filled with zeros.", JUNK, wmma_product),
    Defect("tail_not_written", "The last elements, fewer than a vector, are not written.", LEFTOVER, twice),
)
