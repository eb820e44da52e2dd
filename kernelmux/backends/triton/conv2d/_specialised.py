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

from kernelmux.backends.triton._launch.hopper import barriers, copy_in, copy_out_wait, ring
from kernelmux.backends.triton._launch.launch import Config, Ints, Launch, Map, cdiv, plan, processors
from kernelmux.backends.triton.conv2d._boxes import box_of, covering, part_of
from kernelmux.backends.triton.conv2d._order import channels_first, channels_last, copied, padded
from kernelmux.backends.triton.conv2d._problem import VECTOR, ConvolutionProblem, Images, images
from kernelmux.backends.triton.conv2d._stores import halves, store_box, store_lines
from kernelmux.backends.triton.matmul._blocked import tile_of
from kernelmux.backends.triton.matmul._epilogue import WholeTensor, biased
from kernelmux.registry.conditions import Capability, Condition, Dtypes
from kernelmux.registry.spec import Call
from kernelmux.registry.spec.sliding_windows import InVectors, Window
from kernelmux.registry.util.memory_format import format_of

ALONE = gl.constexpr(64)  # places of a box at most that one multiplier has; of more, each of two has a half
# Registers per thread: the multipliers hold the sums, the loader next to nothing.
MULTIPLIER_REGISTERS = gl.constexpr(240)
LOADER_REGISTERS = gl.constexpr(24)
# Places and channels, and products per microsecond of one SM: H200, fp16, 32x256x56x56 by 256x256x3x3. Of tiles of 192 and
# 96 channels, and of 256 places, bf16: 16x96x57x57 by 192x96x5x5 takes 101 us with 128 x 192, 168 with 128 x 256, its
# gradient 111 with 256 x 96, 124 with 128 x 96, 138 with 128 x 128; 8x320x64x64 by 320x320x3x3 102 with 256 x 128, 128 with
# 128 x 128.
TILES = (
    (128, 256, 2.9e6),
    (128, 192, 2.75e6),
    (128, 128, 2.75e6),
    (256, 128, 2.85e6),
    (256, 96, 2.3e6),
    (64, 256, 2.7e6),
    (64, 128, 2.15e6),
    (128, 96, 2.1e6),
    (128, 64, 1.7e6),
    (64, 64, 1.55e6),
    (128, 32, 1.0e6),
)
RING = 192 * 1024  # bytes of shared memory
SECTOR = 2 * VECTOR  # elements of 32 bytes, which L2 reads at once
WIDE = 64  # channels at most that a box brings, of which those of a copy are a multiple
COPIED = 33  # channels from which on images are copied with some more; below, a fold of them has fewer terms


@dataclass(frozen=True)
class Phases:
    """Where columns have a stride, C is a multiple of `channels`, unless images are copied with more."""

    channels: int

    @property
    def text(self) -> str:
        return f"C a multiple of {self.channels}, or of no {VECTOR}, where stride[1] > 1"

    def check(self, call: Call) -> str | None:
        """None, or what is not a multiple."""
        stride, c = call.scalars["stride"], call.axes["C"]
        fits = stride[1] == 1 or c % self.channels == 0 or c % VECTOR
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
    x_desc, weight_desc, side_desc, x_ring, weight_ring, side_ring, full, empty, tiles, images, rows, columns,
    out_channels, channels, taps_h, taps_w, first_h, first_w, step_h, step_w, lift_h, lift_w, stride_h, stride_w,
    STRIDED: gl.constexpr, TRANSPOSED: gl.constexpr, BOX: gl.constexpr, BLOCK_O: gl.constexpr, SIDE: gl.constexpr,
    BLOCK_K: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr,
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
                    p0 = p - lift_h
                    q0 = q - lift_w
                    to = x_ring.index(slot)
                    copy_box(x_desc, n, p0, q0, c, h, w, channels, stride_h, stride_w, ready, to, STRIDED)
                    outer = c if TRANSPOSED else o
                    copy_in(weight_desc, [outer, r, s, o if TRANSPOSED else c], ready, weight_ring.index(slot))
                    if SIDE:
                        outer = c if TRANSPOSED else o + BLOCK_O
                        inner = o + BLOCK_O if TRANSPOSED else c
                        copy_in(side_desc, [outer, r, s, inner], ready, side_ring.index(slot))
                    step += 1


