"""The convolution as a product of matrices whose left factor the copy engine (TMA) finds in x.

A tile of places is a box of images, rows and columns. The places of x that they meet at one element of the kernels are a
box as well, which the copy engine brings without any arithmetic on addresses; what of it lies in the padding is zero.
With a stride that H and W are multiples of, x [N H/stride stride W/stride stride*C] has such boxes: its phases.
The gradient of x for a stride of 1 is such a product too, with boxes that lie on the other side of their places.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra import cuda

from kernelmux.backends.triton._launch.dependent import following
from kernelmux.backends.triton._launch.hopper import barriers, copy_in, copy_out_wait, ring
from kernelmux.backends.triton._launch.launch import Config, Ints, Launch, Map, cdiv, plan, processors
from kernelmux.backends.triton.conv2d._boxes import box_of, covering, part_of
from kernelmux.backends.triton.conv2d._maps import map_of, map_of_x, strided, turned, walk
from kernelmux.backends.triton.conv2d._order import COPIED, ImageCopy, channels_first, copies, wanted
from kernelmux.backends.triton.conv2d._problem import VECTOR, ConvolutionProblem, images, pixels
from kernelmux.backends.triton.conv2d._spaced import spaced
from kernelmux.backends.triton.conv2d._stores import pieces_of, store_box, store_lines, store_planes
from kernelmux.backends.triton.conv2d._tiles import in_planes, rule
from kernelmux.backends.triton.matmul._blocked import tile_of
from kernelmux.backends.triton.matmul._epilogue import WholeTensor, biased
from kernelmux.registry.conditions import Capability, Condition, Dtypes
from kernelmux.registry.spec import Call
from kernelmux.registry.spec.sliding_windows import InVectors, Window, windows
from kernelmux.registry.util.memory_format import format_of

ALONE = gl.constexpr(64)  # places of a box at most that one multiplier has; of more, each of two has a half
# Registers per thread: the multipliers hold the sums, the loader next to nothing.
MULTIPLIER_REGISTERS = gl.constexpr(240)
LOADER_REGISTERS = gl.constexpr(24)


@dataclass(frozen=True)
class Phases:
    """Where columns have a stride, C is a multiple of `channels`, unless images are copied with more, or pixels that single
    elements meet are images of their own."""

    channels: int

    @property
    def text(self) -> str:
        return f"C a multiple of {self.channels}, or of no {VECTOR}, where stride[1] > 1, but for R = S = 1 with no padding"

    def check(self, call: Call) -> str | None:
        """None, or what is not a multiple."""
        stride, padding, c = *(call.scalars[key] for key in ("stride", "padding")), call.axes["C"]
        single = spaced(windows((call.axes["R"], call.axes["S"]), stride, padding, (1, 1)))
        fits = single or stride[1] == 1 or c % self.channels == 0 or c % VECTOR
        return None if fits else f"C = {c} with stride = {stride}, needs {self.text}"


def requires(x: str, *more: Condition, read: str = "") -> tuple[Condition, ...]:
    """What a call must meet. x: the name of the images that are read. read: axes that are read by whole vectors."""
    dtypes = Dtypes(x, torch.float16, torch.bfloat16)
    return Capability((9, 0), below=(10, 0)), dtypes, *(InVectors(axis, VECTOR, COPIED) for axis in read), *more


@gluon.jit
def place_of(tile, images, rows, columns, out_channels, BOX: gl.constexpr, WIDTH: gl.constexpr, GROUP: gl.constexpr):
    """The first image, row, column and channel of a tile."""
    tiles_h = gl.cdiv(rows, BOX[1])
    tiles_w = gl.cdiv(columns, BOX[2])
    box, tile_o = tile_of(tile, gl.cdiv(images, BOX[0]) * tiles_h * tiles_w, out_channels, 1, WIDTH, GROUP)
    n = box // (tiles_h * tiles_w) * BOX[0]
    return n, box // tiles_w % tiles_h * BOX[1], box % tiles_w * BOX[2], tile_o * WIDTH


@gluon.jit
def copy_box(x_desc, n, p, q, c, h, w, channels, stride_h, stride_w, ready, slot, STRIDED: gl.constexpr):
    """The box of x that the box of places from (n, p, q) on meets h rows and w columns from its first element."""
    if STRIDED:
        at = w % stride_w * channels + c
        copy_in(x_desc, [n, p + h // stride_h, h % stride_h, q + w // stride_w, at], ready, slot)
    else:
        copy_in(x_desc, [n, p + h, q + w, c], ready, slot)


@gluon.jit
def _load(
    x_desc, more, weight_desc, side_desc, x_ring, weight_ring, side_ring, full, empty, tiles, images, rows, columns,
    out_channels, channels, taps_h, taps_w, first_h, first_w, step_h, step_w, lift_h, lift_w, stride_h, stride_w,
    copy: gl.constexpr, FORM: gl.constexpr, TURNED: gl.constexpr, TRANSPOSED: gl.constexpr, BOX: gl.constexpr,
    BLOCK_O: gl.constexpr, SIDE: gl.constexpr, BLOCK_K: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr,
    FOLLOWS: gl.constexpr,
):  # fmt: skip
    if FOLLOWS:
        cuda.gdc_wait()
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
                    p0 = p - lift_h
                    q0 = q - lift_w
                    to = x_ring.index(slot)
                    if TURNED:
                        copy_in(x_desc, [n, c, q], ready, to)
                    else:
                        copy(x_desc, n, p0, q0, c, h, w, channels, stride_h, stride_w, ready, to, FORM, *more)
                    outer = c if TRANSPOSED else o
                    copy_in(weight_desc, [outer, r, s, o if TRANSPOSED else c], ready, weight_ring.index(slot))
                    if SIDE:
                        outer = c if TRANSPOSED else o + BLOCK_O
                        inner = o + BLOCK_O if TRANSPOSED else c
                        copy_in(side_desc, [outer, r, s, inner], ready, side_ring.index(slot))
                    step += 1


@gluon.jit
def _multiply(
    y, bias_ptr, x_ring, weight_ring, side_ring, y_piece, full, empty, tiles, steps, images, rows, columns, out_channels,
    PART: gl.constexpr, TURNED: gl.constexpr, TRANSPOSED: gl.constexpr, BIAS: gl.constexpr, PLANES: gl.constexpr,
    UNIT: gl.constexpr, BOX: gl.constexpr, BLOCK_O: gl.constexpr, SIDE: gl.constexpr, BLOCK_K: gl.constexpr,
    GROUP: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The places from PART * PLACES on of each box, which are a box of y as large as y_piece."""
    HELD: gl.constexpr = BOX[0] * BOX[1] * BOX[2]
    PLACES: gl.constexpr = HELD if HELD <= ALONE else HELD // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_O, 16])
    side_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SIDE if SIDE else BLOCK_O, 16])
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        # [PLACES, BLOCK_O], and [PLACES, SIDE] right of it
        acc = gl.zeros([PLACES, BLOCK_O], gl.float32, layout)
        if SIDE:
            beside = gl.zeros([PLACES, SIDE], gl.float32, side_layout)
        for k in range(steps):
            slot = step % STAGES
            mbarrier.wait(full.index(slot), (step // STAGES) & 1)
            x = places_by_terms(x_ring.index(slot), HELD, BLOCK_K, TURNED).slice(PART * PLACES, PLACES, 0)
            acc = warpgroup_mma(x, _terms_by_channels(weight_ring.index(slot), TRANSPOSED), acc, is_async=True)
            # The product of the step before is done, so its slot may be filled again.
            if SIDE:
                beside = warpgroup_mma(x, _terms_by_channels(side_ring.index(slot), TRANSPOSED), beside, is_async=True)
                acc, beside = warpgroup_mma_wait(2, deps=[acc, beside])
            else:
                acc = warpgroup_mma_wait(1, deps=[acc])
            mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), pred=k > 0)
            step += 1
        if SIDE:
            acc, beside = warpgroup_mma_wait(0, deps=[acc, beside])
        else:
            acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES))

        n, p, q, o = place_of(tile, images, rows, columns, out_channels, BOX, BLOCK_O + SIDE, GROUP)
        acc = biased(acc, bias_ptr, o + gl.arange(0, BLOCK_O, layout=gl.SliceLayout(0, layout)), out_channels, BIAS)
        if SIDE:
            at = o + BLOCK_O + gl.arange(0, SIDE, layout=gl.SliceLayout(0, side_layout))
            beside = biased(beside, bias_ptr, at, out_channels, BIAS)
        if PLANES:
            store_planes(y, n, p, q, o, acc, images, rows, columns, out_channels, PART, BOX, UNIT)
            if SIDE:
                store_planes(y, n, p, q, o + BLOCK_O, beside, images, rows, columns, out_channels, PART, BOX, UNIT)
        elif UNIT:
            store_lines(y, n, p, q, o, acc, y_piece, images, rows, columns, out_channels, 0, 0, 1, 1, PART, BOX, UNIT)
            if SIDE:
                store_lines(
                    y, n, p, q, o + BLOCK_O, beside, y_piece, images, rows, columns, out_channels, 0, 0, 1, 1,
                    PART, BOX, UNIT,
                )  # fmt: skip
        else:
            n += 0 if y_piece.shape[0] == BOX[0] else PART * y_piece.shape[0]
            p += 0 if y_piece.shape[1] == BOX[1] else PART * y_piece.shape[1]
            q += 0 if y_piece.shape[2] == BOX[2] else PART * y_piece.shape[2]
            store_box(y, n, p, q, o, acc, y_piece)
            if SIDE:
                store_box(y, n, p, q, o + BLOCK_O, beside, y_piece)
    copy_out_wait(0)


