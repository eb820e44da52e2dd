"""paged_attention: one query per sequence over keys and values in pages (Kwon et al., PagedAttention, 2023).

The query heads that share a key head are the rows of one tile, so that its keys are read once. A sequence is cut into
splits, each the work of one program; a second kernel adds the splits of a head up in their order, without atomics.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch import Config, Ints, Launch, cdiv, like, plan, processors
from kernelmux.backends.triton.attention._problem import apart
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost

LOG2E = 1.4426950408889634
FP32 = torch.finfo(torch.float32)
SHORTEST = 256  # keys of a split
MOST_ROWS = 64  # query heads of a tile


@triton.jit
def paged_attention_splits_kernel(
    y_ptr, sums_ptr, stats_ptr, q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, P, most, table_row, scale,
    q_strides, k_strides, v_strides,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, S: tl.constexpr, FLIP: tl.constexpr, SPLITS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(0) % SPLITS
    tiles = tl.cdiv(H // G, ROWS)  # of the heads of a group
    tile = tl.program_id(0) // SPLITS % tiles
    group = (tl.program_id(0) // SPLITS // tiles % G).to(tl.int64)
    batch = (tl.program_id(0) // SPLITS // tiles // G).to(tl.int64)
    length = tl.load(lengths_ptr + batch)
    possible = (length >= 0) & (length <= most)
    length = tl.where(possible, length, 0)  # of an impossible one the table would be read behind its end
    share = tl.cdiv(tl.cdiv(length, BLOCK_N), SPLITS) * BLOCK_N
    end = tl.minimum(length, (split + 1) * share)

    rows = tile * ROWS + tl.arange(0, ROWS)
    heads = group * (H // G) + rows
    columns = tl.arange(0, COLUMNS)
    in_q = (rows < H // G)[:, None] & (columns < D)[None, :]
    # [ROWS, COLUMNS]
    q = tl.load(q_ptr + batch * q_strides[0] + heads[:, None] * q_strides[1] + columns[None, :], mask=in_q, other=0.0)
    if FLIP:
        q = -q
    k_ptrs = k_ptr + group * k_strides[1] + columns[None, :]
    v_ptrs = v_ptr + group * v_strides[1] + columns[None, :]
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for start in range(split * share, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        inside = keys < end
        if S % BLOCK_N == 0:  # the whole block lies in one page
            page = tl.load(table_ptr + batch * table_row + start // S)
            known = (page >= 0) & (page < P)
            here = inside & known
            slots = (start % S + tl.arange(0, BLOCK_N)).to(tl.int64)
            k_rows = page.to(tl.int64) * k_strides[0] + slots * k_strides[2]
            v_rows = page.to(tl.int64) * v_strides[0] + slots * v_strides[2]
        else:
            page = tl.load(table_ptr + batch * table_row + keys // S, mask=inside, other=0)
            known = (page >= 0) & (page < P)
            here = inside & known
            k_rows = page.to(tl.int64) * k_strides[0] + (keys % S).to(tl.int64) * k_strides[2]
            v_rows = page.to(tl.int64) * v_strides[0] + (keys % S).to(tl.int64) * v_strides[2]
        in_block = here[:, None] & (columns < D)[None, :]
        # [BLOCK_N, COLUMNS]; a slot that was never written is not read: 0 * NaN is NaN
        k = tl.load(k_ptrs + k_rows[:, None], mask=in_block, other=0.0)
        scores = tl.dot(q, k.T)
        scores = tl.where(inside[None, :], scores, -float("inf"))
        scores = tl.where((here | (inside == 0))[None, :], scores, float("nan"))
        new_top = tl.maximum(top, tl.max(scores, 1) * scale)
        p = tl.exp2(scores * scale - new_top[:, None])
        fade = tl.exp2(top - new_top)
        total = total * fade + tl.sum(p, 1)
        v = tl.load(v_ptrs + v_rows[:, None], mask=in_block, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None])
        top = new_top

    total = tl.where(possible, total, float("nan"))
    at = batch * H + heads
    if SPLITS == 1:
        out = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(y_ptr + at[:, None] * D + columns[None, :], out.to(y_ptr.dtype.element_ty), mask=in_q)
    else:
        at = at * SPLITS + split
        tl.store(sums_ptr + at[:, None] * D + columns[None, :], acc, mask=in_q)
        tl.store(stats_ptr + 2 * at, top, mask=rows < H // G)
        tl.store(stats_ptr + 2 * at + 1, total, mask=rows < H // G)


@triton.jit
def paged_attention_merge_kernel(
    y_ptr, sums_ptr, stats_ptr, D: tl.constexpr, SPLITS: tl.constexpr, LINES: tl.constexpr, COLUMNS: tl.constexpr
):
    """One head of a sequence: sums of exponentials that were taken from different maxima."""
    at = tl.program_id(0).to(tl.int64) * SPLITS
    lines, columns = tl.arange(0, LINES), tl.arange(0, COLUMNS)
    tops = tl.load(stats_ptr + 2 * (at + lines), mask=lines < SPLITS, other=-float("inf"))
    top = tl.max(tops, 0)
    top = tl.where(top == -float("inf"), 0.0, top)
    acc = tl.zeros([COLUMNS], tl.float32)
    total = 0.0
    for split in range(SPLITS):
        weight = tl.exp2(tl.load(stats_ptr + 2 * (at + split)) - top)
        total += tl.load(stats_ptr + 2 * (at + split) + 1) * weight
        acc += tl.load(sums_ptr + (at + split) * D + columns, mask=columns < D, other=0.0) * weight
    out = acc / tl.where(total == 0.0, 1.0, total)
    tl.store(y_ptr + at // SPLITS * D + columns, out.to(y_ptr.dtype.element_ty), mask=columns < D)


class Problem(NamedTuple):
    """Sizes of a call: q [B H D], pages [P G S D], table [B L]; strides, dtype, scale."""

    device: int
    B: int
    H: int
    D: int
    P: int
    G: int
    S: int
    L: int
    q_strides: Ints
    k_strides: Ints
    v_strides: Ints
    table_row: int
    dtype: torch.dtype
    scale: float


def rule(p: Problem) -> Config:
    """Keys of a block, and splits, of `SHORTEST` keys at least: several programs for each multiprocessor, as sequences
    differ in length, and the short ones must not leave it idle.

    H200, 64 sequences of 8192 keys, 4 heads, D = 128, pages of 16: 273 us with two warps and 3 splits, 313 with four
    and 5; 8 sequences of 16384 keys, 8 heads: 156 us with two warps and 17 splits.
    """
    block = 32 if p.D > 128 else 64
    rows = min(MOST_ROWS, max(16, triton.next_power_of_2(p.H // p.G)))
    works, places = p.B * p.G * cdiv(p.H // p.G, rows), processors(p.device)
    fill = cdiv((4 if works >= places else 8) * places, works)
    splits = max(1, min(fill, cdiv(p.L * p.S, max(block, SHORTEST)), 64))
    return {"ROWS": rows, "BLOCK_N": block, "SPLITS": splits, "num_warps": 2 if rows == 16 else 4, "num_stages": 3}


@plan
def _plan(p: Problem) -> tuple[Launch, Launch | None, int]:
    config, columns = rule(p), max(16, triton.next_power_of_2(p.D))
    # A scale of 0 becomes the smallest normal number: the weights stay equal, and no 0 * -inf arises behind the end.
    scale = min(max(abs(p.scale) * LOG2E, FP32.smallest_normal), FP32.max)
    splits = config["SPLITS"]
    first = Launch(
        paged_attention_splits_kernel, (p.B * p.G * cdiv(p.H // p.G, config["ROWS"]) * splits,),
        p.P, p.L * p.S, p.table_row, scale,
        p.q_strides[:2], p.k_strides[:3], p.v_strides[:3], H=p.H, G=p.G, D=p.D, S=p.S, FLIP=p.scale < 0,
        COLUMNS=columns, **config,
    )  # fmt: skip
    if splits == 1:
        return first, None, splits
    lines = triton.next_power_of_2(splits)
    merge = Launch(
        paged_attention_merge_kernel, (p.B * p.H,), D=p.D, SPLITS=splits, LINES=lines, COLUMNS=columns, num_warps=1
    )
    return first, merge, splits


def paged_attention(
    q: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor, page_table: torch.Tensor, lengths: torch.Tensor,
    scale: float,
) -> torch.Tensor:  # fmt: skip
    y = like(q)
    B, H, D = q.shape
    P, G, S, _ = k_pages.shape
    L = page_table.shape[1]
    if not y.numel() or not L * S:
        return y.zero_()
    q, k_pages, v_pages = apart(q, 1), apart(k_pages), apart(v_pages)
    problem = Problem(
        q.get_device(), B, H, D, P, G, S, L, q.stride(), k_pages.stride(), v_pages.stride(), page_table.stride(0), q.dtype,
        scale,
    )  # fmt: skip
    first, merge, splits = _plan(problem)
    sums = torch.empty((B, H, splits, D) if merge else 0, dtype=torch.float32, device=q.device)
    stats = torch.empty((B, H, splits, 2) if merge else 0, dtype=torch.float32, device=q.device)
    first(y, sums, stats, q, k_pages, v_pages, page_table, lengths)
    if merge:
        merge(y, sums, stats)
    return y


VARIANTS = {
    "split_keys": Implementation(
        paged_attention, "splits of each sequence side by side, then added up", (AtMost("D", 256),),
        {"q": "last", "k_pages": "last", "v_pages": "last", "page_table": "last", "lengths": "last"}, "mma",
    )
}  # fmt: skip
