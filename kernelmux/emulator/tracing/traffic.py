"""Counts of one kind of access: how many requests, what they moved, what they cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.tracing import warp_requests
from kernelmux.emulator.tracing.warp_requests import NO_LANE, SECTOR

Array = NDArray[Any]


@dataclass
class Traffic:
    """Accesses of one operation to one argument (global memory, copies of the TMA unit), to shared or local memory.

    requests: instructions of warps in which some lane takes part; lanes: these lanes; size: bytes per lane. Global:
    sectors of 32 bytes, `least` of them if the bytes lay side by side, `repeated` ones that the block had touched
    before, `used` different bytes. Shared: passes over the banks, and `least` without conflicts. `example` holds the
    addresses of the first request of the drawn warp, or of any other if that one makes none; `base` is where the
    argument begins.
    """

    space: str
    operation: str
    argument: str
    size: int
    requests: int = 0
    lanes: int = 0
    sectors: int = 0
    wavefronts: int = 0
    least: int = 0
    used: int = 0
    repeated: int = 0
    drawn_requests: int = 0
    example: Array | None = field(default=None, repr=False, compare=False)
    base: int | None = field(default=None, repr=False, compare=False)

    # ---- what follows from the counts

    @property
    def requested(self) -> int:
        """Bytes that the lanes asked for."""
        return self.lanes * self.size

    @property
    def moved(self) -> int:
        """Bytes of the sectors; what was asked for where there are none."""
        return self.sectors * SECTOR if self.space == "global" else self.requested

    @property
    def cost(self) -> int:
        """Sectors, or passes over the banks."""
        return self.sectors if self.space == "global" else self.wavefronts

    @property
    def conflicts(self) -> int:
        """Passes over the banks above the least."""
        return self.wavefronts - self.least if self.space == "shared" else 0

    @property
    def per_request(self) -> float:
        """Sectors or passes of one request, on average."""
        return self.cost / self.requests if self.requests else 0.0

    @property
    def least_per_request(self) -> float:
        return self.least / self.requests if self.requests else 0.0

    @property
    def efficiency(self) -> float:
        """Share of what was moved that was used; of the passes that were needed."""
        if self.space == "global":
            return self.used / self.moved if self.moved else 1.0
        return self.least / self.wavefronts if self.wavefronts else 1.0

    @property
    def reuse(self) -> float:
        """Share of the sectors that the same block had touched before: a cache close by may hold them."""
        return self.repeated / self.sectors if self.sectors else 0.0

    @property
    def verdict(self) -> str:
        """coalesced, cached, uncoalesced (global); conflict-free, conflicts (shared); plain (local memory, TMA)."""
        if self.space not in ("global", "shared"):
            return "plain"
        if self.space == "shared":
            return "conflicts" if self.conflicts else "conflict-free"
        if self.sectors <= self.least:
            return "coalesced"
        return "cached" if self.operation in ("load", "copy") and self.reuse >= 0.5 else "uncoalesced"

    # ---- counting

    def add(self, addresses: Array, drawn: Array) -> None:
        """Counts requests, one per row of 32 addresses; drawn: which rows belong to the drawn warp."""
        self.requests += len(addresses)
        self.lanes += int((addresses != NO_LANE).sum())
        if self.space == "shared":
            passes, least = warp_requests.wavefronts(addresses, self.size, self.operation)
            self.wavefronts += int(passes.sum())
            self.least += int(least.sum())
        elif self.space == "global":
            self.least += int(warp_requests.least_sectors(addresses, self.size).sum())
            self.used += int(warp_requests.distinct(addresses).sum()) * self.size
        self._keep_example(addresses, drawn)

    def _keep_example(self, addresses: Array, drawn: Array) -> None:
        mine = np.flatnonzero(drawn)
        if len(mine) and not self.drawn_requests:
            self.example = addresses[mine[0]].copy()
        elif self.example is None and len(addresses):
            self.example = addresses[0].copy()
        self.drawn_requests += len(mine)

    def merge(self, other: Traffic) -> None:
        """Adds the counts of accesses of the same kind."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if self.example is None or (other.drawn_requests and not self.drawn_requests):
            self.example, self.base = other.example, other.base
        self.drawn_requests += other.drawn_requests

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        names = ("space", "operation", "argument", "size", *COUNTS)
        derived = {"bytes_requested": self.requested, "bytes_moved": self.moved, "bank_conflicts": self.conflicts}
        ratios = {"per_request": round(self.per_request, 3), "least_per_request": round(self.least_per_request, 3)}
        share = {"efficiency": round(self.efficiency, 4), "reuse": round(self.reuse, 4), "verdict": self.verdict}
        return {name: getattr(self, name) for name in names} | derived | ratios | share


COUNTS = ("requests", "lanes", "sectors", "wavefronts", "least", "used", "repeated")
