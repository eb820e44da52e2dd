"""The order in which the axes of a tensor lie in memory, and copies into another one at the speed of memory.

Operators on images give channels-last results for channels-last images (`format_of`, `Output.order`), as torch does.

A gradient that lies as its input does saves torch a copy: a view back to [B, M, H * D] takes one of heads [B, H, M, D].
torch copies such a tensor element by element: [4, 32, 4096, 128] in bf16 takes 220 us on an H200, and 70 us as elements of
16 bytes, where a copy without another order takes 68.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import gcd
from operator import mul
from typing import Any

import torch

from kernelmux.registry.util import torch_modes

COPIED = 2**24  # bytes that are copied once to tell two arguments apart: with larger ones the host's time is hidden

Order = tuple[int, ...]  # axes from the outermost in memory to the innermost
WORTH = 1 << 22  # bytes; what is smaller torch copies in a few microseconds, which the views here take on the host
WIDE = ((16, torch.complex128), (8, torch.int64), (4, torch.int32))  # bytes of an element; nothing is computed with it


def order(x: torch.Tensor) -> Order | None:
    """The order of a dense tensor; None for one that is small or contiguous already, or has gaps or overlaps."""
    if x.nbytes < WORTH or x.is_contiguous() or x.is_neg() or x.is_conj():
        return None
    strides = x.stride()
    found = tuple(sorted(range(x.dim()), key=lambda axis: -strides[axis]))
    return found if x.permute(found).is_contiguous() else None


def format_of(x: torch.Tensor) -> torch.memory_format:
    """channels_last for images [N C H W] that lie so without gaps, where that is not contiguous as well.

    Of an example of vmap torch does not say how it lies: its results are contiguous.
    """
    if x.dim() != 4 or x.is_contiguous() or torch_modes.mapped(x):
        return torch.contiguous_format
    last = x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


def strides_of(shape: Sequence[int], form: torch.memory_format) -> tuple[int, ...]:
    """Those of a new tensor: an axis of one element, or a tensor of none, leaves others that are as contiguous."""
    if form == torch.channels_last:
        _, c, h, w = shape
        return h * w * c, 1, w * c, c
    steps = accumulate((max(n, 1) for n in reversed(shape[1:])), mul, initial=1)
    return tuple(steps)[::-1] if shape else ()


def fresh(x: torch.Tensor, form: torch.memory_format) -> torch.Tensor:
    """x in that format with the strides of a new tensor: a copy, or x itself where it has them already."""
    x = x.contiguous(memory_format=form)
    return x if x.stride() == strides_of(x.shape, form) else x.clone(memory_format=form)


def laid(x: torch.Tensor, wanted: Order) -> torch.Tensor:
    """A contiguous tensor in another order: a copy, or x itself where it is small or only a slow copy is to be had."""
    if x.__class__ is not torch.Tensor or x.nbytes < WORTH or not x.is_contiguous():
        return x
    moved = x.permute(wanted)
    wide = _wide(moved)
    if wide is None:
        return x
    return moved.view(wide).contiguous().view(x.dtype).permute([wanted.index(axis) for axis in range(x.dim())])


def copied(to: torch.Tensor, x: torch.Tensor) -> None:
    """Copy x into a tensor of its shape and dtype that lies otherwise, as elements as wide as both allow."""
    wide = _of_width(gcd(_common(to), _common(x)), x.element_size())
    if wide is None or to.dtype != x.dtype or x.is_neg() or x.is_conj():
        to.copy_(x)
    else:
        to.view(wide).copy_(x.view(wide))


def _wide(x: torch.Tensor) -> torch.dtype | None:
    """The widest elements that the bytes of x can be taken for, if wider than its own; None for what is contiguous."""
    return None if x.is_contiguous() else _of_width(_common(x), x.element_size())


def _common(x: torch.Tensor) -> int:
    """A number of bytes that divides the distances between rows of x, their length and their address."""
    if not x.numel() or x.stride(-1) != 1:
        return x.element_size()
    steps = (*x.stride()[:-1], x.shape[-1], x.storage_offset())
    return gcd(x.data_ptr(), *(n * x.element_size() for n in steps))


def _of_width(common: int, own: int) -> torch.dtype | None:
    return next((dtype for size, dtype in WIDE if size > own and common % size == 0), None)


def told_apart(values: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The arguments, with a copy in place of each tensor that starts where another one does.

    None for a copy of more than `COPIED` bytes, and where it would be of another kind: with gaps, or aligned otherwise.
    """
    starts, found = set[int](), list[Any]()
    for x in values:
        if isinstance(x, torch.Tensor):
            if x.data_ptr() in starts:
                if not 0 < x.nbytes <= COPIED:
                    return None
                copy = x.detach().clone()
                if copy.stride() != x.stride() or (copy.data_ptr() - x.data_ptr()) & 15:
                    return None
                x = copy
            starts.add(x.data_ptr())
        found.append(x)
    return tuple(found)
