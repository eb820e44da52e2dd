"""Thread-block clusters: blocks that start together and reach one another's shared memory.

The blocks of a cluster are in one chunk, one after another by rank (x runs fastest, then y). An address in the shared
memory of the block of rank r is its offset with r + 1 in the bits from 24 on, as `mapa` makes it; without such a tag it
is the block's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kernelmux.emulator.memory.shared_memory import SharedWindows

if TYPE_CHECKING:
    from kernelmux.emulator.running.group import Group

TAG = 24  # lowest bit of the tag
OFFSET = (1 << TAG) - 1


def tagged(address: Any, rank: Any) -> Any:
    """The same place in the block of this rank; 32-bit shared and 64-bit generic addresses."""
    kind = address.dtype.type
    other_bits = kind(~(0xFF << TAG) & (1 << 8 * address.itemsize) - 1)
    return (address & other_bits) | (rank.astype(kind) + kind(1)) << kind(TAG)


def ranks(group: Group) -> np.ndarray:
    """Rank of each lane's block in its cluster."""
    geometry = group.run.geometry
    rank: np.ndarray = (group.block + geometry.first) % geometry.cluster
    return rank


def split(group: Group, address: Any) -> tuple[np.ndarray, np.ndarray]:
    """Block in the chunk and offset of every lane's shared-memory address."""
    address = group.full(address)
    tag = address >> TAG
    if not tag.any():
        return group.block, address
    size = group.run.geometry.cluster
    bad = (tag < 0) | (tag > size)
    if bad.any():
        group.fail("out of bounds", f"shared-memory address of block {tag[bad][0] - 1} of a cluster of {size}", bad)
    own = ranks(group)
    return group.block + np.where(tag > 0, tag - 1 - own, 0), address & OFFSET


class ClusterMemory(SharedWindows):
    """Shared memory of blocks that are in clusters: addresses may be tagged.

    In full mode a block may end only when those that have used its memory are known to be done: with a barrier between.
    """

    touched: np.ndarray | None = None  # by block: the clock of the last access from another block

    def position(self, group: Group, offset: Any, size: int, write: bool) -> tuple[Any, int, int]:
        if not np.any(offset >> TAG):
            return super().position(group, offset, size, write)
        block, own = split(group, offset)
        low, high = self.check(group, own, size, write)
        if self.shadow is not None:
            self._note(group, block)
        return own + block * self.stride, low, high

    def _note(self, group: Group, block: np.ndarray) -> None:
        assert self.shadow is not None
        if self.touched is None:
            self.touched = np.zeros(self.blocks, np.int64)
            group.run.on_exit.append(self._require_done)
        other: np.ndarray = np.asarray(block != group.block)
        ended = np.logical_and(other, ~self._alive(group)[block])
        if np.any(ended):
            group.fail("asynchronous", "an access to the shared memory of a block that has already ended", ended)
        self.touched[block[other]] = self.shadow.clock

    def _alive(self, group: Group) -> np.ndarray:
        """Which blocks have lanes that have not ended."""
        return np.asarray(group.run.alive.reshape(self.blocks, -1).any(axis=1))

    def _require_done(self, group: Group) -> None:
        """Called when lanes end."""
        assert self.shadow is not None
        assert self.touched is not None
        epoch = np.broadcast_to(self.shadow.epoch, (self.blocks,))
        early: Any = np.logical_and(~self._alive(group), np.greater_equal(self.touched, epoch))[group.block]
        if np.any(early):
            message = "the block ends, and no barrier since another block of the cluster used its shared memory"
            group.fail("asynchronous", message, early)