@gluon.jit
def places_by_terms(x, PLACES: gl.constexpr, BLOCK_K: gl.constexpr, TURNED: gl.constexpr):
    """A box of x as [PLACES, BLOCK_K]."""
    if TURNED:
        found = x.reshape([BLOCK_K, PLACES]).permute((1, 0))
    else:
        found = x.reshape([PLACES, BLOCK_K])
    return found


@gluon.jit
def _terms_by_channels(weight, TRANSPOSED: gl.constexpr):
    """A box of kernels as [BLOCK_K, channels]."""
    if TRANSPOSED:
        found = weight.reshape([weight.shape[0], weight.shape[3]])
    else:
        found = weight.reshape([weight.shape[0], weight.shape[3]]).permute((1, 0))
    return found


@gluon.jit
def convolve(
    y, x_desc, more, weight_desc, side_desc, bias_ptr, images, rows, columns, out_channels, channels, taps_h, taps_w,
    first_h, first_w, step_h, step_w, lift_h, lift_w, stride_h, stride_w,
    copy: gl.constexpr, FORM: gl.constexpr, TURNED: gl.constexpr, TRANSPOSED: gl.constexpr, BIAS: gl.constexpr,
    PLANES: gl.constexpr, UNIT: gl.constexpr, BOX: gl.constexpr, BLOCK_O: gl.constexpr, SIDE: gl.constexpr,
    BLOCK_K: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr, FOLLOWS: gl.constexpr,
):  # fmt: skip
    """What conv2d_specialised_kernel does, with any way to x. copy(x_desc, n, p, q, c, h, w, channels, stride_h, stride_w,
    ready, slot, FORM, *more) brings a box of x, as `copy_box`, whose FORM is STRIDED. x_desc has the block of all boxes."""
    HELD: gl.constexpr = BOX[0] * BOX[1] * BOX[2]
    PARTS: gl.constexpr = 1 if HELD <= ALONE else 2
    boxes = gl.cdiv(images, BOX[0]) * gl.cdiv(rows, BOX[1]) * gl.cdiv(columns, BOX[2])
    tiles = boxes * gl.cdiv(out_channels, BLOCK_O + SIDE)
    steps = taps_h * taps_w * gl.cdiv(channels, BLOCK_K)
    x_ring = ring(x_desc, STAGES)
    weight_ring = ring(weight_desc, STAGES)
    side_ring = ring(side_desc, STAGES) if SIDE else weight_ring
    full = barriers(STAGES, 1)
    empty = barriers(STAGES, PARTS)
    PIECE: gl.constexpr = BLOCK_O // 4 if SIDE * 4 == BLOCK_O else BLOCK_O // 2  # the side is one too
    y_pieces = empty if PLANES else pieces_of(y, PARTS, HELD // PARTS, PIECE, UNIT)
    if PARTS == 1:
        gl.warp_specialize(
            [
                (_multiply, (y, bias_ptr, x_ring, weight_ring, side_ring, y_pieces.index(0), full, empty, tiles, steps,
                             images, rows, columns, out_channels, 0, TURNED, TRANSPOSED, BIAS, PLANES, UNIT, BOX, BLOCK_O,
                             SIDE, BLOCK_K, GROUP, STAGES)),
                (_load, (x_desc, more, weight_desc, side_desc, x_ring, weight_ring, side_ring, full, empty, tiles,
                         images, rows, columns, out_channels, channels, taps_h, taps_w, first_h, first_w,
                         step_h, step_w, lift_h, lift_w, stride_h, stride_w, copy, FORM, TURNED, TRANSPOSED,
                         BOX, BLOCK_O, SIDE, BLOCK_K, GROUP, STAGES, FOLLOWS)),
            ],
            [1],
            [LOADER_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (y, bias_ptr, x_ring, weight_ring, side_ring, y_pieces.index(0), full, empty, tiles, steps,
                             images, rows, columns, out_channels, 0, TURNED, TRANSPOSED, BIAS, PLANES, UNIT, BOX, BLOCK_O,
                             SIDE, BLOCK_K, GROUP, STAGES)),
                (_multiply, (y, bias_ptr, x_ring, weight_ring, side_ring, y_pieces.index(1), full, empty, tiles, steps,
                             images, rows, columns, out_channels, 1, TURNED, TRANSPOSED, BIAS, PLANES, UNIT, BOX, BLOCK_O,
                             SIDE, BLOCK_K, GROUP, STAGES)),
                (_load, (x_desc, more, weight_desc, side_desc, x_ring, weight_ring, side_ring, full, empty, tiles,
                         images, rows, columns, out_channels, channels, taps_h, taps_w, first_h, first_w,
                         step_h, step_w, lift_h, lift_w, stride_h, stride_w, copy, FORM, TURNED, TRANSPOSED,
                         BOX, BLOCK_O, SIDE, BLOCK_K, GROUP, STAGES, FOLLOWS)),
            ],
            [4, 1],
            [MULTIPLIER_REGISTERS, LOADER_REGISTERS],
        )  # fmt: skip


