"""Who wrote and read each place of shared memory since the last barrier: uninitialised reads and races.

A stamp is `epoch << 36 | warp epoch << 14 | rank in the cluster << 10 | thread`; every barrier of a block begins a new
epoch, every bar.warp.sync a new warp epoch. Two accesses race if they are of one epoch, by different threads, at least
one a write, and not ordered by a warp epoch. Reads are only logged, and looked at when somebody writes near them in
the same epoch: kernels mostly fill a tile, wait, read, wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from kernelmux.emulator.group import Group

UNINITIALISED = -1
NO_OWNER = 0  # initialised by an asynchronous copy or an atomic: orders are not tracked
RANK_SHIFT, THREAD_BITS, EPOCH_SHIFT = 10, 14, 36
THREAD = (1 << THREAD_BITS) - 1
OWN_THREAD = (1 << RANK_SHIFT) - 1
WARP_EPOCH = (1 << EPOCH_SHIFT) - 1 - THREAD
LONGEST_LOG = 1 << 22  # lanes in all entries: 32 MB
PARTS = 64  # of a window; an access is first looked at by the parts it may touch, one bit each

RACE = "{} of shared memory at offset {}, and no barrier since thread {} {} it"


@dataclass(frozen=True, slots=True)
class Rows:
    """The granules of one access: rows of `count` granules."""

    index: np.ndarray
    count: int


@dataclass(frozen=True, slots=True)
class Marks:
    """The lanes of one access: their stamps, the lowest stamp of their epoch, the clock."""

    stamps: np.ndarray
    start: Any
    clock: int


class Shadow:
    """Stamps per granule of shared memory: of the last write, the last read and another read of the same epoch."""

    def __init__(self, geometry: Any, stride: int) -> None:
        self.stride, self.blocks = stride, geometry.blocks
        self.cluster, self.first_block = geometry.cluster, geometry.first
        self.shift = 2  # granules of 4 bytes, until somebody makes a smaller access
        self.writes = np.full(geometry.blocks * stride >> self.shift, UNINITIALISED, np.int64)
        self.reads: list[np.ndarray] | None = None  # two arrays, once they are needed
        self.log: dict[int, list[tuple[Any, int, Marks]]] = {}  # by parts: position and size of reads
        self.logged = 0
        self.part = stride // PARTS  # bytes
        self.clock = 1
        self.epoch: Any = np.int64(1)  # a number, or an array over the blocks
        self.warp_epoch = np.zeros(geometry.blocks * geometry.warps, np.int64)
        self.warps_ordered = False
        self.oldest = 1  # epoch of the block whose last barrier is longest ago
        self.written_parts: dict[int, int] = {}  # by clock, from the oldest epoch on
        self.last_flush = 0  # clock
        self.initialised_parts = 0
        self.looked = 0  # clock at which that was found out
        self.small = len(self.writes) <= 32 * geometry.lanes  # looking at all of it costs as much as a few accesses
        self._stamps: tuple[Any, Marks | None] = (None, None)

    # ---- time

    def synchronise(self, blocks: Any) -> None:
        """A new epoch for these blocks (None: all)."""
        self.clock += 1
        self._stamps = (None, None)
        if blocks is None or len(np.unique(blocks)) == self.blocks:
            self.epoch, self.oldest = np.int64(self.clock), self.clock
            self.log.clear()
            self.written_parts.clear()
            self.logged = 0
            return
        if np.ndim(self.epoch) == 0:
            self.epoch = np.full(self.blocks, self.epoch)
        self.epoch[blocks] = self.clock
        self._grow_older(int(self.epoch.min()))

    def _grow_older(self, oldest: int) -> None:
        """Forgets what lies before the epochs of all blocks."""
        if oldest == self.oldest:
            return
        self.oldest = oldest
        self.written_parts = {clock: parts for clock, parts in self.written_parts.items() if clock >= oldest}
        for parts, entries in list(self.log.items()):
            self.log[parts] = [entry for entry in entries if entry[2].clock >= oldest]
        self.logged = sum(len(lanes.stamps) for entries in self.log.values() for _, _, lanes in entries)

    def synchronise_warps(self, warps: np.ndarray) -> None:
        """A new warp epoch for these warps."""
        self.warp_epoch[warps] = self.warp_epoch.max() + 1
        self.warps_ordered = True
        self._stamps = (None, None)

    def stamps(self, group: Group) -> Marks:
        """The stamps of the lanes of a group now."""
        lanes, known = self._stamps
        if lanes is not group.lanes or known is None:
            start = (self.epoch if np.ndim(self.epoch) == 0 else self.epoch[group.block]) << EPOCH_SHIFT
            own = group.thread | start
            if self.cluster > 1:
                own = own | (group.block + self.first_block) % self.cluster << RANK_SHIFT
            if self.warps_ordered:
                own = own | (self.warp_epoch[group.warp] << THREAD_BITS)
            known = Marks(own, start, self.clock)
            self._stamps = (group.lanes, known)
        return known

    # ---- accesses of threads

    def read(self, group: Group, position: Any, size: int, low: int, high: int, wanted: Any = None) -> None:
        """Every lane reads `size` bytes at byte `position` (windows end to end).

        low and high are the least and the largest offset in a window, wanted the elements that are used.
        """
        parts, lanes = self._parts(low, high + size), self.stamps(group)
        if size < 1 << self.shift:
            self._refine(size)
        written = self._written(parts)
        if written or not self._initialised(parts):
            rows = self._rows(group, position, size)
            old = self._stamps_at(self.writes, rows)
            if wanted is not None and rows.count >= len(wanted):
                old = np.where(np.repeat(wanted, rows.count // len(wanted)), old, NO_OWNER)
            if np.minimum.reduce(old, axis=None) < 0:
                self._fail(group, old < 0, "uninitialised", "read of shared memory at offset {} before any write", rows)
            if written:
                self._race(group, old, lanes, rows, ("read", "wrote"))
        if self.logged > LONGEST_LOG:
            self._flush(-1)
        self.log.setdefault(parts, []).append((position, size, lanes))
        self.logged += group.n

    def write(self, group: Group, position: Any, size: int, low: int, high: int, changes: Callable[[], Any]) -> None:
        """Every lane writes; `changes()` tells which of them change what is there (others may write the same value)."""
        parts = self._parts(low, high + size)
        rows, lanes = self._rows(group, position, size), self.stamps(group)
        self._flush(parts)
        if self.reads is not None and self.last_flush >= self.oldest:
            for record in self.reads:
                self._race(group, self._stamps_at(record, rows), lanes, rows, ("write", "read"))
        if self._written(parts):
            old = self._stamps_at(self.writes, rows)
            if (old >= _column(lanes.start, old)).any():
                different = changes()
                old = np.where(different if old.ndim == 1 else different[:, None], old, UNINITIALISED)
                self._race(group, old, lanes, rows, ("write", "wrote"))
        self._stamp(self.writes, rows, lanes.stamps)
        self._note_write(parts)

    def atomic(self, group: Group, position: Any, size: int) -> None:
        """Atomics are ordered among themselves; they need an initialised place."""
        rows = self._rows(group, position, size)
        old = self._stamps_at(self.writes, rows)
        if old.min() < 0:
            self._fail(group, old < 0, "uninitialised", "atomic on shared memory at offset {} before any write", rows)
        self._stamp(self.writes, rows, NO_OWNER)

    # ---- asynchronous copies

    def written(self, block: int, offsets: np.ndarray) -> None:
        """Bytes of a block's window were written by an asynchronous copy that somebody has waited for."""
        self.writes[self._window(block, offsets)] = NO_OWNER

    def forget(self, block: int, offsets: np.ndarray) -> None:
        """Bytes are about to be overwritten: they hold nothing until the copy is waited for."""
        self.writes[self._window(block, offsets)] = UNINITIALISED
        if np.size(offsets):
            self.initialised_parts &= ~self._parts(int(np.min(offsets)), int(np.max(offsets)) + 1)

    def require(self, group: Group, block: int, offsets: np.ndarray, what: str, position: int = 0) -> None:
        """Fails unless these bytes are initialised."""
        bad = self.writes[self._window(block, offsets)] < 0
        if bad.any():
            at = np.asarray(offsets).reshape(-1)[int(np.argmax(bad.reshape(-1)))]
            group.fail("uninitialised", f"{what} reads shared memory at offset {at} before any write", [position])

    def writers(self, block: Any, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Epoch and thread of the last write of bytes of a window; epoch 0: an asynchronous copy or an atomic."""
        stamps = self.writes[self._window(block, offsets)]
        return stamps >> EPOCH_SHIFT, stamps & OWN_THREAD

    def _window(self, block: int, offsets: np.ndarray) -> np.ndarray:
        return np.asarray(offsets) + block * self.stride >> self.shift

    # ---- records

    def _parts(self, low: int, high: int) -> int:
        """One bit per part of a window from offset `low` up to `high`."""
        return (2 << (high - 1) // self.part) - (1 << low // self.part)

    def _written(self, parts: int) -> bool:
        """Whether something may have been written there in the epoch of some block."""
        return any(parts & written for written in self.written_parts.values())

    def _note_write(self, parts: int) -> None:
        self.written_parts[self.clock] = parts | self.written_parts.get(self.clock, 0)

    def _initialised(self, parts: int) -> bool:
        """Whether all of it is known to be initialised in all blocks; looked at once per barrier unless too large."""
        if parts & ~self.initialised_parts and self.looked < self.clock and self.small:
            self.looked = self.clock
            lowest = self.writes.reshape(self.blocks, PARTS, -1).min(axis=(0, 2))
            self.initialised_parts = sum(1 << i for i in np.flatnonzero(lowest >= 0).tolist())
        return not parts & ~self.initialised_parts

    def _rows(self, group: Group, position: Any, size: int) -> Rows:
        if size < 1 << self.shift:
            self._refine(size)
        if position.__class__ is not np.ndarray:
            position = np.full(group.n, position)
        return Rows(position >> (size.bit_length() - 1), size >> self.shift)

    def _stamps_at(self, record: np.ndarray, rows: Rows) -> np.ndarray:
        """(n,), or (n, count) for accesses of several granules."""
        return (record if rows.count == 1 else record.reshape(-1, rows.count)).take(rows.index, axis=0)

    def _stamp(self, record: np.ndarray, rows: Rows, stamps: Any) -> None:
        if rows.count == 1:
            record[rows.index] = stamps
        else:
            record.reshape(-1, rows.count)[rows.index] = stamps[:, None] if np.ndim(stamps) else stamps

    def _refine(self, size: int) -> None:
        """Smaller granules, because an access is smaller than one."""
        finer = self.shift - (size.bit_length() - 1)
        self.writes = self.writes.repeat(1 << finer)
        self.reads = [record.repeat(1 << finer) for record in self.reads] if self.reads else None
        self.shift -= finer

    def _flush(self, parts: int) -> None:
        """Enters the reads logged in these parts: the last reader, and some other one of the same epoch."""
        near = [key for key in self.log if key & parts]
        if not near:
            return
        if self.reads is None:
            self.reads = [np.full(len(self.writes), UNINITIALISED, np.int64) for _ in range(2)]
        for key in near:
            for position, size, lanes in self.log.pop(key):
                self._enter(position, size, lanes)
                self.logged -= len(lanes.stamps)
        self.last_flush = self.clock

    def _enter(self, position: Any, size: int, lanes: Marks) -> None:
        assert self.reads is not None
        if position.__class__ is not np.ndarray:
            position = np.full(len(lanes.stamps), position)
        rows = Rows(position >> (size.bit_length() - 1), size >> self.shift)
        last, another = (r if rows.count == 1 else r.reshape(-1, rows.count) for r in self.reads)
        stamps = (
            lanes.stamps if rows.count == 1 else np.broadcast_to(lanes.stamps[:, None], (len(rows.index), rows.count))
        )
        before = last.take(rows.index, axis=0)
        fresh = (before != stamps) & (before >= _column(lanes.start, before))
        if np.count_nonzero(fresh):
            another[rows.index] = np.where(fresh, before, another[rows.index])
        last[rows.index] = stamps
        lost = last.take(rows.index, axis=0) != stamps
        if np.count_nonzero(lost):  # several lanes read one place: the one that stayed is not the only one
            some = lost.any(axis=-1) if lost.ndim == 2 else lost
            another[rows.index[some]] = stamps[some]

    # ---- verdicts

    def _race(self, group: Group, old: np.ndarray, lanes: Marks, rows: Rows, verbs: tuple[str, str]) -> None:
        recent = old >= _column(lanes.start, old)
        if not np.count_nonzero(recent):
            return
        stamps = lanes.stamps if old.ndim == 1 else lanes.stamps[:, None]
        difference = old ^ stamps
        other_thread = (difference & THREAD) != 0
        ordered = ((difference & THREAD) >> 5 == 0) & ((difference & WARP_EPOCH) != 0)
        bad = recent & other_thread & ~ordered
        if np.count_nonzero(bad):
            self._fail(group, bad, "race", RACE.format(verbs[0], "{}", "{}", verbs[1]), rows, old)

    def _fail(self, group: Group, bad: np.ndarray, kind: str, text: str, rows: Rows, old: Any = None) -> None:
        row, column = (int(i) for i in np.argwhere(bad.reshape(len(rows.index), -1))[0])
        offset = (int(rows.index[row]) * rows.count + column << self.shift) % self.stride
        other = "" if old is None else int(old.reshape(len(rows.index), -1)[row, column] & OWN_THREAD)
        group.fail(kind, text.format(offset, other), [row])


def _column(start: Any, like: np.ndarray) -> Any:
    return start if np.ndim(start) == 0 or like.ndim == 1 else start[:, None]
