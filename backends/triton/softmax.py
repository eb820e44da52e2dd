"""softmax: exp(scale * x - max) / sum along one axis, in fp32, rounded once.

online    a running maximum and sum per lane over blocks of the row, then a second walk that writes: any length
resident  the row stays in registers, so it is read once; rows too long for that go online
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch import Launch, like, plan
from kernelmux.backends.triton._rows import RESIDENT, looped_rule, resident_rule, rounded_product, row_offsets, walk
from kernelmux.backends.triton._strides import Ints, contiguous
from kernelmux.registry.backend import Implementation

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def softmax_resident_kernel(
    out_ptr, x_ptr, sizes, out_strides, x_strides, N, out_step, x_step, scale,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    x_rows, mask_rows = row_offsets(block, sizes, x_strides, ROWS)
    out_rows, _ = row_offsets(block, sizes, out_strides, ROWS)
    cols = tl.arange(0, BLOCK_N).to(tl.int64)

    # [ROWS, BLOCK_N]
    mask = mask_rows[:, None] & (cols < N)[None, :]
    offs = x_rows[:, None] + (cols * x_step)[None, :]
    x = tl.load(x_ptr + offs, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
    # The padding is -inf whatever scale is: -inf * 0 would be NaN.
    x = tl.where(mask, rounded_product(x, scale), -float("inf"))

    # Subtract, then scale to base 2: one fma would round scale * x * log2(e), which is large where x is.
    p = tl.exp2((x - tl.max(x, 1)[:, None]) * LOG2E)
    y = p * (1 / tl.sum(p, 1))[:, None]
    out_offs = out_rows[:, None] + (cols * out_step)[None, :]
    tl.store(out_ptr + out_offs, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def softmax_online_kernel(
    out_ptr, x_ptr, sizes, out_strides, x_strides, N, out_step, x_step, scale,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    x_rows, mask_rows = row_offsets(block, sizes, x_strides, ROWS)
    out_rows, _ = row_offsets(block, sizes, out_strides, ROWS)

    # [ROWS, BLOCK_N]: each lane keeps its own maximum and sum, so that the loop needs no reduction.
    top = tl.full([ROWS, BLOCK_N], -float("inf"), tl.float32)
    total = tl.zeros([ROWS, BLOCK_N], tl.float32)
    for start in range(0, N, BLOCK_N):
        cols = (start + tl.arange(0, BLOCK_N)).to(tl.int64)
        mask = mask_rows[:, None] & (cols < N)[None, :]
        offs = x_rows[:, None] + (cols * x_step)[None, :]
        x = tl.load(x_ptr + offs, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
        x = tl.where(mask, rounded_product(x, scale), -float("inf"))
        new_top = tl.maximum(top, x)
        base = tl.where(new_top == -float("inf"), 0.0, new_top)
        total = total * tl.exp2((top - base) * LOG2E) + tl.exp2((x - base) * LOG2E)
        top = new_top

    row_top = tl.max(top, 1)
    row_base = tl.where(row_top == -float("inf"), 0.0, row_top)
    inverse = 1 / tl.sum(rounded_product(total, tl.exp2((top - row_base[:, None]) * LOG2E)), 1)

    for start in range(0, N, BLOCK_N):
        cols = (start + tl.arange(0, BLOCK_N)).to(tl.int64)
        mask = mask_rows[:, None] & (cols < N)[None, :]
        offs = x_rows[:, None] + (cols * x_step)[None, :]
        x = tl.load(x_ptr + offs, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        # Rounded as for the maximum: fused into the subtraction, the product would not cancel against it.
        y = tl.exp2((rounded_product(x, scale) - row_base[:, None]) * LOG2E) * inverse[:, None]
        out_offs = out_rows[:, None] + (cols * out_step)[None, :]
        tl.store(out_ptr + out_offs, y.to(out_ptr.dtype.element_ty), mask=mask)


def softmax_online(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return _softmax(x, axis, scale, False)


def softmax_resident(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return _softmax(x, axis, scale, True)


def _softmax(x: torch.Tensor, axis: int, scale: float, resident: bool) -> torch.Tensor:
    out = like(x)
    if out.numel():
        _plan(x.shape, x.stride(), x.dtype, axis, scale, resident)(out, x)
    return out


@plan
def _plan(shape: Ints, strides: Ints, dtype: torch.dtype, axis: int, scale: float, resident: bool) -> Launch:
    w = walk(axis, shape, contiguous(shape), strides)
    kernel, config = softmax_resident_kernel, resident_rule(w, dtype.itemsize) if resident else None
    if config is None:
        # H200: 79 % of the copy rate at 16384 columns, where 8192 by 16 reach 61 %; at 65536, 64 and 69 %.
        kernel, config = softmax_online_kernel, looped_rule(w, *((4096, 8) if w.length <= RESIDENT else (8192, 16)))
    return Launch(kernel, w.grid(config["ROWS"]), w.sizes, *w.strides, w.length, *w.steps, scale, **config)


VARIANTS = {
    "online": Implementation(
        fn=softmax_online, idea="running maximum and sum per lane, then a second walk", arithmetic="fp32"
    ),
    "resident": Implementation(
        fn=softmax_resident, idea="the row stays in registers and is read once", arithmetic="fp32"
    ),
}
