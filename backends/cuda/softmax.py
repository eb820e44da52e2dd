"""Softmax on CUDA: fewer and fewer passes over memory.

H200, 16384 x 8192 bf16 and fp32 (a copy of as many bytes takes 129 and 259 us):

naive      238 385 us  three passes (maximum, sum, result), one element per access
online     134 265 us  maximum and sum in one pass that rescales the sum when the maximum grows; 16 bytes per access
registers  133 261 us  the row stays in registers between the passes: one read, one write
"""

import math
from collections.abc import Callable
from functools import lru_cache

import torch

from kernelmux.backends.cuda._rows import REGISTER_LIMIT, as_matrix, loop_over_row, row_plan, row_width
from kernelmux.backends.cuda._runtime import Bound, Source, cdiv, ctype
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost

SOURCE = Source(__file__)
REGISTERS = Source(__file__, "softmax_registers.cu")
_LARGEST = torch.finfo(torch.float32).max
_BLOCK = 256
_COLUMN_BLOCK = 512
_TILE_INNER = 32  # columns: threads side by side


def softmax_naive(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    y = torch.empty_like(x)
    if y.numel():
        _naive(as_matrix(x, axis), x.dtype, scale)(x, y)
    return y


def softmax_online(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return _by_rows_or_columns(_online, x, axis, scale)


def softmax_registers(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return _by_rows_or_columns(_registers, x, axis, scale)


def _by_rows_or_columns(rows: Callable[..., Bound], x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    y = torch.empty_like(x)
    outer, n, inner = as_matrix(x, axis)
    if not y.numel():
        return y
    if inner == 1:
        rows(outer, n, x.dtype, row_width((x,), n), scale)(x, y)
    else:  # two floats of state per element: 16 bytes of bf16 would need 16
        _columns((outer, n, inner), x.dtype, row_width((x,), inner, widest=8), scale)(x, y)
    return y


@lru_cache(maxsize=4096)
def _naive(sizes: tuple[int, int, int], dtype: torch.dtype, scale: float) -> Bound:
    outer, n, inner = sizes
    kernel = SOURCE.kernel(
        "softmax_naive", "x* y* n:i32 inner:i64 sign:f32 factor:f32", ELEMENT=ctype(dtype), GROUP=_BLOCK
    )
    return kernel.bind(outer * inner, _BLOCK, n, inner, *_split(scale))


@lru_cache(maxsize=4096)
def _online(rows: int, n: int, dtype: torch.dtype, width: int, scale: float) -> Bound:
    block, unroll = loop_over_row(cdiv(n, width))
    kernel = SOURCE.kernel(
        "softmax_online", "x* y* n:i32 sign:f32 factor:f32",
        ELEMENT=ctype(dtype), GROUP=block, WIDTH=width, UNROLL=unroll,
    )  # fmt: skip
    return kernel.bind(rows, block, n, *_split(scale))


@lru_cache(maxsize=4096)
def _registers(rows: int, n: int, dtype: torch.dtype, width: int, scale: float) -> Bound:
    plan = row_plan(n, dtype.itemsize, width)
    kernel = REGISTERS.kernel(
        "softmax_registers", "x* y* rows:i64 n:i32 sign:f32 factor:f32", ELEMENT=ctype(dtype), **plan.defines
    )
    return kernel.bind(cdiv(rows, plan.rows), plan.block, rows, n, *_split(scale))


@lru_cache(maxsize=4096)
def _columns(sizes: tuple[int, int, int], dtype: torch.dtype, width: int, scale: float) -> Bound:
    """The online algorithm down the columns of [outer, n, inner]."""
    outer, n, inner = sizes
    tiles = cdiv(inner, _TILE_INNER * width)
    kernel = SOURCE.kernel(
        "softmax_columns", "x* y* n:i32 inner:i64 tiles:i64 sign:f32 factor:f32",
        ELEMENT=ctype(dtype), GROUP=_COLUMN_BLOCK, TILE_INNER=_TILE_INNER, WIDTH=width,
    )  # fmt: skip
    return kernel.bind(outer * tiles, (_TILE_INNER, _COLUMN_BLOCK // _TILE_INNER), n, inner, tiles, *_split(scale))


def _split(scale: float) -> tuple[float, float]:
    """The sign of `scale`, and |scale| for powers of two instead of e, within fp32."""
    return math.copysign(1.0, scale), min(abs(scale) * math.log2(math.e), _LARGEST)


_LAYOUT = {"x": "contiguous"}
VARIANTS = {
    "naive": Implementation(softmax_naive, "three passes, one element per access", layout=_LAYOUT),
    "online": Implementation(softmax_online, "maximum and sum in one pass, 16 bytes per access", layout=_LAYOUT),
    "registers": Implementation(
        softmax_registers,
        "one read: the row stays in registers",
        layout=_LAYOUT,
        requires=(AtMost("N", REGISTER_LIMIT),),
    ),
}
