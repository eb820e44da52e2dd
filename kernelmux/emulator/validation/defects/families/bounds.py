"""Indices that leave their array, and results that are not covered."""

from pathlib import Path

import numpy as np

from kernelmux.emulator.validation.arrays import aligned, empty, ramp
from kernelmux.emulator.validation.defects.model import CudaLaunch, Defect

FAMILY = "bounds"
SOURCE = Path(__file__).with_suffix(".cu")
N = 100


def _sized(kernel: str, grid: int, expected: np.ndarray, n: int = N) -> CudaLaunch:
    """A kernel (x, y, n) over n elements in blocks of 64."""
    arguments = {"x": ramp(n), "y": empty(n), "n": np.int32(n)}
    return CudaLaunch(SOURCE, kernel, grid, 64, arguments, {"y": expected})


def add_one() -> CudaLaunch:
    return _sized("add_one", 2, ramp(N) + 1)


def smooth() -> CudaLaunch:
    return _sized("smooth", 2, np.convolve(ramp(N), np.ones(3), "same"))


def twice_by_four() -> CudaLaunch:
    return _sized("twice_by_four", 1, 2 * ramp(N + 1), N + 1)


def grid_stride() -> CudaLaunch:
    return _sized("grid_stride", 1, ramp(200), 200)


def shard() -> CudaLaunch:
    x, y, row, length = ramp(4, 32), empty(4, 32), 100_000_000, 32
    scalars = {"row": np.int32(row), "row_length": np.int32(length), "first": np.int64(row * length)}
    return CudaLaunch(SOURCE, "shard", 4, 32, {"x": x, "y": y, **scalars}, {"y": x})


def ring() -> CudaLaunch:
    n, step = 1000, 400_000_007
    x, y = ramp(n), empty(64)
    arguments = {"x": x, "y": y, "n": np.uint32(n), "step": np.uint32(step)}
    return CudaLaunch(SOURCE, "ring", 1, 64, arguments, {"y": x[np.arange(64) * step % n]})


def transpose() -> CudaLaunch:
    x, y = ramp(20, 50), empty(50, 20)
    arguments = {"x": x, "y": y, "M": np.int32(20), "N": np.int32(50)}
    return CudaLaunch(SOURCE, "transpose", (4, 4), (16, 16), arguments, {"y": x.T})


def add_bias() -> CudaLaunch:
    x, y = ramp(64), empty(64)
    return CudaLaunch(SOURCE, "add_bias", 1, 64, {"x": x, "bias": None, "y": y}, {"y": x})


def weighted() -> CudaLaunch:
    x, y = ramp(64), empty(64)
    return CudaLaunch(SOURCE, "weighted", 1, 64, {"x": x, "y": y}, {"y": np.roll(x, -1) - x})


def rows() -> CudaLaunch:
    x, y = ramp(8, 8), empty(8, 8)
    return CudaLaunch(SOURCE, "rows", 1, (8, 8), {"x": x, "y": y}, {"y": x + np.append(x[:, 1:], x[:, :1] * 0, 1) / 2})


def rotate() -> CudaLaunch:
    x, y = ramp(32, 8), empty(32, 8)
    arguments = {"x": x, "y": y, "shift": np.int32(3)}
    return CudaLaunch(SOURCE, "rotate", 1, 32, arguments, {"y": aligned(np.roll(x, -3, axis=1))})


OUT = ("out of bounds",)
NEIGHBOUR = "The neighbouring allocation is read or overwritten without an error; rarely the address is illegal."
UNWRITTEN = "The output holds there what the allocation held before."

DEFECTS = (
    Defect("no_tail_mask", "The last block works beyond the end: no i < n.", NEIGHBOUR, add_one, OUT),
    Defect("tail_mask_one_too_far", "The mask says i <= n.", NEIGHBOUR, add_one, OUT),
    Defect("tail_mask_one_too_short", "The mask says i < n - 1.", UNWRITTEN, add_one),
    Defect("index_minus_one", "The left neighbour of element 0 is read.", NEIGHBOUR, smooth, OUT),
    Defect("index_plus_one", "The right neighbour of the last element is read.", NEIGHBOUR, smooth, OUT),
    Defect(
        "vector_over_the_end",
        "A vector of four begins before the end and reaches over it.",
        NEIGHBOUR,
        twice_by_four,
        OUT,
    ),
    Defect(
        "int32_overflow",
        "Row times row length is computed in 32 bits and passes 2^31.",
        "An illegal address, or another part of a large array.",
        shard,
        ("out of bounds", "bad pointer"),
    ),
    Defect(
        "int32_overflow_inside",
        "A product passes 2^32 before it is reduced to a legal index.",
        "Wrong elements, from inside of the array.",
        ring,
    ),
    Defect(
        "limits_swapped",
        "Rows are compared with the number of columns and columns with rows.",
        NEIGHBOUR,
        transpose,
        OUT,
    ),
    Defect("strides_swapped", "The strides of rows of x and y are mixed up.", NEIGHBOUR, transpose, OUT),
    Defect(
        "optional_pointer_not_checked",
        "An optional argument is null and is read all the same.",
        "An illegal address.",
        add_bias,
        ("bad pointer",),
    ),
    Defect("stride_too_large", "A grid-stride loop takes steps one block too long.", UNWRITTEN, grid_stride),
    Defect(
        "overrun_into_next_array",
        "An index runs over the end of one shared array into the next one.",
        "A value of the other array is read.",
        weighted,
        OUT,
    ),
    Defect(
        "shared_row_too_many", "The last row lies behind a shared array.", "An illegal address, or none.", rows, OUT
    ),
    Defect(
        "overrun_into_next_row",
        "A column index runs over the end of a row of a shared array, and what it finds gets the weight 0.",
        "Right as long as the next row holds neither NaN nor Inf.",
        rows,
        blind="PTX knows arrays as bytes, not as rows: the address is inside of the same array",
    ),
    Defect(
        "local_index_too_large",
        "An index runs over the end of a local array.",
        "Other local variables are read, or what lies behind them.",
        rotate,
        ("out of bounds", "uninitialised"),
    ),
)
