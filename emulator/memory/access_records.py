"""Who wrote and who read each place of a segment of global memory: what `global_races` looks at."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

NOBODY = -1
LONGEST_LOG = 1 << 21  # lanes in the reads that are remembered until a write: 16 MB for their places


class Owners:
    """Of each granule of a segment, which thread of the grid wrote (or read) it last, in which epoch, at which tick.

    The low bits of a tick are the number of the instruction.
    """

    def __init__(self, size: int, granule: int) -> None:
        self.granule = granule  # bytes; not more than the smallest access so far
        count = -(-size // 64) * 64 // granule
        self.records = {name: np.full(count, NOBODY, np.int64) for name in ("thread", "epoch", "tick")}

    def refine(self, granule: int) -> None:
        """Smaller granules, because an access is smaller than one."""
        times = self.granule // granule
        if times > 1:
            self.records = {name: record.repeat(times) for name, record in self.records.items()}
            self.granule = granule

    def rows(self, name: str, size: int) -> np.ndarray:
        """A record with one row for each access of `size` bytes."""
        count = size // self.granule
        return self.records[name].reshape(-1, count)


@dataclass(frozen=True)
class Now:
    """The lanes of an access, one row each: threads of the grid, epochs, places in units of the size; and its tick.

    threads: of a block.
    """

    thread: np.ndarray
    epoch: np.ndarray
    where: np.ndarray
    size: int
    tick: int
    threads: int


class Readers:
    """Who read a segment: the last reader of each granule, another one, and the last of another block.

    Reads are entered at the next write.
    """

    def __init__(self) -> None:
        self.log: deque[Now] = deque()
        self.logged = 0
        self.records: tuple[Owners, Owners, Owners] | None = None

    def remember(self, now: Now) -> None:
        """Takes down a read; forgets the oldest ones of very long launches."""
        self.log.append(now)
        self.logged += len(now.thread)
        while self.logged > LONGEST_LOG:
            self.logged -= len(self.log.popleft().thread)

    def entered(self, length: int, size: int) -> tuple[Owners, ...]:
        """The records, up to date, for a write of `size` bytes; none if there was no read."""
        if self.records is None:
            if not self.log:
                return ()
            self.records = Owners(length, 4), Owners(length, 4), Owners(length, 4)
        for owners in self.records:
            owners.refine(min(size, owners.granule))
        while self.log:
            self._enter(self.records, self.log.popleft())
        self.logged = 0
        return self.records

    @staticmethod
    def _enter(records: tuple[Owners, Owners, Owners], now: Now) -> None:
        for owners in records:
            owners.refine(min(now.size, owners.granule))
        last, other, foreign = records
        before = {name: last.rows(name, now.size)[now.where] for name in last.records}
        values = {name: np.broadcast_to(getattr(now, name), before[name].shape) for name in last.records}
        for name, value in values.items():
            last.rows(name, now.size)[now.where] = value
        stayed = last.rows("thread", now.size)[now.where]  # several lanes may read one place
        earlier = (before["thread"] != values["thread"]) & (before["thread"] != NOBODY)
        lost = values["thread"] != stayed
        for found, chosen in ((before, earlier), (values, lost)):
            elsewhere = chosen & (found["thread"] // now.threads != stayed // now.threads)
            _put(other, now, found, chosen)
            _put(foreign, now, found, elsewhere)


def _put(owners: Owners, now: Now, found: dict[str, np.ndarray], chosen: np.ndarray) -> None:
    """Enters the chosen ones of what was found at the places of an access."""
    row, column = np.nonzero(chosen)
    for name, value in found.items():
        owners.rows(name, now.size)[now.where[row], column] = value[row, column]
