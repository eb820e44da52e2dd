"""cp.async: copies from global to shared memory that a thread starts and waits for in groups.

Global memory is read at the instruction; shared memory gets the data at the wait that covers them, and holds nothing
usable in between. So results show a missing wait, and a tile that is overwritten while other threads still read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ops import Action, address, operation
from kernelmux.emulator.ops.mbarrier import Flight, Mbarriers, shared_offsets
from kernelmux.emulator.ops.proxy import fenced
from kernelmux.emulator.ptx.parser import Address, Immediate, Instruction, Register

Array = NDArray[Any]
SIZES = (4, 8, 16)


@dataclass
class Copy:
    """One cp.async of some lanes: where to, what, and which of the lane's groups it belongs to."""

    lanes: Array  # numbers in the chunk, ascending
    target: Array  # shared-memory offsets
    values: Array  # [lanes, bytes]
    number: Array  # of the group, counted per lane

    def part(self, keep: Array) -> Copy:
        return Copy(self.lanes[keep], self.target[keep], self.values[keep], self.number[keep])


class Pending:
    """Copies of a chunk that did not arrive yet, oldest first, and how many groups every lane has committed."""

    def __init__(self, lanes: int) -> None:
        self.committed = np.zeros(lanes, np.int64)
        self.copies: list[Copy] = []

    @staticmethod
    def of(group: Any) -> Pending:
        """The pending copies of the chunk that `group` belongs to."""
        found: Pending = group.run.kept("cp.async", lambda: Pending(group.lanes.geometry.lanes))
        return found

    def take(self, lanes: Array, before: Array) -> list[Copy]:
        """Remove and return what `lanes` have in groups numbered below `before` (one number for each of `lanes`)."""
        limit = np.full(len(self.committed), -1, np.int64)
        limit[lanes] = before
        taken, left = [], []
        for copy in self.copies:
            due = copy.number < limit[copy.lanes]
            if due.all():
                taken.append(copy)
            elif due.any():
                taken.append(copy.part(due))
                left.append(copy.part(~due))
            else:
                left.append(copy)
        self.copies = left
        return taken


@operation("cp.async.ca", "cp.async.cg")
def copy_async(ins: Instruction) -> Action:
    """`cp.async.cg.shared.global [to], [from], size{, source size | ignore source}{, cache policy}`.

    What the source size leaves of the size is filled with zeros.
    """
    target, source, size_operand, *optional = ins.operands
    size = size_operand.integer if isinstance(size_operand, Immediate) else 0
    if size not in SIZES or not isinstance(target, Address):
        raise Unsupported(f"{ins.opcode} of {size} bytes")
    if any("cache_hint" in modifier for modifier in ins.modifiers):
        optional = optional[:-1]
    ignores = bool(optional) and isinstance(optional[0], Register) and optional[0].type == "pred"

    def run(group: Any, to: Array, where: Array, limit: Any = None) -> None:
        wanted = np.full(group.n, size) if limit is None else group.full(limit).astype(np.int64)
        wanted = np.where(group.full(limit), 0, size) if ignores else wanted
        pending = Pending.of(group)
        to = group.full(to)
        values = _fetch(group, where, wanted, size)
        _reserve(group, to, np.full_like(values, 0xFF), size)
        pending.copies.append(Copy(group.index, to, values, pending.committed[group.index]))

    limits = ((optional[0], np.bool_ if ignores else np.uint32),) if optional else ()
    return Action(run, inputs=(address(target), address(source), *limits))


