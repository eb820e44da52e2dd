"""quantize_rowwise: scale = max|x| / largest, q = x / scale in an 8-bit format, along the last dimension.

The quotients are those of an IEEE division. Within a row the reciprocal is the same, so a division is a product and a
step or two of Markstein's correction ("Computation of elementary functions on the IBM RISC System/6000 processor",
1990). Two are exact; of the quotients of 16-bit numbers one step rounds all to the right number of every format (tried
for all pairs of mantissas). The steps need what does not underflow: rows of tiny numbers are lifted by a power of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch.launch import plan
from kernelmux.backends.triton._launch.strides import Ints, contiguous
from kernelmux.backends.triton._rows.row_op import RowLaunch, RowOp, launch_of
from kernelmux.backends.triton._rows.row_plan import Demand, access_of, row_rule
from kernelmux.backends.triton._rows.row_statistics import Statistic
from kernelmux.backends.triton._rows.row_tiles import fill
from kernelmux.backends.triton._rows.rows import walk
from kernelmux.registry import dtypes
from kernelmux.registry.backend import Implementation

MAGNITUDE = tl.constexpr(0x7FFFFFFF)
SIGN = tl.constexpr(-0x80000000)
INTEGERS = tl.constexpr("""{
.reg .b32 a, b, c, d;
cvt.rni.s32.f32 a, $1;
cvt.rni.s32.f32 b, $2;
cvt.rni.s32.f32 c, $3;
cvt.rni.s32.f32 d, $4;
cvt.pack.sat.s8.s32.b32 c, d, c, 0;
cvt.pack.sat.s8.s32.b32 $0, b, a, c;
}""")  # four at once


@triton.jit
def _magnitude(largest, x):
    """As bits: they are ordered as the numbers are, and NaN is above infinity."""
    return (x.to(tl.int32, bitcast=True) & MAGNITUDE,)


@triton.jit
def _top_lanes(terms, valid, n, KEEP: tl.constexpr, WIDTH: tl.constexpr):
    top = fill(terms[0][0], valid[0], 0)
    for k in tl.static_range(1, len(terms)):
        top = tl.maximum(top, fill(terms[k][0], valid[k], 0))
    return (top,)


@triton.jit
def _top_merge(a, b):
    return (tl.maximum(a[0], b[0]),)


@triton.jit
def _top_total(state, n):
    return (tl.max(state[0], 1, keep_dims=True),)


@triton.jit
def _scale(largest, top, n):
    """The scale of a row, a power of two that lifts its numbers, what they are divided by then, and its reciprocal."""
    scale = tl.div_rn(top.to(tl.float32, bitcast=True), largest)
    lift = tl.where(scale < 2.0**-40, 2.0**100, 1.0)
    divisor = scale * lift
    inverse = tl.where(scale == 0, 0.0, tl.div_rn(1.0, divisor))
    return scale, lift, tl.where((scale > 0) & (scale < float("inf")), divisor, 0.0), inverse


@triton.jit
def _quotient(lift, divisor, inverse, x, STEPS: tl.constexpr):
    """x * inverse alone, which is 0 or NaN, where the divisor is 0."""
    lifted = x * lift
    q = lifted * inverse
    for _ in tl.static_range(STEPS):
        q = tl.fma(tl.fma(-q, divisor, lifted), inverse, q)
    return q


@triton.jit
def _integer(q):
    """The nearest integer of 8 bits, 0 for NaN."""
    return tl.inline_asm_elementwise(INTEGERS, "=r,r,r,r,r", [q], dtype=tl.int8, is_pure=True, pack=4)


@triton.jit
def _signed(q, x):
    """With the sign of x: the corrections turn -0 into 0."""
    bits = (q.to(tl.int32, bitcast=True) & MAGNITUDE) | (x.to(tl.int32, bitcast=True) & SIGN)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _integer_of_short(scale, lift, divisor, inverse, largest, x):
    return _integer(_quotient(lift, divisor, inverse, x, 1))


@triton.jit
def _integer_of_fp32(scale, lift, divisor, inverse, largest, x):
    return _integer(_quotient(lift, divisor, inverse, x, 2))


@triton.jit
def _float8_of_short(scale, lift, divisor, inverse, largest, x):
    return _signed(_quotient(lift, divisor, inverse, x, 1), x)


@triton.jit
def _float8_of_fp32(scale, lift, divisor, inverse, largest, x):
    return _signed(_quotient(lift, divisor, inverse, x, 2), x)


TOP = Statistic(_top_lanes, _top_merge, _top_total, 32)
OPS = {  # by the bytes of a number, and whether the format is int8
    (2, True): RowOp(_magnitude, TOP, _scale, _integer_of_short),
    (4, True): RowOp(_magnitude, TOP, _scale, _integer_of_fp32),
    (2, False): RowOp(_magnitude, TOP, _scale, _float8_of_short),
    (4, False): RowOp(_magnitude, TOP, _scale, _float8_of_fp32),
}


def quantize_rowwise(resident: bool, x: torch.Tensor, format: str) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = dtypes.parse(format)
    q = torch.empty(x.shape, dtype=dtype, device=x.device)
    if x.numel() == 0:
        return q, x.new_zeros(len(x), dtype=torch.float32)
    scale = x.new_empty(len(x), dtype=torch.float32)
    largest = (torch.finfo if dtype.is_floating_point else torch.iinfo)(dtype).max
    launch = _plan(
        OPS[x.element_size(), format == "int8"],
        x.shape,
        x.stride(),
        x.dtype.itemsize,
        resident,
        x.get_device(),
    )
    launch(q, scale, x, numbers=(float(largest),))
    return q, scale


@plan
def _plan(op: RowOp, shape: Ints, strides: Ints, itemsize: int, resident: bool, device: int) -> RowLaunch:
    w = walk(-1, shape, contiguous(shape), strides)
    if w.sizes == (1,):  # as one row of many
        w = w._replace(strides=((w.length,), (w.length,)))
    access = access_of(w, itemsize, resident, short=True)
    config = row_rule(w, access, itemsize, Demand(1, 0, w.length, op.statistic.values, device), resident)
    return launch_of(op, w, (), access, 1, config, saved=1)


@dataclass(frozen=True)
class Float8Conversions:
    """The GPU converts to 8-bit floats."""

    text: str = "8-bit floats on sm_89 or newer"

    def check(self, call: Any) -> str | None:
        """None, or which GPU does not."""
        old = call.capability is not None and call.capability < (8, 9)
        refused = old and call.scalars["format"] != "int8"
        return "the GPU converts to no 8-bit floats, needs sm_89 or newer (or int8)" if refused else None


def _variant(resident: bool, idea: str) -> Implementation:
    return Implementation(partial(quantize_rowwise, resident), idea, (Float8Conversions(),))


VARIANTS = {
    "looped": _variant(False, "the largest magnitude batch by batch, then a second walk"),
    "resident": _variant(True, "the row stays on the multiprocessor and is read once"),
}
