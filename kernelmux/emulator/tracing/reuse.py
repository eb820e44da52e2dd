"""Which sectors a block touches again: what a cache beside it could serve."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.memory.global_memory import OFFSET, SHIFT
from kernelmux.emulator.tracing.traffic import Traffic
from kernelmux.emulator.tracing.warp_requests import SECTOR

Array = NDArray[Any]
SETTLE_AT = 1 << 21  # sectors that are kept before they are counted
SEGMENT_BITS, SECTOR_BITS = 13, 35  # of a key: block in the chunk (the bits above), segment of memory, sector in it


class Reuse:
    """Sectors touched by the blocks of a chunk, in order of time. A cache without end: evictions are not modelled."""

    def __init__(self) -> None:
        self.seen = np.empty(0, np.int64)
        self.waiting: list[tuple[Traffic, Array]] = []
        self.count = 0

    def note(self, traffic: Traffic, block: Array, sector: Array) -> None:
        """Sectors that blocks of the chunk touch, one entry per request and sector."""
        segment = sector >> (SHIFT - SECTOR.bit_length() + 1)
        place = sector & (OFFSET // SECTOR)
        key = ((block << SEGMENT_BITS | segment & (1 << SEGMENT_BITS) - 1) << SECTOR_BITS) | place
        self.waiting.append((traffic, key))
        self.count += len(key)
        if self.count > SETTLE_AT:
            self.settle()

    def settle(self) -> None:
        """Counts what was touched for the second time or later."""
        if not self.waiting:
            return
        keys = np.concatenate([key for _, key in self.waiting])
        unique, first = np.unique(keys, return_index=True)
        fresh = np.zeros(len(keys), bool)
        fresh[first[~np.isin(unique, self.seen, assume_unique=True)]] = True
        start = 0
        for traffic, key in self.waiting:
            traffic.repeated += int((~fresh[start : start + len(key)]).sum())
            start += len(key)
        self.seen = np.union1d(self.seen, unique)
        self.waiting, self.count = [], 0

    def forget(self) -> None:
        """The blocks have ended."""
        self.settle()
        self.seen = np.empty(0, np.int64)
