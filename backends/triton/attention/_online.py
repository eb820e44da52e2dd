"""Attention over pointers: one program per block of queries walks the keys once, with a running maximum and sum."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch import Config, Launch, cdiv, like, plan
from kernelmux.backends.triton.attention._problem import Problem, problem

Rule = Callable[[Problem], Config]


@triton.jit
def key_range(start_m, M, N, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Keys [0, full) are seen by every query of the block, [full, end) by some; full is a multiple of BLOCK_N."""
    if CAUSAL:
        end = tl.minimum(N, tl.minimum(M, start_m + BLOCK_M) + N - M)
        return (start_m + N - M + 1) // BLOCK_N * BLOCK_N, end
    return N // BLOCK_N * BLOCK_N, N


@triton.jit
def online_softmax(acc, top, total, scores, scale):
    """acc rescaled to the new running maximum, that maximum, the running sum, and the weights.

    scale includes log2(e) and is not negative (the sign of a negative one moves to q), so the maximum is scaled last.
    """
    new_top = tl.maximum(top, tl.max(scores, 1) * scale)
    p = tl.exp2(scores * scale - new_top[:, None])
    fade = tl.exp2(top - new_top)
    return acc * fade[:, None], new_top, total * fade + tl.sum(p, 1), p


@triton.jit
def mask_scores(scores, offs_m, offs_n, M, N, CAUSAL: tl.constexpr):
    """-inf for keys that do not exist and, causal, for keys later than the query; the last query sees the last key."""
    visible = (offs_n < N)[None, :]
    if CAUSAL:
        visible = visible & (offs_n[None, :] <= offs_m[:, None] + (N - M))
    return tl.where(visible, scores, -float("inf"))


@triton.jit
def _walk_keys(
    acc, top, total, q, k_ptrs, v_ptrs, begin, end, stride_kn, stride_vn, offs_m, M, N, scale,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    for start_n in range(begin, end, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        rows_k = k_ptrs + offs_n.to(tl.int64)[:, None] * stride_kn
        rows_v = v_ptrs + offs_n.to(tl.int64)[:, None] * stride_vn
        # [BLOCK_N, D]
        k = tl.load(rows_k, mask=(offs_n < N)[:, None], other=0.0) if MASKED else tl.load(rows_k)
        # [BLOCK_M, BLOCK_N]
        scores = tl.dot(q, k.T, input_precision=PRECISION)
        if MASKED:
            scores = mask_scores(scores, offs_m, offs_n, M, N, CAUSAL)
        acc, top, total, p = online_softmax(acc, top, total, scores, scale)
        v = tl.load(rows_v, mask=(offs_n < N)[:, None], other=0.0) if MASKED else tl.load(rows_v)
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
    return acc, top, total


@triton.jit
def attention_online_kernel(
    out_ptr, q_ptr, k_ptr, v_ptr, H, SHARE, M, N, scale, out_strides, q_strides, k_strides, v_strides,
    CAUSAL: tl.constexpr, FLIP: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    blocks_m = tl.cdiv(M, BLOCK_M)
    # The last queries see the most keys, so their programs start first.
    start_m = (blocks_m - 1 - tl.program_id(0) % blocks_m) * BLOCK_M
    batch = (tl.program_id(0) // blocks_m // H).to(tl.int64)
    head = (tl.program_id(0) // blocks_m % H).to(tl.int64)
    group = head // SHARE

    offs_m = start_m + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, D)
    mask_m = (offs_m < M)[:, None]
    rows_m = offs_m.to(tl.int64)[:, None]
    # [BLOCK_M, D]
    q_ptrs = q_ptr + batch * q_strides[0] + head * q_strides[1] + rows_m * q_strides[2] + offs_d[None, :]
    q = tl.load(q_ptrs, mask=mask_m, other=0.0)
    if FLIP:
        q = -q
    k_ptrs = k_ptr + batch * k_strides[0] + group * k_strides[1] + offs_d[None, :]
    v_ptrs = v_ptr + batch * v_strides[0] + group * v_strides[1] + offs_d[None, :]

    acc = tl.zeros([BLOCK_M, D], tl.float32)
    top = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    full, end = key_range(start_m, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    acc, top, total = _walk_keys(
        acc, top, total, q, k_ptrs, v_ptrs, 0, full, k_strides[2], v_strides[2], offs_m, M, N, scale,
        CAUSAL, False, PRECISION, BLOCK_N,
    )  # fmt: skip
    acc, top, total = _walk_keys(
        acc, top, total, q, k_ptrs, v_ptrs, full, end, k_strides[2], v_strides[2], offs_m, M, N, scale,
        CAUSAL, True, PRECISION, BLOCK_N,
    )  # fmt: skip

    out_ptrs = out_ptr + batch * out_strides[0] + head * out_strides[1] + rows_m * out_strides[2] + offs_d[None, :]
    tl.store(out_ptrs, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=mask_m)


@plan
def _plan(p: Problem, rule: Rule) -> Launch:
    config = rule(p)
    return Launch(
        attention_online_kernel, (cdiv(p.M, config["BLOCK_M"]) * p.B * p.H,), *p.sizes, *(s[:3] for s in p.strides),
        PRECISION="ieee", **p.constants, **config,
    )  # fmt: skip


def online(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, rule: Rule) -> torch.Tensor:
    """Attention with one block of queries per program."""
    out = like(q)
    if out.numel():
        _plan(problem(q, k, v, causal, scale), rule)(out, q, k, v)
    return out
