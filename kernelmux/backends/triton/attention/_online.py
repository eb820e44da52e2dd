"""Attention over pointers: one program per block of queries walks the keys once, with a running maximum and sum."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch.launch import Config, Launch, cdiv, plan
from kernelmux.backends.triton.attention._problem import AttentionProblem, apart, outputs, problem
from kernelmux.registry.spec.sliding_windows import Limit

T = torch.Tensor

Rule = Callable[[AttentionProblem], Config]
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def query_block(M, BLOCK_M: tl.constexpr):
    """The first query of a program, and which head of which batch. The last queries see the most keys, and start first."""
    blocks = tl.cdiv(M, BLOCK_M)
    return (blocks - 1 - tl.program_id(0) % blocks) * BLOCK_M, tl.program_id(0) // blocks


@triton.jit
def located(program, lines, blocks, SECTION):
    """Which line, and which of its blocks, a program is about: first the first blocks of SECTION lines."""
    section = program // (SECTION * blocks)
    within = program % (SECTION * blocks)
    size = tl.minimum(SECTION, lines - section * SECTION)
    return section * SECTION + within % size, within // size


@triton.jit
def key_range(
    start_m,
    M,
    N,
    shift,
    window,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Some query of the block sees keys of [begin, end), every one all of [first, last), in whole blocks of keys.

    first may lie behind last: then no block of keys is seen by all.
    """
    if CAUSAL:
        end = tl.maximum(0, tl.minimum(N, tl.minimum(M, start_m + BLOCK_M) + shift))
        last = tl.maximum(0, tl.minimum(N, start_m + shift + 1)) // BLOCK_N * BLOCK_N
    else:
        end = N
        last = N // BLOCK_N * BLOCK_N
    if WINDOW:
        begin = tl.maximum(0, start_m + shift - window + 1) // BLOCK_N * BLOCK_N
        first = tl.cdiv(tl.maximum(0, tl.minimum(M, start_m + BLOCK_M) + shift - window), BLOCK_N) * BLOCK_N
    else:
        begin = 0
        first = 0
    return begin, first, last, end


@triton.jit
def online_softmax(acc, top, total, scores, scale, MASKED: tl.constexpr):
    """acc rescaled to the new running maximum, that maximum, the running sum, and the weights.

    scale includes log2(e) and is not negative (the sign of a negative one moves to q), so the maximum is scaled last.
    MASKED: a row may have seen no key yet; the difference of two infinities would poison it.
    """
    new_top = tl.maximum(top, tl.max(scores, 1) * scale)
    base = tl.where(new_top == -float("inf"), 0.0, new_top) if MASKED else new_top
    p = tl.exp2(scores * scale - base[:, None])
    fade = tl.exp2(top - base)
    return acc * fade[:, None], new_top, total * fade + tl.sum(p, 1), p