@gluon.jit(do_not_specialize=range(5, 20))
def conv2d_specialised_kernel(
    y, x_desc, weight_desc, side_desc, bias_ptr, images, rows, columns, out_channels, channels, taps_h, taps_w,
    first_h, first_w, step_h, step_w, lift_h, lift_w, stride_h, stride_w,
    STRIDED: gl.constexpr, TURNED: gl.constexpr, TRANSPOSED: gl.constexpr, BIAS: gl.constexpr, PLANES: gl.constexpr,
    UNIT: gl.constexpr, BOX: gl.constexpr, BLOCK_O: gl.constexpr, SIDE: gl.constexpr, BLOCK_K: gl.constexpr,
    GROUP: gl.constexpr, STAGES: gl.constexpr, FOLLOWS: gl.constexpr = False,
):  # fmt: skip
    """x [N H W C], or its phases if STRIDED, weight [O R S C], or [C R S O] if TRANSPOSED, y [N rows columns O]. From the
    first place the element (0, 0) of a kernel meets x at first - lift * stride, and others steps from there. y comes as a
    descriptor, or as a pointer with the UNIT of `store_lines`, or if it is PLANES [N O rows columns] with that of
    `store_planes`. TURNED: x is [N C columns]. FOLLOWS: the launch before is still to end."""
    convolve(
        y, x_desc, (), weight_desc, side_desc, bias_ptr, images, rows, columns, out_channels, channels, taps_h, taps_w,
        first_h, first_w, step_h, step_w, lift_h, lift_w, stride_h, stride_w, copy_box, STRIDED, TURNED, TRANSPOSED, BIAS,
        PLANES, UNIT, BOX, BLOCK_O, SIDE, BLOCK_K, GROUP, STAGES, FOLLOWS,
    )  # fmt: skip


