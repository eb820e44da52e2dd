"""conv2d_backward_weight: a product of matrices over all places, of which neither factor is written.

    grad_weight[o, term] = sum over places of grad_out[o, place] * x[place, term]      place = (n, p, q), term = (c, r, s)

The places are cut into shares where there are few tiles; a second kernel adds the sums of the shares up in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import isqrt

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._families.sums import run, sum_first
from kernelmux.backends.triton._launch.card import TensorCores
from kernelmux.backends.triton._launch.division import quotient, reciprocal
from kernelmux.backends.triton._launch.launch import Config, Launch, cdiv, plan, processors
from kernelmux.backends.triton.conv2d import _folded, _patches, _specialised_weight
from kernelmux.backends.triton.conv2d._implicit_gemm import UNIT, term_of
from kernelmux.backends.triton.conv2d._problem import ConvolutionProblem, images
from kernelmux.backends.triton.conv2d._specialised import requires
from kernelmux.backends.triton.conv2d._specialised_weight import HalfFull
from kernelmux.backends.triton.matmul._blocked import tile_of
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtLeast
from kernelmux.registry.spec.sliding_windows import PIXELS, Pair, windows
from kernelmux.registry.util.memory_format import format_of

# Channels of grad_out, or terms, up to which tiles are 32 channels wide and a share may be a single step. Such a step takes
# as long as adding up STEP shares, so that the square root of STEP * steps shares take the least time. H200, us, bf16,
# channels-last: 32 of 3x3, stride 2, on 13x3x21x21 with 25 shares of 32 x 32 9.1, with 6 of 64 x 64 18.8, torch 15.7; on
# 32x3x32x32 with 48 11.7, with 12 18.2; 21 of 1x1 on 9x64x56x56 with 132 of 32 x 64 15.2, with 264 16.0, of 64 x 64 20.3.
FEW, STEP = 32, 40
ALONE = 4  # steps that take no longer than the launch which adds up their sums


@triton.jit(do_not_specialize=range(3, 35))
def conv2d_backward_weight_kernel(
    out_ptr, grad_ptr, x_ptr, images, out_channels, channels, height, width, rows, columns, taps_h, taps_w,
    stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w,
    g_n, g_o, g_h, g_w, x_n, x_c, x_h, x_w, w_o, w_c, w_r, w_s, size,
    by_columns, shift_columns, by_rows, shift_rows,
    INNER: tl.constexpr, X_VECTORS: tl.constexpr, G_VECTORS: tl.constexpr, INDEX: tl.constexpr, BLOCK_O: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_O: tl.constexpr,
):  # fmt: skip
    """grad_out [images out_channels rows columns], x [images channels height width]; a share of the places per program
    along axis 1, whose sums are `size` elements after those of the one before."""
    places = images.to(INDEX) * rows * columns
    terms = channels.to(INDEX) * taps_h * taps_w
    tile_o, tile_c = tile_of(tl.program_id(0), out_channels, terms, BLOCK_O, BLOCK_C, GROUP_O)
    o = (tile_o * BLOCK_O + tl.arange(0, BLOCK_O)).to(INDEX)
    first = tile_c.to(INDEX) * BLOCK_C
    c, r, s = term_of(first, channels, taps_h * taps_w, taps_w, INNER, X_VECTORS, BLOCK_C)
    c, r, s = c.to(INDEX), r.to(INDEX), s.to(INDEX)
    in_o = (o < out_channels) | G_VECTORS
    in_c = (first + tl.arange(0, BLOCK_C) < terms) | X_VECTORS
    share = tl.cdiv(tl.cdiv(places, BLOCK_K), tl.num_programs(1)) * BLOCK_K
    begin = tl.program_id(1) * share
    end = tl.minimum(begin + share, places)
    # [BLOCK_O, BLOCK_C]
    acc = tl.zeros([BLOCK_O, BLOCK_C], tl.float32)
    for start in range(begin, end, BLOCK_K):
        place = start + tl.arange(0, BLOCK_K)
        line = quotient(place, columns, by_columns, shift_columns)
        n = quotient(line, rows, by_rows, shift_rows)
        p = line - n * rows
        q = place - line * columns
        offs = (n * g_n + p * g_h + q * g_w)[None, :]
        offs = offs * UNIT + o[:, None] if G_VECTORS else offs + o[:, None] * g_o
        g = tl.load(grad_ptr + offs, mask=in_o[:, None] & (place < end)[None, :], other=0.0)  # [BLOCK_O, BLOCK_K]
        h = (p * stride_h - padding_h)[:, None] + (r * dilation_h)[None, :]
        w = (q * stride_w - padding_w)[:, None] + (s * dilation_w)[None, :]
        inside = (h >= 0) & (h < height) & (w >= 0) & (w < width) & (place < end)[:, None] & in_c[None, :]
        offs = n[:, None] * x_n + h * x_h + w * x_w
        offs = offs * UNIT + c[None, :] if X_VECTORS else offs + (c * x_c)[None, :]
        x = tl.load(x_ptr + offs, mask=inside, other=0.0)  # [BLOCK_K, BLOCK_C]
        acc = tl.dot(g, x, acc, input_precision="ieee")
    out_ptr += tl.program_id(1).to(tl.int64) * size
    offs = o[:, None] * w_o + (c * w_c + r * w_r + s * w_s)[None, :]
    tl.store(out_ptr + offs, acc.to(out_ptr.dtype.element_ty), mask=in_o[:, None] & in_c[None, :])


def rule(p: ConvolutionProblem) -> Config:
    """A tile, and into how many shares the places are cut: as many as make two programs for each multiprocessor."""
    out_channels, terms = p.weight.shape[0], p.terms
    lines = p.x.channels_last and p.y.channels_last
    few = min(out_channels, terms) <= FEW and lines and p.dtype != torch.float32
    if p.dtype == torch.float32:
        tile = _tile(64, 64, 16, warps=4)
    elif few:
        tile = _tile(32, min((64, 32), key=lambda width: cdiv(terms, width) * width), 64, warps=4)
    elif min(out_channels, terms) <= 64 or not lines:
        tile = _tile(64, 64, 32, warps=4)
    else:
        tile = _tile(128, 128, 64, warps=8)
    tile["BLOCK_C"] = p.whole_taps(tile["BLOCK_C"])
    tiles, steps = cdiv(out_channels, tile["BLOCK_O"]) * cdiv(terms, tile["BLOCK_C"]), cdiv(p.places, tile["BLOCK_K"])
    if few:
        most = 1 if steps <= ALONE else min(steps, isqrt(STEP * steps))
        return {**tile, "SHARES": max(min(4 * processors(p.device) // tiles, most), 1)}
    return {**tile, "SHARES": max(min(2 * processors(p.device) // tiles, steps // 8), 1)}


def _tile(o: int, c: int, k: int, warps: int) -> Config:
    return {"BLOCK_O": o, "BLOCK_C": c, "BLOCK_K": k, "GROUP_O": 8, "num_warps": warps, "num_stages": 3}


@plan
def _plan(p: ConvolutionProblem) -> tuple[Launch, int, Callable[..., None]]:
    """The launch, how many shares there are, and what adds their sums up."""
    config = rule(p)
    shares = config.pop("SHARES")
    out_channels, channels, *taps = p.weight.shape
    count, _, rows, columns = p.y.shape
    g_vectors, x_vectors = p.y.vectors(config["BLOCK_O"]), p.x.vectors(config["BLOCK_C"])
    size = out_channels * p.terms
    tiles = cdiv(out_channels, config["BLOCK_O"]) * cdiv(p.terms, config["BLOCK_C"])
    launch = Launch(
        conv2d_backward_weight_kernel, (tiles, shares), count, out_channels, channels, *p.x.shape[2:], rows, columns,
        *taps, *p.steps, *p.y.in_units(g_vectors), *p.x.in_units(x_vectors), *p.weight.strides, size,
        *reciprocal(columns), *reciprocal(rows),
        INNER=p.x.channels_last, X_VECTORS=x_vectors, G_VECTORS=g_vectors, INDEX=p.index, **config,
    )  # fmt: skip
    return launch, shares, partial(run, sum_first(p.device, shares, size))


def conv2d_backward_weight(
    grad_out: torch.Tensor, x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    shape = (grad_out.shape[1], x.shape[1], *kernel)
    grad_weight = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=format_of(x))
    if grad_weight.numel():
        tensors, over = (images(x), images(grad_out), images(grad_weight)), windows(kernel, stride, padding, dilation)
        launch, shares, finish = _plan(ConvolutionProblem(x.get_device(), x.dtype, *tensors, over))
        if shares == 1:
            launch(grad_weight, grad_out, x)
        else:
            sums = x.new_empty((shares, grad_weight.numel()), dtype=torch.float32)
            launch(sums, grad_out, x)
            finish(sums, grad_weight)
    return grad_weight


def specialised(
    grad_out: torch.Tensor, x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    over = windows(kernel, stride, padding, dilation)
    return _specialised_weight.gradient(grad_out, x, (grad_out.shape[1], x.shape[1], *kernel), over)


def folded(
    grad_out: torch.Tensor, x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    over = windows(kernel, stride, padding, dilation)
    return _folded.gradient(grad_out, x, (grad_out.shape[1], x.shape[1], *kernel), over)


def patches(
    grad_out: torch.Tensor, x: torch.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> torch.Tensor:
    over = windows(kernel, stride, padding, dilation)
    return _patches.gradient_of_weight(grad_out, x, (grad_out.shape[1], x.shape[1], *kernel), over)


VARIANTS = {
    "implicit_gemm": Implementation(
        conv2d_backward_weight, "a product over all places on tensor cores, in shares", (TensorCores("grad_out"),),
        arithmetic="mma",
    ),
    "folded": Implementation(
        folded, "columns of a window become channels, then as specialised",
        (*_folded.requires("grad_out"), AtLeast("C", _folded.FEW), AtLeast("N", 1), _folded.NotGathered(FEW)),
        arithmetic="mma",
    ),
    "specialised": Implementation(
        specialised, "boxes of both by TMA, two warpgroups multiply; what is not channels-last is copied",
        requires("grad_out", AtLeast("N", 1), *PIXELS, HalfFull(), _folded.Unfolded(), read="OC"),
        arithmetic="mma",
    ),
    "patches": Implementation(
        patches, "windows that do not overlap are rows of a matrix",
        _patches.requires("grad_out", _patches.FewChannelsOrContiguous("x", None)), arithmetic="mma",
    ),
}  # fmt: skip
