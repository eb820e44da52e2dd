"""The convolution as a product of matrices, of which the right one is never written: its elements are found in x.

    y[o, place] = sum over terms of weight[o, term] * x[term, place]       place = (n, p, q), term = (c, r, s)

The transposed convolution is one as well. Rows of y that lie `stride` apart meet the same taps: for each such residue a
product has those taps alone, with x walked row by row, and no product with a zero in between.
"""

from __future__ import annotations

from math import gcd

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch.card import enough, held
from kernelmux.backends.triton._launch.launch import Config, Ints, Launch, cdiv, plan, shared_bytes
from kernelmux.backends.triton.conv2d._problem import VECTOR, ConvolutionProblem
from kernelmux.backends.triton.matmul._blocked import tile_of
from kernelmux.backends.triton.matmul._spaces import BEYOND, TOO_MUCH, uneven
from kernelmux.registry.backend.search_space import ConfigChoice, Key, Space
from kernelmux.registry.dtypes import SHORT

UNIT = tl.constexpr(VECTOR)
NEITHER, TERMS, CHANNELS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # of kernels, what lies side by side


@triton.jit
def term_of(start, channels, taps, taps_w, INNER: tl.constexpr, UNIFORM: tl.constexpr, BLOCK_K: tl.constexpr):
    """Channel, row and column of a kernel of the terms from `start` on, each [BLOCK_K].

    INNER: terms are counted channel by channel, then tap by tap. UNIFORM: and no block has two taps.
    """
    if UNIFORM:
        channel = tl.multiple_of(start % channels, BLOCK_K) + tl.arange(0, BLOCK_K)
        tap = start // channels + tl.zeros([BLOCK_K], tl.int32)
    else:
        term = start + tl.arange(0, BLOCK_K)
        channel = term % channels if INNER else term // taps
        tap = term // channels if INNER else term % taps
    return channel, tap // taps_w, tap % taps_w


@triton.jit
def walk_of(residue, taps, stride, padding, dilation, common, TRANSPOSED: tl.constexpr):
    """Along one axis: the first tap, from one to the next, and how many; where in x the first place meets the first tap,
    and how far further places and taps are. common: the greatest divisor of stride and dilation."""
    if TRANSPOSED:
        apart = stride // common
        candidates = tl.minimum(taps, apart)
        first = residue * 0 + taps
        for i in range(candidates):
            tap = candidates - 1 - i
            first = tl.where((residue + padding - tap * dilation) % stride == 0, tap, first)
        count = (taps - first + apart - 1) // apart
        walk = first, apart, count, (residue + padding - first * dilation) // stride, 1, -(dilation // common)
    else:
        walk = residue * 0, 1, taps, residue - padding, stride, dilation
    return walk


@triton.jit
def weights_at(weight_ptr, o, start, c, r, s, w_o, w_c, w_r, w_s, LINES: tl.constexpr, BLOCK_K: tl.constexpr):
    """Pointers [BLOCK_O, BLOCK_K]. LINES: what lies side by side, in vectors; other strides come in units of these."""
    if LINES == TERMS:
        return weight_ptr + (o[:, None] * (w_o * UNIT) + (start + tl.arange(0, BLOCK_K))[None, :])
    across = c * w_c + r * w_r + s * w_s
    if LINES == CHANNELS:
        return weight_ptr + (o[:, None] + (across * UNIT)[None, :])
    return weight_ptr + (o[:, None] * w_o + across[None, :])


