"""conv2d on images of few channels through the copy engine (TMA): columns of a window become channels.

Images and kernels are copied as `Fold` says. What a row of a kernel meets is then a line of S * channels numbers, at a
multiple of 16 bytes; boxes of lines are boxes of places. Numbers behind a line are zeros to the copy engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from kernelmux.backends.triton._launch.launch import Ints, cdiv
from kernelmux.backends.triton.conv2d import _specialised, _specialised_weight
from kernelmux.backends.triton.conv2d._order import copied, readable
from kernelmux.backends.triton.conv2d._problem import VECTOR, ConvolutionProblem, Images, images, pixels
from kernelmux.backends.triton.conv2d._spaced import SINGLES, met, spaced
from kernelmux.registry.conditions import AtLeast, AtMost, Condition
from kernelmux.registry.spec import Call
from kernelmux.registry.spec.sliding_windows import PIXELS, Fold, SideBySide, Window
from kernelmux.registry.util.memory_format import format_of, fresh

LINE = Window(1, 1, 0)  # over lines
MOST = 128  # channels
# Channels below which a fold fills too little of a tile for the gradient of the kernels. H200, bf16, 3 channels, 64 of 7x7:
# 350 us, gathered by threads 328; 33 channels of 56x56, 64 of 3x3: 41 and 88.
FEW = 16


@dataclass(frozen=True)
class Unfolded:
    """Of the gradient of the kernels: folding saves no more products than it costs to copy the images."""

    text: str = "products of boxes of whole rows and columns no more than 1.2 times those of a fold"

    def check(self, call: Call) -> str | None:
        """None, or how many more products there are."""
        stride, padding, dilation = (call.arguments[key] for key in ("stride", "padding", "dilation"))
        n, p, q, r, s, channels, height, width = (call.axes[axis] for axis in "NPQRSCHW")
        if s == 1 or dilation[1] > 1 or not FEW <= channels <= MOST:
            return None
        down, across = Window(r, stride[0], padding[0], dilation[0]), Window(s, stride[1], padding[1])
        f = Fold.of(across, q, channels, VECTOR)
        boxes = _specialised_weight.work(
            (n, p, q), _specialised_weight.free_axes((down, across), (height, width), (p, q))
        )
        rows = _specialised_weight.free_axes((down, LINE), (height, q), (p, q))[0]
        plain, folded = (
            boxes * s * _up(channels),
            _specialised_weight.work((n, p, q), (rows, True)) * _up(s * f.channels),
        )
        return (
            None if plain <= 1.2 * folded else f"{plain / folded:.2f} times the products of a fold, needs {self.text}"
        )


@dataclass(frozen=True)
class NotGathered:
    """Of the gradient of the kernels: not of single elements and few channels, which threads gather from channels-last
    images in less time than a copy takes."""

    most: int

    @property
    def text(self) -> str:
        return f"R * S > 1, or O and C more than {self.most}, or x contiguous"

    def check(self, call: Call) -> str | None:
        """None, or what is few."""
        o, c, r, s = (call.axes[axis] for axis in "OCRS")
        contiguous = format_of(call.arguments["x"]) == torch.contiguous_format
        fits = r * s > 1 or min(o, c) > self.most or contiguous
        return None if fits else f"O = {o}, C = {c}, needs {self.text}"


def _up(channels: int) -> int:
    """Channels, rounded up to the narrowest tile."""
    return cdiv(channels, 64) * 64


def requires(x: str) -> tuple[Condition, ...]:
    """What a call must meet. x: the name of the images."""
    return _specialised.requires(x, *PIXELS, AtLeast("C", 1), AtMost("C", MOST), SideBySide())


def _lines(x: torch.Tensor, rows: int, window: Window, places: int, f: Fold) -> tuple[torch.Tensor, Images]:
    """The copy, and how the images [N, S * channels, rows, places] lie in it."""
    copy = copied(x, rows, window.padding, f.columns, f.channels)
    by_n, by_h, by_w, _ = copy.stride()
    shape = len(x), window.kernel * f.channels, rows, places
    return copy, Images(shape, (by_n, 1, by_h, window.stride * by_w))


def convolution(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Ints, over: tuple[Window, Window]
) -> torch.Tensor:
    """Images of this shape in the order of x."""
    if not prod(shape):
        return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=format_of(x))
    order = format_of(x)
    if spaced(over):
        x, over = met(x, over), SINGLES
    down, across = over
    f, kernel = Fold.of(across, shape[3], x.shape[1], VECTOR), Window(across.kernel, 1, 0)
    rows = cdiv(x.shape[2], down.stride) * down.stride
    left, lines = _lines(x, rows, across, shape[3], f)
    right, kernels = _lines(weight, weight.shape[2], kernel, 1, f.of_kernel(kernel, VECTOR))
    p = ConvolutionProblem(x.get_device(), x.dtype, lines, pixels(shape), kernels, (down, LINE), bias is not None)
    return _specialised.result(p, left, right, bias, order, after=True)


def gradient(grad_out: torch.Tensor, x: torch.Tensor, shape: Ints, over: tuple[Window, Window]) -> torch.Tensor:
    """grad_weight [O C R S] in the order of x. Boxes of places may go on behind the last column, where lines end too."""
    order = format_of(x)
    if spaced(over):
        x, over = met(x, over), SINGLES
    down, across = over
    filters, channels, taps, width = shape
    f = Fold.of(across, grad_out.shape[3], channels, VECTOR)
    right, lines = _lines(x, cdiv(x.shape[2], down.stride) * down.stride, across, grad_out.shape[3], f)
    deep = cdiv(width * f.channels, VECTOR) * VECTOR
    out = x.new_empty(filters, taps, 1, deep)
    g = readable(grad_out)
    seen = lines, images(g), images(out.permute(0, 3, 1, 2))
    _specialised_weight.run_on(ConvolutionProblem(x.get_device(), x.dtype, *seen, (down, LINE)), out, g, right)
    kernels = out[..., : width * f.channels].unflatten(3, (width, f.channels))[:, :, 0, :, :channels]
    return fresh(kernels.permute(0, 3, 1, 2), order)
