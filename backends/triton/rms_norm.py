"""rms_norm: x * rsqrt(mean(x^2) + eps) * weight over the last dimension, in fp32, rounded once.

looped    squares are summed block by block, then a second walk writes: any length
resident  the row stays in registers, so it is read once; rows too long for that are looped
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch import launch
from kernelmux.backends.triton._rows import Walk, looped_rule, resident_rule, rounded_product, row_offsets, walk
from kernelmux.registry.backend import Implementation


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
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel():
        w = walk(-1, out, x)
        _launch(rms_norm_looped_kernel, out, x, weight, w, eps, looped_rule(w, x.element_size()))
    return out


def rms_norm_resident(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    w = walk(-1, out, x)
    rule = resident_rule(w, x.element_size())
    if rule is None:
        _launch(rms_norm_looped_kernel, out, x, weight, w, eps, looped_rule(w, x.element_size()))
    else:
        _launch(rms_norm_resident_kernel, out, x, weight, w, eps, rule)
    return out


def _launch(
    kernel: Any, out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, w: Walk, eps: float, config: dict[str, int]
) -> None:
    launch(
        kernel, w.grid(config["ROWS"]), out, x, weight, w.sizes, *w.strides, w.length, *w.steps, weight.stride(0), eps,
        **config,
    )  # fmt: skip


VARIANTS = {
    "looped": Implementation(
        fn=rms_norm_looped, idea="squares summed block by block, then a second walk", arithmetic="fp32"
    ),
    "resident": Implementation(
        fn=rms_norm_resident, idea="the row stays in registers and is read once", arithmetic="fp32"
    ),
}
