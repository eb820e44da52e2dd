"""Attention of fp32 by tensor cores of bf16, on sm_90: the planes of q, k, v, and what computes all of it where they cannot
hold a number."""

from dataclasses import dataclass
from typing import Any

import torch

from kernelmux.backends.cuda._families import planes
from kernelmux.backends.cuda._launch.layout import Layout
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, Tiles
from kernelmux.backends.cuda.attention._call import (
    SHAPE,
    AttentionCall,
    Config,
    Pair,
    section_for_balance,
)
from kernelmux.registry.spec.sliding_windows import mask_of, over_keys

_SOURCE = Source(__file__, "attention_bf16x6.cu")
_MAPS = f"q:map k:map v:map out* lse* {SHAPE} scale_log2:f32 works:i32"
_BARRIER_BYTES = 1024  # behind the tiles; the structure is padded to a whole unit of the swizzle
_MOST_UNITS = 16
# By the widest head: warpgroups, keys of a tile, as many as there are registers for. Beyond 192 columns the queries of two
# warpgroups leave no room for three planes of keys. H200, us: 1 x 8 x 2048, D = 256, causal 221, 248 with 32 keys.
TILES = {64: (2, 96), 96: (2, 80), 128: (2, 64), 192: (2, 32), 256: (1, 64)}

# Operations per microsecond of `online`, whose single block has half of its multiprocessor's share, and of planes;
# microseconds of the launches of planes; bytes per microsecond, of which each number that is split takes 10. H200, us, by
# both: 1 x 16 x 4096, D = 128, causal 5529 and 651, 3 x 16/4 x 838, D = 72 1024 and 152, 3 x 2/1 x 448, D = 144, causal
# 190 and 66.
PLAIN_FP32, BF16X6, SPLITTING, MEMORY, PROCESSORS = 12.4e6, 90e6, 25.0, 3.5e6, 132


@dataclass(frozen=True)
class RepaysPlanesOfAttention:
    """Queries that see enough keys to repay what splits all of those, and what checks behind it whether that was right."""

    text: str = "enough queries and keys to repay splitting them"

    def check(self, call: Any) -> str | None:
        """None, or that there are too few."""
        B, H, G, M, N, D = (call.axes[axis] for axis in "BHGMND")
        mask = mask_of(M, N, *(call.arguments[name] for name in ("causal", "window", "ahead")))
        rows, heads = (M, H) if mask.causal or mask.window else (M * (H // G), G)
        plain, planes = over_keys(mask, M, N, 32, 32), over_keys(mask, rows, N, 128, 64)
        pairs = 32 * 32 * _busiest(plain, B * H, alone=2), 128 * 64 * _busiest(planes, B * heads)
        saved = 4 * D * PROCESSORS * (pairs[0] / PLAIN_FP32 - pairs[1] / BF16X6)
        if saved >= SPLITTING + 10 * B * D * (H * M + 2 * G * N) / MEMORY:
            return None
        return f"{B} x {H} x {M} queries that see up to {N} keys are too few to repay splitting them"


def _busiest(tiles: list[int], slices: int, alone: int = 1) -> float:
    """Tiles of the busiest multiprocessor, from those of each block of a slice. alone: how much longer a block takes that
    has no others beside it."""
    return max(alone * max(tiles, default=0), sum(tiles) * slices / PROCESSORS)


@dataclass(frozen=True)
class PlanesOfAttention:
    """A kind of call, ready to run. tiles: descriptors of the planes of q, k, v; plain: the launch behind a guard."""

    launch: BoundLaunch
    tiles: tuple[Tiles, ...]
    plain: BoundLaunch

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Pair:
        out, lse = q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)
        if out.numel():
            flags = planes.flags_for(q, 3)
            parts = [planes.split(x, flags, i) for i, x in enumerate((q, k, v))]
            self.launch(*(t.of(x) for t, x in zip(self.tiles, parts, strict=True)), out, lse)
            self.plain(flags, q, k, v, out, lse)
        return out, lse


def whole(x: torch.Tensor) -> torch.Tensor:
    """x, a copy where heads or batches are one and the same: planes of those are held once."""
    return x.contiguous() if any(s == 0 and n > 1 for s, n in zip(x.stride()[:2], x.shape, strict=False)) else x


def config(call: AttentionCall) -> Config:
    """Warpgroups of 64 queries each, keys of a tile, planes of tiles in the ring."""
    consumers, keys = next(tile for width, tile in TILES.items() if width >= call.q.shape[3])
    return with_ring(call, {"BLOCK_M": 64 * consumers, "BLOCK_N": keys, "CONSUMERS": consumers})


def with_ring(call: AttentionCall, tile: Config) -> Config:
    """The same with as many units in the ring as there is room for."""
    plane = 2 * planes.plane_length(call.q.shape[3])
    room = call.card.shared_per_block - _BARRIER_BYTES - 3 * tile["BLOCK_M"] * plane
    return {**tile, "UNITS": min(_MOST_UNITS, room // (tile["BLOCK_N"] * plane))}


def plan(call: AttentionCall, config: Config, plain: BoundLaunch) -> PlanesOfAttention:
    """The plan with given tiles. One block per multiprocessor: its tiles leave no shared memory for a second one."""
    joined = call._replace(q=_joined(call))
    kernel = _SOURCE.kernel("attention_bf16x6", _MAPS, **config, **call.defines)
    rows, keys, plane = config["BLOCK_M"], config["BLOCK_N"], 2 * planes.plane_length(call.q.shape[3])
    works, shared = joined.works(rows), (3 * rows + config["UNITS"] * keys) * plane + _BARRIER_BYTES
    sizes = joined.sizes(section_for_balance(joined, rows, keys))
    grid, threads = min(works, call.card.processors), 128 * (config["CONSUMERS"] + 1)
    launch = kernel.bind(grid, threads, *sizes, call.scale_log2, works, shared=shared, follows=True)
    lines = ((joined.q, rows), (call.k, keys), (call.v, keys))
    return PlanesOfAttention(launch, tuple(_tiles(x, n) for x, n in lines), plain)


def _joined(call: AttentionCall) -> Layout:
    """The heads that share keys as one with all queries, where no mask tells them apart: fewer tiles are part empty."""
    (B, H, M, D), G = call.q.shape, call.k.shape[1]
    rows = H // G * M
    return call.q if call.uneven else call.q._replace(shape=(B, G, rows, D), strides=(H * M * D, rows * D, D, 1))


def _tiles(x: Layout, rows: int) -> Tiles:
    """Descriptors that load [rows, LINE] pieces of one (batch, head) of the planes of x, which are dense."""
    B, H, N, D = x.shape
    line = 3 * planes.plane_length(D)
    head, batch = (0 if s == 0 and n > 1 else 1 for n, s in ((H, x.strides[1]), (B, x.strides[0])))
    strides = (N * line * (H if head else 1) * batch, N * line * head, line, 1)
    return Tiles((B, H, N, line), strides, (1, 1, rows, planes.LINE), swizzle=128)
