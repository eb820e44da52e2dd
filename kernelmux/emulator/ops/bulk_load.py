"""How bulk loads arrive: they report bytes to an mbarrier, and are written when a thread asks for its phase."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.ops.mbarrier import WORD, Flight, Mbarriers
from kernelmux.emulator.ptx.parser import Instruction
from kernelmux.emulator.running.cluster import ranks, split, tagged

Array = NDArray[Any]
BULK_ALIGNMENT = 16  # of both ends and the size of a plain bulk copy, bytes


@dataclass(frozen=True)
class ArrivalTarget:
    """The mbarrier (block, offset) that `size` bytes report to, for the instruction of lane i."""

    ins: Instruction
    i: int
    block: int
    offset: int
    size: int

    def start(self, group: Any, land: Callable[[Any], None]) -> None:
        """An operation is under way: `land(group that waits)` is called when a thread asks for the phase."""
        barriers, key = Mbarriers.of(group), (self.block, self.offset // WORD)
        if self.offset % WORD or not barriers.valid[key]:
            group.fail("asynchronous", f"there is no initialised mbarrier at shared offset {self.offset}", [self.i])
        if group.run.checks == "full":
            barriers.require_known(group, key, self.i)
        place = (np.array([key[0]]), np.array([key[1]]))

        def arrive(waiter: Any) -> None:
            land(waiter)
            barriers.bytes[place] -= self.size
            barriers.complete(waiter, place)

        barriers.start(key, Flight(arrive, self.ins, int(group.index[self.i])))


def take_off(report: ArrivalTarget, group: Any, to: tuple[int, Array], content: Callable[[Any], Array]) -> None:
    """Start a load to the place (block, offsets); `content(group that waits)` gives its bytes when they arrive."""
    shared, (block, offsets) = group.run.shared, to

    def land(waiter: Any) -> None:
        shared.bytes[block, offsets] = content(waiter)
        if shared.shadow is not None:
            shared.shadow.written(block, offsets)

    _require_alive(group, report.i, block)
    report.start(group, land)
    _clear(group, report.i, block, offsets)


def known(content: Array) -> Callable[[Any], Array]:
    """The bytes of a load as a function of the group that waits: global memory was read at the start."""
    return lambda waiter: content


def _require_alive(group: Any, i: int, block: int) -> None:
    threads = group.run.geometry.threads
    if block != group.block[i] and not group.run.alive[block * threads : (block + 1) * threads].any():
        group.fail("asynchronous", "a copy to the shared memory of a block that has already ended", [i])


def _clear(group: Any, i: int, block: int, offsets: Array) -> None:
    """Overwrites the place where a load will arrive; a thread that still reads it races with the lane that started it."""
    shared = group.run.shared
    units = _units(offsets)
    if block != group.block[i]:
        rank = int(ranks(group)[i]) + block - int(group.block[i])
        units = tagged(units.astype(np.uint64), np.uint64(rank)).astype(np.int64)
    group.view_of(np.full(len(units), i)).store("shared", units, np.full((len(units), 4), 0xFFFFFFFF, np.uint32))
    if shared.shadow is not None:
        shared.shadow.forget(block, offsets)


def _units(offsets: Array) -> Array:
    """The aligned places that hold these offsets, ascending; sorting all of a tile would take much longer."""
    found = np.zeros(int(offsets.max(initial=-1)) // BULK_ALIGNMENT + 1, bool)
    found[offsets.reshape(-1) // BULK_ALIGNMENT] = True
    return found.nonzero()[0] * BULK_ALIGNMENT


def places(group: Any, address_: Any) -> list[tuple[int, int]]:
    """Block and offset of every lane's shared-memory address."""
    block, offset = split(group, address_)
    return list(zip(block.tolist(), offset.tolist(), strict=True))


def goals(group: Any, i: int, mask: int | None, block: int) -> list[int]:
    """The blocks that a load goes to: the one addressed (mask None), or those of the cluster whose bits are set."""
    if mask is None:
        return [block]
    size = group.run.geometry.cluster
    if mask <= 0 or mask >> size:
        group.fail("out of bounds", f"multicast to blocks {mask:#b} of a cluster of {size}", [i])
    first = int(group.block[i] - ranks(group)[i])
    return [first + rank for rank in range(size) if mask >> rank & 1]
