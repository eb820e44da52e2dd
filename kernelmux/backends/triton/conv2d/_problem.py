"""What a convolution looks like to a kernel: lengths, windows, and strides in place of layouts."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import torch
import triton.language as tl

from kernelmux.backends.triton._launch.launch import Ints
from kernelmux.registry.spec.sliding_windows import Window

VECTOR = 8  # elements that are read together: 16 bytes of halves
SLACK = 2**22  # by how much numbers of masked lanes may exceed those of real ones


class Images(NamedTuple):
    """Images of one tensor, or kernels: lengths N C H W and strides."""

    shape: Ints
    strides: Ints

    @property
    def reach(self) -> int:
        """The largest offset of an element."""
        return sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    @property
    def channels_last(self) -> bool:
        """Whether the channels of a place lie side by side."""
        return self.strides[1] == 1 and self.shape[1] > 1

    def vectors(self, block: int) -> bool:
        """Whether blocks of so many channels can be read 16 bytes at a time, of which none is past the last channel."""
        n, _, h, w = self.strides
        return self.channels_last and self.shape[1] % block == 0 and not any(step % VECTOR for step in (n, h, w))

    def in_units(self, vectors: bool) -> Ints:
        """Strides, for `vectors` in units of VECTOR but for that of channels, so that the compiler sees what they are."""
        n, c, h, w = self.strides
        return (n // VECTOR, c, h // VECTOR, w // VECTOR) if vectors else self.strides


def images(x: torch.Tensor) -> Images:
    """A tensor's lengths and strides."""
    return Images(tuple(x.shape), x.stride())


class ConvolutionProblem(NamedTuple):
    """A call of conv2d, or of its transposed form, where x are the images that are read and y those that are written.

    weight: kernels [channels of y, channels of x, R, S].
    """

    device: int
    dtype: torch.dtype
    x: Images
    y: Images
    weight: Images
    windows: tuple[Window, Window]
    bias: bool = False

    @property
    def lengths(self) -> Ints:
        """Images, rows and columns of y."""
        n, _, h, w = self.y.shape
        return n, h, w

    @property
    def places(self) -> int:
        """Places in all images of y."""
        return prod(self.lengths)

    @property
    def terms(self) -> int:
        """Terms of each sum: channels of x and elements of a kernel."""
        _, c, r, s = self.weight.shape
        return c * r * s

    def whole_taps(self, block: int) -> int:
        """A block of so many terms, shorter if it then ends where the channels of a tap do and these lie side by side."""
        step = self.weight.shape[1] & -self.weight.shape[1]
        return min(block, step) if self.x.channels_last and step >= 16 else block

    @property
    def index(self) -> tl.dtype:
        """The integers that hold offsets, places and terms."""
        ends = [max(i.shape[a] for i in (self.x, self.y)) + 2 * self.windows[a - 2].padding for a in (2, 3)]
        largest = max(self.x.reach, self.y.reach, self.weight.reach, self.places, self.terms, *ends)
        return tl.int32 if largest + SLACK < 2**31 else tl.int64

    @property
    def steps(self) -> Ints:
        """Strides, paddings and dilations of the windows, rows first."""
        rows, columns = self.windows
        return tuple(n for pair in zip(rows[1:], columns[1:], strict=True) for n in pair)
