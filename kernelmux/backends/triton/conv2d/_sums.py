"""fp32 convolutions on the FP32 pipes (in Gluon): kernels [O, terms] by patches [terms, places], which are found in x while
asynchronous copies bring them to shared memory.

A thread reads four terms of a line at a time, as in matmul's fp32 products, whose tiles these are. Where tiles are few,
programs share the terms of one, and a second kernel adds what they leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from kernelmux.backends.triton._launch.launch import Launch, cdiv, plan, processors
from kernelmux.backends.triton._rows.row_shared import copy_in
from kernelmux.backends.triton.conv2d._problem import ConvolutionProblem, images
from kernelmux.backends.triton.matmul._fp32_tiles import FILL, PARTS, STEP, SUM, SumsTile
from kernelmux.registry.conditions import AtLeast, Capability, Condition, Dtypes
from kernelmux.registry.spec import Call

_STEP = gl.constexpr(STEP)
SOME = gl.constexpr(16)  # terms of a product: the fewest that Triton 3.6 takes
UNIT = 4  # elements of 16 bytes
LEAST = 128  # terms of a piece, at least
ADDED = 512  # sums of a program that adds pieces
# The tiles of matmul, channels by places; those of fewer channels as slow as contiguous images leave them. H200, us: 512 of
# 3x3 on 1x512x7x7 27.7 with 64 x 64, 36.7 with 32 x 64; 256 of 1x1, stride 2, on 10x128x7x7 12.1 with 32 x 32, 14.3 with
# 32 x 64; 64 of 3x3 on 8x64x56x56 82 with 64 x 64, 117 with 64 x 128.
TILES = (
    SumsTile(128, 128, 8, 8, 2, 3, 1.74e5, 1),
    SumsTile(64, 128, 4, 8, 2, 3, 1.45e5, 2),
    SumsTile(64, 64, 4, 4, 2, 4, 1.25e5, 3),
    SumsTile(32, 64, 4, 4, 1, 4, 0.7e5, 4, registers=128),
    SumsTile(32, 32, 4, 4, 2, 4, 0.5e5, 5, registers=96),
    SumsTile(16, 128, 4, 2, 1, 4, 0.6e5, 3, registers=168),
    SumsTile(8, 128, 4, 2, 1, 4, 0.45e5, 3, registers=168),
)


@gluon.jit
def _kernels(ring, base, lines, length, first, end, stride, slot, LAYOUT: gl.constexpr):
    """A step of terms from `first` on of so many kernels."""
    ks = first + gl.arange(0, _STEP, gl.SliceLayout(0, LAYOUT))
    at = gl.expand_dims(lines.to(gl.int64) * stride, 1) + gl.expand_dims(ks, 0)
    copy_in(ring.index(slot), base + at, mask=gl.expand_dims(lines < length, 1) & gl.expand_dims(ks < end, 0))


@gluon.jit
def _patches(
    ring, x_ptr, base, top, left, first, end, slot, channels, height, width, dilation_h, dilation_w, x_c, x_h, x_w,
    TAPS_H: gl.constexpr, TAPS_W: gl.constexpr, LAST: gl.constexpr, UNIFORM: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """A step of terms from `first` on of the patches whose windows begin at (top, left).

    LAST: [places, terms] of images whose channels lie side by side; else [terms, places]. UNIFORM: a step has one tap.
    """
    TERMS: gl.constexpr = 0 if LAST else 1  # the axis of a layout that the terms leave out
    ks = first + gl.arange(0, _STEP, gl.SliceLayout(TERMS, LAYOUT))
    if UNIFORM:
        tap = first // channels + ks * 0
        channel = gl.multiple_of(first % channels, _STEP) + gl.arange(0, _STEP, gl.SliceLayout(TERMS, LAYOUT))
    elif LAST:
        tap = ks // channels
        channel = ks % channels
    else:
        channel = ks // (TAPS_H * TAPS_W)
        tap = ks % (TAPS_H * TAPS_W)
    if UNIFORM:
        r = (first // channels) // TAPS_W * dilation_h
        s = (first // channels) % TAPS_W * dilation_w
        h = top + r
        w = left + s
        inside = (h >= 0) & (h < height) & (w >= 0) & (w < width)
        at = gl.expand_dims(base + (r * x_h + s * x_w), 1) + gl.expand_dims(channel, 0)
        mask = gl.expand_dims(inside, 1) & gl.expand_dims(ks < end, 0)
    else:
        r = tap // TAPS_W * dilation_h
        s = tap % TAPS_W * dilation_w
        h = gl.expand_dims(top, 1 - TERMS) + gl.expand_dims(r, TERMS)
        w = gl.expand_dims(left, 1 - TERMS) + gl.expand_dims(s, TERMS)
        at = gl.expand_dims(base, 1 - TERMS) + gl.expand_dims(channel * x_c + r * x_h + s * x_w, TERMS)
        mask = (h >= 0) & (h < height) & (w >= 0) & (w < width) & gl.expand_dims(ks < end, TERMS)
    copy_in(ring.index(slot), x_ptr + at, mask=mask)


@gluon.jit(do_not_specialize=range(4, 29))
def conv2d_sums_kernel(
    y_ptr, x_ptr, weight_ptr, bias_ptr, images, out_channels, channels, height, width, rows, columns, stride_h, stride_w,
    padding_h, padding_w, dilation_h, dilation_w, y_n, y_o, y_h, y_w, x_n, x_c, x_h, x_w, terms, w_o, length, size,
    TAPS_H: gl.constexpr, TAPS_W: gl.constexpr, BIAS: gl.constexpr, PIECES: gl.constexpr, LAST: gl.constexpr,
    UNIFORM: gl.constexpr, VECTOR_W: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, LANES_M: gl.constexpr, WARPS_M: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """UNIFORM: strides of x are in units of 16 bytes. VECTOR_W: terms and w_o are in units of so many elements. PIECES: of
    terms, each of `length` steps, whose sums are written as that many y of fp32, `size` apart."""
    terms *= VECTOR_W
    w_o *= VECTOR_W
    if UNIFORM:
        x_n *= 4
        x_h *= 4
        x_w *= 4
        channels *= 32
    WARPS: gl.constexpr = gl.num_warps()
    EACH: gl.constexpr = 1 if LAST else 4
    SUMS: gl.constexpr = gl.BlockedLayout([1, EACH], [LANES_M, 32 // LANES_M], [WARPS_M, WARPS // WARPS_M], [1, 0])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 0)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, SUMS, 0)
    LANES_A: gl.constexpr = _STEP // VECTOR_W
    LINES_A: gl.constexpr = gl.BlockedLayout([1, VECTOR_W], [32 // LANES_A, LANES_A], [WARPS, 1], [1, 0])
    VECTOR_X: gl.constexpr = 4 if UNIFORM else 1
    LANES_B: gl.constexpr = _STEP // VECTOR_X if LAST else 32
    LINES_B: gl.constexpr = gl.BlockedLayout([1, VECTOR_X], [32 // LANES_B, LANES_B], [WARPS, 1], [1, 0])
    TURNED: gl.constexpr = gl.SwizzledSharedLayout(4, 1, 8, [1, 0])
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])

    a_ring = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_M, _STEP], TURNED)
    if LAST:
        b_ring = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_N, _STEP], TURNED)
    else:
        b_ring = gl.allocate_shared_memory(gl.float32, [STAGES, _STEP, BLOCK_N], PLAIN)

    tiles_m = gl.cdiv(out_channels, BLOCK_M)
    m = gl.program_id(0) % tiles_m * BLOCK_M
    first_place = gl.program_id(0) // tiles_m * BLOCK_N
    places = images * rows * columns
    begin = gl.program_id(0) * 0
    end = terms
    if PIECES:
        begin = gl.program_id(1) * length * _STEP
        end = gl.minimum(begin + length * _STEP, terms)
        y_ptr += gl.program_id(1).to(gl.int64) * size

    o = m + gl.arange(0, BLOCK_M, gl.SliceLayout(1, LINES_A))
    place = first_place + gl.arange(0, BLOCK_N, gl.SliceLayout(1 if LAST else 0, LINES_B))
    top = place // columns % rows * stride_h - padding_h
    left = place % columns * stride_w - padding_w
    base = place // (rows * columns) * x_n + top * x_h + left * x_w
    top = gl.where(place < places, top, -(2**29))
    for i in gl.static_range(STAGES - 1):
        k = begin + i * _STEP
        _kernels(a_ring, weight_ptr, o, out_channels, k, end, w_o, i, LINES_A)
        _patches(
            b_ring, x_ptr, base, top, left, k, end, i, channels, height, width, dilation_h, dilation_w,
            x_c, x_h, x_w, TAPS_H, TAPS_W, LAST, UNIFORM, LINES_B,
        )  # fmt: skip
        async_copy.commit_group()
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, SUMS)
    slot = 0
    ahead = STAGES - 1
    for k in range(begin, end, _STEP):
        async_copy.wait_group(STAGES - 2)
        later = k + (STAGES - 1) * _STEP
        _kernels(a_ring, weight_ptr, o, out_channels, later, end, w_o, ahead, LINES_A)
        _patches(
            b_ring, x_ptr, base, top, left, later, end, ahead, channels, height, width, dilation_h, dilation_w,
            x_c, x_h, x_w, TAPS_H, TAPS_W, LAST, UNIFORM, LINES_B,
        )  # fmt: skip
        async_copy.commit_group()
        for i in gl.static_range(_STEP // SOME):
            x = a_ring.index(slot).slice(i * SOME, SOME, 1).load(LEFT)
            if LAST:
                y = b_ring.index(slot).slice(i * SOME, SOME, 1).permute((1, 0)).load(RIGHT)
            else:
                y = b_ring.index(slot).slice(i * SOME, SOME, 0).load(RIGHT)
            acc = gl.dot_fma(x, y, acc)
        slot = gl.where(slot == STAGES - 1, 0, slot + 1)
        ahead = gl.where(ahead == STAGES - 1, 0, ahead + 1)
    async_copy.wait_group(0)

    channel = m + gl.arange(0, BLOCK_M, gl.SliceLayout(1, SUMS))
    there = first_place + gl.arange(0, BLOCK_N, gl.SliceLayout(0, SUMS))
    if BIAS:
        more = gl.load(bias_ptr + channel, mask=channel < out_channels, other=0.0)
        acc += gl.expand_dims(more, 1)
    at = there // (rows * columns) * y_n + there // columns % rows * y_h + there % columns * y_w
    at = gl.expand_dims(channel * y_o, 1) + gl.expand_dims(at, 0)
    gl.store(y_ptr + at, acc, mask=gl.expand_dims(channel < out_channels, 1) & gl.expand_dims(there < places, 0))


@triton.jit
def conv2d_add_pieces_kernel(
    y_ptr, parts_ptr, bias_ptr, size, apart, channels, pieces, BIAS: tl.constexpr, BLOCK: tl.constexpr
):
    """y: `pieces` parts added in order, and the bias. apart: of elements of neighbouring channels."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    acc = tl.zeros([BLOCK], tl.float32)
    for _ in range(pieces):
        acc += tl.load(parts_ptr + at, mask=inside, other=0.0)
        parts_ptr += size
    if BIAS:
        acc += tl.load(bias_ptr + at // apart % channels, mask=inside, other=0.0)
    tl.store(y_ptr + at, acc, mask=inside)


class TermShares(NamedTuple):
    """A tile, and pieces of the terms."""

    tile: SumsTile
    pieces: int


def rule(p: ConvolutionProblem) -> TermShares:
    """The quickest tile; whether programs share the terms of tiles that are fewer than multiprocessors can hold."""
    sms, choices = processors(p.device), []
    for tile in TILES:
        tiles = _tiles(tile, p)
        choices.append(TermShares(tile, 1))
        if (pieces := min(sms * tile.programs // tiles, p.terms // LEAST)) > 1:
            choices.append(TermShares(tile, pieces))
    return min(choices, key=lambda one: _microseconds(one, p, sms))


def _tiles(t: SumsTile, p: ConvolutionProblem) -> int:
    return cdiv(p.weight.shape[0], t.m) * cdiv(p.places, t.n)


def _microseconds(one: TermShares, p: ConvolutionProblem, sms: int) -> float:
    t, pieces = one
    programs, room = _tiles(t, p) * pieces, sms * t.programs
    last = cdiv(programs % room, sms)
    alone = max(1.05, 1 + 0.2 * (8 - last * t.warps)) if last < t.programs else 1.0
    work = (programs // room * t.programs + last * alone) * (p.terms / pieces + FILL) * t.m * t.n / t.rate
    return work + (SUM + pieces * prod(p.y.shape) * 8 / PARTS if pieces > 1 else 0.0)


def convolution(
    p: ConvolutionProblem, y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> None:
    """Writes y."""
    launch, pieces, add = _plan(p, rule(p))
    given = y if bias is None else bias
    if add is None:
        launch(y, x, weight, given)
        return
    parts = y.new_empty(pieces * y.numel())
    launch(parts, x, weight, given)
    add(y, parts, given)


@plan
def _plan(p: ConvolutionProblem, cut: TermShares) -> tuple[Launch, int, Launch | None]:
    """The launch, how many pieces it leaves, and what adds these."""
    t, (out_channels, channels, *taps) = cut.tile, p.weight.shape
    steps = cdiv(cdiv(p.terms, STEP), cut.pieces)
    pieces, size = cdiv(p.terms, steps * STEP), prod(p.y.shape)
    (x_n, x_c, x_h, x_w), w_o = p.x.strides, p.weight.strides[0]
    last = p.x.channels_last
    uniform = last and channels % STEP == 0 and not any(step % UNIT for step in (x_n, x_h, x_w))
    vector = UNIT if w_o % UNIT == 0 and p.terms % UNIT == 0 else 1
    unit = UNIT if uniform else 1
    launch = Launch(
        conv2d_sums_kernel, (_tiles(t, p), pieces), p.x.shape[0], out_channels, channels // STEP if uniform else channels,
        *p.x.shape[2:], *p.y.shape[2:], *p.steps, *p.y.strides, x_n // unit, x_c, x_h // unit, x_w // unit,
        p.terms // vector, w_o // vector, steps, size,
        TAPS_H=taps[0], TAPS_W=taps[1], BIAS=p.bias and pieces == 1, PIECES=pieces > 1, LAST=last, UNIFORM=uniform,
        VECTOR_W=vector, BLOCK_M=t.m, BLOCK_N=t.n, LANES_M=t.lanes_m, WARPS_M=t.warps_m, STAGES=t.stages,
        num_warps=t.warps, maxnreg=t.registers,
    )  # fmt: skip
    if pieces == 1:
        return launch, 1, None
    add = Launch(
        conv2d_add_pieces_kernel, (cdiv(size, ADDED),), size, p.y.strides[1], out_channels, pieces, BIAS=p.bias,
        BLOCK=ADDED, num_warps=4,
    )  # fmt: skip
    return launch, pieces, add


@dataclass(frozen=True)
class TermsInOrder:
    """Kernels lie as terms are counted, by channels last where those of x lie side by side; and 32 bits hold places."""

    text = "weight dense, in the order of x; numbers of elements below 2^30"

    def check(self, call: Call) -> str | None:
        """None, or that they do not."""
        x, weight = images(call.arguments["x"]), images(call.arguments["weight"])
        _, c, r, s = weight.shape
        dense = (1, s * c, c) if x.channels_last else (r * s, s, 1)
        apart = zip(weight.shape[1:], weight.strides[1:], dense, strict=True)
        in_order = all(n == 1 or step == wanted for n, step, wanted in apart)
        large = max(x.reach, weight.reach, prod(call.axes[axis] for axis in "NOPQ"), c * r * s)
        return None if in_order and large < 2**30 else f"needs {self.text}"


def requires() -> tuple[Condition, ...]:
    """What a call of conv2d must meet."""
    sizes = (AtLeast(axis, 1) for axis in "NCORS")
    return Capability((9, 0), below=(10, 0)), Dtypes("x", torch.float32), *sizes, TermsInOrder()


@dataclass(frozen=True)
class StrideOfOne:
    """Windows begin at every pixel, so that the gradient of images is a convolution; and 32 bits hold places."""

    text = "stride 1; numbers of elements below 2^30"

    def check(self, call: Call) -> str | None:
        """None, or that they do not."""
        axes = call.axes
        numbers = images(call.arguments["grad_out"]).reach, *(prod(axes[a] for a in some) for some in ("NCHW", "OCRS"))
        fits = tuple(call.arguments["stride"]) == (1, 1) and max(numbers) < 2**30
        return None if fits else f"needs {self.text}"


def requires_of_gradient() -> tuple[Condition, ...]:
    """What a call of conv2d_backward_input must meet."""
    sizes = (AtLeast(axis, 1) for axis in "NCORS")
    return Capability((9, 0), below=(10, 0)), Dtypes("grad_out", torch.float32), *sizes, StrideOfOne()
