"""rms_norm_backward: gradients of rms_norm with respect to x and weight, in fp32, rounded once.

With r = rsqrt(mean(x^2) + eps):  grad_x = r * (g*w - x * r^2 * mean(g*w*x)),  grad_weight = sum over rows of g*x*r.

split  one kernel per row for grad_x and r, another that walks the columns for grad_weight: any length
fused  each program takes many rows and keeps its share of grad_weight in registers, so x and g are read once
Both write partial sums of grad_weight and add them in a second step, in a fixed order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch import Config, Launch, cdiv, plan, processors
from kernelmux.backends.triton._rows import clamp, next_power, rounded_product
from kernelmux.backends.triton._sums import sum_first
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost

Gradients = tuple[torch.Tensor, torch.Tensor]

# x, g, weight and grad_weight of a row, 32 values each per thread, still fit the registers of 16 warps.
FUSED = 16384


@triton.jit
def _add_pairs(a0, a1, b0, b1):
    return a0 + b0, a1 + b1


@triton.jit
def rms_norm_backward_fused_kernel(
    grad_x_ptr, sums_ptr, grad_ptr, x_ptr, weight_ptr, M, N, weight_step, eps,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    cols = tl.arange(0, BLOCK_N)
    mask = cols < N
    weight = tl.load(weight_ptr + cols.to(tl.int64) * weight_step, mask=mask, other=0.0).to(tl.float32)

    # [BLOCK_N]
    grad_weight = tl.zeros([BLOCK_N], tl.float32)
    # The rows to come are on their way to shared memory while this one waits for its sums.
    for row in tl.range(program, M, tl.num_programs(0), num_stages=STAGES):
        start = row.to(tl.int64) * N
        x = tl.load(x_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
        scaled = grad * weight
        # Both sums in one exchange among warps.
        squares, products = tl.reduce((rounded_product(x, x), rounded_product(scaled, x)), 0, _add_pairs)
        rstd = tl.rsqrt(squares / N + eps)
        normed = x * rstd
        grad_x = rstd * (scaled - normed * (rstd * products / N))
        tl.store(grad_x_ptr + start + cols, grad_x.to(grad_x_ptr.dtype.element_ty), mask=mask)
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


class Plan(NamedTuple):
    """The launches before the last sum, and how many partial sums of grad_weight they leave."""

    launches: tuple[Launch, ...]
    programs: int


@plan
def _split(device: int, M: int, N: int, weight_step: int, eps: float) -> Plan:
    block_m, block_n = 16, 128
    blocks_n = cdiv(N, block_n)
    programs = clamp(cdiv(8 * processors(device), blocks_n), 1, cdiv(M, block_m))
    rows = Launch(
        rms_norm_backward_rows_kernel, (M,), N, weight_step, eps, BLOCK_N=min(4096, next_power(N)), num_warps=8
    )
    columns = Launch(
        rms_norm_backward_columns_kernel, (programs, blocks_n), M, N, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=4
    )
    return Plan((rows, columns), programs)


def rule(N: int, itemsize: int) -> Config:
    """A program per SM for long rows, more for short ones; the rows on their way, up to three, take 128 KiB."""
    block = next_power(N)
    warps = clamp(block // 256, 1, 32 if itemsize == 2 else 16)
    ahead = clamp(131072 // (2 * block * itemsize), 1, 3)
    return {"PER_SM": clamp(8192 // block, 1, 4), "STAGES": 1 + ahead, "num_warps": warps}


@plan
def _fused(device: int, M: int, N: int, itemsize: int, weight_step: int, eps: float) -> Plan:
    config = dict(rule(N, itemsize))
    programs = min(M, config.pop("PER_SM") * processors(device))
    kernel = Launch(
        rms_norm_backward_fused_kernel, (programs,), M, N, weight_step, eps, BLOCK_N=next_power(N), **config
    )
    return Plan((kernel,), programs)


def rms_norm_backward_split(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Gradients:
    M, N = _rows(x)
    if M * N == 0:
        return torch.empty_like(x), torch.zeros_like(weight)
    (rows, columns), programs = _split(x.get_device(), M, N, weight.stride(0), eps)
    grad_x, grad_weight, sums = _outputs(x, weight, programs)
    rstd = torch.empty(M, dtype=torch.float32, device=x.device)
    rows(grad_x, rstd, grad_out, x, weight)
    columns(sums, rstd, grad_out, x)
    sum_first(sums, grad_weight)
    return grad_x, grad_weight


def rms_norm_backward_fused(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Gradients:
    M, N = _rows(x)
    if M * N == 0:
        return torch.empty_like(x), torch.zeros_like(weight)
    (fused,), programs = _fused(x.get_device(), M, N, x.element_size(), weight.stride(0), eps)
    grad_x, grad_weight, sums = _outputs(x, weight, programs)
    fused(grad_x, sums, grad_out, x, weight)
    sum_first(sums, grad_weight)
    return grad_x, grad_weight


def _rows(x: torch.Tensor) -> tuple[int, int]:
    N = x.shape[-1]
    return x.numel() // max(N, 1), N


def _outputs(x: torch.Tensor, weight: torch.Tensor, programs: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """grad_x, grad_weight, and the fp32 sums of grad_weight by program."""
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    grad_weight = torch.empty(weight.shape, dtype=weight.dtype, device=x.device)
    return grad_x, grad_weight, torch.empty(programs, x.shape[-1], dtype=torch.float32, device=x.device)


CONTIGUOUS = {"grad_out": "contiguous", "x": "contiguous"}

VARIANTS = {
    "split": Implementation(
        fn=rms_norm_backward_split, idea="rows for grad_x, then columns for grad_weight", layout=CONTIGUOUS
    ),
    "fused": Implementation(
        fn=rms_norm_backward_fused, idea="many rows per program, grad_weight in registers",
        requires=(AtMost("N", FUSED),), layout=CONTIGUOUS,
    ),
}  # fmt: skip
