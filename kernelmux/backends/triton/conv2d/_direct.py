"""The convolution as its formula says: a program adds the products of its places and channels one term at a time."""

from __future__ import annotations

import triton
import triton.language as tl

from kernelmux.backends.triton._launch.launch import Config, Launch, cdiv, plan
from kernelmux.backends.triton.conv2d._problem import ConvolutionProblem

TILE: Config = {"BLOCK_O": 8, "BLOCK_P": 64, "num_warps": 4}


@triton.jit(do_not_specialize=range(4, 31))
def conv2d_direct_kernel(
    y_ptr, x_ptr, weight_ptr, bias_ptr, places, out_channels, channels, height, width, rows, columns, taps_h, taps_w,
    stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w, y_n, y_o, y_h, y_w, x_n, x_c, x_h, x_w,
    w_o, w_c, w_r, w_s,
    BIAS: tl.constexpr, INDEX: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    tiles_o = tl.cdiv(out_channels, BLOCK_O)
    o = (tl.program_id(0) % tiles_o * BLOCK_O + tl.arange(0, BLOCK_O)).to(INDEX)[:, None]
    place = ((tl.program_id(0) // tiles_o).to(INDEX) * BLOCK_P + tl.arange(0, BLOCK_P))[None, :]
    n = place // (rows * columns)
    p = place // columns % rows
    q = place % columns
    # [BLOCK_O, BLOCK_P]
    acc = tl.zeros([BLOCK_O, BLOCK_P], tl.float32)
    for c in range(channels):
        for r in range(taps_h):
            h = p * stride_h - padding_h + r * dilation_h
            for s in range(taps_w):
                w = q * stride_w - padding_w + s * dilation_w
                inside = (place < places) & (h >= 0) & (h < height) & (w >= 0) & (w < width)
                at = n * x_n + c * tl.cast(x_c, INDEX) + h * x_h + w * x_w
                x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
                tap = c * tl.cast(w_c, INDEX) + r * tl.cast(w_r, INDEX) + s * w_s
                weight = tl.load(weight_ptr + o * w_o + tap, mask=o < out_channels, other=0.0)
                acc += weight.to(tl.float32) * x
    if BIAS:
        acc += tl.load(bias_ptr + o, mask=o < out_channels, other=0.0).to(tl.float32)
    at = n * y_n + o * y_o + p * y_h + q * y_w
    tl.store(y_ptr + at, acc.to(y_ptr.dtype.element_ty), mask=(o < out_channels) & (place < places))


@plan
def direct(p: ConvolutionProblem) -> Launch:
    """The launch, of y, x, weight and bias."""
    out_channels, channels, *taps = p.weight.shape
    programs = cdiv(out_channels, TILE["BLOCK_O"]) * cdiv(p.places, TILE["BLOCK_P"])
    return Launch(
        conv2d_direct_kernel, (programs,), p.places, out_channels, channels, *p.x.shape[2:], *p.y.shape[2:], *taps,
        *p.steps, *p.y.strides, *p.x.strides, *p.weight.strides, BIAS=p.bias, INDEX=p.index, **TILE,
    )  # fmt: skip
