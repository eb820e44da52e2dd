"""Attention for few queries: the keys of each head split over blocks, the partial results joined by a second kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from kernelmux.backends.cuda._launch.occupancy import fits
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, Tiles, cdiv
from kernelmux.backends.cuda.attention._call import AttentionCall, Config, Pair, nothing_seen
from kernelmux.registry.util.cards import remembered

_SOURCE = Source(__file__, "attention_split_keys.cu")
_WGMMA = Source(__file__, "attention_split_keys_wgmma.cu")
_STRIDES = " ".join(f"{x}_{axis}:i64" for x in "qkv" for axis in ("batch", "head", "row"))
_NUMBERS = "kv_heads:i32 group:i32 M:i32 N:i32 shift:i32 window:i32 row_tiles:i32 splits:i32 length:i32"
_POINTERS = f"q* k* v* out* lse* parts* logs* {_NUMBERS} {_STRIDES} scale_log2:f32"
_MAPS = f"q* k:map v:map out* lse* parts* logs* {_NUMBERS} q_batch:i64 q_head:i64 q_row:i64 scale_log2:f32"
_MERGE = "out* lse* parts* logs* splits:i32"
_BARRIER_BYTES = 1024  # behind the tiles of wgmma; the structure is padded to a whole unit of the swizzle


@dataclass(frozen=True)
class FewRows:
    """Few queries, or a single tile of rows of the heads that share keys and values.

    H200, bf16, D = 128, 4 heads share keys, N = 4096 to 8192: 32 queries 90 to 455 us, by wgmma 103 to 812, as these
    fill 32 of its 128 rows; 64 queries 163 to 252 beside 106 to 216.
    """

    queries: int = 32
    rows: int = 64

    @property
    def text(self) -> str:
        return f"M <= {self.queries} or M * H / G <= {self.rows}"

    def check(self, call: Any) -> str | None:
        """None, or how many queries and rows there are."""
        M, rows = call.axes["M"], call.axes["M"] * (call.axes["H"] // call.axes["G"])
        return None if M <= self.queries or rows <= self.rows else f"M = {M}, M * H / G = {rows}, needs {self.text}"


@dataclass(frozen=True)
class ManyRows:
    """More rows of the heads that share keys and values than mma.sync multiplies as fast as the keys are read.

    H200, bf16, D = 128, 16 queries of 4 heads that share keys, B = 8, N = 16384: 152 us, by mma.sync 180 (in four splits
    152); B = 32, N = 8192: 270, by mma.sync 263. Of 8 heads, 128 rows: 156, by mma.sync 245.
    """

    rows: int = 64
    some: int = 32
    heads: int = 128

    @property
    def text(self) -> str:
        return f"M * H / G > {self.rows}, or > {self.some} and B * G <= {self.heads}"

    def check(self, call: Any) -> str | None:
        """None, or how many rows and heads there are."""
        rows, heads = call.axes["M"] * (call.axes["H"] // call.axes["G"]), call.axes["B"] * call.axes["G"]
        enough = rows > self.rows or (rows > self.some and heads <= self.heads)
        return None if enough else f"M * H / G = {rows}, B * G = {heads}, needs {self.text}"


@dataclass(frozen=True)
class SplitPlan:
    """A kind of call, ready to run; `merge` is None where no keys are split.

    tiles: descriptors of k and v for a kernel that wants those.
    """

    launch: BoundLaunch
    merge: BoundLaunch | None
    splits: int
    tiles: tuple[Tiles, ...] = ()

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Pair:
        out, lse = q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)
        if not out.numel():
            return out, lse
        keys, values = (t.of(x) for t, x in zip(self.tiles, (k, v), strict=True)) if self.tiles else (k, v)
        if self.merge is None:
            self.launch(q, keys, values, out, lse, None, None)
            return out, lse
        parts = q.new_empty((*q.shape[:3], self.splits, q.shape[3]), dtype=torch.float32)
        logs = q.new_empty((*q.shape[:3], self.splits), dtype=torch.float32)
        self.launch(q, keys, values, out, lse, parts, logs)
        self.merge(out, lse, parts, logs)
        return out, lse


def run(call: AttentionCall, vector: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Pair:
    return _plan(call, vector).run(q, k, v) if k.numel() else nothing_seen(q)


@remembered
def _plan(call: AttentionCall, vector: int) -> SplitPlan:
    chosen = config(call)
    return plan(call, chosen, vector, splits(call, chosen, 2 if chosen["ROW_WARPS"] == 4 else 1))


def config(call: AttentionCall) -> Config:
    """Warps by rows and by keys, keys of a tile, stages of the ring; up to D = 128 two blocks share a multiprocessor.

    64 KB or more are under way to each multiprocessor. H200, bf16, 32/8 heads, B = 32, N = 8192, D = 128: 1 query
    240 us, 4 queries 242 us, 16 queries 248 us (one block of six stages 320 us), which is 4.5 to 4.3 TB/s.
    """
    return fitting(call, lambda chosen: _tile_bytes(call, chosen), 2 if call.width <= 128 else 1, most_stages(call))


def most_stages(call: AttentionCall) -> int:
    """Stages of the ring where there is room for them."""
    return 4 if call.width == 192 else 3


def fitting(
    call: AttentionCall, size: Callable[[Config], int | None], blocks: int, stages: int, warps: tuple[int, ...] = (4,)
) -> Config:
    """The tiles with the most warps, keys, blocks on a multiprocessor and stages, in this order, that fit on the card.

    size: bytes of shared memory that a block takes, None where the kernel cannot have such a tile. blocks, stages: the
    most of each. With fewer keys in a tile more of the warps share its rows, as each takes 16 keys at least.
    """
    rows, gpu, most_keys = call.q.shape[2] * call.group, call.card, 128 if call.width == 64 else 64
    by_rows = 1 if rows <= 16 else 2 if rows <= 32 else 4
    lengths = [keys for keys in (128, 64, 32, 16) if keys <= most_keys]
    for count, keys, together, depth in product(warps, lengths, range(blocks, 0, -1), range(stages, 1, -1)):
        by_keys = min(max(1, count // by_rows), keys // 16)
        tile = {"ROW_WARPS": count // by_keys, "KEY_WARPS": by_keys, "BLOCK_N": keys}
        chosen = {**tile, "STAGES": depth, "BLOCKS": together}
        if (need := size(chosen)) is not None and fits(gpu, need, 32 * count, together):
            return chosen
    raise ValueError(f"attention: no tiles of heads of {call.q.shape[3]} fit into the shared memory of {gpu}")


def wgmma_config(call: AttentionCall) -> Config:
    """Warpgroups of 64 rows, keys of a tile, and as many stages of the ring as there is room for, up to six.

    Two blocks of a warpgroup share a multiprocessor, or two warpgroups each tile of a single one. H200, bf16, D = 128, 16
    queries, 128 rows: 16 x 2 heads of 4096 keys 37.5 us both ways, 64 of 4096 53.5 us in the first (60.5), 128 of 65536
    1107 us in the second (1174). Beyond D = 128 the sums of one warpgroup take the registers of two.
    """
    large = call.k.shape[0] * call.k.shape[1] * seen_keys(call) >= 1 << 20
    groups = 2 if large and call.q.shape[2] * call.group > 64 and call.width <= 128 else 1
    blocks = 2 if groups == 1 and call.width <= 128 else 1
    line, room = call.width * call.q.dtype.itemsize, call.card.shared_per_processor // blocks - 1024 - _BARRIER_BYTES
    stages = min(6, (room - 64 * groups * line) // (2 * 64 * line))
    return {"ROW_WARPS": 4 * groups, "KEY_WARPS": 1, "BLOCK_N": 64, "STAGES": stages, "BLOCKS": blocks}


def row_tiles(call: AttentionCall, chosen: Config) -> int:
    """Tiles of the packed rows of a key/value head."""
    return max(1, cdiv(call.q.shape[2] * call.group, 16 * chosen["ROW_WARPS"]))


def seen_keys(call: AttentionCall) -> int:
    """Keys that some query sees: all from the first one's window on; at least one, without queries too."""
    _, shift, window = call.mask
    return max(1, call.k.shape[2] - max(0, 1 + shift - window)) if window else call.k.shape[2]


