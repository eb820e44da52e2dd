"""rms_norm: x * rsqrt(mean(x^2) + eps) * weight over the last dimension, in fp32, rounded once.

looped    squares are summed block by block, then a second walk, of which L2 has most, writes: any length
resident  the row stays in registers, so it is read once; strided rows too long for that are looped
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch import Launch, like, plan
from kernelmux.backends.triton._rows import looped_rule, resident_rule, rounded_product, row_offsets, walk
from kernelmux.backends.triton._strides import Ints, contiguous
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost


@triton.jit
def rms_norm_resident_kernel(
    out_ptr, x_ptr, weight_ptr, sizes, out_strides, x_strides, N, out_step, x_step, weight_step, eps,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    x_rows, mask_rows = row_offsets(block, sizes, x_strides, ROWS)
    out_rows, _ = row_offsets(block, sizes, out_strides, ROWS)
    cols = tl.arange(0, BLOCK_N).to(tl.int64)
    mask_cols = cols < N

    # [ROWS, BLOCK_N]
    mask = mask_rows[:, None] & mask_cols[None, :]
    offs = x_rows[:, None] + (cols * x_step)[None, :]
    x = tl.load(x_ptr + offs, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
    weight = tl.load(weight_ptr + cols * weight_step, mask=mask_cols, eviction_policy="evict_last").to(tl.float32)

    rstd = tl.rsqrt(tl.sum(rounded_product(x, x), 1) / N + eps)
    y = x * rstd[:, None] * weight[None, :]
    out_offs = out_rows[:, None] + (cols * out_step)[None, :]
    tl.store(out_ptr + out_offs, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def rms_norm_looped_kernel(
    out_ptr, x_ptr, weight_ptr, sizes, out_strides, x_strides, N, out_step, x_step, weight_step, eps,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    x_rows, mask_rows = row_offsets(block, sizes, x_strides, ROWS)
    out_rows, _ = row_offsets(block, sizes, out_strides, ROWS)

    # [ROWS, BLOCK_N]: one sum per lane, so that the loop needs no reduction.
    squares = tl.zeros([ROWS, BLOCK_N], tl.float32)
    for start in range(0, N, BLOCK_N):
        cols = (start + tl.arange(0, BLOCK_N)).to(tl.int64)
        mask = mask_rows[:, None] & (cols < N)[None, :]
        offs = x_rows[:, None] + (cols * x_step)[None, :]
        x = tl.load(x_ptr + offs, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
        squares += x * x
    rstd = tl.rsqrt(tl.sum(squares, 1) / N + eps)

    for start in range(0, N, BLOCK_N):
        cols = (start + tl.arange(0, BLOCK_N)).to(tl.int64)
        mask = mask_rows[:, None] & (cols < N)[None, :]
        offs = x_rows[:, None] + (cols * x_step)[None, :]
        x = tl.load(x_ptr + offs, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        weight = tl.load(weight_ptr + cols * weight_step, mask=cols < N, eviction_policy="evict_last").to(tl.float32)
        y = x * rstd[:, None] * weight[None, :]
        out_offs = out_rows[:, None] + (cols * out_step)[None, :]
        tl.store(out_ptr + out_offs, y.to(out_ptr.dtype.element_ty), mask=mask)


def rms_norm_looped(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _rms_norm(x, weight, eps, False)


def rms_norm_resident(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _rms_norm(x, weight, eps, True)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, resident: bool) -> torch.Tensor:
    out = like(x)
    if out.numel():
        _plan(x.shape, x.stride(), x.dtype, weight.stride(0), eps, resident)(out, x, weight)
    return out


@plan
def _plan(shape: Ints, strides: Ints, dtype: torch.dtype, weight_step: int, eps: float, resident: bool) -> Launch:
    w = walk(-1, shape, contiguous(shape), strides)
    kernel, config = rms_norm_resident_kernel, resident_rule(w, dtype.itemsize) if resident else None
    if config is None:
        # H200, 16384 fp32 columns: 97 % of the copy rate with 16 warps and 85 % with 8; for shorter rows 8 are better.
        warps = 8 if w.length * dtype.itemsize <= 32768 else 16
        kernel, config = rms_norm_looped_kernel, looped_rule(w, 8192, warps)
    grid = w.grid(config["ROWS"])
    return Launch(kernel, grid, w.sizes, *w.strides, w.length, *w.steps, weight_step, eps, **config)


VARIANTS = {
    "looped": Implementation(
        fn=rms_norm_looped, idea="squares summed block by block, then a second walk", arithmetic="fp32"
    ),
    "resident": Implementation(
        fn=rms_norm_resident,
        idea="the row stays in registers and is read once",
        # H200, 8192 columns: 92 % of the copy rate; looped 96 %, because more programs fit an SM.
        requires=(AtMost("N", 4096),),
        arithmetic="fp32",
    ),
}
