"""Which threads wrote and read each place of shared memory since the last barrier: uninitialised reads and races.

A stamp is `epoch << 36 | warp epoch << 14 | rank in the cluster << 10 | thread`; every barrier of a block begins a new
epoch, every bar.warp.sync a new warp epoch. Two accesses race if they are of one epoch, by different threads, at least
one a write, and not ordered by a warp epoch. Reads are only logged, and looked at when a thread writes near them in
the same epoch: kernels mostly fill a tile, wait, read, wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelmux.emulator.memory.access_sites import Trail, sites

if TYPE_CHECKING:
    from kernelmux.emulator.memory.shared_address import Spot
    from kernelmux.emulator.running.group import Group

UNINITIALISED = -1
PROMISED = -2  # initialised, but an asynchronous reduction of it was not waited for yet
NO_OWNER = 0  # initialised by an asynchronous copy or an atomic: orders are not tracked
RANK_SHIFT, THREAD_BITS, EPOCH_SHIFT = 10, 14, 36
THREAD = (1 << THREAD_BITS) - 1
OWN_THREAD = (1 << RANK_SHIFT) - 1
WARP_EPOCH = (1 << EPOCH_SHIFT) - 1 - THREAD
ONE, ONE_EPOCH = np.uint64(1), np.uint64(1 << EPOCH_SHIFT)
OTHER_WARP, OTHER_LANE = np.uint64(THREAD & ~31), np.uint64(31)
LONGEST_LOG = 1 << 25  # bytes
SPOT_BYTES = 100
PARTS = 64  # of a window; an access is first looked at by the parts it may touch, one bit each

RACE = "{} of shared memory at offset {}, and no barrier since thread {} {} it"


@dataclass(frozen=True, slots=True)
class GranuleRows:
    """The granules of one access: rows of `count` granules; `start` is added to all of `index`."""

    index: np.ndarray
    count: int
    start: int


@dataclass(slots=True, eq=False)
class Marks:
    """The lanes of one access: their stamps, the lowest stamp of their epoch, the clock, their blocks.

    live: the blocks that have passed no barrier since, as of the clock `looked`.
    """

    stamps: np.ndarray
    start: Any
    clock: int
    block: np.ndarray
    live: np.ndarray
    looked: int = 0


@dataclass(slots=True, eq=False)
class Reads:
    """Reads by the same lanes; held: bytes of rows that are kept for them, most of which share theirs."""

    lanes: Marks
    spots: list[Spot]
    held: int = 0

    def add(self, spot: Spot) -> int:
        """Notes one more; returns how many bytes it keeps."""
        shared = bool(self.spots) and self.spots[-1].rows is spot.rows
        size = SPOT_BYTES + (0 if shared else 8 * np.size(spot.rows))
        self.spots.append(spot)
        self.held += size
        return size


class AccessStamps:
    """Stamps per granule of shared memory: of the last write, the last read and another read of the same epoch."""

    def __init__(self, geometry: Any, stride: int) -> None:
        self.stride, self.blocks = stride, geometry.blocks
        self.cluster, self.first_block = geometry.cluster, geometry.first
        self.shift = 2  # granules of 4 bytes, until there is a smaller access
        self.writes = np.full(geometry.blocks * stride >> self.shift, UNINITIALISED, np.int64)
        self.reads: list[np.ndarray] | None = None  # two arrays, once they are needed
        self.log: dict[int, list[Reads]] = {}  # by parts
        self.logged = 0
        self.part = stride // PARTS  # bytes
        self.clock = 1
        self.epoch: Any = np.int64(1)  # a number, or an array over the blocks
        self.warp_epoch = np.zeros(geometry.blocks * geometry.warps, np.int64)
        self.warps_ordered = False
        self.oldest = 1  # epoch of the block whose last barrier is longest ago
        self.written_parts: dict[int, int] = {}  # by clock, from the oldest epoch on
        self.written_lately = 0  # all of them
        self.last_flush = 0  # clock
        self.initialised_parts = 0
        self.looked = 0  # clock at which that was found out
        self.small = len(self.writes) <= 32 * geometry.lanes  # looking at all of it costs as much as a few accesses
        self._stamps: tuple[Any, Marks | None] = (None, None)
        self.trail = Trail()

    # ---- time

    def synchronise(self, blocks: Any) -> None:
        """A new epoch for these blocks (None: all)."""
        self.clock += 1
        self._stamps = (None, None)
        if blocks is None or len(np.unique(blocks)) == self.blocks:
            self.epoch, self.oldest = np.int64(self.clock), self.clock
            self.log.clear()
            self.trail.clear()
            self.written_parts.clear()
            self.written_lately = self.logged = 0
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
        self.written_lately = reduce(or_, self.written_parts.values(), 0)
        for parts, entries in list(self.log.items()):
            self.log[parts] = [reads for reads in entries if reads.lanes.clock >= oldest]
        self.logged = sum(reads.held for entries in self.log.values() for reads in entries)

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
            known = Marks(own, start, self.clock, group.block, group.block)
            self._stamps = (group.lanes, known)
        return known

    # ---- accesses of threads

    def read(self, group: Group, spot: Spot, wanted: Any = None) -> None:
        """Every lane reads; wanted: the elements of a row that are used."""
        parts, lanes = self._parts(spot.low, spot.high + spot.size), self.stamps(group)
        if spot.size < 1 << self.shift:
            self._refine(spot.size)
        written, initialised = parts & self.written_lately, self._initialised(parts)
        if written or not initialised:
            rows = self._rows(group.n, spot)
            old = self._stamps_at(self.writes, rows)
            if wanted is not None and rows.count >= len(wanted):
                old = np.where(np.repeat(wanted, rows.count // len(wanted)), old, NO_OWNER)
            if not initialised and np.minimum.reduce(old, axis=None) < 0:
                self._fail_unread(group, old, rows)
            if written:
                self._race(group, old, lanes, rows, ("read", "wrote"))
        if self.logged > LONGEST_LOG:
            self._flush(-1)
        entries = self.log.setdefault(parts, [])
        if not entries or entries[-1].lanes is not lanes:
            entries.append(Reads(lanes, []))
        self.logged += entries[-1].add(spot)
        self.trail.note(False, lanes.stamps, spot, sites(group).here(group.run))

    def write(self, group: Group, spot: Spot, changes: Callable[[], Any]) -> None:
        """Every lane writes; `changes()` gives those that do not write the value that is there."""
        parts = self._parts(spot.low, spot.high + spot.size)
        rows, lanes = self._rows(group.n, spot), self.stamps(group)
        self._flush(parts, group)
        if self.reads is not None and self.last_flush >= self.oldest:
            for record in self.reads:
                self._race(group, self._stamps_at(record, rows), lanes, rows, ("write", "read"))
        if parts & self.written_lately:
            old = self._stamps_at(self.writes, rows)
            if (old >= _column(lanes.start, old)).any():
                different = changes()
                old = np.where(different if old.ndim == 1 else different[:, None], old, UNINITIALISED)
                self._race(group, old, lanes, rows, ("write", "wrote"))
        self._stamp(self.writes, rows, lanes.stamps)
        self._note_write(parts)
        self.trail.note(True, lanes.stamps, spot, sites(group).here(group.run))

    def atomic(self, group: Group, spot: Spot) -> None:
        """Atomics are ordered among themselves; they need an initialised place."""
        rows = self._rows(group.n, spot)
        old = self._stamps_at(self.writes, rows)
        fresh = old == UNINITIALISED
        if fresh.any():
            self._fail(group, fresh, "uninitialised", "atomic on shared memory at offset {} before any write", rows)
        if old.min() != PROMISED:
            self._stamp(self.writes, rows, NO_OWNER)

    # ---- asynchronous copies

    def written(self, block: int, offsets: np.ndarray) -> None:
        """Bytes of a block's window were written by an asynchronous copy that a thread has waited for."""
        self.writes[self._window(block, offsets)] = NO_OWNER

    def forget(self, block: int, offsets: np.ndarray) -> None:
        """Bytes are about to be overwritten: they hold nothing until the copy is waited for."""
        self.writes[self._window(block, offsets)] = UNINITIALISED
        if np.size(offsets):
            self.initialised_parts &= ~self._parts(int(np.min(offsets)), int(np.max(offsets)) + 1)

    def promise(self, group: Group, block: int, offsets: np.ndarray, what: str, position: int) -> None:
        """Bytes will be changed by a reduction: a thread that reads them must wait for it first."""
        window = self._window(block, offsets)
        self.require(group, block, offsets, what, position, allowed=PROMISED)
        self.writes[window] = PROMISED
        self.initialised_parts &= ~self._parts(int(np.min(offsets)), int(np.max(offsets)) + 1)

    def require(
        self, group: Group, block: Any, offsets: np.ndarray, what: str, position: int = 0, allowed: int = NO_OWNER
    ) -> None:
        """Fails unless these bytes are initialised; allowed: `PROMISED` lets them be part of a reduction under way."""
        stamps = self.writes[self._window(block, offsets)]
        bad = (stamps < 0) & (stamps != allowed)
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

    def _note_write(self, parts: int) -> None:
        """Something was written there in the epoch of some block."""
        self.written_parts[self.clock] = parts | self.written_parts.get(self.clock, 0)
        self.written_lately |= parts

    def _initialised(self, parts: int) -> bool:
        """Whether all of it is known to be initialised in all blocks; looked at once per barrier unless too large."""
        if parts & ~self.initialised_parts and self.looked < self.clock and self.small:
            self.looked = self.clock
            lowest = self.writes.reshape(self.blocks, PARTS, -1).min(axis=(0, 2))
            self.initialised_parts = sum(1 << i for i in np.flatnonzero(lowest >= 0).tolist())
        return not parts & ~self.initialised_parts

    def _rows(self, lanes: int, spot: Spot) -> GranuleRows:
        if spot.size < 1 << self.shift:
            self._refine(spot.size)
        index = spot.rows if spot.rows.__class__ is np.ndarray else np.full(lanes, spot.rows)
        return GranuleRows(index, spot.size >> self.shift, spot.start)

    def _stamps_at(self, record: np.ndarray, rows: GranuleRows) -> np.ndarray:
        """(n,), or (n, count) for accesses of several granules."""
        return _from(record, rows).take(rows.index, axis=0)

    def _stamp(self, record: np.ndarray, rows: GranuleRows, stamps: Any) -> None:
        _from(record, rows)[rows.index] = stamps[:, None] if rows.count > 1 and np.ndim(stamps) else stamps

    def _refine(self, size: int) -> None:
        """Smaller granules, because an access is smaller than one."""
        finer = self.shift - (size.bit_length() - 1)
        self.writes = self.writes.repeat(1 << finer)
        self.reads = [record.repeat(1 << finer) for record in self.reads] if self.reads else None
        self.shift -= finer

    def _flush(self, parts: int, group: Group | None = None) -> None:
        """Enters the reads logged in these parts; group: only those that lanes of the same blocks could disturb."""
        near = [key for key in self.log if key & parts]
        if not near:
            return
        several_epochs = self.cluster == 1 and np.ndim(self.epoch)
        here = np.zeros(self.blocks, bool)
        here[slice(None) if group is None else group.block] = True
        for key in near:
            entries, self.log[key] = self.log[key], []
            for reads in entries:
                live = self._live(reads.lanes) if several_epochs else reads.lanes.block
                if not several_epochs or np.count_nonzero(here[live]):
                    for spot in reads.spots:
                        self._enter(spot, reads.lanes)
                elif len(live):
                    self.log[key].append(reads)
                    continue
                self.logged -= reads.held
        self.last_flush = self.clock

    def _live(self, lanes: Marks) -> np.ndarray:
        """The blocks of the lanes that have passed no barrier since."""
        if lanes.looked != self.clock:
            lanes.live = np.unique(lanes.block[self.epoch[lanes.block] << EPOCH_SHIFT == lanes.start])
            lanes.looked = self.clock
        return lanes.live

    def _enter(self, spot: Spot, lanes: Marks) -> None:
        """Notes a read: the last reader of each place, and another one of the same epoch.

        The other one is of another warp if there is one, else the latest: a writer in the warp of the last reader, whose
        reads a warp barrier may have ordered, then still meets a reader that it races with, if there is any.
        """
        rows = self._rows(len(lanes.stamps), spot)
        if self.reads is None:
            self.reads = [np.zeros(len(self.writes), np.int64) for _ in range(2)]  # 0: none; new memory costs nothing
        last, another = (_from(record, rows) for record in self.reads)
        stamps = (
            lanes.stamps if rows.count == 1 else np.broadcast_to(lanes.stamps[:, None], (len(rows.index), rows.count))
        )
        start = _column(lanes.start, stamps)
        before, known = last.take(rows.index, axis=0), another.take(rows.index, axis=0)
        last[rows.index] = stamps
        stayed = last.take(rows.index, axis=0)  # several lanes may read one place
        earlier = (before >= start) & (before != stayed)
        lost = stayed != stamps
        if np.count_nonzero(earlier) or np.count_nonzero(lost):
            candidates = ((before, earlier & (((before ^ stayed) & THREAD) != 0)), (stamps, lost))
            for candidate, chosen in candidates:
                _put(another, rows.index, candidate, chosen)
            for candidate, chosen in ((known, known >= start), *candidates):
                _put(another, rows.index, candidate, chosen & (((candidate ^ stayed) & THREAD) >> 5 != 0))

    # ---- verdicts

    def _race(self, group: Group, old: np.ndarray, lanes: Marks, rows: GranuleRows, verbs: tuple[str, str]) -> None:
        stamps = lanes.stamps if old.ndim == 1 else lanes.stamps[:, None]
        difference = old ^ stamps
        if self.cluster == 1 and not _unordered(difference):
            return
        recent = old >= _column(lanes.start, old)
        other_thread = (difference & THREAD) != 0
        ordered = ((difference & THREAD) >> 5 == 0) & ((difference & WARP_EPOCH) != 0)
        bad = recent & other_thread & ~ordered
        if np.count_nonzero(bad):
            self._fail(group, bad, "race", RACE.format(verbs[0], "{}", "{}", verbs[1]), rows, old)

    def _fail_unread(self, group: Group, old: np.ndarray, rows: GranuleRows) -> None:
        """A read of what was never written, or of what will still change."""
        bad = old == UNINITIALISED
        when = "before any write" if bad.any() else "before the asynchronous reduction of it was waited for"
        text = f"read of shared memory at offset {{}} {when}"
        self._fail(group, bad if bad.any() else old < 0, "uninitialised", text, rows)

    def _fail(self, group: Group, bad: np.ndarray, kind: str, text: str, rows: GranuleRows, old: Any = None) -> None:
        row, column = (int(i) for i in np.argwhere(bad.reshape(len(rows.index), -1))[0])
        byte = (rows.start + int(rows.index[row])) * rows.count + column << self.shift
        stamp = UNINITIALISED if old is None else int(old.reshape(len(rows.index), -1)[row, column])
        step = sites(group).step(self.trail.find(text.endswith("wrote it"), stamp, byte))
        group.fail(kind, text.format(byte % self.stride, stamp & OWN_THREAD), [row], step)


