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

    def row(self) -> Images | None:
        """The pixels of each image as one row, if they are equally far apart."""
        (n, c, h, w), (by_n, by_c, by_h, by_w) = self.shape, self.strides
        dense = w > 1 and (h == 1 or by_h == w * by_w)
        return Images((n, c, 1, h * w), (by_n, by_c, h * w * by_w, by_w)) if dense else None

    def line(self) -> Images | None:
        """Those of all images."""
        if (rows := self.row()) is None or rows.strides[1] != 1:
            return None
        (n, c, _, w), (by_n, _, length, by_w) = rows.shape, rows.strides
        return Images((1, c, 1, n * w), (n * length, 1, n * length, by_w)) if n == 1 or by_n == length else None


def pixels(shape: Ints) -> Images:
    """Channels-last images without gaps."""
    n, c, h, w = shape
    return Images((n, c, h, w), (c * h * w, 1, w * c, c))


def planes(shape: Ints) -> Images:
    """Contiguous ones."""
    n, c, h, w = shape
    return Images((n, c, h, w), (c * h * w, h * w, w, 1))


def images(x: torch.Tensor) -> Images:
    """A tensor's lengths and strides."""
    return Images(tuple(x.shape), x.stride())


def planes_of(x: torch.Tensor) -> Images | None:
    """Images that have a plane for each channel, from which rows and columns may be left out; None for others."""
    if x.is_contiguous():
        return planes(tuple(x.shape))
    by_n, by_c, _, by_w = x.stride()
    return images(x) if 0 < by_w < by_c and (len(x) == 1 or by_n == x.shape[1] * by_c) else None


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
    def single(self) -> bool:
        """Whether windows are single elements, which meet all others."""
        return all(w[:3] == (1, 1, 0) for w in self.windows)

    @property
    def in_line(self) -> ConvolutionProblem:
        """The same, over one row, where windows are single elements, so that no tile ends before the last place."""
        x, y = self.x.line(), self.y.line()
        return self._replace(x=x, y=y) if self.single and x and y else self

    @property
    def in_rows(self) -> ConvolutionProblem:
        """The same, over a row for each image, where windows are single elements."""
        x, y = self.x.row(), self.y.row()
        return self._replace(x=x, y=y) if self.single and x and y else self

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
