"""What the plan of a call depends on, and the ranges of queries that a block of keys is seen by."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch.launch import Config, Ints, Launch, cdiv, plan
from kernelmux.backends.triton._rows.rows import rounded_product
from kernelmux.registry.spec.sliding_windows import Limit, Mask, mask_of

T = torch.Tensor

LOG2E = 1.4426950408889634
FP32 = torch.finfo(torch.float32)
ROWS = 64  # of a program that sums grad_out * y


class AttentionGradientProblem(NamedTuple):
    """Sizes of q (B H M D) and of k and v (B G N D), their strides, dtype, mask and scalars."""

    device: int
    B: int
    H: int
    G: int
    M: int
    N: int
    D: int
    g_strides: Ints
    q_strides: Ints
    k_strides: Ints
    v_strides: Ints
    y_strides: Ints
    dtype: torch.dtype
    mask: Mask
    scale: float
    precision: str

    @property
    def sizes(self) -> tuple[int, int, int, int, int, int, float, float]:
        """H, query heads per key head, M, N, shift, window, the scale, and that of exponents to base 2."""
        log2 = max(-FP32.max, min(self.scale * LOG2E, FP32.max))
        return self.H, self.H // self.G, self.M, self.N, self.mask.shift, self.mask.window, self.scale, log2

    @property
    def columns(self) -> int:
        """D up to the next power of two, the width of a tile; what lies beyond D is zero."""
        return max(16, int(triton.next_power_of_2(self.D)))

    @property
    def constants(self) -> Config:
        """What every kernel is compiled for."""
        return {"CAUSAL": self.mask.causal, "WINDOW": self.mask.window > 0, "D": self.D, "COLUMNS": self.columns}


def problem(
    grad_out: T, q: T, k: T, v: T, y: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> AttentionGradientProblem:  # fmt: skip
    """The problem of a call."""
    B, H, M, D = q.shape
    _, G, N, _ = k.shape
    mask = mask_of(M, N, causal, window, ahead)
    of_grad_out, of_q, of_k, of_v, of_y = (x.stride() for x in (grad_out, q, k, v, y))
    return AttentionGradientProblem(
        q.get_device(), B, H, G, M, N, D, of_grad_out, of_q, of_k, of_v, of_y, q.dtype, mask, scale, precision
    )


@triton.jit
def query_range(
    start_n,
    M,
    N,
    shift,
    window,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Queries of [begin, end) see some key of the block, those of [first, last) all of them, in whole blocks of queries.

    first may lie behind last: then no block of queries sees all.
    """
    if CAUSAL:
        begin = tl.maximum(0, start_n - shift) // BLOCK_M * BLOCK_M
        first = tl.cdiv(tl.maximum(0, start_n + BLOCK_N - 1 - shift), BLOCK_M) * BLOCK_M
    else:
        begin = 0
        first = 0
    if WINDOW:
        end = tl.maximum(0, tl.minimum(M, start_n + BLOCK_N - 1 - shift + window))
        last = tl.maximum(0, tl.minimum(M, start_n - shift + window)) // BLOCK_M * BLOCK_M
    else:
        end = M
        last = tl.cdiv(M, BLOCK_M) * BLOCK_M
    return begin, first, last, end


@triton.jit
def visible(offs_m, offs_n, shift, window, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """Which of these queries see which of these keys, under a causal mask, in a window or both."""
    if CAUSAL and WINDOW:
        seen = (offs_n <= offs_m + shift) & (offs_n > offs_m + (shift - window))
    elif CAUSAL:
        seen = offs_n <= offs_m + shift
    else:
        seen = offs_n > offs_m + (shift - window)
    return seen


@triton.jit
def probabilities(scores, lse, offs_m, offs_n, N, shift, window, scale_log2, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
                  MASKED: tl.constexpr):  # fmt: skip
    """exp(scale * scores - lse) where a key is seen, else 0. lse, offs_m, offs_n: shaped to go with the scores."""
    p = tl.exp2(scores * scale_log2 - lse)
    if MASKED:
        seen = offs_n < N
        if CAUSAL or WINDOW:
            seen = seen & visible(offs_m, offs_n, shift, window, CAUSAL, WINDOW)
        p = tl.where(seen, p, 0.0)
    return p


@triton.jit
def load_lse(lse_ptr, offs_m, M):
    """In units of log(2); a query that sees no key, or that does not exist, weighs none: exp(... - inf) is 0."""
    lse = tl.load(lse_ptr + offs_m, mask=offs_m < M, other=float("inf"))
    return tl.where(lse == -float("inf"), float("inf"), lse * 1.4426950408889634)


@triton.jit
def load_queries(ptr, offs_m, M, row_stride, D: tl.constexpr, COLUMNS: tl.constexpr):
    """[queries, COLUMNS] of a head; 0 for queries that do not exist, and beyond D."""
    offs_d = tl.arange(0, COLUMNS)
    there = (offs_m < M)[:, None] & (offs_d < D)[None, :]
    return tl.load(ptr + offs_m.to(tl.int64)[:, None] * row_stride + offs_d[None, :], mask=there, other=0.0)


@triton.jit
def row_terms(g, y):
    """sum(grad_out * y) of each query."""
    return tl.sum(rounded_product(g.to(tl.float32), y.to(tl.float32)), 1)


@triton.jit
def attention_delta_kernel(
    delta_ptr, g_ptr, y_ptr, H, M, g_strides, y_strides, D: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr
):
    """sum(grad_out * y) of each query [B H M]."""
    blocks = tl.cdiv(M, ROWS)
    line = (tl.program_id(0) // blocks).to(tl.int64)
    batch = line // H
    head = line % H
    offs_m = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    g = load_queries(g_ptr + batch * g_strides[0] + head * g_strides[1], offs_m, M, g_strides[2], D, COLUMNS)
    y = load_queries(y_ptr + batch * y_strides[0] + head * y_strides[1], offs_m, M, y_strides[2], D, COLUMNS)
    tl.store(delta_ptr + line * M + offs_m, row_terms(g, y), mask=offs_m < M)


@plan
def delta_plan(p: AttentionGradientProblem) -> Launch:
    """Launched with delta, grad_out and y."""
    grid = (cdiv(p.M, ROWS) * p.B * p.H,)
    meta: Config = {"D": p.D, "COLUMNS": p.columns, "ROWS": ROWS, "num_warps": 4}
    return Launch(attention_delta_kernel, grid, p.H, p.M, p.g_strides[:3], p.y_strides[:3], **meta)