@plan
def specialised(p: ConvolutionProblem, transposed: bool = False, after: bool = False) -> Launch:
    """The launch, of y, x, weight and bias. transposed: y are the images that x are the convolution of. after: the launch
    before makes a copy that this one reads, so that this one begins before that has ended."""
    return launch_of(p, transposed, rule(p), after)


def launch_of(p: ConvolutionProblem, transposed: bool, tile: Config, after: bool = False) -> Launch:
    """That with a given tile. y: channels-last, or planes where another stride than that of channels is 1."""
    config = {**tile, "BOX": tile.get("BOX") or box_of(tile["PLACES"], p.lengths)}
    return launch_by(
        conv2d_specialised_kernel, p, config, [map_of_x(p, config["BOX"], config["BLOCK_K"])], transposed=transposed,
        STRIDED=strided(p), TURNED=turned(p), TRANSPOSED=transposed, PLANES=p.y.strides[1] != 1,
        **(following(p.device) if after else {}),
    )  # fmt: skip


def launch_by(
    kernel: Any, p: ConvolutionProblem, tile: Config, maps_of_x: list[Map], *numbers: int, transposed: bool = False,
    **forms: Any,
) -> Launch:  # fmt: skip
    """Of a kernel that calls `convolve`, of y, x for each of these maps, weight twice, and bias. numbers, forms: what it
    takes besides, numbers behind those of the problem."""
    config = dict(tile)
    out_channels, (_, channels, *taps) = p.y.shape[1], p.weight.shape
    places, box, block_o, block_k = config.pop("PLACES"), config["BOX"], config["BLOCK_O"], config["BLOCK_K"]
    side, lines = config["SIDE"], gcd(out_channels, VECTOR) % VECTOR  # 0 where boxes are written
    unit = gcd(p.lengths[2], box[2], VECTOR) if forms.get("PLANES") else lines
    piece = block_o // 4 if side * 4 == block_o else block_o // 2
    maps: tuple[Any, ...] = (
        WholeTensor() if unit else map_of(p.y, (*part_of(box, 1 if places <= ALONE.value else 2), piece), p.dtype),
        *maps_of_x,
        *(
            map_of(p.weight, (block_k, 1, 1, o) if transposed else (o, 1, 1, block_k), p.dtype, transposed)
            for o in (block_o, side or block_o)
        ),
        WholeTensor(),
    )
    tiles = covering(box, p.lengths) * cdiv(out_channels, block_o + side)
    return Launch(
        kernel, (min(processors(p.device), tiles),), *p.lengths, out_channels, channels, *taps, *walk(p, transposed),
        *numbers, maps=maps, BIAS=p.bias, UNIT=unit, GROUP=8, num_warps=4, **config, **forms,
    )  # fmt: skip


