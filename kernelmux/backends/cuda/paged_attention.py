"""paged_attention: one query per sequence over keys and values in pages (Kwon et al., PagedAttention, 2023).

The kernel of attention for few queries, with keys where a page table says that they are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, card, cdiv
from kernelmux.backends.cuda.attention._call import AttentionCall, Config
from kernelmux.backends.cuda.attention._split_keys import fitting, most_stages, row_tiles
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost, Multiple, Multiplies
from kernelmux.registry.spec.sliding_windows import Mask
from kernelmux.registry.util.cards import Card, remembered

_SOURCE = Source(__file__, "paged_attention.cu")
_NUMBERS = "batches:i32 kv_heads:i32 group:i32 page_count:i32 most:i32 row_tiles:i32 table_row:i64"
_STRIDES = "q_batch:i64 q_head:i64 k_page:i64 k_head:i64 k_row:i64 v_page:i64 v_head:i64 v_row:i64"
_POINTERS = f"q* k* v* table* lengths* out* lse* parts* logs* spans* {_NUMBERS} {_STRIDES} scale_log2:f32"
_JOIN = "out* lse* parts* logs* spans* group:i32 row_tiles:i32"
_SMALLEST_SCALE = 2.0**-126


class _Paged(NamedTuple):
    """All that a plan depends on besides addresses."""

    q: Layout
    k: Layout
    v: Layout
    table: Layout
    scale: float
    card: Card

    @property
    def unpaged(self) -> AttentionCall:
        """The call of attention with a single query that reads as many keys as the longest sequence may have."""
        (B, H, D), (_, G, S, _), L = self.q.shape, self.k.shape, self.table.shape[1]
        q = Layout((B, H, 1, D), (*self.q.strides[:2], D, 1), self.q.dtype, self.q.offset)
        k = Layout((B, G, L * S, D), self.k.strides, self.k.dtype, self.k.offset)
        return AttentionCall(q, k, k, Mask(False, 0, 0), self.scale, self.card)

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
    plan = _plan(_Paged(layout(q), layout(k_pages), layout(v_pages), layout(page_table), scale, card(q)))
    lse = q.new_empty(q.shape[:2], dtype=torch.float32)
    parts = q.new_empty((plan.parts, q.shape[2]), dtype=torch.float32)
    logs = q.new_empty(plan.parts, dtype=torch.float32)
    spans = q.new_empty((q.shape[0], k_pages.shape[1], 2), dtype=torch.int32)
    plan.launch(q, k_pages, v_pages, page_table, lengths, out, lse, parts, logs, spans)
    plan.join(out, lse, parts, logs, spans)
    return out


def paged_config(call: AttentionCall) -> Config:
    """As in attention, with a stage less where several warps of queries, of which each stage has a tile, need its room.

    With many heads of keys three blocks of two stages share a multiprocessor. H200, D = 128, pages of 16: 64 sequences of
    up to 8192 keys, 4 heads, 159 us (two of three stages 165); 32 with 8 heads 134 (143), of 8192 keys each 267 (267);
    a single one of 65536 keys 87 (85).
    """
    blocks, stages = 2 if call.width <= 128 else 1, most_stages(call)
    if call.group > 16:
        stages -= 1
    elif call.width <= 128 and call.k.shape[0] * call.k.shape[1] >= 64:
        blocks, stages = 3, 2
    return fitting(call, lambda tile: _shared(call, tile) if _joins(call, tile) else None, blocks, stages, (4, 2, 1))


def _joins(call: AttentionCall, chosen: Config) -> bool:
    """Whether a stage has room for what warps by keys join (JOINED in attention_packed.cuh)."""
    others = chosen["KEY_WARPS"] - 1
    joined = chosen["ROW_WARPS"] * (80 * (others + 1) + 128 * 2 * cdiv(call.q.shape[3], 16) * others) if others else 0
    return 4 * joined <= 2 * chosen["BLOCK_N"] * call.width * call.q.dtype.itemsize


def _shared(call: AttentionCall, chosen: Config) -> int:
    """Bytes of the rows, keys and values of each stage, and of the numbers of pages."""
    rows = chosen["STAGES"] * (16 * chosen["ROW_WARPS"] + 2 * chosen["BLOCK_N"])
    return rows * call.width * call.q.dtype.itemsize + 2 * chosen["STAGES"] * 4 * chosen["BLOCK_N"]


class _Plan(NamedTuple):
    """A kind of call, ready to run. parts: rows of unfinished outputs."""

    launch: BoundLaunch
    join: BoundLaunch
    parts: int


@remembered
def _plan(paged: _Paged) -> _Plan:
    call = paged.unpaged
    (B, H, _), (pages, G, S, _), most = paged.q.shape, paged.k.shape, call.k.shape[2]
    chosen = paged_config(call)
    tiles_of_rows = row_tiles(call, chosen)
    tiles = B * G * cdiv(most, chosen["BLOCK_N"])
    index = "int" if tiles + call.card.processors < 2**30 else "i64"
    defines = {"VECTOR": paged.vector, "SLOTS": S, "INDEX": index, "FOLLOWS": 1, **chosen, **call.defines}
    kernel = _SOURCE.kernel("paged_attention", _POINTERS, **defines)
    join = _SOURCE.kernel("paged_attention_join", _JOIN, **defines)
    shares = min(cdiv(chosen["BLOCKS"] * call.card.processors, tiles_of_rows), tiles)
    strides = (*paged.q.strides[:2], *paged.k.strides[:3], *paged.v.strides[:3])
    numbers = (
        B, G, call.group, pages, min(most, 2**31 - 1), tiles_of_rows, paged.table.strides[0], *strides, call.scale_log2,
    )  # fmt: skip
    threads = 32 * chosen["ROW_WARPS"] * chosen["KEY_WARPS"]
    launch = kernel.bind(shares * tiles_of_rows, threads, *numbers, shared=_shared(call, chosen), follows=True)
    joined = join.bind(B * H, 128, call.group, tiles_of_rows, follows=call.card.capability >= (9, 0))
    return _Plan(launch, joined, 2 * shares * tiles_of_rows * 16 * chosen["ROW_WARPS"])


VARIANTS = {
    "split_keys": Implementation(
        paged_attention, "an even share of all keys for each block, pieces of a sequence joined in order",
        (Multiple("D", 8), AtMost("D", 256), Multiplies("q")),
        dict.fromkeys(("q", "k_pages", "v_pages", "page_table", "lengths"), "last"), "mma",
    )
}  # fmt: skip
