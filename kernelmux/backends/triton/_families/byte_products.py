"""What the products of 8-bit operands share: kinds of scales, operands for the copy engine, what that can read."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl

from kernelmux.backends.triton._launch.launch import Ints, Map
from kernelmux.backends.triton.matmul._epilogue import WholeTensor
from kernelmux.backends.triton.transpose import transpose_blocked
from kernelmux.registry.conditions import Aligned, AtLeast, Capability, Multiple

ABSENT, ONE, LINES, BLOCKS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)  # kinds of scales
SCALES = {"scale_a": "contiguous", "scale_b": "contiguous"}
ON_HOPPER = (
    Capability((9, 0)), AtLeast("M", 64), AtLeast("N", 16), AtLeast("K", 16), Multiple("N", 16), Multiple("K", 16),
    Aligned("a"), Aligned("b"),
)  # fmt: skip


def k_contiguous(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """a [M, K] and b [K, N] with K contiguous, themselves if it is. H200, 8192 x 8192: a transposed copy takes 44 us."""
    return a if a.stride(1) == 1 else transpose_blocked(a.t()), b if b.stride(0) == 1 else transpose_blocked(b).t()


def maps(shape: Ints, a_strides: Ints, b_strides: Ints, block: Ints) -> tuple[Any, ...]:
    """How a kernel takes (c, a, b, scale_a, scale_b): a and b as descriptors; shape and block are (M, N, K)."""
    (M, N, K), (block_m, block_n, block_k) = shape, block
    a = Map((M, K), (a_strides[0], 1), (block_m, block_k))
    b = Map((N, K), (b_strides[1], 1), (block_n, block_k))
    return WholeTensor(), a, b, WholeTensor(), WholeTensor()
