"""The row family: what happens along one axis of strided tensors, tile by tile.

A program takes a tile [ROWS, BLOCK_N]: ROWS neighbours along the innermost other dimension, and the axis or a stretch
of it. Where the axis is contiguous, warps read along it; where it is not, along the neighbours. The code is the same,
because Triton orders a tile by the stride that it knows to be 1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import triton
import triton.language as tl
from triton.language.extra import libdevice

from kernelmux.backends.triton._launch.launch import Config, cdiv
from kernelmux.backends.triton._launch.strides import Ints, collapse

# A longer row does not stay in the registers of one program: 32768 fp32 values are 64 registers in each of 512 threads.
RESIDENT = 32768


class Walk(NamedTuple):
    """Tensors of one shape as rows along one axis.

    sizes and (per tensor) strides are those of the other dimensions; length and (per tensor) steps those of the axis.
    """

    sizes: Ints
    strides: tuple[Ints, ...]
    length: int
    steps: Ints

    @property
    def along(self) -> bool:
        """Every tensor that moves along the axis is contiguous there."""
        return self.length == 1 or all(step in (0, 1) for step in self.steps)

    def grid(self, rows: int) -> tuple[int]:
        """Programs if each takes `rows` neighbours."""
        return (math.prod(self.sizes[:-1]) * cdiv(self.sizes[-1], rows),)


def walk(axis: int, shape: Ints, *strides: Ints) -> Walk:
    """The walk over tensors of one shape and these strides."""
    axis %= len(shape)
    sizes, others = collapse(_without(shape, axis), *(_without(s, axis) for s in strides))
    return Walk(sizes, others, shape[axis], tuple(s[axis] for s in strides))


def _without(values: Ints, axis: int) -> Ints:
    return (*values[:axis], *values[axis + 1 :])


def next_power(n: int) -> int:
    """The smallest power of two >= n."""
    return 1 << max(n - 1, 0).bit_length()


def clamp(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))


def neighbours(w: Walk, block_n: int, elements: int) -> int:
    """ROWS for a program of about `elements`, across the axis: 128 bytes side by side at least."""
    return clamp(max(64, elements // block_n), 1, next_power(w.sizes[-1]))


def looped_rule(w: Walk) -> Config:
    """The tile of a program that walks across the axis block by block."""
    block = min(next_power(w.length), 32)
    rows = neighbours(w, block, 2048)
    return {"ROWS": rows, "BLOCK_N": block, "num_warps": clamp(rows * block // 512, 4, 8)}


def resident_rule(w: Walk, itemsize: int) -> Config | None:
    """The tile of a program that holds whole rows; None where they would not stay in registers."""
    block = next_power(w.length)
    rows = neighbours(w, block, 4096 // itemsize)
    if rows * block > RESIDENT:
        return None
    return {"ROWS": rows, "BLOCK_N": block, "num_warps": clamp(rows * block // 512, 1, 16)}


@triton.jit
def rounded_product(a, b):
    """a * b, rounded before anything is added to it or subtracted from it.

    Otherwise the product is fused with what follows. An fma is not symmetric: the lanes that should all hold one sum
    would differ in the last bit, and which of them is used would depend on the layout. And where a maximum of rounded
    products is subtracted, the difference at the maximum would be the rounding error, not 0.
    """
    return libdevice.mul_rn(a, b)


@triton.jit
def row_offsets(block, sizes, strides, ROWS: tl.constexpr):
    """Offset of the first element of each of this program's rows, [ROWS], and which of them exist."""
    per_line = tl.cdiv(sizes[-1], ROWS)
    inner = (block % per_line) * ROWS + tl.arange(0, ROWS)
    rest = block // per_line
    base = rest.to(tl.int64) * 0
    for dim in tl.static_range(len(sizes) - 2, -1, -1):
        base += (rest % sizes[dim]).to(tl.int64) * strides[dim]
        rest = rest // sizes[dim]
    return base + inner.to(tl.int64) * strides[-1], inner < sizes[-1]