@triton.jit
def mask_scores(scores, offs_m, offs_n, N, shift, window, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """-inf for keys that do not exist, or that the query does not see; the last query stands at the last key."""
    visible = (offs_n < N)[None, :]
    if CAUSAL:
        visible = visible & (offs_n[None, :] <= offs_m[:, None] + shift)
    if WINDOW:
        visible = visible & (offs_n[None, :] > offs_m[:, None] + (shift - window))
    return tl.where(visible, scores, -float("inf"))


@triton.jit
def finished(acc, top, total):
    """The output, and log(sum(exp(scores))); 0 and -inf for a row that saw no key."""
    return acc / tl.where(total == 0.0, 1.0, total)[:, None], (top + tl.log2(total)) * LN2


@triton.jit
def walk_keys(
    acc, top, total, q, k_ptrs, v_ptrs, begin, end, stride_kn, stride_vn, offs_m, in_columns, N, shift, window, scale,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, MASKED: tl.constexpr, PADDED: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    for start_n in range(begin, end, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        rows_k = k_ptrs + offs_n.to(tl.int64)[:, None] * stride_kn
        rows_v = v_ptrs + offs_n.to(tl.int64)[:, None] * stride_vn
        # [BLOCK_N, COLUMNS]
        if MASKED or PADDED:
            there = (offs_n < N)[:, None] & in_columns
            k = tl.load(rows_k, mask=there, other=0.0)
        else:
            k = tl.load(rows_k)
        # [BLOCK_M, BLOCK_N]
        scores = tl.dot(q, k.T, input_precision=PRECISION)
        if MASKED:
            scores = mask_scores(scores, offs_m, offs_n, N, shift, window, CAUSAL, WINDOW)
        acc, top, total, p = online_softmax(acc, top, total, scores, scale, MASKED)
        if MASKED or PADDED:
            v = tl.load(rows_v, mask=there, other=0.0)
        else:
            v = tl.load(rows_v)
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
    return acc, top, total


@triton.jit
def attention_online_kernel(
    out_ptr, lse_ptr, q_ptr, k_ptr, v_ptr, H, SHARE, M, N, shift, window, scale, out_strides, q_strides, k_strides,
    v_strides, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, FLIP: tl.constexpr, PRECISION: tl.constexpr, D: tl.constexpr,
    COLUMNS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    start_m, line = query_block(M, BLOCK_M)
    line = line.to(tl.int64)
    batch = line // H
    head = line % H
    group = head // SHARE
    PADDED: tl.constexpr = COLUMNS != D

    offs_m = start_m + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, COLUMNS)
    in_columns = (offs_d < D)[None, :]
    there = (offs_m < M)[:, None] & in_columns
    rows_m = offs_m.to(tl.int64)[:, None]
    # [BLOCK_M, COLUMNS]
    q_ptrs = q_ptr + batch * q_strides[0] + head * q_strides[1] + rows_m * q_strides[2] + offs_d[None, :]
    q = tl.load(q_ptrs, mask=there, other=0.0)
    if FLIP:
        q = -q
    k_ptrs = k_ptr + batch * k_strides[0] + group * k_strides[1] + offs_d[None, :]
    v_ptrs = v_ptr + batch * v_strides[0] + group * v_strides[1] + offs_d[None, :]

    acc = tl.zeros([BLOCK_M, COLUMNS], tl.float32)
    top = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    begin, first, last, end = key_range(start_m, M, N, shift, window, CAUSAL, WINDOW, BLOCK_M, BLOCK_N)
    if WINDOW:
        acc, top, total = walk_keys(
            acc, top, total, q, k_ptrs, v_ptrs, begin, tl.minimum(first, end), k_strides[2], v_strides[2], offs_m,
            in_columns, N, shift, window, scale, CAUSAL, WINDOW, True, PADDED, PRECISION, BLOCK_N,
        )  # fmt: skip
    acc, top, total = walk_keys(
        acc, top, total, q, k_ptrs, v_ptrs, first, last, k_strides[2], v_strides[2], offs_m, in_columns, N, shift,
        window, scale, CAUSAL, WINDOW, False, PADDED, PRECISION, BLOCK_N,
    )  # fmt: skip
    acc, top, total = walk_keys(
        acc, top, total, q, k_ptrs, v_ptrs, tl.maximum(first, last), end, k_strides[2], v_strides[2], offs_m,
        in_columns, N, shift, window, scale, CAUSAL, WINDOW, True, PADDED, PRECISION, BLOCK_N,
    )  # fmt: skip

    out, lse = finished(acc, top, total)
    out_ptrs = out_ptr + batch * out_strides[0] + head * out_strides[1] + rows_m * out_strides[2] + offs_d[None, :]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=there)
    tl.store(lse_ptr + line * M + offs_m, lse, mask=offs_m < M)


@plan
def _plan(p: AttentionProblem, rule: Rule) -> Launch:
    config = rule(p)
    return Launch(
        attention_online_kernel, (cdiv(p.M, config["BLOCK_M"]) * p.B * p.H,), *p.sizes, *(s[:3] for s in p.strides),
        PRECISION=p.precision, COLUMNS=p.columns, **p.constants, **config,
    )  # fmt: skip


def online(
    q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit, rule: Rule
) -> tuple[T, T]:  # fmt: skip
    """Attention with one block of queries per program."""
    out, lse, some = outputs(q, k)
    if some:
        q, k, v = apart(q), apart(k), apart(v)
        _plan(problem(q, k, v, causal, scale, window, precision, ahead), rule)(out, lse, q, k, v)
    return out, lse
