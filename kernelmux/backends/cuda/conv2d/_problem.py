"""A convolution as a product of matrices: what the launchers of conv2d and of its gradients tell the kernels about it.

The kernels' side is convolution.cuh, whose words these are.
"""

import struct
from math import gcd, prod
from typing import NamedTuple

import torch

from kernelmux.backends.cuda._launch.layout import Layout
from kernelmux.backends.cuda._launch.runtime import cdiv
from kernelmux.registry.spec.sliding_windows import Window
from kernelmux.registry.util.batch_strides import merged

CONV2D, BACKWARD_INPUT, BACKWARD_WEIGHT = range(3)


class ConvolutionAxis(NamedTuple):
    """Rows or columns. size: of the image that is read at taps. positions: how many, in BACKWARD_INPUT of pixels."""

    size: int
    positions: int
    taps: int
    stride: int
    padding: int
    dilation: int

    @property
    def window(self) -> Window:
        """What walks over it."""
        return Window(self.taps, self.stride, self.padding, self.dilation)

    @property
    def period(self) -> int:
        """Every how many taps one meets the same phase."""
        return self.stride // self.common

    @property
    def phases(self) -> int:
        """Classes of pixels by which taps they meet."""
        return min(self.stride, self.positions)

    @property
    def first_phase(self) -> "ConvolutionAxis":
        """What the largest of them has: every stride-th pixel, every period-th tap, rounded up."""
        return self._replace(positions=cdiv(self.positions, self.stride), taps=cdiv(self.taps, self.period))

    @property
    def common(self) -> int:
        """The greatest divisor of stride and dilation."""
        return gcd(self.stride, self.dilation)

    @property
    def taps_of_phases(self) -> tuple[int, ...]:
        """Of BACKWARD_INPUT, how many each class of pixels meets, those of the first taps first; some meet none."""
        met = (max(0, cdiv(self.taps - first, self.period)) for first in range(self.period))
        return *met, *(0 for _ in range(self.stride - self.period))

    @property
    def reach(self) -> tuple[int, int]:
        """Of BACKWARD_INPUT, the lowest and the highest place of the gradient that the first pixel of a phase meets."""
        found: list[int] = []
        for first, count in enumerate(self.taps_of_phases[: self.taps]):
            if count:
                place = -((first * self.dilation - self.padding) // self.stride)
                found += [place, place - (count - 1) * (self.dilation // self.common)]
        return min(found, default=0), max(found, default=0)

    def over(self, places: int) -> "ConvolutionAxis":
        """How the largest phase of BACKWARD_INPUT walks over so many places of the gradient, its taps one step apart."""
        lowest, highest = self.reach
        return ConvolutionAxis(places, cdiv(self.positions, self.stride), highest - lowest + 1, 1, -lowest, 1)


class Convolution(NamedTuple):
    """A convolution. image: [N C H W], read at taps. other: weight [O C R S], its first axes swapped in BACKWARD_INPUT,
    or grad_out [N O P Q] in BACKWARD_WEIGHT. shape, order: of the result, which is contiguous or channels-last."""

    operator: int
    image: Layout
    other: Layout
    shape: tuple[int, ...]
    order: torch.memory_format
    h: ConvolutionAxis
    w: ConvolutionAxis

    @property
    def filters(self) -> int:
        return self.other.shape[1 if self.operator == BACKWARD_WEIGHT else 0]

    @property
    def phases(self) -> int:
        return self.h.phases * self.w.phases if self.operator == BACKWARD_INPUT else 1

    @property
    def sizes(self) -> tuple[int, int, int]:
        """M, N and K of the product; of the largest phase, the first."""
        h, w = (a.first_phase if self.operator == BACKWARD_INPUT else a for a in (self.h, self.w))
        positions, terms = self.image.shape[0] * h.positions * w.positions, self.image.shape[1] * h.taps * w.taps
        if self.operator == BACKWARD_WEIGHT:
            return self.filters, terms, positions
        return positions, self.filters, terms

    @property
    def last(self) -> bool:
        """Whether the result is channels-last."""
        return self.order == torch.channels_last

    @property
    def contiguous(self) -> bool:
        """Whether the result is in contiguous images that are no channels-last ones."""
        return not self.last and self.shape[2] * self.shape[3] > 1

    @property
    def m_contiguous(self) -> bool:
        """Whether neighbours along m are neighbours in the result; else those along n are."""
        return self.operator != BACKWARD_WEIGHT and not self.last and self.shape[2] * self.shape[3] > 1

    @property
    def run(self) -> int:
        """How many neighbours along its contiguous index are neighbours in the result, again and again."""
        pixels = self.shape[2] * self.shape[3]
        if self.m_contiguous:
            return pixels if self.phases == 1 else 1
        if self.operator != BACKWARD_WEIGHT or self.last == self.taps_outer or 1 in (pixels, self.shape[1]):
            return self.sizes[1]
        return 1

    @property
    def taps_outer(self) -> bool:
        """Whether the channels of the image are side by side: then they are the inner part of an index (tap, c)."""
        return self.image.strides[1] == 1 and self.image.shape[1] > 1

    def packed(self, tiles: int = 0, k_split: int = 0) -> bytes:
        """The struct of the kernels. tiles: of a phase. k_split: length of a piece of K."""
        _, b, c, d = self.shape
        out = (b * c * d, 1, d * b, b) if self.last else (b * c * d, c * d, d, 1)
        sizes = self.image.shape[0], self.image.shape[1], self.filters, self.phases, tiles, k_split
        axes = (number for a in (self.h, self.w) for number in (*a, a.period))
        return struct.pack("32q", *self.image.strides, *self.other.strides, *out, *sizes, *axes)


def swapped(weight: Layout) -> Layout:
    """A weight [O C R S] as [C O R S]."""
    (o, c, *taps), (by_o, by_c, *by_tap) = weight.shape, weight.strides
    return weight._replace(shape=(c, o, *taps), strides=(by_c, by_o, *by_tap))


class OperandAccess(NamedTuple):
    """How tiles of an operand are read: whether k has unit stride, and bytes per access."""

    k_major: bool
    copy: int


def _side_by_side(x: Layout, axes: tuple[int, ...]) -> bool:
    """Whether these axes together have unit stride."""
    found = merged([(x.shape[a], x.strides[a]) for a in axes])
    return all(stride == 1 for _, stride in found) and len(found) <= 1


def _copy(x: Layout, axes: tuple[int, ...]) -> int:
    """Bytes that can be read at once along these axes, which have unit stride: 16 or an element."""
    extent = prod(x.shape[a] for a in axes)
    apart = [x.strides[a] for a in range(4) if a not in axes and x.shape[a] > 1]
    size = x.dtype.itemsize
    whole = x.offset == 0 and all(n * size % 16 == 0 for n in (extent, *apart))
    return 16 if whole and _side_by_side(x, axes) else size


def _image(c: Convolution) -> OperandAccess:
    """Along its channels; or along its pixels, which are neighbours for every tap if there is one and no step."""
    along_k = c.operator != BACKWARD_WEIGHT
    if c.taps_outer:
        return OperandAccess(along_k, _copy(c.image, (1,)))
    plain = all((a.taps, a.stride, a.padding) == (1, 1, 0) for a in (c.h, c.w))
    return OperandAccess(not along_k, _copy(c.image, (2, 3)) if plain else c.image.dtype.itemsize)


def _other(c: Convolution) -> OperandAccess:
    """A weight along (tap, c) if that is the index, else along its first axis; grad_out along channels or positions."""
    if c.operator == BACKWARD_WEIGHT:
        inner = (1,) if c.other.strides[1] == 1 and c.other.shape[1] > 1 else (2, 3)
        return OperandAccess(inner != (1,), _copy(c.other, inner))
    if c.operator == BACKWARD_INPUT:
        return OperandAccess(False, _copy(c.other, (0,)))
    return OperandAccess(True, _copy(c.other, (1,) if c.taps_outer else (1, 2, 3)))


def operands(c: Convolution) -> tuple[OperandAccess, OperandAccess]:
    """The left and the right one."""
    image, other = _image(c), _other(c)
    return (other, image) if c.operator == BACKWARD_WEIGHT else (image, other)
