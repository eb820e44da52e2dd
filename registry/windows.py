"""How windows over an axis go: from its length to the number of places of a window, and back; the images they lie on.

A window of `kernel` elements that lie `dilation` apart begins at every `stride`-th element of an axis that has `padding`
zeros more at both ends. What is left at its end, too short for a further step, is the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

Pair = tuple[int, int]


def pair(value: int | Sequence[int]) -> Pair:
    """One number for both axes of an image, or a number for each, as a pair."""
    if isinstance(value, Sequence):
        rows, columns = value
        return rows, columns
    return value, value


class Window(NamedTuple):
    """A window along one axis."""

    kernel: int
    stride: int
    padding: int
    dilation: int = 1

    @property
    def reach(self) -> int:
        """Elements from the first to the last one of the window."""
        return self.dilation * (self.kernel - 1) + 1

    def places(self, length: int) -> int:
        """How many places the window has on an axis of this length; below 1 where it does not fit."""
        return (length + 2 * self.padding - self.reach) // self.stride + 1

    def rest(self, length: int) -> int:
        """Elements of the padded axis behind the last place of the window."""
        return (length + 2 * self.padding - self.reach) % self.stride

    def length(self, places: int, rest: int = 0) -> int:
        """Of the axis on which the window has so many places."""
        return (places - 1) * self.stride + self.reach + rest - 2 * self.padding


def windows(kernel: Sequence[int], stride: Any, padding: Any, dilation: Any) -> tuple[Window, Window]:
    """The windows along the rows and the columns of an image, from the lengths of a kernel [..., R, S]."""
    rows, columns = zip(kernel[-2:], pair(stride), pair(padding), pair(dilation), strict=True)
    return Window(*rows), Window(*columns)


def planes(x: torch.Tensor) -> Pair:
    """N and C of images [N C H W], or of one [C H W]."""
    return (x.shape[0], x.shape[1]) if x.dim() == 4 else (1, x.shape[0])


def four_strides(x: torch.Tensor) -> tuple[int, ...]:
    """Strides of images that may lack the first axis: 0 for that."""
    strides = x.stride()
    return strides if len(strides) == 4 else (0, *strides)
