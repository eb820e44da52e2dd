"""Global memory in full mode: two threads that touch one place, one of them writing, with nothing that orders them.

Threads of one block are ordered by its barriers. Threads of different blocks are never ordered, unless the kernel has
atomics, fences or acquire/release accesses, by which places may be handed from block to block; then a block may touch
what another one touched if that one has made a fence since. Writes that change nothing are no race. Reads that may be
part of a hand-over themselves (volatile, relaxed, acquire) are not checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelmux.emulator.memory.access_records import NO_ACCESS, CurrentAccess, LastAccess
from kernelmux.emulator.memory.access_sites import BITS, Sites
from kernelmux.emulator.memory.shared_races import THREAD_BITS

if TYPE_CHECKING:
    from kernelmux.emulator.memory.global_memory import Segment
    from kernelmux.emulator.memory.shared_races import AccessStamps
    from kernelmux.emulator.running.block_orders import Order
    from kernelmux.emulator.running.group import Group

WROTE = "write of a value different from the one that thread {} of block {} wrote to the same place"
READ_IT = "write to a place, and nothing orders it with thread {} of block {}, which reads it"
BY_THREAD = "read of a place, and no barrier since thread {} of block {} wrote it"
BY_BLOCK = "read of a place, and nothing orders it with thread {} of block {}, which wrote it"
NO_FENCE = "read of a place, and no fence (__threadfence) of its block since thread {} of block {} wrote it"


@dataclass
class History:
    """What all chunks of a launch share: whether blocks may be ordered, and when each block made its last fence.

    tick: fences so far, `1 << BITS` for each, so that there is room for the number of an instruction.
    order: the block at each place, None if they run as they are numbered; records hold places.
    """

    blocks_ordered: bool
    order: Order | None = None
    tick: int = 0
    fences: dict[int, int] = field(default_factory=dict)
    sites: Sites = field(default_factory=Sites)


class GlobalWriters:
    """Checks and records the accesses of the lanes of a chunk."""

    def __init__(self, first_block: int, threads: int, shadow: AccessStamps | None, history: History) -> None:
        self.first_block, self.threads, self.history = first_block, threads, history
        self.shadow = shadow  # knows the epochs

    def fence(self, group: Group) -> None:
        """What the blocks of the group did so far may be seen by others."""
        self.history.tick += 1 << BITS
        for block in np.unique(group.block).tolist():
            self.history.fences[block + self.first_block] = self.history.tick

    def read(self, group: Group, segment: Segment, rows: Any, size: int) -> None:
        """Every lane reads `size` bytes at `rows`, in units of size."""
        now = self._now(group, rows, size)
        segment.readers.remember(now)
        if segment.writers is None:
            return
        accesses = segment.writers
        accesses.refine(min(size, accesses.granule))
        thread, epoch = (accesses.rows(name, size)[now.where] for name in ("thread", "epoch"))
        if np.maximum.reduce(thread, axis=None) == NO_ACCESS:
            return
        same = thread // self.threads == now.thread // self.threads
        other = (thread != NO_ACCESS) & (thread != now.thread)
        self._fail(group, other & same & (epoch == now.epoch), accesses, now, BY_THREAD)
        text = NO_FENCE if self.history.blocks_ordered else BY_BLOCK
        self._fail(group, other & ~same & self._unfenced(accesses, now, thread), accesses, now, text)

    def write(self, group: Group, segment: Segment, rows: Any, size: int, changes: Callable[[], Any]) -> None:
        """Every lane writes; `changes()` gives those that do not write the value that is there."""
        if segment.writers is None:
            segment.writers = LastAccess(len(segment.data), min(size, 4))
        accesses, now = segment.writers, self._now(group, rows, size)
        accesses.refine(min(size, accesses.granule))
        readers = segment.readers.entered(len(segment.data), size)
        for earlier, text in ((accesses, WROTE), *((reader, READ_IT) for reader in readers)):
            self._check(group, earlier, now, changes, text)
        for name in accesses.records:
            accesses.rows(name, size)[now.where] = getattr(now, name)

    def _now(self, group: Group, rows: Any, size: int) -> CurrentAccess:
        thread = group.index + self.first_block * self.threads
        stamps = 0 if self.shadow is None else self.shadow.stamps(group).stamps >> THREAD_BITS
        tick = self.history.tick | self.history.sites.here(group.run)
        epoch, rows = _for_each(stamps, group.n), _for_each(rows, group.n)
        return CurrentAccess(thread[:, None], epoch[:, None], rows, size, tick, self.threads)

    def _unfenced(self, accesses: LastAccess, now: CurrentAccess, thread: np.ndarray) -> Any:
        """Where the block of the earlier access, by `thread`, has made no fence since."""
        if not self.history.blocks_ordered:
            return np.True_
        blocks, places = np.unique(thread // self.threads, return_inverse=True)
        fences = np.array([self.history.fences.get(int(block), NO_ACCESS) for block in blocks])
        return accesses.rows("tick", now.size)[now.where] >= fences[places].reshape(thread.shape)

    def _check(
        self, group: Group, accesses: LastAccess, now: CurrentAccess, changes: Callable[[], Any], text: str
    ) -> None:
        """Fails where others have touched what lanes now change."""
        before = accesses.rows("thread", now.size)[now.where]
        if np.maximum.reduce(before, axis=None) == NO_ACCESS:
            return
        when = accesses.rows("epoch", now.size)[now.where]
        same_block = before // self.threads == now.thread // self.threads
        bad = (before != NO_ACCESS) & (before != now.thread) & np.where(same_block, when == now.epoch, True)
        if bad.any():
            bad = bad & np.reshape(changes(), (-1, 1)) & (same_block | self._unfenced(accesses, now, before))
            self._fail(group, bad, accesses, now, text)

    def _fail(self, group: Group, bad: np.ndarray, accesses: LastAccess, now: CurrentAccess, text: str) -> None:
        if bad.any():
            row, column = np.argwhere(bad)[0]
            other, tick = (int(accesses.rows(name, now.size)[now.where][row, column]) for name in ("thread", "tick"))
            place, thread = divmod(other, self.threads)
            block = place if self.history.order is None else self.history.order(place)
            step = self.history.sites.step(tick & (1 << BITS) - 1)
            group.fail("race", text.format(thread, block), [int(row)], step)


def _for_each(value: Any, lanes: int) -> Any:
    """A value as one of every lane; that it is already is a cheaper question than `broadcast_to`."""
    if value.__class__ is np.ndarray and value.shape == (lanes,):
        return value
    return np.broadcast_to(value, (lanes,))