def _unordered(difference: np.ndarray) -> bool:
    """Whether two stamps of one block, of which the difference is, are of one epoch, other threads, and not ordered."""
    bits = difference.view(np.uint64)  # stamps of other epochs, and none at all, are above all that is looked for
    recent = bits < ONE_EPOCH
    if not np.count_nonzero(recent):
        return False
    other_warp, same_warp_epoch = (bits & OTHER_WARP) != 0, bits - ONE < OTHER_LANE
    return bool(np.count_nonzero((other_warp | same_warp_epoch) & recent))


def _put(record: np.ndarray, index: np.ndarray, values: np.ndarray, chosen: np.ndarray) -> None:
    """Puts the chosen values into rows of a record; what is not chosen stays, also where lanes meet."""
    if chosen.ndim == 1:
        record[index[chosen]] = values[chosen]
        return
    row, column = np.nonzero(chosen)
    record[index[row], column] = values[row, column]


def _from(record: np.ndarray, rows: GranuleRows) -> np.ndarray:
    """What `rows.index` counts from: granules, or rows of granules."""
    return (record if rows.count == 1 else record.reshape(-1, rows.count))[rows.start :]


def _column(start: Any, like: np.ndarray) -> Any:
    return start if np.ndim(start) == 0 or like.ndim == 1 else start[:, None]
