"""Bulk stores and reductions of shared memory to global memory: what a thread has started, in bulk groups.

They read shared memory when their thread waits for the group. In full mode it is an error when their source changes
before that, was not made visible to the asynchronous proxy, or nobody waits.
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
class Book:
    """Bulk stores of one thread: not committed, and committed groups, oldest first."""

    open: list[Store] = field(default_factory=list)
    committed: list[list[Store]] = field(default_factory=list)


def _books(group: Any) -> dict[int, Book]:
    def make() -> dict[int, Book]:
        made: dict[int, Book] = {}
        group.run.on_finish.append(partial(_check_landed, group.run, made))
        return made

    books: dict[int, Book] = group.run.kept("bulk", make)
    return books


def _check_landed(run: Any, books: dict[int, Book]) -> None:
    for lane, book in books.items() if run.checks == "full" else ():
        for store in (*book.open, *(store for stores in book.committed for store in stores)):
            raise never_waited_for(run, store.ins, lane, "this store (cp.async.bulk.commit_group, wait_group)")


def start_store(
    ins: Instruction, group: Any, i: int, offsets: Array, rows: Any, combine: Combine | None = None
) -> None:
    """A store or reduction of shared memory to global memory is under way; it belongs to the open group of its lane."""
    what = "a bulk store" if combine is None else "a bulk reduction"
    store = Store(ins, int(group.block[i]), offsets, source(group, i, offsets, what), rows, combine)
    _books(group).setdefault(int(group.index[i]), Book()).open.append(store)


@operation("cp.async.bulk.commit_group")
def commit_group(ins: Instruction) -> Action:
    """`cp.async.bulk.commit_group`: the thread's stores since the last commit become a group.

    Threads that never stored keep no book: empty groups before a first store cannot change what a wait has to wait for.
    """

    def run(group: Any) -> None:
        for _, book in _books_of(group):
            book.committed.append(book.open)
            book.open = []

    return Action(run)


@operation("cp.async.bulk.wait_group")
def wait_group(ins: Instruction) -> Action:
    """`cp.async.bulk.wait_group{.read} N`: wait until at most N groups are under way; `.read` makes no difference."""
    allowed = ins.operands[0].integer  # type: ignore[union-attr]

    def run(group: Any) -> None:
        for i, book in _books_of(group):
            while len(book.committed) > allowed:
                for store in book.committed.pop(0):
                    store.land(group, i)

    return Action(run)


def _books_of(group: Any) -> list[tuple[int, Book]]:
    """Position and book of the lanes of the group that have one."""
    books = _books(group)
    if not books:
        return []
    here = np.flatnonzero(np.isin(group.index, list(books)))
    return [(int(i), books[int(group.index[i])]) for i in here]
