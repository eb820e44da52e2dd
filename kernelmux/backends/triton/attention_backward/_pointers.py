"""Gradients of attention over pointers: one program per block of keys for theirs, one per block of queries for its own.

Scores are computed again, from lse: five products become seven, and no sum needs atomics.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch.launch import Config, Launch, cdiv, plan
from kernelmux.backends.triton.attention._online import key_range, query_block
from kernelmux.backends.triton.attention_backward._problem import (
    AttentionGradientProblem,
    load_lse,
    probabilities,
    query_range,
)

Rule = Callable[[AttentionGradientProblem], Config]


@triton.jit
def _walk_queries(
    grad_k, grad_v, k, v, g_ptrs, q_ptrs, lse_ptr, delta_ptr, g_row, q_row, begin, end, offs_n, in_columns, M, N,
    shift, window, scale_log2, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, MASKED: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    for start_m in range(begin, end, BLOCK_M):
        offs_m = start_m + tl.arange(0, BLOCK_M)
        there = (offs_m < M)[:, None] & in_columns
        rows = offs_m.to(tl.int64)[:, None]
        # [BLOCK_M, COLUMNS]
        q = tl.load(q_ptrs + rows * q_row, mask=there, other=0.0)
        # Transposed, [BLOCK_N, BLOCK_M]: so the weights are the left operand of the products with queries.
        scores = tl.dot(k, q.T, input_precision=PRECISION)
        p = probabilities(
            scores, load_lse(lse_ptr, offs_m, M)[None, :], offs_m[None, :], offs_n[:, None], N, shift, window,
            scale_log2, CAUSAL, WINDOW, MASKED,
        )  # fmt: skip
        g = tl.load(g_ptrs + rows * g_row, mask=there, other=0.0)
        grad_v = tl.dot(p.to(g.dtype), g, grad_v, input_precision=PRECISION)
        grad_p = tl.dot(v, g.T, input_precision=PRECISION)
        delta = tl.load(delta_ptr + offs_m, mask=offs_m < M, other=0.0)
        ds = p * (grad_p - delta[None, :])
        if MASKED:  # what is not seen has no part, whatever stands there
            ds = tl.where(p == 0.0, 0.0, ds)
        grad_k = tl.dot(ds.to(q.dtype), q, grad_k, input_precision=PRECISION)
    return grad_k, grad_v


@triton.jit
def attention_keys_kernel(
    grad_k_ptr, grad_v_ptr, g_ptr, q_ptr, k_ptr, v_ptr, lse_ptr, delta_ptr, H, SHARE, M, N, shift, window, scale,
    scale_log2, g_strides, q_strides, k_strides, v_strides,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    blocks_n = tl.cdiv(N, BLOCK_N)
    # The first keys are seen by the most queries, and their programs start first.
    start_n = tl.program_id(0) % blocks_n * BLOCK_N
    line = (tl.program_id(0) // blocks_n).to(tl.int64)
    groups = H // SHARE
    batch = line // groups
    group = line % groups
    offs_n = start_n + tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, COLUMNS)
    in_columns = (offs_d < D)[None, :]
    there = (offs_n < N)[:, None] & in_columns
    rows = offs_n.to(tl.int64)[:, None]
    # [BLOCK_N, COLUMNS]
    k = tl.load(
        k_ptr + batch * k_strides[0] + group * k_strides[1] + rows * k_strides[2] + offs_d[None, :],
        mask=there,
        other=0.0,
    )
    v = tl.load(
        v_ptr + batch * v_strides[0] + group * v_strides[1] + rows * v_strides[2] + offs_d[None, :],
        mask=there,
        other=0.0,
    )
    grad_k = tl.zeros([BLOCK_N, COLUMNS], tl.float32)
    grad_v = tl.zeros([BLOCK_N, COLUMNS], tl.float32)
    begin, _, _, end = query_range(start_n, M, N, shift, window, CAUSAL, WINDOW, BLOCK_M, BLOCK_N)
    for head in range(group * SHARE, (group + 1) * SHARE):
        g_ptrs = g_ptr + batch * g_strides[0] + head * g_strides[1] + offs_d[None, :]
        q_ptrs = q_ptr + batch * q_strides[0] + head * q_strides[1] + offs_d[None, :]
        lse = lse_ptr + (batch * H + head) * M
        delta = delta_ptr + (batch * H + head) * M
        # One walk: a second one, without a mask, would cost registers that the sums need.
        grad_k, grad_v = _walk_queries(
            grad_k, grad_v, k, v, g_ptrs, q_ptrs, lse, delta, g_strides[2], q_strides[2], begin, end, offs_n, in_columns,
            M, N, shift, window, scale_log2, CAUSAL, WINDOW, CAUSAL or WINDOW, PRECISION, BLOCK_M,
        )  # fmt: skip
    at = (line * N + rows) * D + offs_d[None, :]
    tl.store(grad_k_ptr + at, (grad_k * scale).to(grad_k_ptr.dtype.element_ty), mask=there)
    tl.store(grad_v_ptr + at, grad_v.to(grad_v_ptr.dtype.element_ty), mask=there)


@triton.jit
def _walk_keys(
    grad_q, q, g, lse, delta, k_ptrs, v_ptrs, k_row, v_row, begin, end, offs_m, in_columns, N, shift, window,
    scale_log2, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, PRECISION: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    for start_n in range(begin, end, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        rows = offs_n.to(tl.int64)[:, None]
        # [BLOCK_N, COLUMNS]
        there = (offs_n < N)[:, None] & in_columns
        k = tl.load(k_ptrs + rows * k_row, mask=there, other=0.0)
        v = tl.load(v_ptrs + rows * v_row, mask=there, other=0.0)
        # [BLOCK_M, BLOCK_N]
        scores = tl.dot(q, k.T, input_precision=PRECISION)
        p = probabilities(
            scores, lse[:, None], offs_m[:, None], offs_n[None, :], N, shift, window, scale_log2, CAUSAL, WINDOW, True
        )
        # What is not seen has no part, whatever stands there.
        ds = tl.where(p == 0.0, 0.0, p * (tl.dot(g, v.T, input_precision=PRECISION) - delta[:, None]))
        grad_q = tl.dot(ds.to(k.dtype), k, grad_q, input_precision=PRECISION)
    return grad_q


@triton.jit
def attention_queries_kernel(
    grad_q_ptr, g_ptr, q_ptr, k_ptr, v_ptr, lse_ptr, delta_ptr, H, SHARE, M, N, shift, window, scale, scale_log2,
    g_strides, q_strides, k_strides, v_strides,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    start_m, line = query_block(M, BLOCK_M)
    line = line.to(tl.int64)
    batch = line // H
    head = line % H
    group = head // SHARE
    offs_m = start_m + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, COLUMNS)
    in_columns = (offs_d < D)[None, :]
    there = (offs_m < M)[:, None] & in_columns
    rows = offs_m.to(tl.int64)[:, None]
    # [BLOCK_M, COLUMNS]
    q = tl.load(
        q_ptr + batch * q_strides[0] + head * q_strides[1] + rows * q_strides[2] + offs_d[None, :],
        mask=there,
        other=0.0,
    )
    g = tl.load(
        g_ptr + batch * g_strides[0] + head * g_strides[1] + rows * g_strides[2] + offs_d[None, :],
        mask=there,
        other=0.0,
    )
    lse = load_lse(lse_ptr + line * M, offs_m, M)
    delta = tl.load(delta_ptr + line * M + offs_m, mask=offs_m < M, other=0.0)
    k_ptrs = k_ptr + batch * k_strides[0] + group * k_strides[1] + offs_d[None, :]
    v_ptrs = v_ptr + batch * v_strides[0] + group * v_strides[1] + offs_d[None, :]
    grad_q = tl.zeros([BLOCK_M, COLUMNS], tl.float32)
    begin, _, _, end = key_range(start_m, M, N, shift, window, CAUSAL, WINDOW, BLOCK_M, BLOCK_N)
    grad_q = _walk_keys(
        grad_q, q, g, lse, delta, k_ptrs, v_ptrs, k_strides[2], v_strides[2], begin, end, offs_m, in_columns, N,
        shift, window, scale_log2, CAUSAL, WINDOW, PRECISION, BLOCK_N,
    )  # fmt: skip
    at = (line * M + rows) * D + offs_d[None, :]
    tl.store(grad_q_ptr + at, (grad_q * scale).to(grad_q_ptr.dtype.element_ty), mask=there)


@plan
def plans(p: AttentionGradientProblem, keys_rule: Rule, queries_rule: Rule) -> tuple[Launch, Launch]:
    """Launches for the gradients of keys and values, and for that of queries."""
    strides = tuple(s[:3] for s in (p.g_strides, p.q_strides, p.k_strides, p.v_strides))
    keys, queries = keys_rule(p), queries_rule(p)
    return (
        Launch(
            attention_keys_kernel, (cdiv(p.N, keys["BLOCK_N"]) * p.B * p.G,), *p.sizes, *strides, PRECISION=p.precision,
            **p.constants, **keys,
        ),
        Launch(
            attention_queries_kernel, (cdiv(p.M, queries["BLOCK_M"]) * p.B * p.H,), *p.sizes, *strides,
            PRECISION=p.precision, **p.constants, **queries,
        ),
    )  # fmt: skip


def pointers(
    p: AttentionGradientProblem, grads: tuple[torch.Tensor, ...], grad_out: torch.Tensor, q: torch.Tensor, k: torch.Tensor,
    v: torch.Tensor, lse: torch.Tensor, delta: torch.Tensor, keys_rule: Rule, queries_rule: Rule,
) -> None:  # fmt: skip
    """Writes grads: of q, k and v."""
    for_keys, for_queries = plans(p, keys_rule, queries_rule)
    for_keys(grads[1], grads[2], grad_out, q, k, v, lse, delta)
    for_queries(grads[0], grad_out, q, k, v, lse, delta)
