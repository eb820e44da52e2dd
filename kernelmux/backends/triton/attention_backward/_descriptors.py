"""The same two kernels over tensor descriptors: the copy engine (TMA) brings the next block while this one is used.

The kernel of the queries comes first and sums grad_out * y itself, for the kernel of the keys too.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch.launch import Launch, Map, cdiv, plan
from kernelmux.backends.triton._launch.strides import contiguous
from kernelmux.backends.triton.attention._online import key_range, query_block
from kernelmux.backends.triton.attention._problem import POINTER, block_strides
from kernelmux.backends.triton.attention_backward._pointers import Rule
from kernelmux.backends.triton.attention_backward._problem import (
    AttentionGradientProblem,
    load_lse,
    load_queries,
    probabilities,
    query_range,
    row_terms,
    visible,
)


@triton.jit
def _walk_queries(
    grad_k, grad_v, k, v, g_desc, q_desc, rows_ptr, PITCH, batch, head, begin, end, masked, offs_n, shift, window,
    scale_log2, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Without a window, queries from `masked` on see all keys of the block.

    Sums of keys behind the last are not stored, so these need no mask.
    """
    for start_m in range(begin, end, BLOCK_M):
        offs_m = start_m + tl.arange(0, BLOCK_M)
        # [BLOCK_M, COLUMNS]; rows and columns past the end arrive as zeros.
        q = q_desc.load([batch, head, start_m, 0]).reshape(BLOCK_M, COLUMNS)
        g = g_desc.load([batch, head, start_m, 0]).reshape(BLOCK_M, COLUMNS)
        lse = tl.load(rows_ptr + offs_m)
        delta = tl.load(rows_ptr + PITCH + offs_m)
        # Transposed, [BLOCK_N, BLOCK_M]: so the weights are the left operand of the products with queries.
        scores = tl.dot(k, q.T)
        grad_p = tl.dot(v, g.T)
        p = tl.exp2(scores * scale_log2 - lse[None, :])
        ds = p * (grad_p - delta[None, :])
        if CAUSAL or WINDOW:
            # A branch: a second walk, without a mask, would cost registers that the sums need.
            if WINDOW or start_m < masked:  # what is not seen has no part, whatever stands there
                seen = visible(offs_m[None, :], offs_n[:, None], shift, window, CAUSAL, WINDOW)
                p = tl.where(seen, p, 0.0)
                ds = tl.where(seen, ds, 0.0)
        grad_v = tl.dot(p.to(g.dtype), g, grad_v)
        grad_k = tl.dot(ds.to(q.dtype), q, grad_k)
    return grad_k, grad_v


