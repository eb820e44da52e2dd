"""conv2d and the gradient of its weight on images whose pixels TMA cannot read: columns of a window become channels.

Images and kernels are copied as `Fold` says. What a row of a kernel meets is then a line of S * channels numbers, at a
multiple of 16 bytes, and the copy engine walks over these lines as over pixels. Numbers behind a line are zeros to it.
"""

from typing import NamedTuple

import torch

from kernelmux.backends.cuda._launch.layout import Layout
from kernelmux.backends.cuda.conv2d._pixel_copies import VECTOR, copied
from kernelmux.backends.cuda.conv2d._plans import halves_on_hopper, indices
from kernelmux.backends.cuda.conv2d._problem import Convolution, ConvolutionAxis
from kernelmux.backends.cuda.conv2d._walked import Walked
from kernelmux.registry.conditions import AtLeast, AtMost, Condition
from kernelmux.registry.spec.sliding_windows import Fold, SideBySide
from kernelmux.registry.util.memory_format import fresh


def asks(lead: str, *together: str, channels: str = "") -> tuple[Condition, ...]:
    """What the rung needs. lead: an operand. channels: axes that are inner ones of operands which are not folded.

    Not all that could be folded: on an H200 one channel and 5 x 5 take 65 us, gathered by threads 32; three channels and
    4 x 4 with a stride of 4, where windows share nothing, 102 and 86.
    """
    few = AtLeast("C", 2), AtMost("C", 128), SideBySide(overlapping=True)
    return (*halves_on_hopper(lead, channels), *few, Walked(columns=False), *indices(*together))


class FoldedImages(NamedTuple):
    """A copy, and how the images [N, S * channels, H, Q] lie in it."""

    copy: torch.Tensor
    layout: Layout


def lines_of(x: torch.Tensor, w: ConvolutionAxis, f: Fold) -> FoldedImages:
    """What the windows w meet in x."""
    n, _, h, _ = x.shape
    copy = copied(x, w.padding, f.columns, f.channels)
    by_n, by_h, by_w, _ = copy.stride()
    strides = by_n, 1, by_h, w.stride * by_w
    return FoldedImages(copy, Layout((n, w.taps * f.channels, h, w.positions), strides, x.dtype, 0))


def fold_of(w: ConvolutionAxis, channels: int) -> Fold:
    return Fold.of(w.window, w.positions, channels, VECTOR)


def lines_of_weight(weight: torch.Tensor, f: Fold) -> FoldedImages:
    """weight [O, C, R, S] as kernels [O, S * channels, R, 1]."""
    taps = weight.shape[3]
    w = ConvolutionAxis(size=taps, positions=1, taps=taps, stride=1, padding=0, dilation=1)
    return lines_of(weight, w, f.of_kernel(w.window, VECTOR))


def walk(w: ConvolutionAxis) -> ConvolutionAxis:
    """The windows w over lines."""
    return ConvolutionAxis(size=w.positions, positions=w.positions, taps=1, stride=1, padding=0, dilation=1)


def unfolded(matrix: torch.Tensor, f: Fold, c: Convolution) -> torch.Tensor:
    """The gradient of a weight from its matrix [O, (R, a line and what is behind it)]."""
    filters, channels, rows, columns = c.shape
    lines: torch.Tensor = matrix.view(filters, rows, -1)[..., : columns * f.channels]
    pixels = lines.view(filters, rows, columns, f.channels)[..., :channels]
    return fresh(pixels.permute(0, 3, 1, 2), c.order)
