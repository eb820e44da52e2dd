"""Attention of few queries, which is bound by reading the keys and values: they are read once, by the whole GPU.

The queries of all heads that share a key head are the rows of one tile. Its keys are cut into splits, each the work of
one program; a second kernel adds the splits of a query up in their order, without atomics. It is started before the
first has ended (programmatic dependent launch), and waits for it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

from kernelmux.backends.triton._launch.launch import Config, Ints, Launch, cdiv, overlaps, plan
from kernelmux.backends.triton.attention._online import LN2, Rule, finished, key_range, walk_keys
from kernelmux.backends.triton.attention._problem import AttentionProblem, block_strides, outputs, problem
from kernelmux.registry.spec.sliding_windows import Limit

T = torch.Tensor

QUERIES = 16  # of a head, at most
MERGED = 8192  # elements of parts that are added up side by side, at most


@triton.jit
def attention_split_keys_kernel(
    out_ptr, lse_ptr, sums_ptr, stats_ptr, q_ptr, k_ptr, v_ptr, H, SHARE, M, N, shift, window, scale,
    q_eighths, k_eighths, v_eighths, SPLITS,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, FLIP: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr, LEADS: tl.constexpr, QUERIES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    if LEADS:
        cuda.gdc_launch_dependents()
    tiles = tl.cdiv(SHARE * M, BLOCK_M)
    split = tl.program_id(0) // tiles % SPLITS
    line = (tl.program_id(0) // tiles // SPLITS).to(tl.int64)
    batch = line // (H // SHARE)
    group = line % (H // SHARE)

    rows = tl.program_id(0) % tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    heads = group * SHARE + rows // M
    offs_m = rows % M
    offs_d = tl.arange(0, COLUMNS)
    in_columns = (offs_d < D)[None, :]
    there = (rows < SHARE * M)[:, None] & in_columns
    # Strides are given in units of 16 bytes, so that the compiler knows it may read as many at once.
    q_rows = batch * (q_eighths[0] * 8) + heads * (q_eighths[1] * 8) + offs_m * (q_eighths[2] * 8)
    # [BLOCK_M, COLUMNS]
    q = tl.load(q_ptr + q_rows[:, None] + offs_d[None, :], mask=there, other=0.0)
    if FLIP:
        q = -q
    k_ptrs = k_ptr + batch * (k_eighths[0] * 8) + group * (k_eighths[1] * 8) + offs_d[None, :]
    v_ptrs = v_ptr + batch * (v_eighths[0] * 8) + group * (v_eighths[1] * 8) + offs_d[None, :]
    stride_kn = k_eighths[2] * 8
    stride_vn = v_eighths[2] * 8

    begin, first, last, end = key_range(0, M, N, shift, window, CAUSAL, WINDOW, QUERIES, BLOCK_N)
    share = tl.cdiv(tl.cdiv(end - begin, BLOCK_N), SPLITS) * BLOCK_N
    begin += split * share
    end = tl.minimum(end, begin + share)
    acc = tl.zeros([BLOCK_M, COLUMNS], tl.float32)
    top = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    PADDED: tl.constexpr = COLUMNS != D
    if WINDOW:
        acc, top, total = walk_keys(
            acc, top, total, q, k_ptrs, v_ptrs, begin, tl.minimum(first, end), stride_kn, stride_vn, offs_m, in_columns,
            N, shift, window, scale, CAUSAL, WINDOW, True, PADDED, "ieee", BLOCK_N,
        )  # fmt: skip
    acc, top, total = walk_keys(
        acc, top, total, q, k_ptrs, v_ptrs, tl.maximum(begin, first), tl.minimum(last, end), stride_kn, stride_vn,
        offs_m, in_columns, N, shift, window, scale, CAUSAL, WINDOW, False, PADDED, "ieee", BLOCK_N,
    )  # fmt: skip
    acc, top, total = walk_keys(
        acc, top, total, q, k_ptrs, v_ptrs, tl.maximum(begin, tl.maximum(first, last)), end, stride_kn, stride_vn,
        offs_m, in_columns, N, shift, window, scale, CAUSAL, WINDOW, True, PADDED, "ieee", BLOCK_N,
    )  # fmt: skip

    # The heads of a group follow one another, so its rows are lines of the output in their order.
    at = line * SHARE * M + rows
    if WHOLE:
        out, lse = finished(acc, top, total)
        tl.store(out_ptr + at[:, None] * D + offs_d[None, :], out.to(out_ptr.dtype.element_ty), mask=there)
        tl.store(lse_ptr + at, lse, mask=rows < SHARE * M)
    else:
        at = at * SPLITS + split
        tl.store(sums_ptr + at[:, None] * D + offs_d[None, :], acc, mask=there)
        tl.store(stats_ptr + 2 * at, top, mask=rows < SHARE * M)
        tl.store(stats_ptr + 2 * at + 1, total, mask=rows < SHARE * M)


@triton.jit
def joined(
    sums_ptr, stats_ptr, first, step, begun, count, D: tl.constexpr, COLUMNS: tl.constexpr, MERGED: tl.constexpr
):
    """A row's sum, total and maximum, from parts that were taken from maxima of their own.

    Part i is number first + i * step, and part 0 further by `begun`.
    """
    offs_i, offs_d = tl.arange(0, MERGED), tl.arange(0, COLUMNS)
    acc = tl.zeros([COLUMNS], tl.float32)
    top = -float("inf")
    total = 0.0
    for start in range(0, count, MERGED):
        i = start + offs_i
        at = first + i.to(tl.int64) * step + tl.where(i == 0, begun, 0)
        there = (i < count)[:, None] & (offs_d < D)[None, :]
        tops = tl.load(stats_ptr + 2 * at, mask=i < count, other=-float("inf"))
        totals = tl.load(stats_ptr + 2 * at + 1, mask=i < count, other=0.0)
        # [MERGED, COLUMNS]
        sums = tl.load(sums_ptr + at[:, None] * D + offs_d[None, :], mask=there, other=0.0)
        new_top = tl.maximum(top, tl.max(tops, 0))
        base = tl.where(new_top == -float("inf"), 0.0, new_top)
        weights, fade = tl.exp2(tops - base), tl.exp2(top - base)
        total = total * fade + tl.sum(totals * weights, 0)
        acc = acc * fade + tl.sum(sums * weights[:, None], 0)
        top = new_top
    return acc, total, top


@triton.jit
def attention_merge_kernel(
    out_ptr, lse_ptr, sums_ptr, stats_ptr, SPLITS, D: tl.constexpr, COLUMNS: tl.constexpr, MERGED: tl.constexpr,
    FOLLOWS: tl.constexpr,
):  # fmt: skip
    """One query of one head."""
    if FOLLOWS:
        cuda.gdc_wait()
    line = tl.program_id(0).to(tl.int64)
    offs_d = tl.arange(0, COLUMNS)
    acc, total, top = joined(sums_ptr, stats_ptr, line * SPLITS, 1, 0, SPLITS, D, COLUMNS, MERGED)
    out = acc / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + line * D + offs_d, out.to(out_ptr.dtype.element_ty), mask=offs_d < D)
    tl.store(lse_ptr + line, (top + tl.log2(total)) * LN2)


def merging(device: int, columns: int, parts: int) -> Config:
    """How up to so many parts of a row are added up, by a kernel that follows the one that makes them."""
    merged = max(1, min(MERGED // columns, triton.next_power_of_2(parts)))
    follows = overlaps(device)
    return {"COLUMNS": columns, "MERGED": merged, "FOLLOWS": follows, **({"launch_pdl": True} if follows else {})}


@plan
def _plan(p: AttentionProblem, rule: Rule) -> tuple[Launch, Launch | None, int]:
    config = rule(p)
    splits = config.pop("SPLITS")
    programs = p.B * p.G * cdiv(p.H // p.G * p.M, config["BLOCK_M"]) * splits
    eighths = (_eighths(shape, strides) for shape, strides in zip(p.shapes[1:], p.strides[1:], strict=True))
    first = Launch(
        attention_split_keys_kernel, (programs,), *p.sizes, *eighths, splits,
        COLUMNS=p.columns, WHOLE=splits == 1, LEADS=splits > 1 and overlaps(p.device), QUERIES=QUERIES, **p.constants,
        **config,
    )  # fmt: skip
    if splits == 1:
        return first, None, splits
    lines = p.B * p.H * p.M
    merge = Launch(
        attention_merge_kernel, (lines,), splits, D=p.D, num_warps=4, **merging(p.device, p.columns, splits)
    )  # fmt: skip
    return first, merge, splits


def _eighths(shape: Ints, strides: Ints) -> Ints:
    return tuple(s // 8 for s in block_strides(shape, strides)[:3])


def split_keys(
    q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit, rule: Rule
) -> tuple[T, T]:  # fmt: skip
    """Attention with a share of the keys per program, for all queries of the heads that share them."""
    out, lse, some = outputs(q, k)
    if some:
        first, merge, splits = _plan(problem(q, k, v, causal, scale, window, precision, ahead), rule)
        shape = (*lse.shape, splits) if merge else (0,)
        sums = lse.new_empty((*shape, q.shape[3]))
        stats = lse.new_empty((*shape, 2))
        first(out, lse, sums, stats, q, k, v)
        if merge:
            merge(out, lse, sums, stats)
    return out, lse