@triton.jit(do_not_specialize=range(4, 35))
def conv2d_implicit_gemm_kernel(
    y_ptr, x_ptr, weight_ptr, bias_ptr, images, out_channels, channels, height, width, rows, columns, taps_h, taps_w,
    stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w, common_h, common_w, residues_h, residues_w,
    y_n, y_o, y_h, y_w, x_n, x_c, x_h, x_w, w_o, w_c, w_r, w_s,
    TRANSPOSED: tl.constexpr, BIAS: tl.constexpr, INNER: tl.constexpr, X_VECTORS: tl.constexpr,
    Y_VECTORS: tl.constexpr, LINES: tl.constexpr, INDEX: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_O: tl.constexpr,
):  # fmt: skip
    """x [images channels height width], y [images out_channels rows columns], of which each residue is one product."""
    per_h = tl.cdiv(rows, residues_h)
    per_w = tl.cdiv(columns, residues_w)
    places = images.to(INDEX) * per_h * per_w
    tiles = tl.cdiv(out_channels, BLOCK_O) * tl.cdiv(places, BLOCK_P).to(tl.int32)
    residue = tl.program_id(0) // tiles
    tile_o, tile_p = tile_of(tl.program_id(0) % tiles, out_channels, places, BLOCK_O, BLOCK_P, GROUP_O)
    residue_h = (residue // residues_w).to(INDEX)
    residue_w = (residue % residues_w).to(INDEX)
    tap_h, apart_h, count_h, first_h, by_place_h, by_tap_h = walk_of(
        residue_h, taps_h, stride_h, padding_h, dilation_h, common_h, TRANSPOSED
    )
    tap_w, apart_w, count_w, first_w, by_place_w, by_tap_w = walk_of(
        residue_w, taps_w, stride_w, padding_w, dilation_w, common_w, TRANSPOSED
    )

    o = (tile_o * BLOCK_O + tl.arange(0, BLOCK_O)).to(INDEX)
    place = tile_p.to(INDEX) * BLOCK_P + tl.arange(0, BLOCK_P)
    n = place // (per_h * per_w)
    i = place // per_w % per_h
    j = place % per_w
    in_o = (o < out_channels) | Y_VECTORS | (LINES == CHANNELS)
    at = (place < places)[None, :]
    # [BLOCK_O, BLOCK_P]
    acc = tl.zeros([BLOCK_O, BLOCK_P], tl.float32)
    terms = channels.to(INDEX) * (count_h * count_w)
    for start in range(0, terms, BLOCK_K):
        c, r, s = term_of(start, channels, count_h * count_w, count_w, INNER, X_VECTORS, BLOCK_K)
        known = (start + tl.arange(0, BLOCK_K) < terms) | X_VECTORS | (LINES == TERMS)
        h = (first_h + i * by_place_h)[None, :] + (r * by_tap_h)[:, None]
        w = (first_w + j * by_place_w)[None, :] + (s * by_tap_w)[:, None]
        inside = (h >= 0) & (h < height) & (w >= 0) & (w < width) & known[:, None] & at
        offs = n[None, :] * x_n + h * x_h + w * x_w
        offs = offs * UNIT + c[:, None] if X_VECTORS else offs + c[:, None] * x_c
        x = tl.load(x_ptr + offs, mask=inside, other=0.0)  # [BLOCK_K, BLOCK_P]
        r = tap_h + r * apart_h
        s = tap_w + s * apart_w
        weights = weights_at(weight_ptr, o, start, c, r, s, w_o, w_c, w_r, w_s, LINES, BLOCK_K)
        weight = tl.load(weights, mask=in_o[:, None] & known[None, :], other=0.0)  # [BLOCK_O, BLOCK_K]
        acc = tl.dot(weight, x, acc, input_precision="ieee")
    if BIAS:
        acc += tl.load(bias_ptr + o, mask=in_o, other=0.0).to(tl.float32)[:, None]
    h = residue_h + i * residues_h
    w = residue_w + j * residues_w
    offs = (n * y_n + h * y_h + w * y_w)[None, :]
    offs = offs * UNIT + o[:, None] if Y_VECTORS else offs + o[:, None] * y_o
    inside = in_o[:, None] & at & ((h < rows) & (w < columns))[None, :]
    tl.store(y_ptr + offs, acc.to(y_ptr.dtype.element_ty), mask=inside)


def rule(channels: int, places: int, p: ConvolutionProblem) -> Config:
    """Large tiles reuse more; what is loaded element by element keeps an address for each, and spills sooner."""
    if p.dtype == torch.float32:
        return _tile(64, 64, 16, warps=4, stages=3)
    if channels <= 64 and p.x.channels_last and not p.x.vectors(16):
        # H200, fp16, 32x3x224x224 by 64x3x7x7 with a stride of 2: 177 us; 252 with 64 x 64 x 32.
        return _tile(64, 128, 16, warps=4, stages=4)
    if channels <= 64 or cdiv(channels, 128) * cdiv(places, 128) < enough(p.device):
        return _tile(64, 64, 32, warps=4, stages=4)
    return _tile(128, 128, 64, warps=8, stages=3) if p.x.channels_last else _tile(64, 128, 32, warps=8, stages=3)


def _tile(o: int, p: int, k: int, warps: int, stages: int) -> Config:
    return {"BLOCK_O": o, "BLOCK_P": p, "BLOCK_K": k, "GROUP_O": 8, "num_warps": warps, "num_stages": stages}


def _key(p: ConvolutionProblem) -> Key:
    out_channels, channels, taps_h, taps_w = p.weight.shape
    order = "channels_last" if p.x.channels_last else "strided"
    return Key(f"{SHORT[p.dtype]} {order}", (out_channels, p.places, channels, taps_h * taps_w))


def _refusal(c: Config, p: ConvolutionProblem) -> str | None:
    o, places, k = c["BLOCK_O"], c["BLOCK_P"], c["BLOCK_K"]
    if o >= 2 * p.weight.shape[0]:
        return BEYOND
    if held(c["num_stages"], p.device) * (o + places) * k * p.dtype.itemsize > shared_bytes(p.device):
        return TOO_MUCH
    return "a step of several taps" if p.whole_taps(k) != k else uneven(o * places, c["num_warps"])


SPACE = Space(
    "triton", "conv2d", "implicit_gemm",
    {"BLOCK_O": (32, 64, 128, 256), "BLOCK_P": (64, 128, 256), "BLOCK_K": (16, 32, 64, 128), "GROUP_O": (4, 8, 16),
     "num_warps": (4, 8), "num_stages": (2, 3, 4, 5)},
    lambda p: rule(p.weight.shape[0], p.places, p), _key, _refusal,
)  # fmt: skip


def implicit_gemm(p: ConvolutionProblem, transposed: bool = False) -> Launch:
    """The launch, of y, x, weight and bias. transposed: y are the images that x are the convolution of."""
    return _plan(p, transposed, None if transposed else SPACE.choice)


@plan
def _plan(p: ConvolutionProblem, transposed: bool, choice: ConfigChoice | None) -> Launch:
    out_channels, channels, *taps = p.weight.shape
    images, _, rows, columns = p.y.shape
    residues = [min(w.stride, n) if transposed else 1 for w, n in zip(p.windows, (rows, columns), strict=True)]
    places = images * cdiv(rows, residues[0]) * cdiv(columns, residues[1])
    config = rule(out_channels, places, p) if choice is None else choice(p)
    config["BLOCK_K"] = p.whole_taps(config["BLOCK_K"])  # steps end where the channels of a tap do
    programs = residues[0] * residues[1] * cdiv(out_channels, config["BLOCK_O"]) * cdiv(places, config["BLOCK_P"])
    common = [gcd(w.stride, w.dilation) for w in p.windows]
    x_vectors, y_vectors = p.x.vectors(config["BLOCK_K"]), p.y.vectors(config["BLOCK_O"])
    w_strides, lines = weight_lines(p, transposed, config)
    return Launch(
        conv2d_implicit_gemm_kernel, (programs,), images, out_channels, channels, *p.x.shape[2:], rows, columns, *taps,
        *p.steps, *common, *residues, *p.y.in_units(y_vectors), *p.x.in_units(x_vectors), *w_strides,
        TRANSPOSED=transposed, BIAS=p.bias, INNER=p.x.channels_last, X_VECTORS=x_vectors, Y_VECTORS=y_vectors,
        LINES=lines, INDEX=p.index, **config,
    )  # fmt: skip


def weight_lines(p: ConvolutionProblem, transposed: bool, config: Config) -> tuple[Ints, int]:
    """Strides of the kernels, and what of them lies side by side, if it can be read 16 bytes at a time."""
    o, c, r, s = p.weight.strides
    out_channels, channels, taps_h, taps_w = p.weight.shape
    dense = (1, taps_w * channels, channels) if p.x.channels_last else (taps_h * taps_w, taps_w, 1)
    if not transposed and (c, r, s) == dense and o % VECTOR == 0 and p.terms % config["BLOCK_K"] == 0:
        return (o // VECTOR, c, r, s), TERMS.value
    if o == 1 and out_channels % config["BLOCK_O"] == 0 and not any(step % VECTOR for step in (c, r, s)):
        return (1, c // VECTOR, r // VECTOR, s // VECTOR), CHANNELS.value
    return p.weight.strides, NEITHER.value
