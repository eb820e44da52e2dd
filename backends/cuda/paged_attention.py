"""paged_attention: one query per sequence over keys and values in pages (Kwon et al., PagedAttention, 2023).

The kernel of attention for few queries, with keys where a page table says that they are.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch

from kernelmux.backends.cuda._attention import Call
from kernelmux.backends.cuda._attention_split_keys import SplitPlan, config, row_tiles, splits
from kernelmux.backends.cuda._layout import Layout, layout
from kernelmux.backends.cuda._runtime import Source, cdiv, multiprocessors
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost, Capability, Multiple

_SOURCE = Source(__file__, "paged_attention.cu")
_NUMBERS = "kv_heads:i32 group:i32 page_count:i32 most:i32 row_tiles:i32 splits:i32 table_row:i64"
_STRIDES = "q_batch:i64 q_head:i64 k_page:i64 k_head:i64 k_row:i64 v_page:i64 v_head:i64 v_row:i64"
_POINTERS = f"q* k* v* table* lengths* out* lse* parts* logs* {_NUMBERS} {_STRIDES} scale_log2:f32"
_MERGE = "out* lse* parts* logs* rows:i64 splits:i32"
_SMALLEST_SCALE = 2.0**-126


class _Paged(NamedTuple):
    """All that a plan depends on besides addresses."""

    q: Layout
    k: Layout
    v: Layout
    table: Layout
    scale: float
    multiprocessors: int

    @property
    def unpaged(self) -> Call:
        """The call of attention with a single query that reads as many keys as the longest sequence may have."""
        (B, H, D), (_, G, S, _), L = self.q.shape, self.k.shape, self.table.shape[1]
        q = Layout((B, H, 1, D), (*self.q.strides[:2], D, 1), self.q.dtype, self.q.offset)
        k = Layout((B, G, L * S, D), self.k.strides, self.k.dtype, self.k.offset)
        return Call(q, k, k, False, self.scale, self.multiprocessors)

    @property
    def vector(self) -> int:
        """Elements per load: 8 where every row starts at a multiple of 16 bytes, else 1."""
        rows = [s for x in (self.q, self.k, self.v) for s, n in zip(x.strides[:-1], x.shape, strict=False) if n > 1]
        offsets = self.q.offset | self.k.offset | self.v.offset
        return 1 if offsets or self.q.shape[2] % 8 or any(s % 8 for s in rows) else 8


def paged_attention(
    q: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor, page_table: torch.Tensor, lengths: torch.Tensor,
    scale: float,
) -> torch.Tensor:  # fmt: skip
    out = q.new_empty(q.shape)
    if not out.numel() or not page_table.shape[1] * k_pages.shape[2]:
        return out.zero_()
    q = (-q).contiguous() if scale < 0 else q  # only then is the largest raw score the largest scaled one
    scale = max(abs(scale), _SMALLEST_SCALE)
    plan = _plan(_Paged(layout(q), layout(k_pages), layout(v_pages), layout(page_table), scale, multiprocessors(q)))
    lse = q.new_empty(q.shape[:2], dtype=torch.float32)
    tensors = (q, k_pages, v_pages, page_table, lengths, out, lse)
    if plan.merge is None:
        plan.launch(*tensors, None, None)
        return out
    parts = q.new_empty((*q.shape[:2], plan.splits, q.shape[2]), dtype=torch.float32)
    logs = q.new_empty((*q.shape[:2], plan.splits), dtype=torch.float32)
    plan.launch(*tensors, parts, logs)
    plan.merge(out, lse, parts, logs)
    return out


@lru_cache(maxsize=4096)
def _plan(paged: _Paged) -> SplitPlan:
    call = paged.unpaged
    (B, H, _), (pages, G, S, _) = paged.q.shape, paged.k.shape
    chosen = config(call)
    count = splits(call, chosen["BLOCK_N"], blocks=chosen["BLOCKS"])  # H200, B = 8: 142 us, with one block each 150
    defines = {"VECTOR": paged.vector, "SLOTS": S, **chosen, **call.defines}
    kernel = _SOURCE.kernel("paged_attention", _POINTERS, **defines)
    strides = (*paged.q.strides[:2], *paged.k.strides[:3], *paged.v.strides[:3])
    most = min(paged.table.shape[1] * S, 2**31 - 1)
    numbers = (G, call.group, pages, most, row_tiles(call), count, paged.table.strides[0], *strides, call.scale_log2)
    rows = 16 * chosen["ROW_WARPS"] + 2 * chosen["STAGES"] * chosen["BLOCK_N"]
    threads = 32 * chosen["ROW_WARPS"] * chosen["KEY_WARPS"]
    shared = rows * call.width * call.q.dtype.itemsize
    launch = kernel.bind(B * G * row_tiles(call) * count, threads, *numbers, shared=shared)
    if count == 1:
        return SplitPlan(launch, None, 1)
    merge = _SOURCE.kernel("attention_merge", _MERGE, **defines)
    return SplitPlan(launch, merge.bind(cdiv(B * H, 4), 128, B * H, count), count)


VARIANTS = {
    "split_keys": Implementation(
        paged_attention, "splits of each sequence side by side, joined in order",
        (Multiple("D", 8), AtMost("D", 256), Capability((9, 0), below=(12, 0))),
        dict.fromkeys(("q", "k_pages", "v_pages", "page_table", "lengths"), "last"), "mma",
    )
}  # fmt: skip
