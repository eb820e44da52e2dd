"""The gradient of the kernels as a product over all places, whose factors the copy engine (TMA) finds.

    grad_weight[o, r, s, c] = sum over places of grad_out[place, o] * x[place that meets (r, s), c]

A program has one element of the kernels and walks boxes of places; both factors are boxes of the same places. What a box
has beyond the last row would meet elements of x that the convolution does not. So each element of the kernels has a map of
x that ends where its places do, and these are zeros in both factors; several may have the same. Where they differ in more
than `MAPS`, boxes end where rows and columns do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.extra import cuda

from kernelmux.backends.triton._families.sums import run, sum_first
from kernelmux.backends.triton._launch.dependent import following
from kernelmux.backends.triton._launch.hopper import barriers, copy_in, ring
from kernelmux.backends.triton._launch.launch import Config, Ints, Launch, Map, cdiv, plan, processors
from kernelmux.backends.triton.conv2d import _rows_weight
from kernelmux.backends.triton.conv2d._boxes import boxes, covering
from kernelmux.backends.triton.conv2d._maps import layout_of, map_of, phases_of, strided, walk
from kernelmux.backends.triton.conv2d._order import copies, wanted
from kernelmux.backends.triton.conv2d._problem import VECTOR, ConvolutionProblem, images, planes_of
from kernelmux.backends.triton.conv2d._spaced import SINGLES, gathered, met, spaced
from kernelmux.backends.triton.conv2d._specialised import LOADER_REGISTERS, MULTIPLIER_REGISTERS, copy_box
from kernelmux.backends.triton.conv2d._tiles import RING
from kernelmux.backends.triton.conv2d._weight_products import multiply
from kernelmux.registry.spec import Call
from kernelmux.registry.spec.sliding_windows import Window
from kernelmux.registry.util.memory_format import format_of, fresh

FEW = 128  # places in boxes, of which any part may be empty
MAPS = 9  # of x at most: those of 5 x 5 elements, of which three rows and three columns end apart
MOST_ELEMENTS = 62  # of a kernel, each a bit of a number
# Shared memory in another layout: the name changed between Triton 3.7 and 3.9.
_blocks = gl.shared_memory_descriptor
seen_as = _blocks.reinterpret if hasattr(_blocks, "reinterpret") else _blocks._reinterpret
ROWS = gl.constexpr(64)  # of the result, per multiplier
COPIED_AT_ONCE = 64  # channels of x
# Channels of grad_out and of x, and products per microsecond of one SM: H200, fp16, 32x256x56x56 and 256x256x3x3.
# 640x320x3x3 of 21x320x56x56, bf16: 365 us with 128 x 320, 437 with 128 x 192, 502 with 128 x 128. Tiles that have terms of
# several elements of the kernels, with maps chosen at each step, lose: 128x128x3x3 of 10x128x112x236 153 us, 135 without.
TILES = ((128, 320, 3.05e6), (128, 256, 3.0e6), (128, 192, 3.1e6), (128, 128, 2.6e6), (128, 64, 1.8e6), (64, 64, 0.8e6))
# Of 64 x 64 with two programs to an SM, which have half of its registers and of the ring each. H200, us, so, and by the
# best tile with one: 320 of 3 x 3 on 3x320x28x28 17.9 and 22.7, 64 on 16x64x56x56 18.4 and 22.1; 64 on 56x64x174x174 with
# a stride of 2 95.8 and 159.8.
TWO_PROGRAMS = 1.95e6


@gluon.jit
def _load(
    g_desc, x_desc, g_ring, x_ring, side, full, empty, begin, end, rows, columns, o, c, h, w, channels,
    lift_h, lift_w, stride_h, stride_w,
    STRIDED: gl.constexpr, BOX: gl.constexpr, BLOCK_O: gl.constexpr, BLOCK_C: gl.constexpr, SIDE: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Boxes begin to end, which meet x as `copy_box` says, in copies of so many channels as a box of x_desc has."""
    WIDTH: gl.constexpr = x_desc.block_type.shape[len(x_desc.block_type.shape) - 1]
    MAIN: gl.constexpr = BLOCK_C // WIDTH
    tiles_h = gl.cdiv(rows, BOX[1])
    tiles_w = gl.cdiv(columns, BOX[2])
    for box in range(begin, end):
        n = box // (tiles_h * tiles_w) * BOX[0]
        p = box // tiles_w % tiles_h * BOX[1]
        q = box % tiles_w * BOX[2]
        step = box - begin
        slot = step % STAGES
        mbarrier.wait(empty.index(slot), (step // STAGES + 1) & 1)
        ready = full.index(slot)
        mbarrier.expect(ready, BOX[0] * BOX[1] * BOX[2] * (BLOCK_O + BLOCK_C + SIDE) * 2)
        copy_in(g_desc, [n, p, q, o], ready, g_ring.index(slot))
        p -= lift_h
        q -= lift_w
        parts = seen_as(x_ring.index(slot), x_ring.dtype, [MAIN] + x_desc.block_type.shape, x_desc.layout)  # noqa: RUF005
        for i in gl.static_range(MAIN):
            to = parts.index(i)
            copy_box(x_desc, n, p, q, c + i * WIDTH, h, w, channels, stride_h, stride_w, ready, to, STRIDED)
        for i in gl.static_range(SIDE // WIDTH):
            to = side.index(slot)
            at = c + (MAIN + i) * WIDTH
            copy_box(x_desc, n, p, q, at, h, w, channels, stride_h, stride_w, ready, to, STRIDED)


@gluon.jit
def _load_at(
    g_desc, x0, x1, x2, x3, x4, x5, x6, x7, x8, g_ring, x_ring, side, full, empty, begin, end, rows, columns, o, c, tap,
    h, w, channels, lift_h, lift_w, stride_h, stride_w, TAPS: gl.constexpr,
    STRIDED: gl.constexpr, BOX: gl.constexpr, BLOCK_O: gl.constexpr, BLOCK_C: gl.constexpr, SIDE: gl.constexpr,
    STAGES: gl.constexpr, FOLLOWS: gl.constexpr,
):  # fmt: skip
    """Boxes begin to end, x by the map of this element of the kernels."""
    if FOLLOWS:
        cuda.gdc_wait()
    x_descs = (x0, x1, x2, x3, x4, x5, x6, x7, x8)
    for i in gl.static_range(len(TAPS)):
        if len(TAPS) == 1 or (TAPS[i] >> tap) & 1:
            _load(
                g_desc, x_descs[i], g_ring, x_ring, side, full, empty, begin, end, rows, columns, o, c, h, w, channels,
                lift_h, lift_w, stride_h, stride_w, STRIDED, BOX, BLOCK_O, BLOCK_C, SIDE, STAGES,
            )  # fmt: skip


@gluon.jit(do_not_specialize=range(11, 26))
def conv2d_backward_weight_specialised_kernel(
    out_desc, g_desc, x0, x1, x2, x3, x4, x5, x6, x7, x8, count, each, rows, columns, out_channels, channels, taps_w,
    first_h, first_w, step_h, step_w, lift_h, lift_w, stride_h, stride_w, TAPS: gl.constexpr,
    STRIDED: gl.constexpr, BOX: gl.constexpr, BLOCK_O: gl.constexpr, BLOCK_C: gl.constexpr, SIDE: gl.constexpr,
    STAGES: gl.constexpr, FOLLOWS: gl.constexpr = False,
):  # fmt: skip
    """out [shares, O, R * S, C], grad_out [N rows columns O], x [N H W C] or its phases, by a map for the elements of a
    kernel that are bits of each of TAPS, or by one for all; shares have `each` boxes."""
    PARTS: gl.constexpr = BLOCK_O // ROWS
    tiles_c = gl.cdiv(channels, BLOCK_C + SIDE)
    tiles_o = gl.cdiv(out_channels, BLOCK_O)
    c = gl.program_id(0) % tiles_c * (BLOCK_C + SIDE)
    o = gl.program_id(0) // tiles_c % tiles_o * BLOCK_O
    tap = gl.program_id(0) // tiles_c // tiles_o
    share = gl.program_id(1)
    begin = share * each
    end = gl.minimum(begin + each, count)
    h = first_h + tap // taps_w * step_h
    w = first_w + tap % taps_w * step_w
    g_ring = ring(g_desc, STAGES)
    joined: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    x_ring = gl.allocate_shared_memory(x0.dtype, [STAGES, BOX[0] * BOX[1] * BOX[2], BLOCK_C], joined)
    side = ring(x0, STAGES) if SIDE else x_ring
    pieces = ring(out_desc, PARTS)
    full = barriers(STAGES, 1)
    empty = barriers(STAGES, PARTS)
    if PARTS == 1:
        gl.warp_specialize(
            [
                (multiply, (out_desc, g_ring, x_ring, side, pieces.index(0), full, empty, end - begin, share, o, tap, c,
                            0, ROWS, BOX[0] * BOX[1] * BOX[2], False, BLOCK_O, BLOCK_C, SIDE, STAGES)),
                (_load_at, (g_desc, x0, x1, x2, x3, x4, x5, x6, x7, x8, g_ring, x_ring, side, full, empty, begin, end, rows,
                            columns, o, c, tap, h, w, channels, lift_h, lift_w, stride_h, stride_w, TAPS, STRIDED, BOX,
                            BLOCK_O, BLOCK_C, SIDE, STAGES, FOLLOWS)),
            ],
            [1],
            [LOADER_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (multiply, (out_desc, g_ring, x_ring, side, pieces.index(0), full, empty, end - begin, share, o, tap, c,
                            0, ROWS, BOX[0] * BOX[1] * BOX[2], False, BLOCK_O, BLOCK_C, SIDE, STAGES)),
                (multiply, (out_desc, g_ring, x_ring, side, pieces.index(1), full, empty, end - begin, share, o, tap, c,
                            1, ROWS, BOX[0] * BOX[1] * BOX[2], False, BLOCK_O, BLOCK_C, SIDE, STAGES)),
                (_load_at, (g_desc, x0, x1, x2, x3, x4, x5, x6, x7, x8, g_ring, x_ring, side, full, empty, begin, end, rows,
                            columns, o, c, tap, h, w, channels, lift_h, lift_w, stride_h, stride_w, TAPS, STRIDED, BOX,
                            BLOCK_O, BLOCK_C, SIDE, STAGES, FOLLOWS)),
            ],
            [4, 1],
            [MULTIPLIER_REGISTERS, LOADER_REGISTERS],
        )  # fmt: skip


def box_of(lengths: Ints, free: tuple[bool, bool] = (False, False)) -> Ints:
    """Of the boxes of images, rows and columns that end where rows and columns do, the one with the least work.

    free: of rows and of columns, whether a box may go on behind the last one, where x ends too, so that both are zero.
    """
    whole = (
        box
        for k in (64, 32, 16)
        for box in boxes(k)
        if all(f or length % side == 0 for f, length, side in zip(free, lengths[1:], box[1:], strict=True))
    )
    return min(whole, key=lambda box: covering(box, lengths) * (prod(box) + 16))


def work(lengths: Ints, free: tuple[bool, bool]) -> int:
    """Elements of all boxes of places, each with a few more for what a box costs."""
    box = box_of(lengths, free)
    return covering(box, lengths) * (prod(box) + 16)


def _spans(w: Window, size: int, places: int) -> list[tuple[int, int]]:
    """For each element of the window the phase of x that it meets, and how many elements of that phase there are up to the
    last one that a place meets: none or fewer where the element meets only padding."""
    found = (divmod(tap * w.dilation - w.padding, w.stride) for tap in range(w.kernel))
    return [(phase, min(cdiv(size - phase, w.stride), first + places)) for first, phase in found]


Span = tuple[int, int]


def ends(windows: tuple[Window, Window], sizes: Ints, places: Ints) -> dict[tuple[Span, Span], int]:
    """Where x ends for the places of an element of the kernels, down and across; whose elements, as bits, that is."""
    found: dict[tuple[Span, Span], int] = {}
    down, across = (_spans(*each) for each in zip(windows, sizes, places, strict=True))
    for tap, both in enumerate(product(down, across)):
        found[both] = found.get(both, 0) | 1 << tap
    return found


def apart(windows: tuple[Window, Window], sizes: Ints, places: Ints) -> bool:
    """Whether each element of the kernels has a map that ends with its places: then boxes may go on behind the last row
    and column."""
    found = ends(windows, sizes, places)
    few = len(found) <= MAPS and prod(w.kernel for w in windows) <= MOST_ELEMENTS
    return few and min(length for both in found for _, length in both) > 0


def together(w: Window) -> bool:
    """Whether places of the window and elements of x are the same along an axis."""
    return w[:3] == (1, 1, 0)


def free_axes(windows: tuple[Window, Window], sizes: Ints, places: Ints) -> tuple[bool, bool]:
    """Along which of rows and columns a box may go on behind the last one. sizes: of x. places: rows and columns."""
    both = apart(windows, sizes, places)
    return both or together(windows[0]), both or together(windows[1])


@dataclass(frozen=True)
class HalfFull:
    """Boxes of places have a place in every second element at least, or are few."""

    text: str = (
        "N * P * Q at least half of what boxes of 16 or more hold, which end where P and Q do if the elements of a kernel"
        " end at more than 9 places of x"
    )

    def check(self, call: Call) -> str | None:
        """None, or how full they are."""
        lengths = (call.axes["N"], call.axes["P"], call.axes["Q"])
        along = (call.arguments[key] for key in ("stride", "padding", "dilation"))
        down, across = (Window(*w) for w in zip((call.axes["R"], call.axes["S"]), *along, strict=True))
        free = free_axes((down, across), (call.axes["H"], call.axes["W"]), lengths[1:])
        box = box_of(lengths, free)
        places, held = prod(lengths), prod(box) * covering(box, lengths)
        return (
            None if held <= max(2 * places, FEW) else f"{places} places in boxes that hold {held}, needs half of them"
        )


def _apart(p: ConvolutionProblem) -> bool:
    return apart(p.windows, p.x.shape[2:], p.y.shape[2:])


def _box(p: ConvolutionProblem) -> Ints:
    return box_of((p.y.shape[0], *p.y.shape[2:]), free_axes(p.windows, p.x.shape[2:], p.y.shape[2:]))


def _maps_of_x(p: ConvolutionProblem, block: Ints) -> tuple[tuple[Map, ...], Ints]:
    """Maps of x that end where places do, and as bits the elements of the kernels that have each; or one that ends where x
    does."""
    if not _apart(p):
        return (phases_of(p, block) if strided(p) else map_of(p.x, block, p.dtype),), (-1,)
    found = ends(p.windows, p.x.shape[2:], p.y.shape[2:])
    maps = (
        phases_of(p, block, h, w) if strided(p) else map_of(p.x, block, p.dtype, spans=(h[1], w[1])) for h, w in found
    )
    return tuple(maps), tuple(found.values())


def rule(p: ConvolutionProblem) -> Config:
    """The tile, and the number of shares of the places, with which whole rounds of all SMs take the least time.

    H200, fp16, 32x256x56x56 and 256x256x3x3: 165 us in 7 shares, 174 in 14, 193 with half the tile, cuDNN 179.
    """
    out_channels, channels, r, s = p.weight.shape
    box, sms = _box(p), processors(p.device)
    count, places = covering(box, p.lengths), prod(box)

    def microseconds(tile: tuple[int, int, float, int], shares: int) -> float:
        o, c, rate, programs = tile
        found = r * s * cdiv(out_channels, o) * cdiv(channels, c) * shares
        adding = 3 + shares * out_channels * p.terms / 6.5e5 if shares > 1 else 0.0
        return cdiv(found, programs * sms) * (2 + cdiv(count, shares) * places * o * c * programs / rate) + adding

    most = max(min(count * places // 512, sms), 1)
    tiles = *((*tile, 1) for tile in TILES), (64, 64, TWO_PROGRAMS, 2)
    tile, shares = min(product(tiles, range(1, most + 1)), key=lambda both: microseconds(*both))
    return {**_tile(*tile[:2], places, tile[3]), "SHARES": shares}


def _tile(o: int, c: int, places: int = 64, programs: int = 1) -> Config:
    room = RING // programs
    registers = {"maxnreg": 128} if programs > 1 else {}
    main = 1 << (c.bit_length() - 1)  # of 320 channels 64 are a product of their own, and of 192
    return {
        "BLOCK_O": o, "BLOCK_C": main, "SIDE": c - main, "STAGES": min(12, room // ((o + c) * places * 2)), **registers
    }  # fmt: skip


@plan
def specialised(p: ConvolutionProblem, after: bool = False) -> tuple[Launch, int, Callable[..., None]]:
    """The launch, of grad_weight or sums of shares, grad_out and x; how many shares there are; what adds them up."""
    return launch_of(p, rule(p), after)


def launch_of(p: ConvolutionProblem, tile: Config, after: bool = False) -> tuple[Launch, int, Callable[..., None]]:
    """Those with a given tile."""
    config = dict(tile)
    out_channels, channels, *taps = p.weight.shape
    box = _box(p)
    count = covering(box, p.lengths)
    each = cdiv(count, config.pop("SHARES"))
    shares, size, block_o, block_c = cdiv(count, each), out_channels * p.terms, config["BLOCK_O"], config["BLOCK_C"]
    lines, block = (shares, out_channels, taps[0] * taps[1], channels), (1, ROWS.value, 1, block_c // 4)
    out = Map(lines, (size, p.terms, channels, 1), block, layout_of(block, p.dtype if shares == 1 else torch.float32))
    of_x, taps_of = _maps_of_x(p, (*box, COPIED_AT_ONCE))
    tiles = lines[2] * cdiv(out_channels, block_o) * cdiv(channels, block_c + config["SIDE"])
    launch = Launch(
        conv2d_backward_weight_specialised_kernel, (tiles, shares), count, each, *p.lengths[1:], out_channels, channels,
        taps[1], *walk(p), maps=(out, map_of(p.y, (*box, block_o), p.dtype), *of_x, *of_x[:1] * (MAPS - len(of_x))),
        TAPS=taps_of, STRIDED=strided(p), BOX=box, num_warps=4, **config,
        **(following(p.device) if after else {}),
    )  # fmt: skip
    return launch, shares, partial(run, sum_first(p.device, shares, size))


def gradient(grad_out: torch.Tensor, x: torch.Tensor, shape: Ints, over: tuple[Window, Window]) -> torch.Tensor:
    """grad_weight [O C R S] in the order of x, computed as a channels-last one."""
    order = format_of(x)
    if spaced(over) and wanted(x, over[1].stride > 1, over=None if _whole(grad_out, x, over) else over):
        x, over = _few(grad_out, met(x, over)), SINGLES
    if _rows_weight.fits(grad_out, x, over):
        return fresh(_rows_weight.gradient(grad_out, x, shape, over), order)
    again = prod(shape[2:]) > 1
    to = wanted(x, over[1].stride > 1, again, None if _whole(grad_out, x, over) else over)
    g, right = copies((grad_out, wanted(grad_out)), (x, to))
    wide = (shape[0], right.shape[1], *shape[2:])  # with the channels that a copy has more
    out = torch.empty(wide, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    p = ConvolutionProblem(x.get_device(), x.dtype, images(right), images(g), images(out), over)
    run_on(p, out, g, right, g is not grad_out or right is not x)
    return fresh(out[:, : shape[1]], order)


def _whole(grad_out: torch.Tensor, x: torch.Tensor, over: tuple[Window, Window]) -> bool:
    """Whether boxes may go on behind the last row and column, whatever their numbers are."""
    return apart(over, tuple(x.shape[2:]), tuple(grad_out.shape[2:]))


def _few(grad_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The pixels that single elements meet, as contiguous images if those of grad_out can be read where they lie."""
    lie = planes_of(x) if x.shape[1] % VECTOR == 0 and _rows_weight.has_rows(grad_out) else None
    return gathered(x, lie) if lie and x.numel() else x


def run_on(
    p: ConvolutionProblem, out: torch.Tensor, grad_out: torch.Tensor, x: torch.Tensor, after: bool = False
) -> None:
    """Writes the gradient. after: as `_specialised.specialised` has it."""
    if not out.numel():
        return
    launch, shares, finish = specialised(p.in_line, after)
    if shares == 1:
        launch(out, grad_out, *[x] * MAPS)
        return
    sums = x.new_empty((shares, out.numel()), dtype=torch.float32)
    launch(sums, grad_out, *[x] * MAPS)
    finish(sums, out)
