"""What the trials of a variant have run and what not: the union over its items, in whichever processes these ran."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelmux.conformance.coverage import branches
from kernelmux.conformance.coverage.collecting import Place
from kernelmux.conformance.source_constants import cuda_source
from kernelmux.conformance.source_constants.python_source import shortened

BRANCH, BLOCK = "branch", "block"


@dataclass(frozen=True, order=True)
class CodePart:
    """What a trial may run. kind: a BRANCH of a launcher, or BLOCK, the blocks of a kernel that begin on a line.

    file: from the folder of the backend on, "" where the PTX says none. text: the code that stands there, of a branch with
    its way; of a block without a line its first instruction. kernel: whose block it is; within: the line it was inlined at.
    """

    kind: str
    file: str
    line: int
    text: str
    kernel: str = ""
    within: str = ""

    def __str__(self) -> str:
        inlined = f" for {self.within}" if self.within else ""
        kernel = f" in kernel {self.kernel}" if self.kernel else ""
        return (
            f"{self.file}:{self.line} {self.text}{inlined}{kernel}" if self.line else f"a block at {self.text}{kernel}"
        )


@dataclass
class VariantCoverage:
    """What the trials of a variant have run.

    branches, blocks: (run, there are): ways of conditions that were asked, and blocks of the kernels that were launched.
    unreached: the ways that no trial took, and the lines of a kernel at which blocks begin that ran in no compiled version
    of it: compilers make several blocks of one line, where they unroll a loop. reached: the other ones.
    """

    branches: tuple[int, int] = (0, 0)
    blocks: tuple[int, int] = (0, 0)
    unreached: set[CodePart] = field(default_factory=set)
    reached: set[CodePart] = field(default_factory=set)


@dataclass
class _CompiledFunction:
    """A function of one PTX text: the blocks that ran in any row, and where those begin that did not run in some row.

    Where a block has no line, its first instruction stands for the place.
    """

    name: str
    blocks: int
    ran: int = 0
    places: dict[int, Place | str] = field(default_factory=dict)

    @property
    def missing(self) -> list[Place | str]:
        """The places of the blocks that no row ran."""
        return [place for n, place in self.places.items() if not self.ran >> n & 1]


def of(rows: Iterable[Mapping[str, Any]], home: Path) -> VariantCoverage:
    """The union of rows of one variant (`CallCoverage.row`). home: the folder of its backend."""
    ways: dict[str, int] = {}
    functions: dict[str, _CompiledFunction] = {}
    run: set[tuple[str, Place | str]] = set()
    for row in rows:
        for file, taken in row["ways"].items():
            ways[file] = ways.get(file, 0) | int(taken, 16)
        for one in row["functions"]:
            known = functions.setdefault(one["key"], _CompiledFunction(one["name"], one["blocks"]))
            known.ran |= int(one["ran"], 16)
            known.places |= {n: at if isinstance(at, str) else _place(at) for n, at in one["missing"]}
        run |= {(name, _place(at)) for name, places in row["lines"].items() for at in places}
    found = VariantCoverage()
    _add_branches(found, ways, home)
    missing = [(f.name, place) for f in functions.values() for place in f.missing]
    every = sum(f.blocks for f in functions.values())
    found.blocks = every - len(missing), every
    found.unreached |= {_block(name, place, home) for name, place in set(missing) - run}
    found.reached |= {_block(name, place, home) for name, place in run}
    return found


def _place(at: Iterable[Any]) -> Place:
    file, line, within, outer = at
    return file, line, within, outer


def _add_branches(found: VariantCoverage, ways: Mapping[str, int], home: Path) -> None:
    """Of each condition that was asked, its ways: what stands behind one that was never taken was not asked either."""
    for file, bits in ways.items():
        for number, point in enumerate(branches.points(home / file)):
            went = bits >> 2 * number & 3
            for way in point.asked if went else ():
                part = CodePart(BRANCH, file, point.line, point.way(way))
                (found.reached if went >> way & 1 else found.unreached).add(part)
    taken = len(found.reached)
    found.branches = taken, taken + len(found.unreached)


def _block(kernel: str, place: Place | str, home: Path) -> CodePart:
    if isinstance(place, str):
        return CodePart(BLOCK, "", 0, f"`{place}`", kernel)
    file, line, within, outer = place
    return CodePart(BLOCK, file, line, code_at(home / file, line), kernel, f"{within}:{outer}" if within else "")


def code_at(path: Path, line: int) -> str:
    """A line of a source, "" where it cannot be read."""
    source = cuda_source.read(path)
    lines = source.text.splitlines() if source else []
    return f"`{shortened(lines[line - 1])}`" if 0 < line <= len(lines) else ""
