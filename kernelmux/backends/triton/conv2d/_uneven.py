"""`_specialised` on images whose rows or columns are no whole numbers of strides, read where they lie.

Of H rows the first H % stride phases have one row more than the others, and of W columns as well. So there is a map of x
for the phases with as many rows and columns as all have, one for those with a row more, one for those with a column more,
and one for those with both; each element of the kernels meets one of these. A copy of x with whole numbers of strides,
which `_specialised` needs, takes as long as the product: H200, us, fp16, 64 of 3x3, stride 2, on 24x64x112x243: 44.6, with
the copy 90.7, cuDNN 73.2; 512 of 1x1 on 32x256x57x57: 28.3, 55.9 and 56.9.
"""

from __future__ import annotations

from math import prod

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernelmux.backends.triton._launch.hopper import copy_in
from kernelmux.backends.triton._launch.launch import Ints, Launch, Map, cdiv, plan
from kernelmux.backends.triton.conv2d import _specialised
from kernelmux.backends.triton.conv2d._maps import phases_of
from kernelmux.backends.triton.conv2d._order import SECTOR, ImageCopy, channels_first, copies, wanted
from kernelmux.backends.triton.conv2d._problem import ConvolutionProblem, images, pixels
from kernelmux.backends.triton.conv2d._spaced import SINGLES, met, spaced
from kernelmux.backends.triton.conv2d._specialised import convolve, launch_by
from kernelmux.backends.triton.conv2d._tiles import rule
from kernelmux.registry.spec.sliding_windows import Window
from kernelmux.registry.util.memory_format import format_of


@gluon.jit
def _copy_columns(even, odd, at, column, more, ready, slot, ODD: gl.constexpr):
    """From odd, which has a column more than even, where this phase of columns is one of the first `more`."""
    if ODD:
        if column < more:
            copy_in(odd, at, ready, slot)
        else:
            copy_in(even, at, ready, slot)
    else:
        copy_in(even, at, ready, slot)


@gluon.jit
def _copy(
    x, n, p, q, c, h, w, channels, stride_h, stride_w, ready, slot,
    ODD: gl.constexpr, more_columns, more_rows, more_both, more_h, more_w,
):  # fmt: skip
    """As `copy_box` with STRIDED, from the map that has this phase."""
    row = h % stride_h
    column = w % stride_w
    at = [n, p + h // stride_h, row, q + w // stride_w, column * channels + c]
    if ODD[0]:
        if row < more_h:
            _copy_columns(more_rows, more_both, at, column, more_w, ready, slot, ODD[1])
        else:
            _copy_columns(x, more_columns, at, column, more_w, ready, slot, ODD[1])
    else:
        _copy_columns(x, more_columns, at, column, more_w, ready, slot, ODD[1])


@gluon.jit(do_not_specialize=range(8, 25))
def conv2d_uneven_kernel(
    y, x, more_columns, more_rows, more_both, weight_desc, side_desc, bias_ptr,
    images, rows, columns, out_channels, channels, taps_h, taps_w,
    first_h, first_w, step_h, step_w, lift_h, lift_w, stride_h, stride_w, more_h, more_w,
    ODD: gl.constexpr, BIAS: gl.constexpr, UNIT: gl.constexpr, BOX: gl.constexpr, BLOCK_O: gl.constexpr,
    SIDE: gl.constexpr, BLOCK_K: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """As conv2d_specialised_kernel with STRIDED. x: all phases, in as many rows and columns as each has; of those with more
    there are the first more_h of rows, if ODD[0], and the first more_w of columns, if ODD[1]."""
    convolve(
        y, x, (more_columns, more_rows, more_both, more_h, more_w), weight_desc, side_desc, bias_ptr,
        images, rows, columns, out_channels, channels, taps_h, taps_w,
        first_h, first_w, step_h, step_w, lift_h, lift_w, stride_h, stride_w, _copy, ODD, False, False, BIAS,
        False, UNIT, BOX, BLOCK_O, SIDE, BLOCK_K, GROUP, STAGES, False,
    )  # fmt: skip


def _maps(p: ConvolutionProblem, box: Ints, block_k: int) -> list[Map]:
    """x as [N rows phases columns phases*C]: of the rows and columns that all phases have, with a column more, a row more,
    and both."""
    sides = [(n // w.stride + 1, n % w.stride) for n, w in zip(p.x.shape[2:], p.windows, strict=True)]
    # A phase up to which there are some more, and of how many; None: of all.
    rows, columns = ((None, (more - 1, longest) if more else None) for longest, more in sides)
    return [phases_of(p, (*box, block_k), r, q) for r in rows for q in columns]


@plan
def uneven(p: ConvolutionProblem) -> Launch:
    """The launch, of y, four times x, twice weight, and bias."""
    tile = rule(p)
    more = [n % w.stride for n, w in zip(p.x.shape[2:], p.windows, strict=True)]
    maps = _maps(p, tile["BOX"], tile["BLOCK_K"])
    return launch_by(conv2d_uneven_kernel, p, tile, maps, *more, ODD=(more[0] > 0, more[1] > 0))


def mapped(x: torch.Tensor, over: tuple[Window, Window]) -> bool:
    """Whether x has rows or columns that are no whole numbers of strides, and a map of each phase."""
    sides = [(n, window.stride) for n, window in zip(x.shape[2:], over, strict=True)]
    # Of fewer rows than strides some phases have none, of which there are no maps.
    return any(n % stride for n, stride in sides) and all(n >= stride for n, stride in sides)


def convolution(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Ints, over: tuple[Window, Window]
) -> torch.Tensor:
    """As `_specialised` has it, by which all other images go, and those that the copy engine cannot read anyway. Of these,
    and of those whose phases it cannot read (`Phases`), only the pixels that are met by single elements."""
    uneven, again, order = prod(shape) > 0 and mapped(x, over), prod(weight.shape[2:]) > 1, format_of(x)
    to = wanted(x, over[1].stride > 1, again, None if uneven else over)
    if spaced(over) and (to or x.shape[1] % SECTOR):
        x, over = met(x, over), SINGLES
        to = wanted(x)
    elif uneven and to is None:
        return _where_they_lie(x, copies((weight, wanted(weight, again=again)))[0], bias, shape, over)
    elif uneven and to:
        rows, columns = (cdiv(n, w.stride) * w.stride for n, w in zip(x.shape[2:], over, strict=True))
        to = ImageCopy(rows, columns, to.channels)
    return _specialised.by_copy(x, to, weight, bias, shape, over, order)


def _where_they_lie(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Ints, over: tuple[Window, Window]
) -> torch.Tensor:
    p = ConvolutionProblem(x.get_device(), x.dtype, images(x), pixels(shape), images(weight), over, bias is not None)
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    uneven(p)(y, x, x, x, x, weight, weight, y if bias is None else bias)
    return y if format_of(x) == torch.channels_last else channels_first(y)
