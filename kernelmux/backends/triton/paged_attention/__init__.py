"""paged_attention: one query per sequence over keys and values in pages (Kwon et al., PagedAttention, 2023).

The query heads that share a key head are the rows of one tile, so that its keys are read once. Every program takes an
even share of all keys, wherever sequences begin and end; a second kernel adds the parts of a head up in their order,
without atomics.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch.card import TensorCores, narrow
from kernelmux.backends.triton._launch.launch import Config, Ints, Launch, cdiv, like, overlaps, plan, processors
from kernelmux.backends.triton.attention._problem import apart, scale_of_exponents
from kernelmux.backends.triton.attention._split_keys import merging
from kernelmux.backends.triton.paged_attention._kernels import (
    paged_attention_join_kernel,
    paged_attention_shares_kernel,
)
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost

SCANNED = 128  # sequences whose lengths are read at a time, at most
MERGED = 16  # parts of a row that are added up side by side
MOST_ROWS = 64  # query heads of a tile


class PagedProblem(NamedTuple):
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


def rule(p: PagedProblem) -> Config:
    """Keys of a tile, and shares of all keys: as many programs as fit onto the multiprocessors at a time.

    H200, D = 128, pages of 16: 64 sequences of up to 8192 keys, 4 heads, 158 us with 4 programs on each, 178 with 3, 211
        with 5, with a third stage 209. 8 sequences of up to 16384, 8 heads: 95, 104, 131, 124. With two stages a tile goes
    through registers, which just suffice for four programs of two warps.
    """
    block = 32 if p.D > 128 or narrow(p.device) else 64  # 64 spill on sm_86, sm_89 and sm_120
    rows = min(MOST_ROWS, max(16, triton.next_power_of_2(p.H // p.G)))
    tiles = cdiv(p.H // p.G, rows)
    shares = max(1, min(cdiv(4 * processors(p.device), tiles), p.B * p.G * cdiv(p.L * p.S, block)))
    warps = 2 if rows == 16 else 4
    return {
        "ROWS": rows,
        "BLOCK_N": block,
        "SHARES": shares,
        "LEAST": 2,
        "num_warps": warps,
        "num_stages": 2,
    }


@plan
def _plan(p: PagedProblem) -> tuple[Launch, Launch, int]:
    """Both kernels, and the number of rows of parts."""
    config, columns, group = rule(p), max(16, triton.next_power_of_2(p.D)), p.H // p.G
    programs = config["SHARES"] * cdiv(group, config["ROWS"])
    index = tl.int32 if p.B * p.G * cdiv(p.L * p.S, config["BLOCK_N"]) + programs < 2**30 else tl.int64
    first = Launch(
        paged_attention_shares_kernel, (programs,), p.B, p.P, p.L * p.S, p.table_row, scale_of_exponents(p.scale),
        p.q_strides[:2], p.k_strides[:3], p.v_strides[:3], H=p.H, G=p.G, D=p.D, S=p.S, FLIP=p.scale < 0,
        COLUMNS=columns, SCANNED=min(SCANNED, triton.next_power_of_2(p.B)), INDEX=index,
        LEADS=overlaps(p.device), launch_pdl=overlaps(p.device), **config,
    )  # fmt: skip
    join = Launch(
        paged_attention_join_kernel, (p.B * p.H,), GROUP=group, D=p.D, ROWS=config["ROWS"], num_warps=2,
        **merging(p.device, columns, MERGED),
    )  # fmt: skip
    return first, join, 2 * programs * config["ROWS"]


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
    problem = PagedProblem(
        q.get_device(), B, H, D, P, G, S, L, q.stride(), k_pages.stride(), v_pages.stride(), page_table.stride(0), q.dtype,
        scale,
    )  # fmt: skip
    first, join, parts = _plan(problem)
    sums = torch.empty((parts, D), dtype=torch.float32, device=q.device)
    stats = torch.empty((parts, 2), dtype=torch.float32, device=q.device)
    spans = torch.empty((B, G, 2), dtype=torch.int32, device=q.device)
    first(y, sums, stats, spans, q, k_pages, v_pages, page_table, lengths)
    join(y, sums, stats, spans)
    return y


VARIANTS = {
    "split_keys": Implementation(
        paged_attention, "an even share of all keys for each program, then parts added up",
        (TensorCores("q"), AtMost("D", 256)),
        {"q": "last", "k_pages": "last", "v_pages": "last", "page_table": "last", "lengths": "last"}, "mma",
    )
}  # fmt: skip
