"""What the plan of a product depends on."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernelmux.backends.triton._launch import Ints
from kernelmux.backends.triton.matmul._epilogue import Ending


class Problem(NamedTuple):
    """Device, sizes, strides of a [M, K] and b [K, N], dtype, for fp32 the precision ("ieee" or "tf32"), and its end."""

    device: int
    M: int
    N: int
    K: int
    a_strides: Ints
    b_strides: Ints
    dtype: torch.dtype
    precision: str
    end: Ending

    @property
    def layouts(self) -> str:
        """Of a and b: "r" where rows are contiguous, else "c"."""
        return "".join("r" if strides[1] == 1 else "c" for strides in (self.a_strides, self.b_strides))

    @property
    def vectors(self) -> bool:
        """Both operands can be loaded 16 bytes at a time: Triton knows that of strides and lengths of 16 elements."""
        lengths = (self.K if self.a_strides[1] == 1 else self.M, self.N if self.b_strides[1] == 1 else self.K)
        return all(n % 16 == 0 or n == 1 for n in (*self.a_strides, *self.b_strides, *lengths))


def problem(a: torch.Tensor, b: torch.Tensor, precision: str, end: Ending) -> Problem:
    """The problem of a @ b."""
    M, K = a.shape
    return Problem(a.get_device(), M, b.shape[1], K, a.stride(), b.stride(), a.dtype, precision, end)
