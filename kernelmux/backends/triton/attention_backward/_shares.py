"""Walks over queries, into how many shares they are best cut: how long they are, and when the last one ends.

A block owns some keys and walks over the tiles of queries that see any of them.
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


def last_end(walks: Iterable[int], places: int, shares: int, apart: float) -> float:
    """Steps until all walks are over, each begun where one ended first; `apart`: what a walk takes beside its steps."""
    free = [0.0] * max(1, places)
    for walk in walks:
        heapreplace(free, free[0] + -(-walk // shares) + apart)
    return max(free)


def best_shares(
    walks: Sequence[int], slices: int, places: dict[int, int], apart: dict[int, float], once: float = 0.0
) -> int:
    """Into how many shares walks are best cut: the fewest that come within a twentieth of the best.

    slices: so many have these walks. places, apart: how many walks run at a time, and what each takes beside its steps, by
    the number of shares. once: what adding sums up takes for each share. Many rounds of walks fill the card as they are.
    """
    if not walks or len(walks) * slices > ROUNDS * places[1]:
        return 1
    dealt = [walk for walk in walks for _ in range(slices)]
    ends = {n: last_end(dealt, places[n], n, apart[n]) + (n > 1) * n * once for n in places}
    return min(n for n, end in ends.items() if end <= 1.05 * min(ends.values()))
