"""The gradient of kernels of one element where images are contiguous: rows of pixels are read where they lie.

    grad_weight[o, c] = sum over images and pixels of grad_out[image, o, pixel] * x[image, c, pixel]

Both factors are boxes of channels and pixels that the copy engine (TMA) brings as they are: pixels, which are summed over,
lie side by side. What a box has beyond the last pixel of an image is zero. The steps of all images are cut into shares.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from math import hypot, sqrt

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from kernelmux.backends.triton._families.sums import run, sum_first
from kernelmux.backends.triton._launch.hopper import barriers, copy_in, ring
from kernelmux.backends.triton._launch.launch import Config, Ints, Launch, Map, cdiv, plan, processors
from kernelmux.backends.triton.conv2d._maps import layout_of
from kernelmux.backends.triton.conv2d._pointwise import whole_rows
from kernelmux.backends.triton.conv2d._problem import VECTOR, ConvolutionProblem, Images, images
from kernelmux.backends.triton.conv2d._specialised import LOADER_REGISTERS, MULTIPLIER_REGISTERS
from kernelmux.backends.triton.conv2d._tiles import RING
from kernelmux.backends.triton.conv2d._weight_products import multiply
from kernelmux.registry.spec.sliding_windows import Window

STEP = gl.constexpr(64)  # pixels of a box: lines of 128 bytes
MULTIPLIER = 64  # rows of the result at least that a multiplier has
# Channels of grad_out and of x, products per us of one SM, and programs to an SM. H200, us, bf16: 256 from 1024 channels
# of 35x56x152 with 256 x 128 241.6, 128 x 192 266.6, 256 x 192 267.3; 512 from 2048 of 12x28x142 with 256 x 192 176.0,
# 256 x 128 191.5; 256 from 256 of 16x40x40 with 128 x 64 20.3, 128 x 128 22.1; 64 from 256 of 32x56x56 with 64 x 64 31.8.
TILES = (
    (64, 64, 2.1e6, 2), (64, 128, 1.9e6, 1), (128, 64, 2.1e6, 1), (128, 128, 3.15e6, 1), (128, 192, 2.95e6, 1),
    (256, 128, 3.65e6, 1), (128, 256, 3.65e6, 1), (256, 192, 3.1e6, 1),
)  # fmt: skip
# Lines of 128 bytes that L2 gives to all SMs per us, and how many a line of a box is that begins between them: at multiples
# of a sector of 32 bytes, and at others. 64 x 64 on 35x56x152 540.9 us, 35x92x92 575.9, 35x56x151 784.7.
LINE, SECTOR = 128, 32
LINES, IN_SECTORS, ACROSS_SECTORS = 8.8e4, 1.2, 1.7
MEMORY = 3.5e6  # bytes per us
# us of the launch that adds shares, of each share, and sums per us. 256 from 256 of 16x40x40 with 128 x 128: in 15 shares
# 22.6 us, in 31 22.1, though each is half as long.
ADDING, SHARE, SUMS = 2.7, 0.05, 5.8e5


@gluon.jit
def _fetch(
    g_desc, x_desc, side_desc, g_ring, x_ring, side, full, empty, begin, end, per_image, o, c,
    BLOCK_O: gl.constexpr, BLOCK_C: gl.constexpr, SIDE: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Steps begin to end, of which each image has `per_image`."""
    for k in range(begin, end):
        step = k - begin
        slot = step % STAGES
        n = k // per_image
        pixel = (k - n * per_image) * STEP
        mbarrier.wait(empty.index(slot), (step // STAGES + 1) & 1)
        ready = full.index(slot)
        mbarrier.expect(ready, (BLOCK_O + BLOCK_C + SIDE) * STEP * 2)
        copy_in(g_desc, [n, o, pixel], ready, g_ring.index(slot))
        copy_in(x_desc, [n, c, pixel], ready, x_ring.index(slot))
        if SIDE:
            copy_in(side_desc, [n, c + BLOCK_C, pixel], ready, side.index(slot))


@gluon.jit(do_not_specialize=range(4, 8))
def conv2d_backward_weight_rows_kernel(
    out_desc, g_desc, x_desc, side_desc, count, each, per_image, channels,
    BLOCK_O: gl.constexpr, BLOCK_C: gl.constexpr, SIDE: gl.constexpr, PARTS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """out [shares, O, 1, C], grad_out [N O pixels], x [N C pixels]; shares have `each` of `count` steps."""
    ROWS: gl.constexpr = BLOCK_O // PARTS
    tiles_c = gl.cdiv(channels, BLOCK_C + SIDE)
    c = gl.program_id(0) % tiles_c * (BLOCK_C + SIDE)
    o = gl.program_id(0) // tiles_c * BLOCK_O
    share = gl.program_id(1)
    begin = share * each
    end = gl.minimum(begin + each, count)
    g_ring = ring(g_desc, STAGES)
    x_ring = ring(x_desc, STAGES)
    side = ring(side_desc, STAGES) if SIDE else x_ring
    pieces = ring(out_desc, PARTS)
    full = barriers(STAGES, 1)
    empty = barriers(STAGES, PARTS)
    if PARTS == 1:
        gl.warp_specialize(
            [
                (multiply, (out_desc, g_ring, x_ring, side, pieces.index(0), full, empty, end - begin, share, o, 0, c, 0,
                            ROWS, STEP, True, BLOCK_O, BLOCK_C, SIDE, STAGES)),
                (_fetch, (g_desc, x_desc, side_desc, g_ring, x_ring, side, full, empty, begin, end, per_image, o, c,
                          BLOCK_O, BLOCK_C, SIDE, STAGES)),
            ],
            [1],
            [LOADER_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (multiply, (out_desc, g_ring, x_ring, side, pieces.index(0), full, empty, end - begin, share, o, 0, c, 0,
                            ROWS, STEP, True, BLOCK_O, BLOCK_C, SIDE, STAGES)),
                (multiply, (out_desc, g_ring, x_ring, side, pieces.index(1), full, empty, end - begin, share, o, 0, c, 1,
                            ROWS, STEP, True, BLOCK_O, BLOCK_C, SIDE, STAGES)),
                (_fetch, (g_desc, x_desc, side_desc, g_ring, x_ring, side, full, empty, begin, end, per_image, o, c,
                          BLOCK_O, BLOCK_C, SIDE, STAGES)),
            ],
            [4, 1],
            [MULTIPLIER_REGISTERS, LOADER_REGISTERS],
        )  # fmt: skip


def fits(grad_out: torch.Tensor, x: torch.Tensor, over: tuple[Window, Window]) -> bool:
    """Whether these are contiguous images whose rows of pixels the copy engine can read, met by single elements."""
    single = all(w[:3] == (1, 1, 0) for w in over) and x.shape[1] % VECTOR == 0
    return single and has_rows(grad_out) and has_rows(x)


def has_rows(x: torch.Tensor) -> bool:
    """Whether the pixels of a channel lie side by side, and channels do not, and the copy engine can read these rows, whose
    boxes are half full."""
    _, c, h, w = x.shape
    lines = (x.stride(3) == 1 or w == 1) and (x.stride(2) == w or h == 1) and x.stride(1) >= h * w
    return c > 1 and lines and 2 * h * w >= cdiv(h * w, STEP.value) * STEP.value and whole_rows(x)


def rule(p: ConvolutionProblem) -> Config:
    """The tile, and the number of shares of the steps, with which whole rounds of all SMs take the least time."""
    (n, out_channels, h, w), channels = p.y.shape, p.x.shape[1]
    count, sms = n * cdiv(h * w, STEP.value), processors(p.device)
    pitch = h * w * p.dtype.itemsize
    crossed = ACROSS_SECTORS if pitch % SECTOR else IN_SECTORS if pitch % LINE else 1.0
    moved = (out_channels + channels) * n * h * w * p.dtype.itemsize / MEMORY

    def microseconds(tile: tuple[int, int, float, int], shares: int) -> float:
        o, c, rate, programs = tile
        found = cdiv(out_channels, o) * cdiv(channels, c)
        each = cdiv(count, shares)
        adding = ADDING + shares * (SHARE + out_channels * channels / SUMS) if shares > 1 else 0.0
        work = cdiv(found * shares, programs * sms) * (2 + each * STEP.value * o * c * programs / rate)
        lines = (out_channels * cdiv(channels, c) + channels * cdiv(out_channels, o)) * each * shares * crossed
        read = max(moved * each * shares / count, lines / LINES)
        return sqrt(hypot(work**2, read**2)) + adding  # the longer one hides most of the other

    most = max(min(count // 8, 2 * sms), 1)
    tile, shares = min(product(TILES, range(1, most + 1)), key=lambda both: microseconds(*both))
    return {**_tile(*tile[:2], tile[3]), "SHARES": shares}


def _tile(o: int, c: int, programs: int = 1) -> Config:
    registers = {"maxnreg": 128} if programs > 1 else {}
    main = 1 << (c.bit_length() - 1)  # of 192 channels 64 are a product of their own
    room = RING // programs
    return {
        "BLOCK_O": o, "BLOCK_C": main, "SIDE": c - main, "PARTS": 2 if o > MULTIPLIER else 1,
        "STAGES": min(12, room // ((o + c) * STEP.value * 2)), **registers,
    }  # fmt: skip


def _rows(x: Images, channels: int, dtype: torch.dtype) -> Map:
    """[N, C, pixels], so many channels at a time."""
    (n, c, h, w), (by_n, by_c, _, _), block = x.shape, x.strides, (1, channels, STEP.value)
    return Map((n, c, h * w), (by_n if n > 1 else VECTOR, by_c, 1), block, layout_of(block, dtype))


@plan
def rows(p: ConvolutionProblem) -> tuple[Launch, int, Callable[..., None]]:
    """The launch, of grad_weight or sums of shares, grad_out and x twice; how many shares there are; what adds them up."""
    return launch_of(p, rule(p))


def launch_of(p: ConvolutionProblem, tile: Config) -> tuple[Launch, int, Callable[..., None]]:
    """Those with a given tile."""
    config = dict(tile)
    (n, out_channels, h, w), channels = p.y.shape, p.x.shape[1]
    per_image = cdiv(h * w, STEP.value)
    count = n * per_image
    each = cdiv(count, config.pop("SHARES"))
    shares, size, block_o, block_c = cdiv(count, each), out_channels * channels, config["BLOCK_O"], config["BLOCK_C"]
    side, block = config["SIDE"], (1, block_o // config["PARTS"], 1, block_c // 4)
    lines = (shares, out_channels, 1, channels)
    out = Map(lines, (size, channels, channels, 1), block, layout_of(block, p.dtype if shares == 1 else torch.float32))
    tiles = cdiv(out_channels, block_o) * cdiv(channels, block_c + side)
    launch = Launch(
        conv2d_backward_weight_rows_kernel, (tiles, shares), count, each, per_image, channels,
        maps=(out, _rows(p.y, block_o, p.dtype), _rows(p.x, block_c, p.dtype), _rows(p.x, side or block_c, p.dtype)),
        num_warps=4, **config,
    )  # fmt: skip
    return launch, shares, partial(run, sum_first(p.device, shares, size))


def gradient(grad_out: torch.Tensor, x: torch.Tensor, shape: Ints, over: tuple[Window, Window]) -> torch.Tensor:
    """grad_weight [O C 1 1]."""
    out = torch.empty(shape, dtype=x.dtype, device=x.device)
    if out.numel():
        p = ConvolutionProblem(x.get_device(), x.dtype, images(x), images(grad_out), images(out), over)
        run_on(rows(p), out, grad_out, x)
    return out


Made = tuple[Launch, int, Callable[..., None]]


def run_on(made: Made, out: torch.Tensor, grad_out: torch.Tensor, x: torch.Tensor) -> None:
    """Writes the gradient."""
    launch, shares, finish = made
    if shares == 1:
        launch(out, grad_out, x, x)
        return
    sums = x.new_empty((shares, out.numel()), dtype=torch.float32)
    launch(sums, grad_out, x, x)
    finish(sums, out)
