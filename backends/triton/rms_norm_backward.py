"""rms_norm_backward: gradients of rms_norm with respect to x and weight, in fp32, rounded once.

With r = rsqrt(mean(x^2) + eps):  grad_x = r * (g*w - x * r^2 * mean(g*w*x)),  grad_weight = sum over rows of g*x*r.

split  one kernel per row for grad_x and r, another that walks the columns for grad_weight: any length
fused  each program takes many rows and keeps its share of grad_weight in registers, so x and g are read once
Both write partial sums of grad_weight and add them in a second step, in a fixed order.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

from kernelmux.backends.triton._launch import Config, Launch, cdiv, like, overlaps, plan, processors
from kernelmux.backends.triton._rows import clamp, next_power, rounded_product
from kernelmux.backends.triton._strides import Ints
from kernelmux.backends.triton._sums import Step, run, sum_first
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
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, LEADS: tl.constexpr,
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

    if LEADS:
        cuda.gdc_launch_dependents()
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
    """The first launches, the shape of the partial sums of grad_weight that they make, and the steps that add those."""

    launches: tuple[Launch, ...]
    sums: tuple[int, int]
    last: tuple[Step, ...]


@plan
def _split(device: int, shape: Ints, weight_step: int, eps: float) -> Plan:
    M, N = math.prod(shape[:-1]), shape[-1]
    block_m, block_n = 16, 128
    blocks_n = cdiv(N, block_n)
    programs = clamp(cdiv(8 * processors(device), blocks_n), 1, cdiv(M, block_m))
    rows = Launch(
        rms_norm_backward_rows_kernel, (M,), N, weight_step, eps, BLOCK_N=min(4096, next_power(N)), num_warps=8
    )
    columns = Launch(
        rms_norm_backward_columns_kernel, (programs, blocks_n), M, N, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=4
    )
    return Plan((rows, columns), (programs, N), sum_first(device, programs, N))


def rule(N: int, itemsize: int) -> Config:
    """A program per SM for long rows, two for short ones, with up to 128 KiB of the rows to come on their way.

    H200, 16384 x 8192: 93 (bf16) and 95 % (fp32) of the copy rate; with 32 warps and three rows on their way 90 and 94.
    """
    block = next_power(N)
    ahead = clamp(131072 // (2 * block * itemsize), 1, 2 if block > 4096 else 3)
    return {"PER_SM": 1 if block > 4096 else 2, "STAGES": 1 + ahead, "num_warps": clamp(block // 256, 1, 16)}


@plan
def _fused(device: int, shape: Ints, itemsize: int, weight_step: int, eps: float) -> Plan:
    M, N = math.prod(shape[:-1]), shape[-1]
    config = rule(N, itemsize)
    programs = min(M, config["PER_SM"] * processors(device))
    meta = {"BLOCK_N": next_power(N), "STAGES": config["STAGES"], "LEADS": overlaps(device)}
    kernel = rms_norm_backward_fused_kernel
    launch = Launch(kernel, (programs,), M, N, weight_step, eps, num_warps=config["num_warps"], **meta)
    return Plan((launch,), (programs, N), sum_first(device, programs, N))


def rms_norm_backward_split(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Gradients:
    if x.numel() == 0:
        return like(x), torch.zeros_like(weight)
    (rows, columns), shape, last = _split(x.get_device(), x.shape, weight.stride(0), eps)
    grad_x, grad_weight, sums = like(x), like(weight), torch.empty(shape, dtype=torch.float32, device=x.device)
    rstd = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
    rows(grad_x, rstd, grad_out, x, weight)
    columns(sums, rstd, grad_out, x)
    run(last, sums, grad_weight)
    return grad_x, grad_weight


def rms_norm_backward_fused(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Gradients:
    if x.numel() == 0:
        return like(x), torch.zeros_like(weight)
    (fused,), shape, last = _fused(x.get_device(), x.shape, x.element_size(), weight.stride(0), eps)
    grad_x, grad_weight, sums = like(x), like(weight), torch.empty(shape, dtype=torch.float32, device=x.device)
    fused(grad_x, sums, grad_out, x, weight)
    run(last, sums, grad_weight)
    return grad_x, grad_weight


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
