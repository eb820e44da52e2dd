"""The gradient of images of few channels by strides: the pixels of a square become channels of a convolution.

A square has stride * stride pixels, one of each phase. They meet grad_out at few places near the square, so that squares
are the places of a convolution of grad_out without a stride, whose kernels are zero where a pixel does not meet a place.
"""

from __future__ import annotations

from math import prod

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch.launch import Ints, Launch, cdiv, plan
from kernelmux.backends.triton._rows.rows import next_power
from kernelmux.backends.triton.conv2d._order import readable
from kernelmux.backends.triton.conv2d._problem import VECTOR, ConvolutionProblem, Images, images
from kernelmux.backends.triton.conv2d._specialised import specialised
from kernelmux.registry.spec.sliding_windows import Window
from kernelmux.registry.util.memory_format import format_of

NUMBERS = 1024  # of a program that writes pixels


def near(w: Window) -> Window:
    """How squares along an axis walk over the places that their pixels meet."""
    lowest = cdiv(w.padding - w.kernel + 1, w.stride)
    return Window(cdiv(w.padding, w.stride) - lowest + 1, 1, -lowest)


def fewer(channels: int, over: tuple[Window, Window]) -> bool:
    """Whether squares of so many channels are less than half of the work of phases in tiles of 64 channels.

    They are written twice. H200, bf16, 64x224x224 of 3 channels: 64 of 7 x 7 with a stride of 2 take 307 us, gathered by
    threads 3,094; 768 of 16 x 16 with a stride of 16 71 and 3,320.
    """
    if all(w.stride == 1 for w in over) or any(w.dilation > 1 for w in over):
        return False
    squares, phases = prod(w.stride for w in over) * channels, prod(w.kernel for w in over)
    return 2 * prod(near(w).kernel for w in over) * cdiv(squares, 32) * 32 <= phases * cdiv(channels, 64) * 64


@triton.jit(do_not_specialize=range(2, 19))
def conv2d_squares_weight_kernel(
    out_ptr, weight_ptr, filters, channels, taps_h, taps_w, near_h, near_w, stride_h, stride_w, first_h, first_w,
    real, w_o, w_c, w_r, w_s, wide, blocks, BLOCK: tl.constexpr,
):  # fmt: skip
    """out [squares' channels, near_h, near_w, wide] from weight [filters channels taps_h taps_w]; pixel (a, b) of a square
    meets element first - stride * i + (a or b) of a kernel at place i. real: of the squares' channels, those of pixels."""
    line = tl.program_id(0) // blocks
    o = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    j = line // (near_h * near_w)
    c = j % channels
    b = j // channels % stride_w
    a = j // channels // stride_w
    r = first_h - line // near_w % near_h * stride_h + a
    s = first_w - line % near_w * stride_w + b
    met = (j < real) & (r >= 0) & (r < taps_h) & (s >= 0) & (s < taps_w)
    at = weight_ptr + o.to(tl.int64) * w_o + (c * w_c + r * w_r + s * w_s)
    weight = tl.load(at, mask=met & (o < filters), other=0.0)
    tl.store(out_ptr + line.to(tl.int64) * wide + o, weight, mask=o < wide)


@triton.jit(do_not_specialize=range(2, 11))
def conv2d_squares_kernel(
    y_ptr, squares_ptr, channels, height, width, rows, columns, stride_h, stride_w, wide, blocks,
    LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Images y, dense, from squares [images rows columns wide]. A program has a part of a row: of all channels if these
    are LAST, else of one."""
    line = tl.program_id(0) // blocks
    i = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    h = line % height
    if LAST:
        n = line // height
        c = i % channels
        w = i // channels
        length = width * channels
    else:
        n = line // height // channels
        c = line // height % channels
        w = i
        length = width
    first = ((n.to(tl.int64) * rows + h // stride_h) * columns) * wide + h % stride_h * stride_w * channels
    at = first + (w // stride_w * wide + w % stride_w * channels + c)
    pixels = tl.load(squares_ptr + at, mask=i < length, other=0.0)
    tl.store(y_ptr + line.to(tl.int64) * length + i, pixels, mask=i < length)


@plan
def _weights(weight: Images, over: tuple[Window, Window], wide: Ints) -> Launch:
    """The launch, of kernels of squares, [wide[0], rows, columns, wide[1]], and of a weight."""
    filters, channels, *taps = weight.shape
    walks = [near(w) for w in over]
    block = min(NUMBERS, next_power(wide[1]))
    blocks = cdiv(wide[1], block)
    firsts = (w.padding + w.stride * walk.padding for w, walk in zip(over, walks, strict=True))
    places, strides = [walk.kernel for walk in walks], [w.stride for w in over]
    return Launch(
        conv2d_squares_weight_kernel, (wide[0] * prod(places) * blocks,), filters, channels, *taps, *places, *strides,
        *firsts, prod(strides) * channels, *weight.strides, wide[1], blocks, BLOCK=block,
    )  # fmt: skip


@plan
def _pixels(shape: Ints, over: tuple[Window, Window], wide: int, last: bool) -> Launch:
    """The launch, of images and of the squares that they are cut into."""
    n, c, h, w = shape
    down, across = (window.stride for window in over)
    lines, length = (n * h, w * c) if last else (n * c * h, w)
    block = min(NUMBERS, next_power(length))
    blocks = cdiv(length, block)
    return Launch(
        conv2d_squares_kernel, (lines * blocks,), c, h, w, cdiv(h, down), cdiv(w, across), down, across, wide, blocks,
        LAST=last, BLOCK=block,
    )  # fmt: skip


def gradient(grad_out: torch.Tensor, weight: torch.Tensor, shape: Ints, over: tuple[Window, Window]) -> torch.Tensor:
    """Images of this shape, in the order of grad_out."""
    y = torch.empty(shape, dtype=grad_out.dtype, device=grad_out.device, memory_format=format_of(grad_out))
    if not y.numel():
        return y
    walks = near(over[0]), near(over[1])
    taps = walks[0].kernel, walks[1].kernel
    rows, columns = (cdiv(n, w.stride) for n, w in zip(shape[2:], over, strict=True))
    deep, wide = _whole(len(weight)), _whole(prod(w.stride for w in over) * shape[1])
    left = readable(grad_out, again=prod(taps) > 1)
    kernels = weight.new_empty(wide, *taps, deep)
    _weights(images(weight), over, (wide, deep))(kernels, weight)
    squares = y.new_empty(len(y), rows, columns, wide)
    seen = images(squares.permute(0, 3, 1, 2)), images(kernels.permute(0, 3, 1, 2))
    p = ConvolutionProblem(y.get_device(), y.dtype, images(left), *seen, walks)
    specialised(p)(squares, left, kernels, kernels, squares)
    _pixels(shape, over, wide, format_of(grad_out) == torch.channels_last)(y, squares)
    return y


def _whole(channels: int) -> int:
    return cdiv(channels, VECTOR) * VECTOR
