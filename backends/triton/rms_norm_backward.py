"""rms_norm_backward: gradients of rms_norm with respect to x and weight, in fp32, rounded once.

With r = rsqrt(mean(x^2) + eps):  grad_x = r * (g*w - x * r^2 * mean(g*w*x)),  grad_weight = sum over rows of g*x*r.

split  one kernel per row for grad_x and r, another that walks the columns for grad_weight: any length
fused  each program takes many rows and keeps its share of grad_weight in registers, so x and g are read once
Both write partial sums of grad_weight and add them in a second step, in a fixed order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch import cdiv, launch
from kernelmux.backends.triton._rows import clamp, next_power, rounded_product
from kernelmux.backends.triton.reduce_sum import sum_along
from kernelmux.registry.backend import Implementation

Gradients = tuple[torch.Tensor, torch.Tensor]

# x, g, weight and grad_weight of a row, 32 values each per thread, still fit the registers of 16 warps.
FUSED = 16384
PROGRAMS = 264


@triton.jit
def rms_norm_backward_fused_kernel(
    grad_x_ptr, sums_ptr, grad_ptr, x_ptr, weight_ptr, M, N, weight_step, eps, BLOCK_N: tl.constexpr
):
    program = tl.program_id(0)
    cols = tl.arange(0, BLOCK_N)
    mask = cols < N
    weight = tl.load(weight_ptr + cols.to(tl.int64) * weight_step, mask=mask, other=0.0).to(tl.float32)

    # [BLOCK_N]
    grad_weight = tl.zeros([BLOCK_N], tl.float32)
    for row in tl.range(program, M, tl.num_programs(0)):
        offs = row.to(tl.int64) * N + cols
        x = tl.load(x_ptr + offs, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        grad = tl.load(grad_ptr + offs, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        rstd = tl.rsqrt(tl.sum(rounded_product(x, x), 0) / N + eps)
        normed = x * rstd
        scaled = grad * weight
        grad_x = rstd * (scaled - normed * (tl.sum(rounded_product(scaled, normed), 0) / N))
        tl.store(grad_x_ptr + offs, grad_x.to(grad_x_ptr.dtype.element_ty), mask=mask)
        grad_weight += grad * normed

    tl.store(sums_ptr + program.to(tl.int64) * N + cols, grad_weight, mask=mask)


@triton.jit
def rms_norm_backward_rows_kernel(
    grad_x_ptr, rstd_ptr, grad_ptr, x_ptr, weight_ptr, N, weight_step, eps, BLOCK_N: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)

    # [BLOCK_N]: one sum per lane, so that the loop needs no reduction.
    squares = tl.zeros([BLOCK_N], tl.float32)
    products = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, N, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        mask = cols < N
        x = tl.load(x_ptr + row * N + cols, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
        grad = tl.load(grad_ptr + row * N + cols, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
        weight = tl.load(weight_ptr + cols.to(tl.int64) * weight_step, mask=mask, other=0.0).to(tl.float32)
        squares += x * x
        products += grad * weight * x
    rstd = tl.rsqrt(tl.sum(squares, 0) / N + eps)
    mean = tl.sum(products, 0) * rstd / N
    tl.store(rstd_ptr + row, rstd)

    for start in range(0, N, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        mask = cols < N
        x = tl.load(x_ptr + row * N + cols, mask=mask, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + row * N + cols, mask=mask, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + cols.to(tl.int64) * weight_step, mask=mask, other=0.0).to(tl.float32)
        grad_x = rstd * (grad * weight - x * rstd * mean)
        tl.store(grad_x_ptr + row * N + cols, grad_x.to(grad_x_ptr.dtype.element_ty), mask=mask)


@triton.jit
def rms_norm_backward_columns_kernel(
    sums_ptr, rstd_ptr, grad_ptr, x_ptr, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_cols = cols < N

    # [BLOCK_M, BLOCK_N]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(tl.program_id(0) * BLOCK_M, M, tl.num_programs(0) * BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)
        mask = (rows < M)[:, None] & mask_cols[None, :]
        offs = rows.to(tl.int64)[:, None] * N + cols[None, :]
        x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + rows, mask=rows < M, other=0.0)
        total += grad * (x * rstd[:, None])
    tl.store(sums_ptr + tl.program_id(0).to(tl.int64) * N + cols, tl.sum(total, 0), mask=mask_cols)


def _outputs(x: torch.Tensor, weight: torch.Tensor, programs: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """grad_x, grad_weight, and the fp32 sums of grad_weight by program."""
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    grad_weight = torch.empty(weight.shape, dtype=weight.dtype, device=x.device)
    return grad_x, grad_weight, torch.empty(programs, x.shape[-1], dtype=torch.float32, device=x.device)


def rms_norm_backward_split(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Gradients:
    N = x.shape[-1]
    M = x.numel() // max(N, 1)
    if M * N == 0:
        return torch.empty_like(x), torch.zeros_like(weight)
    block_m, block_n = 16, 128
    programs = clamp(cdiv(PROGRAMS * 4, cdiv(N, block_n)), 1, cdiv(M, block_m))
    grad_x, grad_weight, sums = _outputs(x, weight, programs)
    rstd = torch.empty(M, dtype=torch.float32, device=x.device)
    launch(
        rms_norm_backward_rows_kernel, (M,), grad_x, rstd, grad_out, x, weight, N, weight.stride(0), eps,
        BLOCK_N=min(4096, next_power(N)), num_warps=8,
    )  # fmt: skip
    grid = (programs, cdiv(N, block_n))
    launch(
        rms_norm_backward_columns_kernel, grid, sums, rstd, grad_out, x, M, N,
        BLOCK_M=block_m, BLOCK_N=block_n, num_warps=4,
    )  # fmt: skip
    sum_along(sums, 0, grad_weight.view(1, N))
    return grad_x, grad_weight


def rms_norm_backward_fused(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Gradients:
    N = x.shape[-1]
    M = x.numel() // max(N, 1)
    if M * N == 0 or N > FUSED:
        return rms_norm_backward_split(grad_out, x, weight, eps)
    grad_x, grad_weight, sums = _outputs(x, weight, min(M, PROGRAMS))
    block = next_power(N)
    launch(
        rms_norm_backward_fused_kernel, (min(M, PROGRAMS),), grad_x, sums, grad_out, x, weight,
        M, N, weight.stride(0), eps, BLOCK_N=block, num_warps=clamp(block // 512, 1, 16),
    )  # fmt: skip
    sum_along(sums, 0, grad_weight.view(1, N))
    return grad_x, grad_weight


CONTIGUOUS = {"grad_out": "contiguous", "x": "contiguous"}

VARIANTS = {
    "split": Implementation(
        fn=rms_norm_backward_split, idea="rows for grad_x, then columns for grad_weight", layout=CONTIGUOUS
    ),
    "fused": Implementation(
        fn=rms_norm_backward_fused, idea="many rows per program, grad_weight in registers", layout=CONTIGUOUS
    ),
}
