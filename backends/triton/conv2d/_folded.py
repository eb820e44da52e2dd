"""conv2d on images of few channels through the copy engine (TMA): columns of a window become channels.

Images and kernels are copied as `Fold` says. What a row of a kernel meets is then a line of S * channels numbers, at a
multiple of 16 bytes; boxes of lines are boxes of places. Numbers behind a line are zeros to the copy engine.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch import Ints, Launch, cdiv, plan
from kernelmux.backends.triton.conv2d import _specialised
from kernelmux.backends.triton.conv2d._order import channels_first
from kernelmux.backends.triton.conv2d._problem import VECTOR, Images, Problem, images
from kernelmux.registry.conditions import AtLeast, AtMost, Condition
from kernelmux.registry.memory_order import format_of
from kernelmux.registry.windows import Fold, SideBySide, Window

BLOCK = 1024  # numbers of a program
LINE = Window(1, 1, 0)  # over lines


def requires(x: str) -> tuple[Condition, ...]:
    """What a call must meet. x: the name of the images."""
    return _specialised.requires(x, AtLeast("C", 1), AtMost("C", 128), SideBySide(), lines="O")


@triton.jit(do_not_specialize=range(2, 8))
def conv2d_fold_kernel(
    y_ptr, x_ptr, channels, rows, height, width, left, columns, x_n, x_c, x_h, x_w,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y [N, rows, columns, CHANNELS], dense, from x [N, channels, height, width]; zero where x has nothing."""
    n = (tl.program_id(0) // rows).to(tl.int64)
    h = tl.program_id(0) % rows
    offs = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    length = columns.to(tl.int64) * CHANNELS
    w = offs // CHANNELS - left
    c = offs % CHANNELS
    inside = (c < channels) & (w >= 0) & (w < width) & (h < height)
    x = tl.load(x_ptr + n * x_n + c * x_c + h.to(tl.int64) * x_h + w * x_w, mask=inside, other=0.0)
    tl.store(y_ptr + tl.program_id(0).to(tl.int64) * length + offs, x, mask=offs < length)


@plan
def _plan(x: Images, rows: int, left: int, f: Fold) -> Launch:
    """The launch, of the copy and of x."""
    count, channels, height, width = x.shape
    grid = (count * rows, cdiv(f.columns * f.channels, BLOCK))
    return Launch(
        conv2d_fold_kernel, grid, channels, rows, height, width, left, f.columns, *x.strides,
        CHANNELS=f.channels, BLOCK=BLOCK,
    )  # fmt: skip


def _lines(x: torch.Tensor, rows: int, window: Window, places: int, f: Fold) -> tuple[torch.Tensor, Images]:
    """The copy, and how the images [N, S * channels, rows, places] lie in it."""
    copy = x.new_empty(len(x), rows, f.columns, f.channels)
    _plan(images(x), rows, window.padding, f)(copy, x)
    by_n, by_h, by_w, _ = copy.stride()
    shape = len(x), window.kernel * f.channels, rows, places
    return copy, Images(shape, (by_n, 1, by_h, window.stride * by_w))


def convolution(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Ints, over: tuple[Window, Window]
) -> torch.Tensor:
    """Images of this shape in the order of x, computed as channels-last ones."""
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    if y.numel():
        down, across = over
        f, kernel = Fold.of(across, shape[3], x.shape[1], VECTOR), Window(across.kernel, 1, 0)
        rows = cdiv(x.shape[2], down.stride) * down.stride
        left, lines = _lines(x, rows, across, shape[3], f)
        right, kernels = _lines(weight, weight.shape[2], kernel, 1, f.of_kernel(kernel, VECTOR))
        p = Problem(x.get_device(), x.dtype, lines, images(y), kernels, (down, LINE), bias is not None)
        _specialised.specialised(p)(y, left, right, y if bias is None else bias)
    return y if format_of(x) == torch.channels_last else channels_first(y)