@gluon.jit
def _multiply(
    y, bias_ptr, x_ring, weight_ring, side_ring, y_half, full, empty, tiles, steps, images, rows, columns, out_channels,
    PART: gl.constexpr, TRANSPOSED: gl.constexpr, BIAS: gl.constexpr, UNIT: gl.constexpr, BOX: gl.constexpr,
    BLOCK_O: gl.constexpr, SIDE: gl.constexpr, BLOCK_K: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The places from PART * PLACES on of each box, which are a box of y as large as y_half."""
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
            x = x_ring.index(slot).reshape([HELD, BLOCK_K]).slice(PART * PLACES, PLACES, 0)
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
        if UNIT:
            store_lines(y, n, p, q, o, acc, y_half, images, rows, columns, out_channels, 0, 0, 1, 1, PART, BOX, UNIT)
            if SIDE:
                store_lines(
                    y, n, p, q, o + BLOCK_O, beside, y_half, images, rows, columns, out_channels, 0, 0, 1, 1,
                    PART, BOX, UNIT,
                )  # fmt: skip
        else:
            n += 0 if y_half.shape[0] == BOX[0] else PART * y_half.shape[0]
            p += 0 if y_half.shape[1] == BOX[1] else PART * y_half.shape[1]
            q += 0 if y_half.shape[2] == BOX[2] else PART * y_half.shape[2]
            store_box(y, n, p, q, o, acc, y_half)
            if SIDE:
                store_box(y, n, p, q, o + BLOCK_O, beside, y_half)
    copy_out_wait(0)


@gluon.jit
def _terms_by_channels(weight, TRANSPOSED: gl.constexpr):
    """A box of kernels as [BLOCK_K, channels]."""
    if TRANSPOSED:
        found = weight.reshape([weight.shape[0], weight.shape[3]])
    else:
        found = weight.reshape([weight.shape[0], weight.shape[3]]).permute((1, 0))
    return found


@gluon.jit(do_not_specialize=range(5, 20))
def conv2d_specialised_kernel(
    y, x_desc, weight_desc, side_desc, bias_ptr, images, rows, columns, out_channels, channels, taps_h, taps_w,
    first_h, first_w, step_h, step_w, lift_h, lift_w, stride_h, stride_w,
    STRIDED: gl.constexpr, TRANSPOSED: gl.constexpr, BIAS: gl.constexpr, UNIT: gl.constexpr, BOX: gl.constexpr,
    BLOCK_O: gl.constexpr, SIDE: gl.constexpr, BLOCK_K: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """x [N H W C], or its phases if STRIDED, weight [O R S C], or [C R S O] if TRANSPOSED, y [N rows columns O]. From the
    first place the element (0, 0) of a kernel meets x at first - lift * stride, and others steps from there. y comes as a
    descriptor, or as a pointer with the UNIT of `store_lines`."""
    HELD: gl.constexpr = BOX[0] * BOX[1] * BOX[2]
    PARTS: gl.constexpr = 1 if HELD <= ALONE else 2
    boxes = gl.cdiv(images, BOX[0]) * gl.cdiv(rows, BOX[1]) * gl.cdiv(columns, BOX[2])
    tiles = boxes * gl.cdiv(out_channels, BLOCK_O + SIDE)
    steps = taps_h * taps_w * gl.cdiv(channels, BLOCK_K)
    x_ring = ring(x_desc, STAGES)
    weight_ring = ring(weight_desc, STAGES)
    side_ring = ring(side_desc, STAGES) if SIDE else weight_ring
    y_halves = halves(y, PARTS, HELD // PARTS, BLOCK_O, UNIT)
    full = barriers(STAGES, 1)
    empty = barriers(STAGES, PARTS)
    if PARTS == 1:
        gl.warp_specialize(
            [
                (_multiply, (y, bias_ptr, x_ring, weight_ring, side_ring, y_halves.index(0), full, empty, tiles, steps,
                             images, rows, columns, out_channels, 0, TRANSPOSED, BIAS, UNIT, BOX, BLOCK_O, SIDE, BLOCK_K,
                             GROUP, STAGES)),
                (_load, (x_desc, weight_desc, side_desc, x_ring, weight_ring, side_ring, full, empty, tiles, images,
                         rows, columns, out_channels, channels, taps_h, taps_w, first_h, first_w, step_h, step_w,
                         lift_h, lift_w, stride_h, stride_w, STRIDED, TRANSPOSED, BOX, BLOCK_O, SIDE, BLOCK_K, GROUP,
                         STAGES)),
            ],
            [1],
            [LOADER_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (y, bias_ptr, x_ring, weight_ring, side_ring, y_halves.index(0), full, empty, tiles, steps,
                             images, rows, columns, out_channels, 0, TRANSPOSED, BIAS, UNIT, BOX, BLOCK_O, SIDE, BLOCK_K,
                             GROUP, STAGES)),
                (_multiply, (y, bias_ptr, x_ring, weight_ring, side_ring, y_halves.index(1), full, empty, tiles, steps,
                             images, rows, columns, out_channels, 1, TRANSPOSED, BIAS, UNIT, BOX, BLOCK_O, SIDE, BLOCK_K,
                             GROUP, STAGES)),
                (_load, (x_desc, weight_desc, side_desc, x_ring, weight_ring, side_ring, full, empty, tiles, images,
                         rows, columns, out_channels, channels, taps_h, taps_w, first_h, first_w, step_h, step_w,
                         lift_h, lift_w, stride_h, stride_w, STRIDED, TRANSPOSED, BOX, BLOCK_O, SIDE, BLOCK_K, GROUP,
                         STAGES)),
            ],
            [4, 1],
            [MULTIPLIER_REGISTERS, LOADER_REGISTERS],
        )  # fmt: skip


def rule(p: ConvolutionProblem) -> Config:
    """The tile with which whole rounds of all SMs take the least time. H200, fp16, 32x256x56x56 by 256x256x3x3: 157 us,
    178 with boxes that do not end where the rows do, cuDNN 161."""
    out_channels, channels = p.y.shape[1], p.weight.shape[1]
    sms = processors(p.device)

    def microseconds(tile: tuple[int, int, float]) -> float:
        places, o, rate = tile
        count = covering(box_of(places, p.lengths), p.lengths) * cdiv(out_channels, o)
        return cdiv(count, sms) * (1 + places * o * p.terms / rate)

    places, o, _ = min(TILES, key=microseconds)
    whole = p.windows[1].stride > 1  # behind the channels of a phase of columns lie those of the next one
    steps = (k for k in (64, 32, 16) if not whole or channels % k == 0)
    k = min(steps, key=lambda k: cdiv(channels, k) * (k + 16))
    return tile_config(places, o, k)


def tile_config(places: int, o: int, k: int) -> Config:
    """A tile with as many stages as fit. Of o = 192 or 96 channels a third are a product of their own."""
    main = 1 << (o.bit_length() - 1)
    return {
        "PLACES": places, "BLOCK_O": main, "SIDE": o - main, "BLOCK_K": k,
        "STAGES": min(12, RING // ((places + o) * k * 2)),
    }  # fmt: skip


@plan
def specialised(p: ConvolutionProblem, transposed: bool = False) -> Launch:
    """The launch, of y, x, weight and bias. transposed: y are the images that x are the convolution of."""
    config = dict(rule(p))
    out_channels, (_, channels, *taps) = p.y.shape[1], p.weight.shape
    unit = gcd(out_channels, VECTOR) % VECTOR  # 0 where boxes of y are written
    places, block_o, block_k = config.pop("PLACES"), config["BLOCK_O"], config["BLOCK_K"]
    box = config.pop("BOX", None) or box_of(places, p.lengths)
    side = config["SIDE"]
    maps: tuple[Any, ...] = (
        WholeTensor()
        if unit
        else map_of(p.y, (*part_of(box, 1 if places <= ALONE.value else 2), block_o // 2), p.dtype),
        phases_of(p, (*box, block_k)) if strided(p) else map_of(p.x, (*box, block_k), p.dtype),
        *(
            map_of(p.weight, (block_k, 1, 1, o) if transposed else (o, 1, 1, block_k), p.dtype, transposed)
            for o in (block_o, side or block_o)
        ),
        WholeTensor(),
    )
    tiles = covering(box, p.lengths) * cdiv(out_channels, block_o + side)
    return Launch(
        conv2d_specialised_kernel, (min(processors(p.device), tiles),), *p.lengths, out_channels, channels, *taps,
        *walk(p, transposed), maps=maps, STRIDED=strided(p), TRANSPOSED=transposed, BIAS=p.bias, UNIT=unit,
        BOX=box, GROUP=8, num_warps=4, **config,
    )  # fmt: skip


def strided(p: ConvolutionProblem) -> bool:
    """Whether the places have any stride but 1."""
    return any(w.stride > 1 for w in p.windows)


def walk(p: ConvolutionProblem, transposed: bool = False) -> Ints:
    """Of rows and columns: first, step, by how many strides the first place lies above them (lift), and stride."""
    if transposed:
        each = [(w.padding, -w.dilation, 0, 1) for w in p.windows]
    else:
        lifts = [cdiv(w.padding, w.stride) for w in p.windows]
        each = [(n * w.stride - w.padding, w.dilation, n, w.stride) for n, w in zip(lifts, p.windows, strict=True)]
    return tuple(n for pair in zip(*each, strict=True) for n in pair)


def phases_of(
    p: ConvolutionProblem, block: Ints, rows: tuple[int, int] | None = None, columns: tuple[int, int] | None = None
) -> Map:
    """Images as [N H/stride stride W/stride stride*C]. rows, columns: one phase alone, so many of it."""
    (n, c, h, w), (along_n, _, along_h, along_w) = p.x.shape, p.x.strides
    down, across = (window.stride for window in p.windows)
    of_rows = (h // down, down) if rows is None else (rows[1], rows[0] + 1)
    of_columns = (w // across, across * c) if columns is None else (columns[1], (columns[0] + 1) * c)
    shape = (n, *of_rows, *of_columns)
    strides = (along_n, down * along_h, along_h, across * along_w)
    box = (*block[:2], 1, *block[2:])
    apart = (s if length > 1 else VECTOR for s, length in zip(strides, shape, strict=False))
    return Map(shape, (*apart, 1), box, layout_of(box, p.dtype))


def map_of(
    x: Images, block: Ints, dtype: torch.dtype, turned: bool = False, spans: tuple[int, int] | None = None
) -> Map:
    """Images or kernels as [N H W C]; turned: as [C H W N]. spans: of so many rows and columns alone."""
    axes = (1, 2, 3, 0) if turned else (0, 2, 3, 1)
    shape = (*x.shape[:2], *(spans or x.shape[2:]))
    strides = (x.strides[a] if x.shape[a] > 1 or a == axes[3] else VECTOR for a in axes)
    return Map([shape[a] for a in axes], list(strides), block, layout_of(block, dtype))


def layout_of(block: Ints, dtype: torch.dtype) -> gl.NVMMASharedLayout:
    """How a block lies in shared memory."""
    element = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16, torch.float32: gl.float32}[dtype]
    return gl.NVMMASharedLayout.get_default_for(list(block), element)


def readable(x: torch.Tensor, joined: bool = False, again: bool = False) -> torch.Tensor:
    """Images or kernels as the copy engine can read them: themselves, or a channels-last copy, which has more channels, of
    zeros, where theirs are no whole vectors, or no whole sectors.

    joined: with no gap between the channels of a column and those of the next one. again: at several taps, which makes
    reading half sectors slower than copying. H200, 64 of 3 x 3 on 32x40x56x56: 66 us; 128 on 50 channels, copied, 43.
    """
    channels = x.shape[1]
    if channels % VECTOR or (again and channels >= COPIED and channels % SECTOR):
        return padded(x, cdiv(channels, WIDE) * WIDE)
    apart = [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1 and s != 1]
    whole = not any(s % VECTOR or s == 0 or s >= 2**39 for s in apart) and x.data_ptr() % 16 == 0
    lines = x.stride(1) == 1 and len(apart) >= sum(n > 1 for n in x.shape) - 1
    return x if whole and lines and not (joined and x.stride(3) != x.shape[1]) else channels_last(x)


def in_strides(x: torch.Tensor, over: tuple[Window, Window], again: bool) -> torch.Tensor:
    """x as `readable` has it, whole numbers of strides high and wide: else a copy with zeros behind the last pixels."""
    rows, columns = (cdiv(n, w.stride) * w.stride for n, w in zip(x.shape[2:], over, strict=True))
    left = readable(x, over[1].stride > 1, again)
    if (rows, columns) == x.shape[2:]:
        return left
    return copied(left, rows, 0, columns, left.shape[1]).permute(0, 3, 1, 2)


def convolution(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Ints, over: tuple[Window, Window],
    transposed: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Images of this shape in the order of x, computed as channels-last ones."""
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    if y.numel():
        again = prod(weight.shape[2:]) > 1
        left, right = in_strides(x, over, again), readable(weight, again=again and not transposed)
        kernels = images(right.transpose(0, 1) if transposed else right)
        p = ConvolutionProblem(x.get_device(), x.dtype, images(left), images(y), kernels, over, bias is not None)
        specialised(p, transposed)(y, left, right, right, y if bias is None else bias)
    return y if format_of(x) == torch.channels_last else channels_first(y)
