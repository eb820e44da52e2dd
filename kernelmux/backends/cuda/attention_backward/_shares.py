"""Walks over tiles, into how many shares they are best cut: how long they are, and when the last one ends.

A block owns some keys and walks over the tiles of queries that see any of them, or owns queries and walks over keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapreplace

from kernelmux.registry.spec.sliding_windows import Mask

ROUNDS = 8  # of walks at a time


def over_queries(mask: Mask, queries: int, keys: int, own: int, tile: int) -> list[int]:
    """Tiles of queries that see any of a block's `own` keys, of each block."""
    found = []
    for first in range(0, keys, own):
        last = min(first + own, keys) - 1
        begin = max(0, first - mask.shift) if mask.causal else 0
        end = min(queries, last - mask.shift + mask.window) if mask.window else queries
        found.append(-(-end // tile) - begin // tile if end > begin else 0)
    return found


def over_keys(mask: Mask, queries: int, keys: int, own: int, tile: int) -> list[int]:
    """Tiles of keys that any of a block's `own` queries sees, of each block."""
    found = []
    for first in range(0, queries, own):
        last = min(first + own, queries) - 1
        begin = max(0, first + mask.shift - mask.window + 1) if mask.window else 0
        end = min(keys, last + mask.shift + 1) if mask.causal else keys
        found.append(max(0, -(-(end - begin) // tile)))
    return found


def last_end(walks: Iterable[int], places: int, shares: int, apart: float) -> float:
    """Steps until all walks are over, each begun where one ended first; `apart`: what a walk takes beside its steps."""
    free = [0.0] * max(1, places)
    for walk in walks:
        heapreplace(free, free[0] + -(-walk // shares) + apart)
    return max(free)


def best_shares(walks: Sequence[int], slices: int, places: dict[int, int], apart: dict[int, float]) -> int:
    """Into how many shares walks are best cut: the fewest that come within a twentieth of the best.

    slices: so many have these walks. places, apart: how many walks run at a time, and what each takes beside its steps, by
    the number of shares. Many rounds of walks fill the card as they are.
    """
    if not walks or len(walks) * slices > ROUNDS * places[1]:
        return 1
    dealt = [walk for walk in walks for _ in range(slices)]
    ends = {n: last_end(dealt, places[n], n, apart[n]) for n in places}
    return min(n for n, end in ends.items() if end <= 1.05 * min(ends.values()))
