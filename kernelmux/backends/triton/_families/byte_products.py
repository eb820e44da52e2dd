"""What the products of 8-bit operands share: kinds of scales, operands for the copy engine, what that can read."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch.launch import Ints, Map, cdiv
from kernelmux.backends.triton.matmul._epilogue import WholeTensor
from kernelmux.backends.triton.matmul._padded import readable, with_lines
from kernelmux.backends.triton.transpose import transpose_blocked
from kernelmux.registry.conditions import AtLeast, Capability

ABSENT, ONE, LINES, BLOCKS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)  # kinds of scales
SCALES = {"scale_a": "contiguous", "scale_b": "contiguous"}
WITH_MAPS = AtLeast("N", 16), AtLeast("K", 16)
ON_HOPPER = Capability((9, 0)), AtLeast("M", 64), *WITH_MAPS


@triton.jit
def scaled(x, left, right):
    """x * left * right, by the product of both where that is a normal number: x overflows only if the result does."""
    both = left * right
    normal = (tl.abs(both) >= 2.0**-126) & (tl.abs(both) < float("inf"))
    return x * tl.where(normal, both, left) * tl.where(normal, 1.0, right)


@triton.jit
def of_lines(scale_ptr, lines, count, KIND: tl.constexpr):
    """What whole sums are multiplied by: one scale, that of each row or column, or 1 where blocks had theirs or is none."""
    if KIND == ONE:
        return tl.load(scale_ptr)
    elif KIND == LINES:
        return tl.load(scale_ptr + lines, mask=lines < count, other=0.0)
    else:
        return tl.full([], 1.0, tl.float32)


def k_contiguous(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """a [M, K] and b [K, N] with K contiguous, themselves if it is. H200, 8192 x 8192: a transposed copy takes 44 us."""
    return a if a.stride(1) == 1 else transpose_blocked(a.t()), b if b.stride(0) == 1 else transpose_blocked(b).t()


def repays(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether tiles that the copy engine reads are worth copies of operands that it cannot: where products by bytes take
    ten microseconds or more, at about 28e6 in each."""
    (M, K), N = a.shape, b.shape[1]
    if K % 16 == 0 and all(x.stride(k) != 1 or readable(x) for x, k in ((a, 1), (b, 0))):
        return True
    return cdiv(M, 128) * cdiv(N, 128) * K >= 2**14


def on_lines(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """a [M, K] and b [K, N] with K contiguous, in lines that the copy engine reads; themselves if they lie so."""
    a, b = k_contiguous(a, b)
    return a if readable(a) else copied(a), b if readable(b) else copied(b)


def copied(x: torch.Tensor) -> torch.Tensor:
    """A copy in lines of whole sectors."""
    if x.stride(-1) != 1:
        return copied(x.t()).t()
    pairs = x.shape[1] % 2 == x.stride(0) % 2 == x.data_ptr() % 2 == 0
    return with_lines(x.view(torch.int16 if pairs else torch.uint8)).view(x.dtype)


def maps(shape: Ints, a_strides: Ints, b_strides: Ints, block: Ints) -> tuple[Any, ...]:
    """How a kernel takes (c, a, b, scale_a, scale_b): a and b as descriptors; shape and block are (M, N, K)."""
    (M, N, K), (block_m, block_n, block_k) = shape, block
    a = Map((M, K), (a_strides[0], 1), (block_m, block_k))
    b = Map((N, K), (b_strides[1], 1), (block_n, block_k))
    return WholeTensor(), a, b, WholeTensor(), WholeTensor()
