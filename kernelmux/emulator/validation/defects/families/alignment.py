"""Accesses at addresses that are no multiple of their size."""

from pathlib import Path

import numpy as np

from kernelmux.emulator.validation.arrays import empty, ramp
from kernelmux.emulator.validation.defects.model import CudaLaunch, Defect

FAMILY = "alignment"
SOURCE = Path(__file__).with_suffix(".cu")


def sums_of_four() -> CudaLaunch:
    x, y = ramp(130), empty(32)
    arguments = {"x": x, "y": y, "skip": np.int32(1)}
    return CudaLaunch(SOURCE, "sums_of_four", 1, 32, arguments, {"y": x[1:129].reshape(32, 4).sum(1)})


def sum_of_bits() -> CudaLaunch:
    x, y = ramp(32, 7, dtype=np.uint16), empty(32, dtype=np.int32)
    arguments = {"x": x, "y": y, "row_length": np.int32(7)}
    return CudaLaunch(SOURCE, "sum_of_bits", 1, 32, arguments, {"y": x[:, :2].sum(1)})


def padded_rows() -> CudaLaunch:
    x, y = ramp(8, 32), empty(64)
    return CudaLaunch(SOURCE, "padded_rows", 1, 64, {"x": x, "y": y}, {"y": x.reshape(64, 4).sum(1)})


def copy_rows() -> CudaLaunch:
    x, y = ramp(130), empty(32)
    return CudaLaunch(SOURCE, "copy_rows", 1, 32, {"x": x, "y": y, "skip": np.int32(1)}, {"y": x[1:129:4]})


def load_matrices() -> CudaLaunch:
    x, y = ramp(32, 8, dtype=np.uint16), empty(4, 32, dtype=np.uint32)
    # Lane 4 r + c of matrix m gets the pair c of row r.
    expected = x.reshape(4, 8, 4, 2).view(np.uint32).reshape(4, 32)
    return CudaLaunch(SOURCE, "load_matrices", 1, 32, {"x": x, "y": y}, {"y": expected})


MISALIGNED = ("misaligned",)
FAULT = "The launch ends with a misaligned address."

DEFECTS = (
    Defect(
        "float4_at_odd_offset", "A float4 is read one float past a multiple of 16.", FAULT, sums_of_four, MISALIGNED
    ),
    Defect(
        "pair_in_odd_row",
        "Two 16-bit values are read as one word in rows of odd length.",
        FAULT,
        sum_of_bits,
        MISALIGNED,
    ),
    Defect(
        "padding_breaks_vectors",
        "Rows padded to 33 floats against bank conflicts are read by vectors of four.",
        FAULT,
        padded_rows,
        MISALIGNED,
    ),
    Defect(
        "async_copy_at_odd_offset",
        "cp.async of 16 bytes reads from an address that is no multiple of 16.",
        FAULT,
        copy_rows,
        MISALIGNED,
    ),
    Defect(
        "ldmatrix_row_not_aligned",
        "The rows given to ldmatrix are 18 bytes apart.",
        FAULT,
        load_matrices,
        MISALIGNED,
    ),
)
