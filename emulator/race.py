"""Global memory in full mode: two threads that write different values to one place, with nothing that orders them.

Only writes are looked at. Writes of one block are ordered by its barriers; writes of different blocks are taken as ordered when
the kernel has any atomic, fence or acquire/release access, because such a kernel may hand places from block to block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from kernelmux.emulator.group import Group
    from kernelmux.emulator.memory import Segment
    from kernelmux.emulator.shadow import Shadow

NOBODY = -1


class GlobalWriters:
    """Per 4 bytes of global memory: the block and thread, and the block's epoch, of the last write."""

    def __init__(self, first_block: int, threads: int, shadow: Any, blocks_ordered: bool) -> None:
        self.first_block, self.threads, self.blocks_ordered = first_block, threads, blocks_ordered
        self.shadow: Shadow | None = shadow

    def write(self, group: Group, segment: Segment, rows: Any, size: int, changes: Any) -> None:
        """Checks and records a write of `size` bytes per lane at `rows` (in units of size)."""
        if segment.writers is None:
            segment.writers = np.full((2, (len(segment.data) >> 2) + 8), NOBODY, np.int64)
        thread = group.index + self.first_block * self.threads
        epoch = self._epoch(group)
        where = np.broadcast_to(rows, (group.n,)) * size >> 2
        owner, when = segment.writers[0][where], segment.writers[1][where]
        strange = (owner != NOBODY) & (owner != thread)
        if strange.any():
            self._check(group, strange, owner, when, thread, epoch, changes)
        for part in range(max(1, size >> 2)):
            segment.writers[0][where + part], segment.writers[1][where + part] = thread, epoch

    def _epoch(self, group: Group) -> Any:
        return 0 if self.shadow is None else self.shadow.stamps(group).stamps >> 10  # without the thread

    def _check(self, group: Group, strange: np.ndarray, owner: np.ndarray, when: np.ndarray, thread: np.ndarray, epoch: Any, changes: Any) -> None:
        same_block = owner // self.threads == thread // self.threads
        bad = strange & np.where(same_block, when == epoch, not self.blocks_ordered)
        if bad.any():
            bad &= changes()
        if bad.any():
            other = int(owner[np.flatnonzero(bad)[0]])
            block, number = other // self.threads, other % self.threads
            group.fail("race", f"write of a value different from the one that thread {number} of block {block} wrote to the same place", bad)
