"""Which threads wrote and read each place of a segment of global memory: the data of `global_races`."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

NO_ACCESS = -1  # in place of a thread, an epoch or a tick
LONGEST_LOG = 1 << 21  # lanes in the reads that are remembered until a write: 16 MB for their places


class LastAccess:
    """Of each granule of a segment, which thread of the grid wrote (or read) it last, in which epoch, at which tick.

    The low bits of a tick are the number of the instruction.
    """

    def __init__(self, size: int, granule: int) -> None:
        self.granule = granule  # bytes; not more than the smallest access so far
        count = -(-size // 64) * 64 // granule
        self.records = {name: np.full(count, NO_ACCESS, np.int64) for name in ("thread", "epoch", "tick")}

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
class CurrentAccess:
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
    """The readers of a segment: of each granule the last one, another one, and the last one of another block.

    Reads are entered at the next write.
    """

    def __init__(self) -> None:
        self.log: deque[CurrentAccess] = deque()
        self.logged = 0
        self.records: tuple[LastAccess, LastAccess, LastAccess] | None = None

    def remember(self, now: CurrentAccess) -> None:
        """Notes a read; forgets the oldest ones in very long launches."""
        self.log.append(now)
        self.logged += len(now.thread)
        while self.logged > LONGEST_LOG:
            self.logged -= len(self.log.popleft().thread)

    def entered(self, length: int, size: int) -> tuple[LastAccess, ...]:
        """The records, up to date, for a write of `size` bytes; none if there was no read."""
        if self.records is None:
            if not self.log:
                return ()
            self.records = LastAccess(length, 4), LastAccess(length, 4), LastAccess(length, 4)
        for accesses in self.records:
            accesses.refine(min(size, accesses.granule))
        while self.log:
            self._enter(self.records, self.log.popleft())
        self.logged = 0
        return self.records

    @staticmethod
    def _enter(records: tuple[LastAccess, LastAccess, LastAccess], now: CurrentAccess) -> None:
        for accesses in records:
            accesses.refine(min(now.size, accesses.granule))
        last, other, foreign = records
        before = {name: last.rows(name, now.size)[now.where] for name in last.records}
        values = {name: np.broadcast_to(getattr(now, name), before[name].shape) for name in last.records}
        for name, value in values.items():
            last.rows(name, now.size)[now.where] = value
        stayed = last.rows("thread", now.size)[now.where]  # several lanes may read one place
        earlier = (before["thread"] != values["thread"]) & (before["thread"] != NO_ACCESS)
        lost = values["thread"] != stayed
        for reader, chosen in ((before, earlier), (values, lost)):
            elsewhere = chosen & (reader["thread"] // now.threads != stayed // now.threads)
            _put(other, now, reader, chosen)
            _put(foreign, now, reader, elsewhere)


def _put(accesses: LastAccess, now: CurrentAccess, values: dict[str, np.ndarray], chosen: np.ndarray) -> None:
    """Enters the chosen ones of these values at the places of an access."""
    row, column = np.nonzero(chosen)
    for name, value in values.items():
        accesses.rows(name, now.size)[now.where[row], column] = value[row, column]
