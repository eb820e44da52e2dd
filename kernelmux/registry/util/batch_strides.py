"""The leading axes of the factors of a product, as a kernel wants them: none, or two with a stride for each factor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

Ints = tuple[int, ...]
Axis = tuple[int, ...]  # a length, then the stride of each factor


class Batch(NamedTuple):
    """Products by number: (number // inner, number % inner) times the strides of each factor, in elements."""

    outer: int
    inner: int
    a: tuple[int, int]
    b: tuple[int, int]

    @property
    def products(self) -> int:
        """How many there are."""
        return self.outer * self.inner


class BatchedProduct(NamedTuple):
    """Sizes, the strides of a [M, K] and b [K, N] in each product, and where the next ones are (None: there is one)."""

    M: int
    N: int
    K: int
    a_strides: Ints
    b_strides: Ints
    batch: Batch | None

    @property
    def products(self) -> int:
        """How many there are."""
        return self.batch.products if self.batch else 1


def take_turns(K: int, line: int, size: int) -> bool:
    """Whether rows of K elements of `size` bytes, `line` elements apart, start at even and odd multiples of 16 bytes
    in turn. A copy engine that brings 32 bytes at a time then does better with two products, of the even rows and of
    the odd ones, whose columns begin 16 bytes before the first: K has room for these in its last 128 bytes."""
    return line * size % 32 == 16 and 0 < K * size % 128 <= 128 - 16


def product(a_shape: Ints, a_strides: Ints, b_shape: Ints, b_strides: Ints) -> BatchedProduct | None:
    """The product of a [... M, K] and b [K, N] or [... K, N]; None if it takes more than two strides to walk the batches.

    Matrices that share b are one with all their rows, if those are one distance apart and do not overlap.
    """
    (M, K), N, lead = a_shape[-2:], b_shape[-1], a_shape[:-2]
    shared = len(b_shape) == 2
    if shared and lead and (rows := _rows(a_shape, a_strides)) is not None:
        return BatchedProduct(rows[0], N, K, (rows[1], a_strides[-1]), b_strides, None)
    of_b = (0,) * len(lead) if shared else b_strides[:-2]
    axes = merged(zip(lead, a_strides, of_b, strict=False))
    if len(axes) > 2:
        return None
    (outer, *outers), (inner, *inners) = ((1, 0, 0), (1, 0, 0), *axes)[-2:]
    batch = Batch(outer, inner, (outers[0], inners[0]), (outers[1], inners[1])) if axes else None
    return BatchedProduct(M, N, K, a_strides[-2:], b_strides[-2:], batch)


def merged(axes: Iterable[Axis]) -> list[Axis]:
    """As few axes as walk through the same elements in the same order, each a length and strides; none of length 1."""
    found: list[Axis] = []
    for length, *strides in axes:
        if length == 1:
            continue
        if found and all(above == length * own for above, own in zip(found[-1][1:], strides, strict=True)):
            found[-1] = (found[-1][0] * length, *strides)
        else:
            found.append((length, *strides))
    return found


def _rows(shape: Ints, strides: Ints) -> tuple[int, int] | None:
    """Number and stride of all rows of a batch of matrices [... M, K], None if they are not one matrix."""
    axes = merged(zip(shape[:-1], strides, strict=False))
    if len(axes) > 1:
        return None
    count, stride = axes[0] if axes else (1, strides[-2])
    apart = stride >= shape[-1] if strides[-1] == 1 else stride == 1 and strides[-1] >= count
    return (count, stride) if apart or count == 1 else None


def readable(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """a and b, or contiguous copies if it takes more than two strides to walk their batches."""
    if a.dim() <= 4 or product(a.shape, a.stride(), b.shape, b.stride()):
        return a, b
    return a.contiguous(), b.contiguous()


def result(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Memory for a @ b [... M, N]."""
    return a.new_empty((*a.shape[:-1], b.shape[-1]))
