"""What the plan of an attention call depends on."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton

from kernelmux.backends.triton._launch.launch import Config, Ints, cdiv, like
from kernelmux.backends.triton._launch.strides import contiguous
from kernelmux.registry.spec.sliding_windows import Limit, Mask, mask_of

T = torch.Tensor

IN_L2 = 16 << 20  # bytes
LOG2E = 1.4426950408889634
FP32 = torch.finfo(torch.float32)


def scale_of_exponents(scale: float) -> float:
    """The scale for powers of two instead of e, without its sign.

    Zero becomes the smallest normal number: the weights stay equal, and no 0 * -inf arises at masked keys.
    """
    return min(max(abs(scale) * LOG2E, FP32.smallest_normal), FP32.max)


class AttentionProblem(NamedTuple):
    """Sizes of q (B H M D) and of k and v (B G N D), their strides, dtype, mask and scalars."""

    device: int
    B: int
    H: int
    G: int
    M: int
    N: int
    D: int
    q_strides: Ints
    k_strides: Ints
    v_strides: Ints
    dtype: torch.dtype
    mask: Mask
    scale: float
    precision: str

    @property
    def shapes(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Of the output, q, k and v."""
        queries, keys = (self.B, self.H, self.M, self.D), (self.B, self.G, self.N, self.D)
        return queries, queries, keys, keys

    @property
    def strides(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Of the output, q, k and v."""
        return contiguous(self.shapes[0]), self.q_strides, self.k_strides, self.v_strides

    @property
    def sizes(self) -> tuple[int, int, int, int, int, int, float]:
        """What every kernel takes: H, query heads per key head, M, N, shift, window, the scale of exponents to base 2."""
        _, shift, window = self.mask
        return self.H, self.H // self.G, self.M, self.N, shift, window, scale_of_exponents(self.scale)

    @property
    def constants(self) -> Config:
        """What every kernel is compiled for. The sign of a negative scale moves to q, so that maxima can be scaled."""
        return {"CAUSAL": self.mask.causal, "WINDOW": self.mask.window > 0, "FLIP": self.scale < 0, "D": self.D}

    @property
    def columns(self) -> int:
        """D up to the next power of two, the width of a tile; what lies beyond D is zero."""
        return max(16, int(triton.next_power_of_2(self.D)))


def problem(
    q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> AttentionProblem:  # fmt: skip
    """The problem of a call."""
    B, H, M, D = q.shape
    _, G, N, _ = k.shape
    mask = mask_of(M, N, causal, window, ahead)
    strides = q.stride(), k.stride(), v.stride()
    return AttentionProblem(q.get_device(), B, H, G, M, N, D, *strides, q.dtype, mask, scale, precision)


def outputs(q: T, k: T) -> tuple[T, T, bool]:
    """y and lse, and whether there is anything to compute: no query sees one of no keys."""
    y, lse = like(q), q.new_empty(q.shape[:3], dtype=torch.float32)
    if not k.shape[2]:
        y.zero_(), lse.fill_(-torch.inf)
    return y, lse, bool(lse.numel() and k.shape[2])


def section(heads: int, nbytes: int) -> int:
    """How many heads, whose keys and values have so many bytes each, share L2 well: in shares of about equal size."""
    return cdiv(heads, max(1, round(heads * nbytes / IN_L2)))


def block_strides(shape: Ints, strides: Ints) -> Ints:
    """Strides for the copy engine: dimensions of size 1 may have any, but it wants multiples of 16 bytes."""
    return (*(s if n > 1 else shape[-1] for s, n in zip(strides[:-1], shape[:-1], strict=True)), 1)


def apart(x: T, axis: int = 2) -> T:
    """A copy where each row along `axis` begins one element after the one before.

    A stride of 1 is a constant to Triton 3.6, which then takes such rows to be aligned and loads them 16 bytes at a time.
    """
    return x.contiguous() if x.stride(axis) == 1 and x.shape[axis] > 1 else x


class Pointer:
    """Stands among the maps of a launch for a tensor that goes in as it is."""

    def of(self, x: T) -> T:
        """The argument for x."""
        return x


POINTER: Any = Pointer()