def convolution(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Ints, over: tuple[Window, Window],
    transposed: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Images of this shape in the order of x, which is read as channels-last ones."""
    to = wanted(x, over[1].stride > 1, prod(weight.shape[2:]) > 1, over)
    return by_copy(x, to, weight, bias, shape, over, format_of(x), transposed)


def by_copy(
    x: torch.Tensor, to: ImageCopy | None, weight: torch.Tensor, bias: torch.Tensor | None, shape: Ints,
    over: tuple[Window, Window], order: torch.memory_format, transposed: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Images of this shape in this order. to: the copy of x."""
    if not prod(shape):
        return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=order)
    wide = wanted(weight, again=prod(weight.shape[2:]) > 1 and not transposed)
    left, right = copies((x, to), (weight, wide))
    kernels = images(right.transpose(0, 1) if transposed else right)
    p = ConvolutionProblem(x.get_device(), x.dtype, images(left), pixels(shape), kernels, over, bias is not None)
    return result(p, left, right, bias, order, transposed, left is not x or right is not weight)


def result(
    p: ConvolutionProblem, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, order: torch.memory_format,
    transposed: bool = False, after: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Images in this order, which leave the kernel so if that takes less time than a pass that turns them."""
    found = in_planes(p) if order == torch.contiguous_format else None
    made = torch.contiguous_format if found else torch.channels_last
    y = torch.empty(p.y.shape, dtype=x.dtype, device=x.device, memory_format=made)
    specialised(found or p.in_line, transposed, after)(y, x, weight, weight, y if bias is None else bias)
    return y if found or order == torch.channels_last else channels_first(y)
