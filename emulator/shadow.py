"""Who wrote and read each place of shared memory since the last barrier: uninitialised reads and races.

A stamp is `epoch << 32 | warp epoch << 10 | thread`; every barrier of a block begins a new epoch, every bar.warp.sync a new warp
epoch. Two accesses race if they are of one epoch, by different threads, at least one a write, and not ordered by a warp epoch.
Reads are only logged, and looked at when somebody writes in the same epoch: kernels mostly fill a tile, wait, read, wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from kernelmux.emulator.group import Group

UNINITIALISED = -1
NO_OWNER = 0  # initialised by an asynchronous copy or an atomic: orders are not tracked
THREAD_BITS, EPOCH_SHIFT = 10, 32
THREAD = (1 << THREAD_BITS) - 1
WARP_EPOCH = (1 << EPOCH_SHIFT) - 1 - THREAD
LONGEST_LOG = 64  # entries


class Shadow:
    """Stamps per granule of shared memory: of the last write, the last read and another read of the same epoch."""

    def __init__(self, geometry: Any, stride: int) -> None:
        self.stride, self.threads = stride, geometry.threads
        self.shift = 2  # granules of 4 bytes, until somebody makes a smaller access
        granules = geometry.blocks * stride >> self.shift
        self.writes = np.full(granules, UNINITIALISED, np.int64)
        self.reads: list[np.ndarray] | None = None  # two arrays, once they are needed
        self.log: list[tuple[np.ndarray, np.ndarray]] = []
        self.clock = 1
        self.epoch: Any = np.int64(1)  # a number, or an array over the blocks
        self.blocks = geometry.blocks
        self.warp_epoch = np.zeros(geometry.blocks * geometry.warps, np.int64)
        self.warps_ordered = False
        self.last_write = 0  # clock of the last write
        self.everything_initialised = False
        self.looked = 0  # clock at which it was found out
        self._stamps: tuple[Any, Any] = (None, None)

    # ---- time

    def synchronise(self, blocks: Any) -> None:
        """A new epoch for these blocks (None: all)."""
        self.clock += 1
        self._stamps = (None, None)
        if blocks is None:
            self.epoch = np.int64(self.clock)
            self.log.clear()
            return
        if np.ndim(self.epoch) == 0:
            self.epoch = np.full(self.blocks, self.epoch)
        self.epoch[blocks] = self.clock

    def synchronise_warps(self, warps: np.ndarray) -> None:
        self.warp_epoch[warps] = self.warp_epoch.max() + 1
        self.warps_ordered = True
        self._stamps = (None, None)

    def stamps(self, group: Group) -> tuple[np.ndarray, Any]:
        """The stamp of every lane, and the lowest stamp of its epoch."""
        lanes, known = self._stamps
        if lanes is not group.lanes:
            start = (self.epoch if np.ndim(self.epoch) == 0 else self.epoch[group.block]) << EPOCH_SHIFT
            own = group.thread | start
            if self.warps_ordered:
                own = own | (self.warp_epoch[group.warp] << THREAD_BITS)
            known = (own, start)
            self._stamps = (group.lanes, known)
        return known  # type: ignore[no-any-return]

    # ---- accesses of threads

    def read(self, group: Group, position: Any, size: int, lanes: Any = None) -> None:
        """Lanes read `size` bytes at byte `position` (all windows end to end); `lanes`: positions in the group, None for all."""
        where = self._granules(position, size, group)
        own, start = self._of(group, lanes)
        if not self._quiet():
            old = self.writes.take(where, axis=0) if where.ndim == 1 else self.writes[where]
            if old.min() < 0:
                self._fail(group, lanes, old < 0, "uninitialised", f"read of shared memory at offset {{}} before any write{{}}", where)
            self._race(group, lanes, old, own, start, where, "read of shared memory at offset {}, and no barrier since thread {} wrote it")
        if len(self.log) >= LONGEST_LOG:
            self._flush()
        self.log.append((where, own))

    def write(self, group: Group, position: Any, size: int, changes: Any, lanes: Any = None) -> None:
        """Lanes write; `changes()` tells which of them change what is there (others may write the same value)."""
        where = self._granules(position, size, group)
        own, start = self._of(group, lanes)
        if self.log or self.reads is not None:
            self._flush()
            for record in self.reads or ():
                old = record[where]
                self._race(group, lanes, old, own, start, where, "write of shared memory at offset {}, and no barrier since thread {} read it")
        old = self.writes[where]
        if self.last_write and (_column(start, old) <= old).any():
            different = changes()
            old = np.where(different if old.ndim == 1 else different[:, None], old, UNINITIALISED)
            self._race(group, lanes, old, own, start, where, "write of shared memory at offset {}, and no barrier since thread {} wrote it")
        self.writes[where] = own if where.ndim == 1 else own[:, None]
        self.last_write = self.clock

    def atomic(self, group: Group, position: Any, size: int, lanes: Any = None) -> None:
        """Atomics are ordered among themselves; they need an initialised place."""
        where = self._granules(position, size, group)
        old = self.writes[where]
        if old.min() < 0:
            self._fail(group, lanes, old < 0, "uninitialised", "atomic on shared memory at offset {} before any write{}", where)
        self.writes[where] = NO_OWNER
        self.last_write = self.clock

    # ---- asynchronous copies

    def written(self, block: int, offsets: np.ndarray) -> None:
        """Bytes of a block's window were written by an asynchronous copy that somebody has waited for."""
        self.writes[self._window(block, offsets)] = NO_OWNER

    def forget(self, block: int, offsets: np.ndarray) -> None:
        """Bytes are about to be overwritten: they hold nothing until the copy is waited for."""
        self.writes[self._window(block, offsets)] = UNINITIALISED
        self.everything_initialised = False

    def require(self, group: Group, block: int, offsets: np.ndarray, what: str, position: int = 0) -> None:
        """Fails unless these bytes are initialised."""
        bad = self.writes[self._window(block, offsets)] < 0
        if bad.any():
            at = np.asarray(offsets).reshape(-1)[int(np.argmax(bad.reshape(-1)))]
            group.fail("uninitialised", f"{what} reads shared memory at offset {at} before any write", [position])

    def _window(self, block: int, offsets: np.ndarray) -> np.ndarray:
        return np.asarray(offsets) + block * self.stride >> self.shift

    # ---- inside

    def _quiet(self) -> bool:
        """Whether a read cannot be wrong: everything is initialised and nothing was written in this epoch."""
        if self.last_write == self.clock or np.ndim(self.epoch):
            return False
        if not self.everything_initialised and self.looked < self.clock:
            self.looked = self.clock
            self.everything_initialised = bool((self.writes >= 0).all())
        return self.everything_initialised

    def _granules(self, position: Any, size: int, group: Group) -> np.ndarray:
        """Granule numbers, (n,) or (n, granules of one access)."""
        if size < 1 << self.shift:
            self._refine(size)
        if position.__class__ is not np.ndarray:
            position = np.full(group.n, position)
        count = size >> self.shift
        where: np.ndarray = position >> self.shift
        return where if count == 1 else where[:, None] + np.arange(count)

    def _refine(self, size: int) -> None:
        """Smaller granules, because an access is smaller than one."""
        finer = self.shift - (size.bit_length() - 1)
        self._flush()
        self.writes = self.writes.repeat(1 << finer)
        self.reads = [record.repeat(1 << finer) for record in self.reads] if self.reads else None
        self.shift -= finer

    def _of(self, group: Group, lanes: Any) -> tuple[np.ndarray, Any]:
        own, start = self.stamps(group)
        if lanes is None:
            return own, start
        return own[lanes], start if np.ndim(start) == 0 else start[lanes]

    def _flush(self) -> None:
        """Enters the logged reads into the records: the last reader, and some other one of the same epoch."""
        if self.log and self.reads is None:
            self.reads = [np.full(len(self.writes), UNINITIALISED, np.int64) for _ in range(2)]
        for where, own in self.log:
            assert self.reads is not None
            last, another = self.reads
            stamp = own if where.ndim == 1 else np.broadcast_to(own[:, None], where.shape)
            before = last[where]
            fresh = before != stamp
            another[where[fresh]] = before[fresh]
            last[where] = stamp
            lost = last[where] != stamp
            another[where[lost]] = stamp[lost]
        self.log.clear()

    def _race(self, group: Group, lanes: Any, old: np.ndarray, own: np.ndarray, start: Any, where: np.ndarray, text: str) -> None:
        recent = old >= _column(start, old)
        if not recent.any():
            return
        stamp = own if old.ndim == 1 else own[:, None]
        differs = (old ^ stamp) & THREAD
        same_warp = (differs >> 5) == 0
        ordered = same_warp & (((old ^ stamp) & WARP_EPOCH) != 0)
        bad = recent & (differs != 0) & ~ordered
        if bad.any():
            self._fail(group, lanes, bad, "race", text, where, old)

    def _fail(self, group: Group, lanes: Any, bad: np.ndarray, kind: str, text: str, where: np.ndarray, old: Any = None) -> None:
        row = int(np.flatnonzero(bad if bad.ndim == 1 else bad.any(axis=1))[0])
        column = 0 if bad.ndim == 1 else int(np.flatnonzero(bad[row])[0])
        granule = where[row] if where.ndim == 1 else where[row, column]
        other = "" if old is None else int((old[row] if old.ndim == 1 else old[row, column]) & THREAD)
        offset = int(granule << self.shift) % self.stride
        group.fail(kind, text.format(offset, other), [row if lanes is None else int(np.asarray(lanes)[row])])


def _column(start: Any, like: np.ndarray) -> Any:
    return start if np.ndim(start) == 0 or like.ndim == 1 else start[:, None]
