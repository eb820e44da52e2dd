"""Bulk stores and reductions of shared memory to global memory: what a thread has started, in bulk groups.

They read shared memory when their thread waits for the group. In full mode three things are errors: the source changes
before that, it was not made visible to the asynchronous proxy, or the thread never waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.ops import Action, operation
from kernelmux.emulator.ops.pending_at_exit import never_waited_for
from kernelmux.emulator.ops.proxy import require_visible
from kernelmux.emulator.ptx.parser import Instruction

Array = NDArray[Any]
Combine = Callable[[Array, Array], Array]


@dataclass
class Store:
    """One store under way: where it reads, what was there at the start (full mode), and how it writes."""

    ins: Instruction
    block: int
    offsets: Array
    seen: Array | None
    rows: Any  # content -> [(address, bytes)]
    combine: Combine | None = None  # a reduction: what is there, what comes -> what will be there, all as bytes

    def land(self, group: Any, i: int) -> None:
        content = unchanged(group, self.block, self.offsets, self.seen, i)
        for where, row in self.rows(content):
            there = group.run.memory.span(group, where, len(row), True, position=i)
            there[:] = row if self.combine is None else self.combine(there, row)


def unchanged(group: Any, block: int, offsets: Array, seen: Array | None, i: int, what: str = "a bulk store") -> Array:
    """Bytes of shared memory that an asynchronous operation reads; an error if they are not as `seen` at its start."""
    content: Array = group.run.shared.bytes[block, offsets]
    if seen is not None and (content != seen).any():
        group.fail("asynchronous", f"shared memory was overwritten before {what} had read it", [i])
    return content


def source(group: Any, i: int, offsets: Array, what: str = "a bulk store") -> Array | None:
    """Checks what lane i lets the asynchronous proxy read, and returns its bytes; None in fast mode."""
    if group.run.checks != "full":
        return None
    block = int(group.block[i])
    require_visible(group, block, offsets, what, position=i)
    seen: Array = group.run.shared.bytes[block, offsets]
    return seen


@dataclass
class BulkGroups:
    """Bulk stores of one thread: not committed, and committed groups, oldest first."""

    open: list[Store] = field(default_factory=list)
    committed: list[list[Store]] = field(default_factory=list)


def _by_lane(group: Any) -> dict[int, BulkGroups]:
    by_lane: dict[int, BulkGroups] = group.run.kept("bulk", dict, partial(_check_landed, group.run))
    return by_lane


def _check_landed(run: Any, by_lane: dict[int, BulkGroups]) -> None:
    for lane, groups in by_lane.items() if run.checks == "full" else ():
        for store in (*groups.open, *(store for stores in groups.committed for store in stores)):
            raise never_waited_for(run, store.ins, lane, "this store (cp.async.bulk.commit_group, wait_group)")


def start_store(
    ins: Instruction, group: Any, i: int, offsets: Array, rows: Any, combine: Combine | None = None
) -> None:
    """A store or reduction of shared memory to global memory is under way; it belongs to the open group of its lane."""
    what = "a bulk store" if combine is None else "a bulk reduction"
    store = Store(ins, int(group.block[i]), offsets, source(group, i, offsets, what), rows, combine)
    _by_lane(group).setdefault(int(group.index[i]), BulkGroups()).open.append(store)


@operation("cp.async.bulk.commit_group")
def commit_group(ins: Instruction) -> Action:
    """`cp.async.bulk.commit_group`: the thread's stores since the last commit become a group.

    Threads that never stored are not tracked: empty groups before a first store do not change what a wait waits for.
    """

    def run(group: Any) -> None:
        for _, groups in _lanes_with_stores(group):
            groups.committed.append(groups.open)
            groups.open = []

    return Action(run)


@operation("cp.async.bulk.wait_group")
def wait_group(ins: Instruction) -> Action:
    """`cp.async.bulk.wait_group{.read} N`: wait until at most N groups are under way; `.read` makes no difference."""
    allowed = ins.operands[0].integer  # type: ignore[union-attr]

    def run(group: Any) -> None:
        for i, groups in _lanes_with_stores(group):
            while len(groups.committed) > allowed:
                for store in groups.committed.pop(0):
                    store.land(group, i)

    return Action(run)


def _lanes_with_stores(group: Any) -> list[tuple[int, BulkGroups]]:
    """Positions of the lanes that have started stores, each with its bulk groups."""
    by_lane = _by_lane(group)
    if not by_lane:
        return []
    here = np.flatnonzero(np.isin(group.index, list(by_lane)))
    return [(int(i), by_lane[int(group.index[i])]) for i in here]
