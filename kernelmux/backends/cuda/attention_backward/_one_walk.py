"""Attention's gradient in one walk over the weights, as Dao, FlashAttention-2, 2023: blocks of keys add to grad_q."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kernelmux.backends.cuda._launch.runtime import Source, cdiv
from kernelmux.backends.cuda.attention_backward._call import (
    LINE,
    MAPPED,
    ORDER,
    SHAPE,
    AttentionGradientCall,
    Config,
    Walks,
    clusters_at_a_time,
    maps_of,
    section_of,
    shared_bytes,
)  # fmt: skip
from kernelmux.registry.spec.sliding_windows import best_shares, over_queries

T = torch.Tensor

_FUSED = Source(__file__, "attention_backward_fused.cu")

_PARTS = 2  # of grad_q in shared memory
_SHORT, _FEW = 65536, 8192  # keys of all heads


@dataclass(frozen=True)
class Long:
    """Without a causal mask blocks wait for one another at the start, which two walks do not: for long calls, 64 and 128
    columns, heads that share keys, and so few blocks that several share a walk.

    H200, bf16, D = 96, no mask, us: 1 x 16 x 2048 180, in two walks 162; 2 x 16 x 1024 114, 103; 4 x 16 x 2048 552, 585.
    Causal 1 x 16 x 1024 58, 60; 1 x 8 x 2048 85, 89; 2 x 16 x 1024 83, 79. In shares D = 104, no mask, 2 x 4 / 2 x 5346
    542, 757; D = 128, 2 x 8 / 2 x 1000 88, 133.
    """

    @property
    def text(self) -> str:
        return f"causal, D = 64, D = 128, H > G, B * G * N <= {_FEW} or B * G * N >= {_SHORT}"

    def check(self, call: Any) -> str | None:
        """None, or how many columns and keys there are."""
        D, keys = call.axes["D"], call.axes["B"] * call.axes["G"] * call.axes["N"]
        shared = call.axes["H"] > call.axes["G"]
        long = call.arguments["causal"] or D in (64, 128) or shared or keys <= _FEW or keys >= _SHORT
        return None if long else f"D = {D}, B * G * N = {keys}, needs {self.text}"


def fused_config(call: AttentionGradientCall) -> Config:
    """Queries of a tile, stages of the ring, warpgroups of 64 keys each; TURNS: these issue their products in turn.

    LONGEST_FIRST: blocks of the first keys, which the most queries see, start first. H200, bf16, 4 x 32 x 4096 x D, us of
    the whole call, causal and not: at D = 128 tiles of 64 queries 2569 and 4446, without turns 2758 and 4747, with three
    stages and one part of grad_q for two 2575 and 4501. With a kernel of its own that converts grad_q and one part 2616
    and 4531, tiles of 80 queries 2692 and 4528. At D = 64 tiles of 128 queries 1685 and 2713, without turns 1751 and
    2840. In a run of all heads with keys of their own the longest first take 1697 (D = 64) and 2540, last 1620 and 2525.
    With fewer heads nothing else runs beside the last, long blocks, and these start first: 2 x 16 x 4096 x 128 takes 640,
    last 681; 2 x 16 x 6000 1343, 1535; 1 x 16 x 10000 1764, 1909; 1 x 16 x 8192 x 64 699, 724, x 96 1056, 1111. Of 64
    heads 4 x 16 x 2048 x 96 takes 354, last 353; 4 x 16 x 3000 x 112 712, 687.
    """
    B, H, G, _, N, D = call.dims
    longest = call.mask.causal and (H > G or (B * G <= 32 and N >= 4096))
    tile = 128 if D <= 64 else 64
    together = shares(call, tile, bool(longest))
    return {
        "TILE": tile, "STAGES": 2, "CONSUMERS": 2, "TURNS": 1, "LONGEST_FIRST": int(longest), "SHARES": together,
        "CHAINS": chains(call, together), "FINISHED": finished(call, tile),
    }  # fmt: skip


def chains(call: AttentionGradientCall, together: int) -> int:
    """Sums of grad_q, each of which every so many-th block of keys adds to: two where most blocks start at once.

    Then the blocks of a slice wait for one another at the start. H200, bf16, us with one, two and four sums: no mask 1 x 16
    x 2048 x 96 172.8, 162.8 and 170.0, 1 x 2 x 3000 x 64 in four shares 65.9, 60.2 and 58.0, 2 x 8 / 2 x 1000 x 128 in
    two shares 92.3 and 87.8; causal 1 x 4 x 512 x 128 in four shares 22.7, 21.0 and 20.9. With more blocks 2 x 4 / 2 x
    5346 x 104 in two shares 541.8 and 542.1, 2 x 16 x 4096 x 64 655.5 and 661.3.
    """
    B, _, G, _, N, _ = call.dims
    wait = together > 1 or not call.mask.causal
    return 2 if wait and B * G * cdiv(N, 128) * together <= 2 * call.card.processors else 1


def finished(call: AttentionGradientCall, tile: int) -> int:
    """Tiles of grad_q that a block converts."""
    B, H, _, M, _, _ = call.dims
    return next((n for n in (8, 4, 2) if B * H * cdiv(M, tile * n) >= call.card.processors), 1)


def shares(call: AttentionGradientCall, tile: int, longest_first: bool) -> int:
    """Blocks of a cluster that share a walk, so that few walks fill the card and no long one is left over.

    H200, bf16, us in 1, 2, 4 and 8 shares: causal 1 x 12 / 3 x 1455 x 96 175.7, 98.5, 61.5 and 76.7, 3 x 32 / 4 x 784 x 64
    158.6, 102.5, 111.3 and 139.7, 1 x 16 / 4 x 700 x 80 89.1, 53.7, 36.7 and 45.4, 4 x 16 x 1024 x 64 101.8 and 140.4; no
    mask 2 x 4 / 2 x 5346 x 104 676.5, 541.8, 555.8 and 619.0. In 1, 2, 3 and 4: no mask 2 x 8 / 2 x 1000 x 128 147.0, 87.1,
    70.8 and 94.1, as 32 clusters of three run at a time and of four do not; causal 1 x 12 / 3 x 1455 x 96 72.6 in 3.
    """
    B, H, G, M, N, _ = call.dims
    walks = [H // G * tiles for tiles in over_queries(call.mask, M, N, 128, tile)]
    in_order = walks[::-1] if call.mask.causal and not longest_first else walks
    places = clusters_at_a_time(call.card) | {3: max(1, call.card.processors // 3 - 3)}
    return best_shares(in_order, B * G, places, {1: 2.0} | dict.fromkeys((2, 3, 4, 8), 4.5))


def fused_section(call: AttentionGradientCall) -> int:
    """Slices whose blocks run together.

    Blocks of a slice wait for one another, and under a causal mask without groups of heads the last to start are the
    longest. H200, bf16, us: 4 x 32 x 4096 x 128 causal, 5 slices 2606, 8 2621, 16 3107, 33 3969; not causal 4484, 4522,
    4652 and 4782. At D = 64 1759, 1761, 1753 and 1893; 2737, 2792, 2759 and 2841. With the longest first 2 x 32 / 8 x 8192
    x 128 takes 4564 in 4 slices, 4682 in 6, 4677 in 8 (with the longest last 5199), 8 x 32 / 4 x 2048 1533 in 4, 1650 in
    8 (1949), 4 x 32 / 8 x 4096 2584 in 4, 2516 in 8 (2832). Where heads have keys of their own 1 x 16 x 10000 x 128 takes
    1807 in 4, 1764 in 8, 1778 in 16, 2 x 16 x 4096 655, 640 and 646. The longest last: 4 x 16 x 2048 x 96 takes 353 in 8,
    358 in 21, 4 x 16 x 3000 x 112 687 in 8, 694 in 12.
    """
    B, H, G, M, _, _ = call.dims
    if call.mask.causal and H > G:
        return min(B * G, 4)
    longest_last = call.mask.causal and not fused_config(call)["LONGEST_FIRST"]
    return min(section_of(call, B * G, M), 8) if longest_last else min(B * G, 8)


def fused(call: AttentionGradientCall, ordered: bool) -> Walks:
    """One kernel for all products and the conversion of grad_q; without an order its sums begin as zeros."""
    config = fused_config(call)
    B, H, G, M, N, _ = call.dims
    own, tile, panels = 64 * config["CONSUMERS"], config["TILE"], call.panels
    tiles = cdiv(M, tile)
    maps = maps_of(call, {"grad_out": tile, "q": tile, "k": own, "v": own})
    kernel = _FUSED.kernel(
        "attention_backward_fused",
        f"{MAPPED} sums* done* grad_q* grad_k* grad_v* {SHAPE} {ORDER}",
        **config, **call.defines, ORDERED=int(ordered),
    )  # fmt: skip
    shared = shared_bytes(call, config) + tile * (own * 4 + _PARTS * panels * LINE * 4 + 8 * config["STAGES"])
    clusters = B * G * cdiv(N, own) + cdiv(B * H * cdiv(tiles, config["FINISHED"]), config["SHARES"])
    launch = kernel.bind(
        clusters * config["SHARES"], 128 * (config["CONSUMERS"] + 1), *call.numbers, B * G, fused_section(call),
        shared=shared, follows=True,
    )  # fmt: skip

    def run(inputs: tuple[T, ...], offsets: T, done: T, *grads: T) -> None:
        size = (config["CHAINS"], B * H, panels, cdiv(M, 8), 8 * LINE)
        sums = offsets.new_empty(size) if ordered else offsets.new_zeros(size)
        launch(*(map_.of(x) for map_, x in zip(maps, inputs, strict=True)), offsets, sums, done, *grads)

    return Walks(run, B * H * tiles * config["CHAINS"] * config["CONSUMERS"] + 1)