def _fetch(group: Any, where: Array, wanted: Array, size: int) -> Array:
    """`size` bytes per lane, `[lanes, size]`, of which the first `wanted` are read and the others are zero."""
    too_many = wanted > size
    if too_many.any():
        group.fail("asynchronous", "cp.async with a source size above its size", too_many)
    words = group.load("global", where, np.uint32, count=size // 4, mask=wanted == size)
    values = np.array(words).reshape(group.n, -1).view(np.uint8)
    partial = (wanted > 0) & (wanted < size)
    for i in range(size if partial.any() else 0):
        values[:, i] |= group.load("global", group.full(where) + i, np.uint8, mask=partial & (wanted > i))
    return values


def _reserve(group: Any, to: Array, nothing: Array, size: int) -> None:
    """Checks the target as a write would, and leaves it without content until the data arrive."""
    _store(group, to, nothing)
    shadow = group.run.shared.shadow
    if shadow is not None:
        shadow.forget(group.block[:, None], to[:, None] + np.arange(0, size, min(size, 1 << shadow.shift)))


def _store(group: Any, target: Array, values: Array, mask: Array | None = None) -> None:
    """Writes rows of bytes as 32-bit words, each row as one access."""
    words = values.view(np.uint32)
    group.store("shared", target, words if words.shape[1] > 1 else words[:, 0], mask=mask)


def _arrive(group: Any, copies: list[Copy]) -> None:
    """Writes copies of lanes of this group, in the name of the lanes that started them."""
    for copy in copies:
        if len(copy.lanes) == group.n:
            _store(group, copy.target, copy.values)
            continue
        here = np.searchsorted(group.index, copy.lanes)
        target = np.zeros(group.n, copy.target.dtype)
        values = np.zeros((group.n, copy.values.shape[1]), copy.values.dtype)
        mask = np.zeros(group.n, np.bool_)
        target[here], values[here], mask[here] = copy.target, copy.values, True
        _store(group, target, values, mask)


@operation("cp.async.commit_group")
def commit_group(ins: Instruction) -> Action:
    """`cp.async.commit_group`: the copies since the last commit become a group."""

    def run(group: Any) -> None:
        Pending.of(group).committed[group.index] += 1

    return Action(run)


@operation("cp.async.wait_group", "cp.async.wait_all")
def wait_group(ins: Instruction) -> Action:
    """`cp.async.wait_group N`: wait until at most N groups are under way; wait_all also takes what is not committed."""
    everything = ins.has("wait_all")
    allowed = 0 if everything else ins.operands[0].integer  # type: ignore[union-attr]

    def run(group: Any) -> None:
        pending = Pending.of(group)
        before = pending.committed[group.index] - allowed + everything
        _arrive(group, pending.take(group.index, before))
        fenced(group)  # what cp.async has brought needs no proxy fence

    return Action(run)


@operation("cp.async.mbarrier.arrive")
def arrive(ins: Instruction) -> Action:
    """`cp.async.mbarrier.arrive{.noinc}.shared.b64 [p]`: arrives when the thread's copies so far have landed."""
    increments = not ins.has("noinc")

    def run(group: Any, where: Array) -> None:
        barriers, pending = Mbarriers.of(group), Pending.of(group)
        place = barriers.place(group, shared_offsets(ins, group, where))
        if increments:
            np.add.at(barriers.pending, place, 1)
        copies = pending.take(group.index, pending.committed[group.index] + 1)
        for key in sorted(set(zip(*(axis.tolist() for axis in place), strict=True))):
            mine = (place[0] == key[0]) & (place[1] == key[1])
            land = _landing(barriers, key, group.index[mine], copies)
            barriers.start(key, Flight(land, ins, int(group.index[mine][0])))

    return Action(run, inputs=(address(ins.operands[0]),))


def _landing(barriers: Mbarriers, key: tuple[int, int], lanes: Array, copies: list[Copy]) -> Any:
    """Delivers the copies of `lanes` and arrives once for each of them at the barrier `key`."""
    parts = [copy.part(np.isin(copy.lanes, lanes)) for copy in copies]

    def deliver(group: Any) -> None:
        shared = barriers.run.shared
        for copy in parts:
            offsets = copy.target[:, None] + np.arange(copy.values.shape[1])
            shared.bytes[key[0], offsets] = copy.values
            if shared.shadow is not None:
                shared.shadow.written(key[0], offsets)
        block, word = np.array([key[0]]), np.array([key[1]])
        barriers.pending[block, word] -= len(lanes)
        barriers.complete(group, (block, word))

    return deliver
