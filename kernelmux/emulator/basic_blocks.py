"""Which basic blocks of kernels ran.

    with block_coverage() as found: kernel(...)
    for one in found.functions():
        for number in one.missing: print(one.function, number, one.blocks[number])

A block ran if any lane of any launch came to its first instruction. A guarded instruction (`@%p st.global`) is part of the
block that it stands in, whether or not its guard ever held.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kernelmux.emulator.analysis.flow import JUMPS, Flow, Step, next_blocks

DIGITS = 16  # of a digest
# Blocks with one of these end a kernel that has found something wrong: what they give is no result.
TRAPS = ("trap", "brkpt")
ASSERTIONS = ("__assertfail", "__assert_fail")


class SourceLine(NamedTuple):
    """A line of a source. within: the line that it was inlined at last, (file, line), where it was."""

    file: str
    line: int
    within: tuple[str, int] | None = None


@dataclass(frozen=True)
class BasicBlock:
    """A basic block. text: its first instruction; at: the line that it begins on, None where the PTX says none.

    lines: all that it runs, but the line of the jump at its end, unless it begins there: of `if (a) b;` on one line the
    block of a does not run the line. traps: it ends in a trap or a failed assertion.
    """

    text: str
    at: SourceLine | None = None
    lines: frozenset[SourceLine] = frozenset()
    traps: bool = False


@dataclass(frozen=True)
class FunctionBlocks:
    """The blocks of a kernel, or of a function that a kernel called (entry: False), and the numbers of those that ran.

    key: equal for the same function of the same PTX text, in every process.
    """

    key: str
    function: str
    entry: bool
    blocks: tuple[BasicBlock, ...]
    ran: frozenset[int]

    @property
    def missing(self) -> list[int]:
        """The numbers of the blocks that did not run, without those that trap."""
        return [n for n, block in enumerate(self.blocks) if n not in self.ran and not block.traps]


class BlockTable:
    """The blocks of a function, from its control flow: what no way from its entry leads to is none."""

    def __init__(self, ptx: str, flow: Flow, files: Mapping[int, str]) -> None:
        self.function, self.entry = flow.function.name, flow.function.entry
        self.key = hashlib.sha256(f"{self.function}\n{ptx}".encode()).hexdigest()[:DIGITS]
        self.starts = _reachable(flow)
        self.blocks = tuple(_block([flow.steps[pc] for pc in flow.block(at, coarse=True)], files) for at in self.starts)

    def numbers(self, pcs: Iterable[int]) -> frozenset[int]:
        """The blocks that these program counters stand in: lanes that were parted may go on in the middle of one."""
        return frozenset(n for pc in pcs if (n := bisect_right(self.starts, pc) - 1) >= 0)


class ModuleOfBlocks(Protocol):
    """What knows the blocks of its functions."""

    def block_table(self, flow: Flow) -> BlockTable:
        """The blocks of one of its functions."""


class BlockCoverage:
    """What launches have run so far; `functions` says it."""

    def __init__(self) -> None:
        self._ran: dict[int, tuple[ModuleOfBlocks, Flow, set[int]]] = {}  # by the identity of the flow, which is kept

    def of(self, module: ModuleOfBlocks, flow: Flow) -> set[int]:
        """Where launches note the program counters at which they begin blocks of a function."""
        known = self._ran.get(id(flow)) or self._ran.setdefault(id(flow), (module, flow, set()))
        return known[2]

    def functions(self) -> list[FunctionBlocks]:
        """Every function of which something ran."""
        return [_with_ran(module.block_table(flow), ran) for module, flow, ran in list(self._ran.values())]


_coverage: ContextVar[BlockCoverage | None] = ContextVar("kernelmux_emulator_block_coverage", default=None)


@contextmanager
def block_coverage(before: BlockCoverage | None = None) -> Iterator[BlockCoverage]:
    """Notes which basic blocks the launches inside the `with` run; before: goes on with what was noted there."""
    found = BlockCoverage() if before is None else before
    token = _coverage.set(found)
    try:
        yield found
    finally:
        _coverage.reset(token)


def current_block_coverage() -> BlockCoverage | None:
    """Where launches note what they run, None outside of `block_coverage`."""
    return _coverage.get()


def _with_ran(table: BlockTable, pcs: set[int]) -> FunctionBlocks:
    return FunctionBlocks(table.key, table.function, table.entry, table.blocks, table.numbers(set(pcs)))


def _reachable(flow: Flow) -> list[int]:
    found, waiting = set[int](), [0]
    while waiting:
        pc = waiting.pop()
        if pc < flow.end and pc not in found:
            found.add(pc)
            waiting += next_blocks(flow, flow.block(pc, coarse=True))
    return sorted(found)


def _block(steps: list[Step], files: Mapping[int, str]) -> BasicBlock:
    lines = [_line(step, files) for step in steps]
    at = next((line for line in lines if line), None)
    jump = lines[-1] if steps[-1].name in JUMPS else None
    run = frozenset(line for line in lines if line and (line != jump or line == at))
    return BasicBlock(steps[0].instruction.text, at, run, any(map(_is_trap, steps)))


def _line(step: Step, files: Mapping[int, str]) -> SourceLine | None:
    where = step.instruction.location
    if where is None or not where.line:
        return None
    within = (files.get(where.inlined[-1][0], ""), where.inlined[-1][1]) if where.inlined else None
    return SourceLine(files.get(where.file, ""), where.line, within)


def _is_trap(step: Step) -> bool:
    instruction = step.instruction
    called = instruction.text if instruction.name == "call" else ""
    return instruction.name in TRAPS or any(name in called for name in ASSERTIONS)
