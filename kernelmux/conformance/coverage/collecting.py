"""What the calls of an item have run, as a row can carry it to the process that writes the report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from kernelmux import emulator
from kernelmux.conformance.coverage import launcher_marks
from kernelmux.conformance.coverage.launcher_marks import Ways
from kernelmux.emulator.basic_blocks import BasicBlock, BlockCoverage, FunctionBlocks, SourceLine
from kernelmux.registry import elsewhere
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.util import cards

Place = tuple[
    str, int, str, int
]  # file, line, and the file and line that it was inlined at last, "" and 0 if it was not

_last = ("", "", "")  # operator, backend and variant whose calls were noted last in this process


@dataclass
class CallCoverage:
    """Notes what the judged calls of a variant run. home: the folder of its package. emulated: its kernels run on a CPU."""

    home: Path
    emulated: bool
    ways: Ways = field(default_factory=dict)
    blocks: BlockCoverage = field(default_factory=BlockCoverage)

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Around a call whose result is judged."""
        launcher_marks.mark(self.home)
        with ExitStack() as stack:
            stack.enter_context(launcher_marks.noted(self.ways))
            if self.emulated:
                stack.enter_context(emulator.block_coverage(self.blocks))
            yield

    def row(self) -> dict[str, Any]:
        """As JSON.

        ways: of each file of the package a bit for each way that a condition took (a call that is refused asks other
        backends too). functions: of PTX, with the blocks that did not run. lines: by the name of a kernel, the lines of
        blocks that ran.
        """
        own = {path.relative_to(self.home): ways for path, ways in self.ways.items() if path.is_relative_to(self.home)}
        taken = {path.as_posix(): hex(sum(1 << way for way in ways)) for path, ways in own.items()}
        functions = self.blocks.functions()
        run: dict[str, set[SourceLine]] = {}
        for one in functions:
            run.setdefault(one.function, set()).update(*(one.blocks[n].lines for n in one.ran))
        return {
            "ways": taken,
            "functions": [_function(one, self.home) for one in functions],
            "lines": {name: sorted([*_place(line, self.home)] for line in lines) for name, lines in run.items()},
        }


def home(op: str, backend: str, variant: str) -> Path | None:
    """The folder of the package that a variant comes from."""
    package = elsewhere.whose(op, variant)
    return package.folder if package else registered.folder(backend)


def begun(op: str, backend: str, variant: str, emulated: bool) -> CallCoverage | None:
    """What notes the calls of a variant in an item; None of one that is made of torch's operators.

    What launchers remember of the calls of another variant is forgotten, so that those of this one run them.
    """
    global _last
    where = home(op, backend, variant)
    if where is None or not registered.backend(backend).emulates:
        return None
    if (op, backend, variant) != _last:
        _last = op, backend, variant
        cards.forget()
    return CallCoverage(where, emulated)


def _function(found: FunctionBlocks, home: Path) -> dict[str, Any]:
    """`ran` has a bit for each block; `missing`, of those that did not run, the number, and place or first instruction."""
    missing = [[n, _begin(found.blocks[n], home)] for n in found.missing]
    ran = hex(sum(1 << n for n in found.ran))
    return {"key": found.key, "name": found.function, "blocks": len(found.blocks), "ran": ran, "missing": missing}


def _begin(block: BasicBlock, home: Path) -> list[Any] | str:
    return [*_place(block.at, home)] if block.at else block.text


def _place(line: SourceLine, home: Path) -> Place:
    file, at = line.within or ("", 0)
    return _inside(line.file, home), line.line, _inside(file, home), at


@lru_cache(maxsize=1024)
def _inside(file: str, home: Path) -> str:
    """A file from the folder of the backend on; of one that is not there its name.

    Triton's cache may have been filled from another checkout, whose paths its PTX then has; NVRTC writes names alone.
    """
    path = Path(file)
    if path.is_relative_to(home):
        return path.relative_to(home).as_posix()
    tails = (Path(*path.parts[i:]) for i in range(path.is_absolute(), len(path.parts)))
    if found := next((tail for tail in tails if (home / tail).is_file()), None):
        return found.as_posix()
    named = list(home.rglob(path.name)) if len(path.parts) == 1 else []
    return named[0].relative_to(home).as_posix() if len(named) == 1 else path.name
