"""Attention over tensor descriptors: the copy engine (TMA) brings keys and values while earlier ones are used."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch.launch import Launch, Map, cdiv, plan
from kernelmux.backends.triton.attention._online import (
    Rule,
    finished,
    key_range,
    mask_scores,
    online_softmax,
    query_block,
)
from kernelmux.backends.triton.attention._problem import POINTER, AttentionProblem, block_strides, outputs, problem
from kernelmux.registry.spec.sliding_windows import Limit

T = torch.Tensor


@triton.jit
def _walk_keys(
    acc, top, total, q, k_desc, v_desc, batch, group, begin, end, offs_m, N, shift, window, scale,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, MASKED: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    for start_n in range(begin, end, BLOCK_N):
        # [BLOCK_N, COLUMNS]; rows and columns past the end arrive as zeros.
        k = k_desc.load([batch, group, start_n, 0]).reshape(BLOCK_N, COLUMNS)
        # [BLOCK_M, BLOCK_N]
        scores = tl.dot(q, k.T)
        if MASKED:
            scores = mask_scores(scores, offs_m, start_n + tl.arange(0, BLOCK_N), N, shift, window, CAUSAL, WINDOW)
        acc, top, total, p = online_softmax(acc, top, total, scores, scale, MASKED)
        v = v_desc.load([batch, group, start_n, 0]).reshape(BLOCK_N, COLUMNS)
        acc = tl.dot(p.to(v.dtype), v, acc)
    return acc, top, total


@triton.jit
def attention_descriptors_kernel(
    lse_ptr, out_desc, q_desc, k_desc, v_desc, H, SHARE, M, N, shift, window, scale,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, FLIP: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    start_m, line = query_block(M, BLOCK_M)
    batch = line // H
    head = line % H
    group = head // SHARE

    # [BLOCK_M, COLUMNS]
    q = q_desc.load([batch, head, start_m, 0]).reshape(BLOCK_M, COLUMNS)
    if FLIP:
        q = -q
    acc = tl.zeros([BLOCK_M, COLUMNS], tl.float32)
    top = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    offs_m = start_m + tl.arange(0, BLOCK_M)
    begin, first, last, end = key_range(start_m, M, N, shift, window, CAUSAL, WINDOW, BLOCK_M, BLOCK_N)
    if WINDOW:
        acc, top, total = _walk_keys(
            acc, top, total, q, k_desc, v_desc, batch, group, begin, tl.minimum(first, end), offs_m, N, shift, window,
            scale, CAUSAL, WINDOW, True, COLUMNS, BLOCK_N,
        )  # fmt: skip
    acc, top, total = _walk_keys(
        acc, top, total, q, k_desc, v_desc, batch, group, first, last, offs_m, N, shift, window, scale, CAUSAL, WINDOW,
        False, COLUMNS, BLOCK_N,
    )  # fmt: skip
    acc, top, total = _walk_keys(
        acc, top, total, q, k_desc, v_desc, batch, group, tl.maximum(first, last), end, offs_m, N, shift, window, scale,
        CAUSAL, WINDOW, True, COLUMNS, BLOCK_N,
    )  # fmt: skip

    out, lse = finished(acc, top, total)
    out_desc.store([batch, head, start_m, 0], out.to(out_desc.dtype).reshape(1, 1, BLOCK_M, COLUMNS))
    tl.store(lse_ptr + line.to(tl.int64) * M + offs_m, lse, mask=offs_m < M)


@plan
def _plan(p: AttentionProblem, rule: Rule) -> Launch:
    config = rule(p)
    queries, keys = (1, 1, config["BLOCK_M"], p.columns), (1, 1, config["BLOCK_N"], p.columns)
    kinds = zip(p.shapes, p.strides, (queries, queries, keys, keys), strict=True)
    maps = tuple(Map(shape, block_strides(shape, strides), block) for shape, strides, block in kinds)
    grid = (cdiv(p.M, config["BLOCK_M"]) * p.B * p.H,)
    return Launch(
        attention_descriptors_kernel, grid, *p.sizes, maps=(POINTER, *maps), COLUMNS=p.columns, **p.constants, **config
    )


def descriptors(
    q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit, rule: Rule
) -> tuple[T, T]:  # fmt: skip
    """Attention with one block of queries per program, all loads and stores by TMA."""
    out, lse, some = outputs(q, k)
    if some:
        _plan(problem(q, k, v, causal, scale, window, precision, ahead), rule)(lse, out, q, k, v)
    return out, lse