@triton.jit
def attention_keys_descriptors_kernel(
    rows_ptr, grad_k_desc, grad_v_desc, g_desc, q_desc, k_desc, v_desc, H, SHARE, M, N, shift, window, scale,
    scale_log2, PITCH, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    blocks_n = tl.cdiv(N, BLOCK_N)
    # The first keys are seen by the most queries, and their programs start first.
    start_n = tl.program_id(0) % blocks_n * BLOCK_N
    line = tl.program_id(0) // blocks_n
    groups = H // SHARE
    batch = line // groups
    group = line % groups
    offs_n = start_n + tl.arange(0, BLOCK_N)
    # [BLOCK_N, COLUMNS]
    k = k_desc.load([batch, group, start_n, 0]).reshape(BLOCK_N, COLUMNS)
    v = v_desc.load([batch, group, start_n, 0]).reshape(BLOCK_N, COLUMNS)
    grad_k = tl.zeros([BLOCK_N, COLUMNS], tl.float32)
    grad_v = tl.zeros([BLOCK_N, COLUMNS], tl.float32)
    begin, masked, _, end = query_range(start_n, M, N, shift, window, CAUSAL, WINDOW, BLOCK_M, BLOCK_N)
    for head in range(group * SHARE, (group + 1) * SHARE):
        rows = rows_ptr + (batch * H + head).to(tl.int64) * 2 * PITCH
        grad_k, grad_v = _walk_queries(
            grad_k, grad_v, k, v, g_desc, q_desc, rows, PITCH, batch, head, begin, end, masked, offs_n, shift, window,
            scale_log2, CAUSAL, WINDOW, COLUMNS, BLOCK_M,
        )  # fmt: skip
    at = [batch, group, start_n, 0]
    grad_k_desc.store(at, (grad_k * scale).to(grad_k_desc.dtype).reshape(1, 1, BLOCK_N, COLUMNS))
    grad_v_desc.store(at, grad_v.to(grad_v_desc.dtype).reshape(1, 1, BLOCK_N, COLUMNS))


@triton.jit
def _walk_keys(
    grad_q, q, g, lse, delta, k_desc, v_desc, batch, group, begin, end, offs_m, N, shift, window, scale_log2,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, MASKED: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    for start_n in range(begin, end, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        # [BLOCK_N, COLUMNS]
        k = k_desc.load([batch, group, start_n, 0]).reshape(BLOCK_N, COLUMNS)
        v = v_desc.load([batch, group, start_n, 0]).reshape(BLOCK_N, COLUMNS)
        # [BLOCK_M, BLOCK_N]
        scores = tl.dot(q, k.T)
        grad_p = tl.dot(g, v.T)
        p = probabilities(
            scores, lse[:, None], offs_m[:, None], offs_n[None, :], N, shift, window, scale_log2, CAUSAL, WINDOW, MASKED
        )
        ds = p * (grad_p - delta[:, None])
        if MASKED:  # what is not seen has no part, whatever stands there
            ds = tl.where(p == 0.0, 0.0, ds)
        grad_q = tl.dot(ds.to(k.dtype), k, grad_q)
    return grad_q


@triton.jit
def attention_queries_descriptors_kernel(
    rows_ptr, y_ptr, lse_ptr, grad_q_desc, g_desc, q_desc, k_desc, v_desc, H, SHARE, M, N, shift, window, scale,
    scale_log2, PITCH, y_strides, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """rows_ptr: gets lse of each query in units of log(2) and, PITCH further, sum(grad_out * y); behind the last inf, 0."""
    start_m, line = query_block(M, BLOCK_M)
    batch = line // H
    head = line % H
    group = head // SHARE
    offs_m = start_m + tl.arange(0, BLOCK_M)
    # [BLOCK_M, COLUMNS]
    line = line.to(tl.int64)
    y = load_queries(y_ptr + line // H * y_strides[0] + line % H * y_strides[1], offs_m, M, y_strides[2], D, COLUMNS)
    q = q_desc.load([batch, head, start_m, 0]).reshape(BLOCK_M, COLUMNS)
    g = g_desc.load([batch, head, start_m, 0]).reshape(BLOCK_M, COLUMNS)
    lse = load_lse(lse_ptr + line * M, offs_m, M)
    delta = row_terms(g, y)
    rows = rows_ptr + line * 2 * PITCH + offs_m
    tl.store(rows, lse)
    tl.store(rows + PITCH, delta)
    grad_q = tl.zeros([BLOCK_M, COLUMNS], tl.float32)
    begin, first, last, end = key_range(start_m, M, N, shift, window, CAUSAL, WINDOW, BLOCK_M, BLOCK_N)
    if WINDOW:
        grad_q = _walk_keys(
            grad_q, q, g, lse, delta, k_desc, v_desc, batch, group, begin, tl.minimum(first, end), offs_m, N, shift,
            window, scale_log2, CAUSAL, WINDOW, True, COLUMNS, BLOCK_N,
        )  # fmt: skip
    grad_q = _walk_keys(
        grad_q, q, g, lse, delta, k_desc, v_desc, batch, group, first, last, offs_m, N, shift, window, scale_log2,
        CAUSAL, WINDOW, False, COLUMNS, BLOCK_N,
    )  # fmt: skip
    grad_q = _walk_keys(
        grad_q, q, g, lse, delta, k_desc, v_desc, batch, group, tl.maximum(first, last), end, offs_m, N, shift, window,
        scale_log2, CAUSAL, WINDOW, True, COLUMNS, BLOCK_N,
    )  # fmt: skip
    at = [batch, head, start_m, 0]
    grad_q_desc.store(at, (grad_q * scale).to(grad_q_desc.dtype).reshape(1, 1, BLOCK_M, COLUMNS))


def pitch(p: AttentionGradientProblem) -> int:
    """Queries of a head as the kernels lay them out: in whole blocks of 128, or one of 64 that holds all."""
    return 64 if p.M <= 64 else cdiv(p.M, 128) * 128


def maps(p: AttentionGradientProblem, names: str, m: int, n: int) -> tuple[Map, ...]:
    """Of tensors by a letter each: grad_out, q, k, and v in blocks, and in capitals what is written like q and k."""
    queries, keys = (p.B, p.H, p.M, p.D), (p.B, p.G, p.N, p.D)
    kinds = {
        "g": (queries, p.g_strides, m), "q": (queries, p.q_strides, m), "Q": (queries, contiguous(queries), m),
        "k": (keys, p.k_strides, n), "v": (keys, p.v_strides, n), "K": (keys, contiguous(keys), n),
    }  # fmt: skip
    found = (kinds[name] for name in names)
    return tuple(Map(shape, block_strides(shape, strides), (1, 1, rows, p.columns)) for shape, strides, rows in found)


@plan
def plans(p: AttentionGradientProblem, keys_rule: Rule, queries_rule: Rule) -> tuple[Launch, Launch]:
    """Launches for the gradients of keys and values, and for that of queries."""
    keys, queries = keys_rule(p), queries_rule(p)
    return (
        Launch(
            attention_keys_descriptors_kernel, (cdiv(p.N, keys["BLOCK_N"]) * p.B * p.G,), *p.sizes, pitch(p),
            maps=(POINTER, *maps(p, "KKgqkv", keys["BLOCK_M"], keys["BLOCK_N"])), **p.constants, **keys,
        ),
        Launch(
            attention_queries_descriptors_kernel, (cdiv(p.M, queries["BLOCK_M"]) * p.B * p.H,), *p.sizes, pitch(p),
            p.y_strides[:3], maps=(POINTER, POINTER, POINTER, *maps(p, "Qgqkv", queries["BLOCK_M"], queries["BLOCK_N"])),
            **p.constants, **queries,
        ),
    )  # fmt: skip


def descriptors(
    p: AttentionGradientProblem, grads: tuple[torch.Tensor, ...], grad_out: torch.Tensor, q: torch.Tensor, k: torch.Tensor,
    v: torch.Tensor, y: torch.Tensor, lse: torch.Tensor, keys_rule: Rule, queries_rule: Rule,
) -> None:  # fmt: skip
    """Writes grads: of q, k and v."""
    rows = lse.new_empty(p.B * p.H, 2, pitch(p))
    for_keys, for_queries = plans(p, keys_rule, queries_rule)
    for_queries(rows, y, lse, grads[0], grad_out, q, k, v)
    for_keys(rows, grads[1], grads[2], grad_out, q, k, v)
