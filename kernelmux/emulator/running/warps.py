"""Warp operations in divergent code: which lanes have to be there, and which are still elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kernelmux.emulator.running.lanes import WARP

if TYPE_CHECKING:
    from kernelmux.emulator.running.chunk_protocol import Chunk
    from kernelmux.emulator.running.group import Group

EVERY = np.uint32(0xFFFFFFFF)


def lane_bits(lane: np.ndarray) -> np.ndarray:
    """One bit per lane, uint32."""
    return np.uint32(1) << lane.astype(np.uint32)


class Warps:
    """The lanes of each warp of a chunk that have not exited."""

    def __init__(self, run: Chunk) -> None:
        self.run = run
        self._alive: np.ndarray | None = None

    def forget(self) -> None:
        """Lanes have exited."""
        self._alive = None

    def alive(self) -> np.ndarray:
        """Bits of the lanes alive, per warp of the chunk."""
        if self._alive is None:
            everyone = self.run.everyone
            bits = np.where(self.run.alive, lane_bits(everyone.lane), np.uint32(0))
            self._alive = np.bitwise_or.reduceat(bits, everyone.warp_starts)
        return self._alive

    def present(self, group: Group) -> np.ndarray:
        """Bits of the lanes in the group, per warp of the group (see `Lanes.warp_rank`)."""
        return np.bitwise_or.reduceat(lane_bits(group.lane), group.lanes.warp_starts)

    def stops(self, group: Group, pc: int, scope: str, mask: Any) -> bool:
        """True if some lanes had to be parked until others come."""
        mask = EVERY if mask is None else mask
        rank = group.lanes.warp_rank
        present = self.present(group)[rank]
        lacking = mask & self.alive()[group.warp] & ~present
        if np.any(lacking):
            late = np.zeros(rank[-1] + 1, bool)
            np.logical_or.at(late, rank, lacking != 0)
            self.run.activation.park(group, pc, late[rank])
            return True
        if scope == "members":
            self.require_membership(group, mask)
        elif (present != EVERY).any():
            group.fail(
                "divergence",
                f"a warp operation needs all {WARP} lanes, some have exited or do not exist",
                present != EVERY,
            )
        return False

    def require_membership(self, group: Group, mask: Any) -> None:
        """Every lane must be named by its own mask."""
        outside = (lane_bits(group.lane) & mask) == 0
        if outside.any():
            group.fail("divergence", "a lane runs a warp operation whose mask does not name it", outside)
