"""cp.async.bulk of plain bytes: global to shared memory (also of several blocks), back, and from block to block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.ops import Action, address, operation
from kernelmux.emulator.ops.bulk_copy import check_inside, per_lane, refuse
from kernelmux.emulator.ops.bulk_group import source, start_store, unchanged
from kernelmux.emulator.ops.bulk_load import BULK_ALIGNMENT, ArrivalTarget, goals, known, places, take_off
from kernelmux.emulator.ptx.parser import Instruction

Array = NDArray[Any]


def check_plain(group: Any, i: int, start: int, where: int, count: int) -> None:
    """Both ends and the size of a plain copy are multiples of 16 bytes, and `start` lies in shared memory."""
    if start % BULK_ALIGNMENT or where % BULK_ALIGNMENT or count % BULK_ALIGNMENT:
        message = f"bulk copy of {count} bytes: both addresses and the size must be multiples of {BULK_ALIGNMENT}"
        group.fail("misaligned", message, [i])
    check_inside(group, i, start, count)


@operation("cp.async.bulk.shared::cluster.global", "cp.async.bulk.shared::cta.global")
def load_bytes(ins: Instruction) -> Action:
    """`cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes{.multicast::cluster} [to], [from], size,
    [mbarrier]{, blocks}{, cache policy}`.
    """
    refuse(ins, "ignore_oob")
    to, where, size, bar, *rest = ins.operands
    masks = ((rest[0], np.uint16),) if ins.has("multicast::cluster") else ()

    def run(group: Any, to: Array, where: Array, size: Any, bar: Array, *mask: Any) -> None:
        targets, barriers = places(group, to), places(group, bar)
        chosen = group.full(mask[0]).tolist() if mask else [None] * group.n
        for i, (begin, (count,)) in enumerate(per_lane(group, (size,), where)):
            block, start = targets[i]
            check_plain(group, i, start, begin, count)
            content = group.run.memory.span(group, begin, count, False, position=i).copy()
            for goal in goals(group, i, chosen[i], block):
                report = ArrivalTarget(ins, i, goal if mask else barriers[i][0], barriers[i][1], count)
                take_off(report, group, (goal, start + np.arange(count)), known(content))

    return Action(run, inputs=(address(to), address(where), (size, np.uint32), address(bar), *masks))


@operation("cp.async.bulk.global.shared::cta")
def store_bytes(ins: Instruction) -> Action:
    """`cp.async.bulk.global.shared::cta.bulk_group [to], [from], size{, cache policy}`."""
    refuse(ins, "cp_mask")

    def run(group: Any, to: Array, where: Array, size: Any) -> None:
        for i, (begin, start, (count,)) in enumerate(per_lane(group, (size,), to, where)):
            check_plain(group, i, start, begin, count)
            group.run.memory.span(group, begin, count, False, position=i)
            start_store(ins, group, i, start + np.arange(count), lambda content, at=begin: [(at, content)])

    to, where, size = ins.operands[:3]
    return Action(run, inputs=(address(to), address(where), (size, np.uint32)))


class Sent:
    """Shared memory of lane i that an operation on another block's memory reads, as it is when that arrives."""

    def __init__(self, group: Any, i: int, start: int, count: int, what: str) -> None:
        self.i, self.block, self.offsets = i, int(group.block[i]), start + np.arange(count)
        self.what = what
        self.seen = source(group, i, self.offsets, what)

    def content(self, waiter: Any) -> Array:
        """The bytes; an error in full mode if they have changed, or their block has ended."""
        threads = waiter.run.geometry.threads
        alive = waiter.run.alive[self.block * threads : (self.block + 1) * threads]
        if self.seen is not None and not alive.any():
            waiter.fail("asynchronous", "the block that sends its shared memory ended before it had been read", [0])
        return unchanged(waiter, self.block, self.offsets, self.seen, 0, self.what)


def sent_to_blocks(
    ins: Instruction, group: Any, operands: tuple[Array, Array, Any, Array], what: str
) -> Iterator[tuple[ArrivalTarget, tuple[int, int], Sent]]:
    """For each lane the mbarrier, the place (block, offset) and the content; operands: to, from, size, mbarrier."""
    to, where, size, bar = operands
    targets, barriers = places(group, to), places(group, bar)
    for i, (begin, (count,)) in enumerate(per_lane(group, (size,), where)):
        check_plain(group, i, targets[i][1], begin, count)
        check_inside(group, i, begin, count)
        yield ArrivalTarget(ins, i, *barriers[i], count), targets[i], Sent(group, i, begin, count, what)


@operation("cp.async.bulk.shared::cluster.shared::cta")
def send_bytes(ins: Instruction) -> Action:
    """`cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [to], [from], size, [mbarrier]`."""

    def run(group: Any, *operands: Any) -> None:
        for report, (block, start), sent in sent_to_blocks(ins, group, operands, "a bulk copy"):
            take_off(report, group, (block, start + np.arange(report.size)), sent.content)

    to, where, size, bar = ins.operands
    return Action(run, inputs=(address(to), address(where), (size, np.uint32), address(bar)))
