"""`_specialised` on images whose rows or columns are no whole numbers of strides, read where they lie.

Of H rows the first H % stride phases have one row more than the others, and of W columns as well. So there is a map of x
for the phases with as many rows and columns as all have, one for those with a row more, one for those with a column more,
and one for those with both; each element of the kernels meets one of these. A copy of x with whole numbers of strides,
which `_specialised` needs, takes as long as the product: H200, us, fp16, 64 of 3x3, stride 2, on 24x64x112x243: 44.6, with
the copy 90.7, cuDNN 73.2; 512 of 1x1 on 32x256x57x57: 28.3, 55.9 and 56.9.
"""

from __future__ import annotations

from math import gcd, prod
from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from kernelmux.backends.triton._launch.hopper import barriers, copy_in, ring
from kernelmux.backends.triton._launch.launch import Ints, Launch, Map, cdiv, plan, processors
from kernelmux.backends.triton.conv2d import _specialised
from kernelmux.backends.triton.conv2d._boxes import covering, part_of
from kernelmux.backends.triton.conv2d._maps import layout_of, map_of, walk
from kernelmux.backends.triton.conv2d._order import channels_first, copies, wanted
from kernelmux.backends.triton.conv2d._problem import VECTOR, ConvolutionProblem, images, pixels
from kernelmux.backends.triton.conv2d._specialised import (
    ALONE,
    LOADER_REGISTERS,
    MULTIPLIER_REGISTERS,
    _multiply,
    place_of,
)
from kernelmux.backends.triton.conv2d._stores import pieces_of
from kernelmux.backends.triton.conv2d._tiles import rule
from kernelmux.backends.triton.matmul._epilogue import WholeTensor
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
def _load(
    x, more_columns, more_rows, more_both, weight_desc, side_desc, x_ring, weight_ring, side_ring, full, empty, tiles,
    images, rows, columns, out_channels, channels, taps_h, taps_w, first_h, first_w, step_h, step_w, lift_h, lift_w,
    stride_h, stride_w, more_h, more_w, ODD_H: gl.constexpr, ODD_W: gl.constexpr, BOX: gl.constexpr,
    BLOCK_O: gl.constexpr, SIDE: gl.constexpr, BLOCK_K: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        n, p, q, o = place_of(tile, images, rows, columns, out_channels, BOX, BLOCK_O + SIDE, GROUP)
        for r in range(taps_h):
            h = first_h + r * step_h
            for s in range(taps_w):
                w = first_w + s * step_w
                for c in range(0, channels, BLOCK_K):
                    slot = step % STAGES
                    mbarrier.wait(empty.index(slot), (step // STAGES + 1) & 1)
                    ready = full.index(slot)
                    mbarrier.expect(ready, (BOX[0] * BOX[1] * BOX[2] + BLOCK_O + SIDE) * BLOCK_K * 2)
                    to = x_ring.index(slot)
                    row = h % stride_h
                    column = w % stride_w
                    at = [n, p - lift_h + h // stride_h, row, q - lift_w + w // stride_w, column * channels + c]
                    if ODD_H:
                        if row < more_h:
                            _copy_columns(more_rows, more_both, at, column, more_w, ready, to, ODD_W)
                        else:
                            _copy_columns(x, more_columns, at, column, more_w, ready, to, ODD_W)
                    else:
                        _copy_columns(x, more_columns, at, column, more_w, ready, to, ODD_W)
                    copy_in(weight_desc, [o, r, s, c], ready, weight_ring.index(slot))
                    if SIDE:
                        copy_in(side_desc, [o + BLOCK_O, r, s, c], ready, side_ring.index(slot))
                    step += 1


@gluon.jit(do_not_specialize=range(8, 25))
def conv2d_uneven_kernel(
    y, x, more_columns, more_rows, more_both, weight_desc, side_desc, bias_ptr,
    images, rows, columns, out_channels, channels, taps_h, taps_w,
    first_h, first_w, step_h, step_w, lift_h, lift_w, stride_h, stride_w, more_h, more_w,
    ODD_H: gl.constexpr, ODD_W: gl.constexpr, BIAS: gl.constexpr, UNIT: gl.constexpr, BOX: gl.constexpr,
    BLOCK_O: gl.constexpr, SIDE: gl.constexpr, BLOCK_K: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """As conv2d_specialised_kernel with STRIDED. x: all phases, in as many rows and columns as each has; of those with more
    there are the first more_h of rows, if ODD_H, and the first more_w of columns, if ODD_W."""
    HELD: gl.constexpr = BOX[0] * BOX[1] * BOX[2]
    PARTS: gl.constexpr = 1 if HELD <= ALONE else 2
    boxes = gl.cdiv(images, BOX[0]) * gl.cdiv(rows, BOX[1]) * gl.cdiv(columns, BOX[2])
    tiles = boxes * gl.cdiv(out_channels, BLOCK_O + SIDE)
    steps = taps_h * taps_w * gl.cdiv(channels, BLOCK_K)
    x_ring = ring(x, STAGES)
    weight_ring = ring(weight_desc, STAGES)
    side_ring = ring(side_desc, STAGES) if SIDE else weight_ring
    full = barriers(STAGES, 1)
    empty = barriers(STAGES, PARTS)
    PIECE: gl.constexpr = BLOCK_O // 4 if SIDE * 4 == BLOCK_O else BLOCK_O // 2  # the side is one too
    y_pieces = pieces_of(y, PARTS, HELD // PARTS, PIECE, UNIT)
    if PARTS == 1:
        gl.warp_specialize(
            [
                (_multiply, (y, bias_ptr, x_ring, weight_ring, side_ring, y_pieces.index(0), full, empty, tiles, steps,
                             images, rows, columns, out_channels, 0, False, False, BIAS, False, UNIT, BOX, BLOCK_O,
                             SIDE, BLOCK_K, GROUP, STAGES)),
                (_load, (x, more_columns, more_rows, more_both, weight_desc, side_desc, x_ring, weight_ring, side_ring,
                         full, empty, tiles, images, rows, columns, out_channels, channels, taps_h, taps_w,
                         first_h, first_w, step_h, step_w, lift_h, lift_w, stride_h, stride_w, more_h, more_w,
                         ODD_H, ODD_W, BOX, BLOCK_O, SIDE, BLOCK_K, GROUP, STAGES)),
            ],
            [1],
            [LOADER_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (y, bias_ptr, x_ring, weight_ring, side_ring, y_pieces.index(0), full, empty, tiles, steps,
                             images, rows, columns, out_channels, 0, False, False, BIAS, False, UNIT, BOX, BLOCK_O,
                             SIDE, BLOCK_K, GROUP, STAGES)),
                (_multiply, (y, bias_ptr, x_ring, weight_ring, side_ring, y_pieces.index(1), full, empty, tiles, steps,
                             images, rows, columns, out_channels, 1, False, False, BIAS, False, UNIT, BOX, BLOCK_O,
                             SIDE, BLOCK_K, GROUP, STAGES)),
                (_load, (x, more_columns, more_rows, more_both, weight_desc, side_desc, x_ring, weight_ring, side_ring,
                         full, empty, tiles, images, rows, columns, out_channels, channels, taps_h, taps_w,
                         first_h, first_w, step_h, step_w, lift_h, lift_w, stride_h, stride_w, more_h, more_w,
                         ODD_H, ODD_W, BOX, BLOCK_O, SIDE, BLOCK_K, GROUP, STAGES)),
            ],
            [4, 1],
            [MULTIPLIER_REGISTERS, LOADER_REGISTERS],
        )  # fmt: skip


def _maps(p: ConvolutionProblem, box: Ints, block_k: int) -> list[Map]:
    """x as [N rows phases columns phases*C]: of the rows and columns that all phases have, with a column more, a row more,
    and both."""
    (n, c, h, w), (along_n, _, along_h, along_w) = p.x.shape, p.x.strides
    down, across = (window.stride for window in p.windows)
    block = (*box[:2], 1, box[2], block_k)
    strides = (along_n, down * along_h, along_h, across * along_w)

    def map_of_phases(rows: Ints, columns: Ints) -> Map:
        shape = (n, *rows, *columns)
        apart = (s if length > 1 else VECTOR for s, length in zip(strides, shape, strict=False))
        return Map(shape, (*apart, 1), block, layout_of(block, p.dtype))

    all_h, all_w = (h // down, down), (w // across, across * c)
    more_h = (h // down + 1, h % down) if h % down else all_h
    more_w = (w // across + 1, w % across * c) if w % across else all_w
    return [map_of_phases(rows, columns) for rows in (all_h, more_h) for columns in (all_w, more_w)]


@plan
def uneven(p: ConvolutionProblem) -> Launch:
    """The launch, of y, four times x, twice weight, and bias."""
    config = rule(p)
    out_channels, (_, channels, *taps) = p.y.shape[1], p.weight.shape
    places, block_o, block_k = config.pop("PLACES"), config["BLOCK_O"], config["BLOCK_K"]
    box, side = config.pop("BOX"), config["SIDE"]
    unit = gcd(out_channels, VECTOR) % VECTOR  # 0 where boxes are written
    piece = block_o // 4 if side * 4 == block_o else block_o // 2
    maps: tuple[Any, ...] = (
        WholeTensor() if unit else map_of(p.y, (*part_of(box, 1 if places <= ALONE.value else 2), piece), p.dtype),
        *_maps(p, box, block_k),
        *(map_of(p.weight, (o, 1, 1, block_k), p.dtype) for o in (block_o, side or block_o)),
        WholeTensor(),
    )
    tiles = covering(box, p.lengths) * cdiv(out_channels, block_o + side)
    more = [n % w.stride for n, w in zip(p.x.shape[2:], p.windows, strict=True)]
    return Launch(
        conv2d_uneven_kernel, (min(processors(p.device), tiles),), *p.lengths, out_channels, channels, *taps,
        *walk(p), *more, maps=maps, ODD_H=more[0] > 0, ODD_W=more[1] > 0, BIAS=p.bias, UNIT=unit, BOX=box, GROUP=8,
        num_warps=4, **config,
    )  # fmt: skip


def mapped(x: torch.Tensor, over: tuple[Window, Window], again: bool) -> bool:
    """Whether only rows and columns that are no whole numbers of strides keep `_specialised` from reading x itself."""
    sides = [(n, window.stride) for n, window in zip(x.shape[2:], over, strict=True)]
    if not any(n % stride for n, stride in sides) or any(n < stride for n, stride in sides):
        return False  # of fewer rows than strides some phases have none, of which there are no maps
    return wanted(x, over[1].stride > 1, again) is None


def convolution(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Ints, over: tuple[Window, Window]
) -> torch.Tensor:
    """As `_specialised` has it, by which all other images go."""
    again = prod(weight.shape[2:]) > 1
    if not prod(shape) or not mapped(x, over, again):
        return _specialised.convolution(x, weight, bias, shape, over)
    right = copies((weight, wanted(weight, again=again)))[0]
    p = ConvolutionProblem(x.get_device(), x.dtype, images(x), pixels(shape), images(right), over, bias is not None)
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    uneven(p)(y, x, x, x, x, right, right, y if bias is None else bias)
    return y if format_of(x) == torch.channels_last else channels_first(y)
