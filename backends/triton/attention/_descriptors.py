"""Attention over tensor descriptors: the copy engine (TMA) brings keys and values while earlier ones are used."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch import Launch, Map, cdiv, like, plan
from kernelmux.backends.triton.attention._online import Rule, key_range, mask_scores, online_softmax
from kernelmux.backends.triton.attention._problem import Problem, block_strides, problem


@triton.jit
def _walk_keys(
    acc, top, total, q, k_desc, v_desc, batch, group, begin, end, offs_m, M, N, scale,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    for start_n in range(begin, end, BLOCK_N):
        # [BLOCK_N, D]; rows past the end arrive as zeros.
        k = k_desc.load([batch, group, start_n, 0]).reshape(BLOCK_N, D)
        # [BLOCK_M, BLOCK_N]
        scores = tl.dot(q, k.T)
        if MASKED:
            scores = mask_scores(scores, offs_m, start_n + tl.arange(0, BLOCK_N), M, N, CAUSAL)
        acc, top, total, p = online_softmax(acc, top, total, scores, scale)
        v = v_desc.load([batch, group, start_n, 0]).reshape(BLOCK_N, D)
        acc = tl.dot(p.to(v.dtype), v, acc)
    return acc, top, total


@triton.jit
def attention_descriptors_kernel(
    out_desc, q_desc, k_desc, v_desc, H, SHARE, M, N, scale,
    CAUSAL: tl.constexpr, FLIP: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    blocks_m = tl.cdiv(M, BLOCK_M)
    # The last queries see the most keys, so their programs start first.
    start_m = (blocks_m - 1 - tl.program_id(0) % blocks_m) * BLOCK_M
    batch = tl.program_id(0) // blocks_m // H
    head = tl.program_id(0) // blocks_m % H
    group = head // SHARE

    # [BLOCK_M, D]
    q = q_desc.load([batch, head, start_m, 0]).reshape(BLOCK_M, D)
    if FLIP:
        q = -q
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    top = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    offs_m = start_m + tl.arange(0, BLOCK_M)
    full, end = key_range(start_m, M, N, CAUSAL, BLOCK_M, BLOCK_N)
    acc, top, total = _walk_keys(
        acc, top, total, q, k_desc, v_desc, batch, group, 0, full, offs_m, M, N, scale, CAUSAL, False, D, BLOCK_N
    )
    acc, top, total = _walk_keys(
        acc, top, total, q, k_desc, v_desc, batch, group, full, end, offs_m, M, N, scale, CAUSAL, True, D, BLOCK_N
    )

    out = (acc / total[:, None]).to(out_desc.dtype)
    out_desc.store([batch, head, start_m, 0], out.reshape(1, 1, BLOCK_M, D))


@plan
def _plan(p: Problem, rule: Rule) -> Launch:
    config = rule(p)
    queries, keys = (1, 1, config["BLOCK_M"], p.D), (1, 1, config["BLOCK_N"], p.D)
    kinds = zip(p.shapes, p.strides, (queries, queries, keys, keys), strict=True)
    maps = tuple(Map(shape, block_strides(shape, strides), block) for shape, strides, block in kinds)
    grid = (cdiv(p.M, config["BLOCK_M"]) * p.B * p.H,)
    return Launch(attention_descriptors_kernel, grid, *p.sizes, maps=maps, **p.constants, **config)


def descriptors(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, rule: Rule
) -> torch.Tensor:
    """Attention with one block of queries per program, all loads and stores by TMA."""
    out = like(q)
    if out.numel():
        _plan(problem(q, k, v, causal, scale), rule)(out, q, k, v)
    return out