_START = 2.0  # what a split takes besides its tiles, in tiles
_SECOND_PASS = 3.0


def splits(call: AttentionCall, chosen: Config, blocks: int = 1) -> int:
    """Pieces of the keys so that all multiprocessors read for about as long, with so many blocks on each of them.

    One block per multiprocessor reads as fast as two where the tile has few rows; one with 64 rows is slower, which takes
    two. H200, 32/8 heads, D = 128: 1 query, B = 1, N = 65536: 16 pieces 68 us (as many as multiprocessors); B = 4,
    N = 8192: 4 pieces 38 us, 2 pieces 46, 16 pieces 43. 16 queries, B = 8, N = 16384: 4 pieces 152 us, 2 pieces 180.
    """
    tiles = cdiv(seen_keys(call), chosen["BLOCK_N"])
    works = call.k.shape[0] * call.k.shape[1] * row_tiles(call, chosen)

    def time(pieces: int) -> float:
        length = cdiv(tiles, pieces)
        waves = cdiv(works * cdiv(tiles, length), blocks * call.card.processors)
        return waves * (length + _START) + (_SECOND_PASS if pieces > 1 else 0)

    return min(range(1, min(tiles, 128) + 1), key=time)


def wgmma_splits(call: AttentionCall, chosen: Config) -> int:
    """The same for warpgroup products: two blocks on a multiprocessor overlap, which pays for more parts in long splits.

    H200, bf16, D = 128, 16 queries, 128 rows: 16 heads of 4096, 16384, 65536 keys in 4 splits 25.7, 57.6, 191 us, in 8
    25.7, 53.5, 163. A single tile of rows is bound by reading.
    """
    pieces = splits(call, chosen)
    length = cdiv(cdiv(seen_keys(call), chosen["BLOCK_N"]), pieces)
    overlapping = chosen["BLOCKS"] == 2 and row_tiles(call, chosen) > 1 and pieces > 1 and length >= 64
    return splits(call, chosen, 2) if overlapping else pieces


