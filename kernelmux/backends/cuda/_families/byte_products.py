"""What the products of 8-bit operands share: where K is contiguous, scales, tiles for TMA."""

from dataclasses import dataclass
from typing import Any

import torch

from kernelmux.backends.cuda._launch.layout import Layout
from kernelmux.backends.cuda._launch.runtime import Tiles, cdiv
from kernelmux.backends.cuda.transpose import transpose_vectorized
from kernelmux.registry.conditions import AtMost, Capability, Condition, Multiple

LINE = 128  # bytes of K in a stage, the widest swizzle
ROWS = 128  # of a in a tile
THREADS = 384
GROUP_M = 16  # rows of tiles that are computed together


@dataclass(frozen=True)
class OperandLines:
    """Where K is the contiguous index of an operand, its lines start at multiples of 16 bytes; else it is copied."""

    name: str
    axis: int

    @property
    def text(self) -> str:
        return f"{self.name} with aligned lines, if K is contiguous"

    def check(self, call: Any) -> str | None:
        """None, or what is not aligned."""
        x = call.arguments[self.name]
        if x.stride(self.axis) != 1:
            return None
        if x.shape[1 - self.axis] > 1 and x.stride(1 - self.axis) % 16:
            return f"{self.name} has a stride of {x.stride(1 - self.axis)} bytes, needs a multiple of 16"
        offset = 0 if call.hypothetical else x.data_ptr() % 16
        return f"{self.name} starts at an address that is {offset} modulo 16, needs 0" if offset else None


INDICES = tuple(AtMost(axis, 2**31 - 512) for axis in "MNK")  # int, rounded up to whole tiles
ON_HOPPER: tuple[Condition, ...] = (
    Capability((9, 0), below=(10, 0)), Multiple("K", 16), OperandLines("a", 1), OperandLines("b", 0), *INDICES,
)  # fmt: skip


def k_contiguous(x: torch.Tensor, k_axis: int) -> torch.Tensor:
    """The operand with K contiguous, `x` itself if it is: tensor cores take bytes in no other order.

    Two passes over 8192 x 8192 take 44 us on an H200, where the product takes 700.
    """
    if x.stride(k_axis) == 1:
        return x
    return transpose_vectorized(x).t() if k_axis == 0 else transpose_vectorized(x.t())


def vector(x: Layout, k_axis: int) -> int:
    """Bytes per access along K: 16 where every line starts at a multiple of that, and is one long."""
    line = x.strides[1 - k_axis] if x.shape[1 - k_axis] > 1 else 0
    return 1 if x.strides[k_axis] != 1 or x.shape[k_axis] % 16 or line % 16 or x.offset else 16


def step(scale: torch.Tensor | None) -> int:
    """Elements from a scale to the next: 0 where one stands for all."""
    return int(scale is not None and scale.numel() > 1)


def lines(x: Layout, k_axis: int, extent: int) -> Tiles:
    """An operand as lines along K, in boxes of `extent` lines."""
    count, length = x.shape[1 - k_axis], x.shape[k_axis]
    pitch = x.strides[1 - k_axis] if count > 1 else cdiv(length, 16) * 16
    return Tiles((count, length), (pitch, 1), (extent, LINE), swizzle=LINE)


def shared(block_n: int, stages: int) -> int:
    """Bytes of the stages and of the barriers."""
    return stages * (ROWS + block_n) * LINE + 16 * stages
