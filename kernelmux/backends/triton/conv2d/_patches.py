"""Windows that do not overlap: one product of matrices, one of which a kernel makes of the images.

Each pixel is in one window at most, so that the windows as rows of a matrix are no more than the image: a copy and the
product take less time than a product that finds its pixels itself, where channels are few.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch.launch import Ints, Launch, cdiv, plan
from kernelmux.backends.triton._rows.rows import next_power
from kernelmux.backends.triton.conv2d import _specialised, _specialised_weight
from kernelmux.backends.triton.conv2d._order import channels_first, readable
from kernelmux.backends.triton.conv2d._problem import ConvolutionProblem, Images, images
from kernelmux.registry.conditions import AtLeast, Condition, OneOf
from kernelmux.registry.spec import Call
from kernelmux.registry.spec.sliding_windows import SideBySideWindows, Window
from kernelmux.registry.util.memory_format import format_of, fresh

LINE = Window(1, 1, 0)
SECTOR = 16  # halves
MOST_CHANNELS = 32
TIMES_WEIGHT = 4
WIDEST, NUMBERS = 256, 4096  # terms of a program, and all its elements


@triton.jit
def conv2d_patches_kernel(
    to_ptr, from_ptr, by_n, by_c, by_h, height, width, rows, columns, BY_W: tl.constexpr, UNIT: tl.constexpr,
    CHANNELS: tl.constexpr, TAPS_H: tl.constexpr, TAPS_W: tl.constexpr, STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr, PADDING_H: tl.constexpr, PADDING_W: tl.constexpr, PITCH: tl.constexpr, LAST: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A matrix [images * rows * columns, PITCH] of windows of images [images CHANNELS height width], terms in the order
    of these, (r, s, c) if LAST, else (c, r, s). by_n, by_c, by_h: in units of UNIT elements."""
    line = tl.program_id(0)
    p = line % rows
    q = (tl.program_id(1) * BLOCK_Q + tl.arange(0, BLOCK_Q))[:, None]
    term = (tl.program_id(2) * BLOCK_K + tl.arange(0, BLOCK_K))[None, :]
    if LAST:
        r = term // (TAPS_W * CHANNELS)
        s = term // CHANNELS % TAPS_W
        c = term % CHANNELS
        along = term % (TAPS_W * CHANNELS) if BY_W == CHANNELS else s * BY_W + c
    else:
        r = term // TAPS_W % TAPS_H
        s = term % TAPS_W
        c = term // (TAPS_W * TAPS_H)
        along = s * BY_W
    if LAST:
        down = r * (by_h * UNIT)
    else:
        down = c.to(tl.int64) * (by_c * UNIT) + r * (by_h * UNIT)
    inside = (q < columns) & (term < CHANNELS * TAPS_H * TAPS_W)
    if PADDING_H + PADDING_W > 0:
        h = p * STRIDE_H - PADDING_H + r
        w = q * STRIDE_W - PADDING_W + s
        inside = inside & (h >= 0) & (h < height) & (w >= 0) & (w < width)
    first = (line // rows).to(tl.int64) * (by_n * UNIT) + (p * STRIDE_H - PADDING_H).to(tl.int64) * (by_h * UNIT)
    at = first + (q * (STRIDE_W * BY_W) - PADDING_W * BY_W + (down + along))
    row = (line.to(tl.int64) * columns + q) * PITCH + term
    written = (q < columns) & (term < PITCH)
    tl.store(to_ptr + row, tl.load(from_ptr + at, mask=inside, other=0.0), mask=written)


class WindowRows(NamedTuple):
    """Windows of images [N, C, H, W] as rows of a matrix. last: channels are the inner part of a row, not the outer one."""

    over: tuple[Window, Window]
    channels: int
    places: Ints
    last: bool

    @classmethod
    def of(cls, over: tuple[Window, Window], channels: int, places: Ints, lead: torch.Tensor) -> WindowRows:
        """Those at so many places, terms in the order of `lead`."""
        return cls(over, channels, tuple(places), format_of(lead) == torch.channels_last)

    @property
    def terms(self) -> int:
        """Of a row."""
        return self.channels * prod(w.kernel for w in self.over)

    @property
    def pitch(self) -> int:
        """Elements from row to row: whole sectors."""
        return cdiv(self.terms, SECTOR) * SECTOR

    def matrix(self, x: torch.Tensor) -> torch.Tensor:
        """[places, pitch] of images; the last ones of a row are zero."""
        made = x.new_empty(len(x) * prod(self.places), self.pitch)
        _copying(self, images(x))(made, x)
        return made

    def weight(self, weight: torch.Tensor) -> torch.Tensor:
        """[O, C, R, S] as kernels [O, terms, 1, 1] that the copy engine can read."""
        terms = (weight.permute(0, 2, 3, 1) if self.last else weight).reshape(len(weight), -1, 1, 1)
        return readable(terms)

    def of_weight(self, matrix: torch.Tensor) -> torch.Tensor:
        """The reverse, of [O, terms] and what may be behind them."""
        taps = self.over[0].kernel, self.over[1].kernel
        lines = matrix[:, : self.terms]
        if self.last:
            return lines.reshape(len(lines), *taps, self.channels).permute(0, 3, 1, 2)
        return lines.reshape(len(lines), self.channels, *taps)


@plan
def _copying(p: WindowRows, x: Images) -> Launch:
    """The launch, of a matrix and of images."""
    n, c, height, width = x.shape
    by_n, by_c, by_h, by_w = x.strides
    (down, across), (rows, columns) = p.over, p.places
    unit = gcd(SECTOR, by_n, by_h, 0 if p.last else by_c)
    block_k = min(WIDEST, next_power(p.pitch))
    block_q = min(NUMBERS // block_k, next_power(columns))
    return Launch(
        conv2d_patches_kernel, (n * rows, cdiv(columns, block_q), cdiv(p.pitch, block_k)), by_n // unit,
        by_c // (1 if p.last else unit), by_h // unit, height, width, rows, columns, BY_W=by_w, UNIT=unit, CHANNELS=c,
        TAPS_H=down.kernel, TAPS_W=across.kernel, STRIDE_H=down.stride, STRIDE_W=across.stride, PADDING_H=down.padding,
        PADDING_W=across.padding, PITCH=p.pitch, LAST=p.last, BLOCK_Q=block_q, BLOCK_K=block_k, num_warps=4,
    )  # fmt: skip


def _line(matrix: torch.Tensor) -> Images:
    """Rows [places, channels] as the pixels of one image."""
    places, channels = matrix.shape
    pitch = matrix.stride(0)
    return Images((1, channels, 1, places), (places * pitch, 1, places * pitch, pitch))


def convolution(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Ints, over: tuple[Window, Window]
) -> torch.Tensor:
    """conv2d: images of this shape in the order of x."""
    p = WindowRows.of(over, x.shape[1], shape[2:], x)
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    left, right, of_y = p.matrix(x), p.weight(weight), y.permute(0, 2, 3, 1).view(-1, shape[1])
    seen = _line(left), _line(of_y), images(right)
    problem = ConvolutionProblem(x.get_device(), x.dtype, *seen, (LINE, LINE), bias is not None)
    _specialised.specialised(problem)(of_y, left, right, right, of_y if bias is None else bias)
    return y if p.last else channels_first(y)


def gradient_of_weight(
    grad_out: torch.Tensor, x: torch.Tensor, shape: Ints, over: tuple[Window, Window]
) -> torch.Tensor:
    """grad_weight [O C R S] in the order of x."""
    p = WindowRows.of(over, shape[1], grad_out.shape[2:], x)
    places, right = _places(grad_out), p.matrix(x)
    out = x.new_empty(shape[0], p.pitch)
    kernels = Images((shape[0], p.pitch, 1, 1), (p.pitch, 1, p.pitch, p.pitch))
    seen = _line(right), _line(places), kernels
    problem = ConvolutionProblem(x.get_device(), x.dtype, *seen, (LINE, LINE))
    _specialised_weight.run_on(problem, out, places, right)
    return fresh(p.of_weight(out), format_of(x))


def _places(grad_out: torch.Tensor) -> torch.Tensor:
    """[places, O] and perhaps zeros behind, which the copy engine can read."""
    lines = readable(grad_out).permute(0, 2, 3, 1)
    return lines.reshape(-1, lines.shape[-1])


@dataclass(frozen=True)
class FewChannelsOrContiguous:
    """A copy of the windows takes less time than what is done otherwise: channels are few, but for those that the copy
    engine reads as they are, or images would be copied too, and a weight that is not much smaller.

    images: an operand. times: that they are as large as the weight at most; None: whatever they are. H200, bf16, us, and by
    the other rungs: conv2d 64x3x224x224, 768 of 16 x 16, 41 and 63, the gradient of its weight 46 and 278; of contiguous
    images and 2 x 2: 2x768x28x28, 1536 26 and 47, 8x384x28x28, 768 27 and 32, 32x256x56x56, 512 115 and 91; gradients of
    weights 30 and 82 of the second, 36 and 175 of 32x192x28x28, 384.
    """

    images: str
    times: int | None = TIMES_WEIGHT

    @property
    def text(self) -> str:
        few = f"C <= {MOST_CHANNELS} and no multiple of {SECTOR}, C * R * S >= {SECTOR}"
        size = f" and at most {self.times} times the weight" if self.times else ""
        return f"{few}; or {self.images} contiguous{size}, R * S > 1"

    def check(self, call: Call) -> str | None:
        """None, or why it does not."""
        n, o, c, h, w, r, s = (call.axes[axis] for axis in "NOCHWRS")
        few = c <= MOST_CHANNELS and c % SECTOR > 0 and c * r * s >= SECTOR
        contiguous = format_of(call.arguments[self.images]) == torch.contiguous_format
        large = self.times is None or self.times * o * r * s >= n * h * w
        return None if few or (contiguous and r * s > 1 and large) else f"C = {c}, {r} x {s}, needs {self.text}"


def requires(x: str, more: Condition) -> tuple[Condition, ...]:
    """What a call must meet. x: the name of the images that are read."""
    some: list[Condition] = [*(AtLeast(axis, 1) for axis in "NCOHWPQ"), OneOf("dilation", (1, 1)), SideBySideWindows()]
    return _specialised.requires(x, *some, more)
