"""Global memory in full mode: two threads that write different values to one place, with nothing that orders them.

Only writes are looked at. Writes of one block are ordered by its barriers; writes of different blocks are taken as
ordered when the kernel has any atomic, fence or acquire/release access, because such a kernel may hand places from
block to block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from kernelmux.emulator.group import Group
    from kernelmux.emulator.memory import Segment
    from kernelmux.emulator.shadow import Shadow

NOBODY = -1


class Owners:
    """Of each granule of a segment, who wrote it last (thread of the grid), and in which epoch of its block."""

    def __init__(self, size: int, granule: int) -> None:
        self.granule = granule  # bytes; not more than the smallest write so far
        self.thread, self.epoch = (np.full(-(-size // 64) * 64 // granule, NOBODY, np.int64) for _ in range(2))

    def refine(self, granule: int) -> None:
        """Smaller granules, because a write is smaller than one."""
        times = self.granule // granule
        self.thread, self.epoch, self.granule = self.thread.repeat(times), self.epoch.repeat(times), granule


class GlobalWriters:
    """Checks and records the writes of the lanes of a chunk."""

    def __init__(self, first_block: int, threads: int, shadow: Shadow | None, blocks_ordered: bool) -> None:
        self.first_thread, self.threads, self.blocks_ordered = first_block * threads, threads, blocks_ordered
        self.shadow = shadow  # knows the epochs

    def write(self, group: Group, segment: Segment, rows: Any, size: int, changes: Callable[[], Any]) -> None:
        """Every lane writes `size` bytes at `rows`, in units of size.

        `changes()` tells which of them change what is there.
        """
        owners = segment.writers
        if owners is None:
            owners = segment.writers = Owners(len(segment.data), min(size, 4))
        if size < owners.granule:
            owners.refine(size)
        thread = group.index + self.first_thread
        epoch = self._epoch(group)
        where, count = np.broadcast_to(rows, (group.n,)), size // owners.granule
        writer, when = (r if count == 1 else r.reshape(-1, count) for r in (owners.thread, owners.epoch))
        before = writer[where]
        if np.maximum.reduce(before, axis=None) != NOBODY:
            self._check(group, before, when[where], thread, epoch, changes)
        writer[where] = thread if count == 1 else thread[:, None]
        when[where] = epoch if count == 1 or np.ndim(epoch) == 0 else epoch[:, None]

    def _epoch(self, group: Group) -> Any:
        return 0 if self.shadow is None else self.shadow.stamps(group).stamps >> 10  # without the thread

    def _check(self, group: Group, before: Any, when: Any, thread: Any, epoch: Any, changes: Callable[[], Any]) -> None:
        if before.ndim == 2:
            thread, epoch = thread[:, None], epoch[:, None] if np.ndim(epoch) else epoch
        same_block = before // self.threads == thread // self.threads
        unordered = np.where(same_block, when == epoch, not self.blocks_ordered)
        bad = (before != NOBODY) & (before != thread) & unordered
        if not bad.any():
            return
        lanes = bad if bad.ndim == 1 else bad.any(axis=1)
        lanes = lanes & changes()
        if lanes.any():
            row = int(np.flatnonzero(lanes)[0])
            other = int(before[row] if before.ndim == 1 else before[row][bad[row]][0])
            block, number = other // self.threads, other % self.threads
            text = (
                f"write of a value different from the one that thread {number} of block {block} wrote to the same place"
            )
            group.fail("race", text, lanes)
