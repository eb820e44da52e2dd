"""In which order the blocks of a launch run, and which of them.

A GPU promises no order. A permutation of this kind needs no memory, so that grids of 2^31 blocks have orders as well:
the cluster at place p is (start + step * p) mod clusters, with a step that has no factor in common with their number.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kernelmux.emulator.settings import current_block_order, current_only_blocks


@dataclass(frozen=True)
class Order:
    """Numbers of blocks by place; the blocks of a cluster stay together, one after another."""

    clusters: int
    cluster: int
    start: int
    step: int

    def __call__(self, place: Any) -> Any:
        """The number of the block at a place (or at an array of places), cluster after cluster."""
        number = (self.start + self.step * (place // self.cluster)) % self.clusters
        return number * self.cluster + place % self.cluster


def order(blocks: int, cluster: int) -> Order | None:
    """The order in force, None for the ordinary one."""
    wanted, clusters = current_block_order(), blocks // cluster
    if wanted == "forward" or clusters < 2:
        return None
    if wanted == "reverse":
        return Order(clusters, cluster, clusters - 1, clusters - 1)
    chance = random.Random(wanted)
    step = next(s for s in iter(lambda: chance.randrange(1, clusters), None) if math.gcd(s, clusters) == 1)
    return Order(clusters, cluster, chance.randrange(clusters), step)


def chunks(blocks: int, chunk: int, cluster: int) -> Iterator[tuple[int, int]]:
    """Place of the first block and number of blocks of every chunk, in the order in which they run."""
    for low, high in _wanted(blocks, cluster):
        yield from ((first, min(chunk, high - first)) for first in range(low, high, chunk))


def _wanted(blocks: int, cluster: int) -> list[tuple[int, int]]:
    """The places that `only_blocks` leaves, as ranges of whole clusters."""
    only = current_only_blocks()
    if only is None or sum(only) >= blocks:
        return [(0, blocks)]
    first, last = (min(-(-count // cluster) * cluster, blocks) for count in only)
    return [(0, blocks)] if first + last >= blocks else [(0, first), (blocks - last, blocks)]
