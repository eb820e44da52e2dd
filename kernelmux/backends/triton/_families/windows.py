"""Windows of images: how the programs of max_pool2d and of its gradient are laid over planes, or over channels."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from kernelmux.backends.triton._launch.launch import cdiv
from kernelmux.backends.triton._rows.rows import next_power

ELEMENTS = 1024  # of a program: 16 bytes of bf16 for each of its 128 threads
UNROLLED = 32  # elements of a window up to which its loops are unrolled


class Placed(NamedTuple):
    """Results as a matrix: a row is a plane and a column a pixel, or with channels last a pixel and a channel."""

    rows: int
    columns: int
    block_r: int
    block_q: int
    index: tl.dtype

    @property
    def programs(self) -> int:
        """How many programs there are."""
        return cdiv(self.rows, self.block_r) * cdiv(self.columns, self.block_q)


def placed(images: int, channels: int, pixels: int, last: bool, elements: int = ELEMENTS) -> Placed:
    """The matrix of [images, channels, pixels], and the blocks of so many elements that programs take of it."""
    rows, columns = (images * pixels, channels) if last else (images * channels, pixels)
    block_q = min(next_power(columns), elements)
    block_r = min(elements // block_q, next_power(rows))
    index = tl.int32 if rows * columns + 2 * ELEMENTS < 2**31 else tl.int64
    return Placed(rows, columns, block_r, block_q, index)


@triton.jit
def position(columns, INDEX: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_Q: tl.constexpr):
    """Row [BLOCK_R, 1] and column [1, BLOCK_Q] of each result of a program."""
    tiles = tl.cdiv(columns, BLOCK_Q)
    pid = tl.program_id(0).to(INDEX)
    r = pid // tiles * BLOCK_R + tl.arange(0, BLOCK_R)[:, None]
    q = pid % tiles * BLOCK_Q + tl.arange(0, BLOCK_Q)[None, :]
    return r, q


@triton.jit
def coordinates(r, q, C, height, width, CHANNELS: tl.constexpr):
    """Image, channel, row and column of each result."""
    pixel = r if CHANNELS else q
    n = r // (width * height) if CHANNELS else r // C
    c = q if CHANNELS else r % C
    h = pixel // width % height if CHANNELS else pixel // width
    return n.to(tl.int64), c.to(tl.int64), h.to(tl.int32), (pixel % width).to(tl.int32)