@dataclass(frozen=True)
class _Cut:
    """The keys of a call in pieces: numbers and grid of the first kernel, and the second one if there is one."""

    numbers: tuple[int, ...]
    grid: int
    merge: BoundLaunch | None
    pieces: int


def _cut(call: AttentionCall, chosen: Config, source: Source, defines: dict[str, object], pieces: int) -> _Cut:
    (B, H, M, _), (_, G, N, _) = call.q.shape, call.k.shape
    tiles, rows = cdiv(seen_keys(call), chosen["BLOCK_N"]), row_tiles(call, chosen)
    length = cdiv(tiles, pieces)
    count = cdiv(tiles, length)
    numbers = (G, call.group, M, N, call.mask.shift, call.mask.window, rows, count, length * chosen["BLOCK_N"])
    follows = call.card.capability >= (9, 0)
    merge = source.kernel("attention_merge", _MERGE, **defines).bind(B * H * M, 128, count, follows=follows)
    return _Cut(numbers, B * G * rows * count, merge if count > 1 else None, count)


def _tile_bytes(call: AttentionCall, chosen: Config) -> int:
    """Shared memory of the rows and of the ring of key and value tiles."""
    rows = 16 * chosen["ROW_WARPS"] + 2 * chosen["STAGES"] * chosen["BLOCK_N"]
    return rows * call.width * call.q.dtype.itemsize


def plan(call: AttentionCall, chosen: Config, vector: int, pieces: int) -> SplitPlan:
    """The plan with a given number of pieces of the keys, or fewer."""
    defines = {"VECTOR": vector, **chosen, **call.defines}
    cut = _cut(call, chosen, _SOURCE, defines, pieces)
    kernel = _SOURCE.kernel("attention_split_keys", _POINTERS, **defines)
    shared, threads = _tile_bytes(call, chosen), 32 * chosen["ROW_WARPS"] * chosen["KEY_WARPS"]
    launch = kernel.bind(cut.grid, threads, *cut.numbers, *call.strides, call.scale_log2, shared=shared)
    return SplitPlan(launch, cut.merge, cut.pieces)


def wgmma_plan(call: AttentionCall, chosen: Config, tiles: tuple[Tiles, ...], pieces: int) -> SplitPlan:
    """The same on warpgroup products; tiles: descriptors of k and v."""
    defines = {**chosen, **call.defines}
    cut = _cut(call, chosen, _WGMMA, defines, pieces)
    kernel = _WGMMA.kernel("attention_split_keys_wgmma", _MAPS, **defines)
    shared, threads = _tile_bytes(call, chosen) + _BARRIER_BYTES, 32 * chosen["ROW_WARPS"] + 32
    launch = kernel.bind(cut.grid, threads, *cut.numbers, *call.strides[:3], call.scale_log2, shared=shared)
    return SplitPlan(launch, cut.merge, cut.pieces, tiles)
