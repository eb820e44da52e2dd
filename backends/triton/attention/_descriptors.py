"""Attention over tensor descriptors: the copy engine (TMA) brings keys and values while earlier ones are used."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernelmux.backends.triton._launch import cdiv, launch
from kernelmux.backends.triton.attention._online import LOG2E, key_range, mask_scores, online_softmax


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


def descriptors(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, config: dict[str, Any]
) -> torch.Tensor:
    """Attention with one block of queries per program, all loads and stores by TMA."""
    B, H, M, D = q.shape
    out = torch.empty((B, H, M, D), dtype=q.dtype, device=q.device)
    if out.numel() == 0:
        return out
    queries, keys = [1, 1, config["BLOCK_M"], D], [1, 1, config["BLOCK_N"], D]
    maps = [_descriptor(t, block) for t, block in ((out, queries), (q, queries), (k, keys), (v, keys))]
    launch(
        attention_descriptors_kernel, (cdiv(M, config["BLOCK_M"]) * B * H,), *maps, H, H // k.shape[1], M, k.shape[2],
        abs(scale) * LOG2E, CAUSAL=causal, FLIP=scale < 0, D=D, **config,
    )  # fmt: skip
    return out


def _descriptor(x: torch.Tensor, block: list[int]) -> TensorDescriptor:
    """Of the whole tensor; dimensions of size 1 may have any stride, but a descriptor wants multiples of 16 bytes."""
    strides = [s if n > 1 else x.shape[-1] for s, n in zip(x.stride()[:-1], x.shape[:-1], strict=True)]
    return TensorDescriptor(x, list(x.shape), [*strides, 1], block)
