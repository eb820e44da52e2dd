"""`trace()`: what the launches inside of a `with` do to memory, per source line.

    with emulator.trace() as t:
        kernel(...)                                   # on CPU tensors, any backend that runs on the emulator
    for line in t.launches[0].lines: print(line.number, line.text, line.warps, line.traffic)
    t.launches[0].metrics["l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"]
    t.launches[0].occupancy().fraction
    t.picture("out.html")

Instructions are those of the PTX; ptxas merges, unrolls and removes some, so their number is not ncu's. Sectors,
requests and bank conflicts belong to memory instructions, which ptxas keeps: they are ncu's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from kernelmux.emulator import launch_log
from kernelmux.emulator.resources import Occupancy, Resources, occupancy, resources
from kernelmux.emulator.tracing import watch_hook
from kernelmux.emulator.tracing.owners import Owners, array_arguments
from kernelmux.emulator.tracing.source import SourceLines, numbered
from kernelmux.emulator.tracing.traffic import Traffic
from kernelmux.emulator.tracing.warp_requests import SECTOR
from kernelmux.emulator.tracing.watch import Drawn, LaunchCounts

Triple = tuple[int, int, int]
ARCH = "sm_90a"
# ncu counts the global side of cp.async among the loads.
OPERATIONS = {"ld": ("load", "copy"), "st": ("store",), "atom": ("atomic",), "red": ("reduction",)}
SHARED_OPERATIONS = {"ld": ("load", "ldmatrix"), "st": ("store",), "atom": ("atomic",)}


@dataclass
class LineCounts:
    """One source line. warps: instructions executed by warps; threads: by lanes; branches of warps, divergent ones."""

    file: str
    number: int
    text: str
    warps: int = 0
    threads: int = 0
    branches: int = 0
    divergent: int = 0
    traffic: list[Traffic] = field(default_factory=list)

    def add(self, traffic: Traffic) -> None:
        """Adds accesses that may be of a kind that is there already."""
        kind = (traffic.space, traffic.operation, traffic.argument, traffic.size)
        for mine in self.traffic:
            if (mine.space, mine.operation, mine.argument, mine.size) == kind:
                mine.merge(traffic)
                return
        self.traffic.append(Traffic(*kind))
        self.traffic[-1].merge(traffic)


class LaunchTrace:
    """What one launch did. needed: the bytes that the whole call has to move, 0 where it is not known."""

    def __init__(self, kernel: Any, grid: Triple, block: Triple, shared: int, counts: LaunchCounts) -> None:
        self.kernel, self.grid, self.block, self.counts = kernel.name, grid, block, counts
        self.dynamic_shared, self.static_shared = shared, kernel.shared_size
        self.drawn = counts.drawn
        self.needed = 0
        self.recipe = launch_log.recipe(kernel.module.ptx)
        instructions = kernel.function.instructions
        self._source_lines = SourceLines(kernel.module.parsed.files, (i.location for i in instructions))
        self.file = Path(self._source_lines.file).name

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def owners(self) -> dict[str, Owners]:
        """For each array that was written to, which block wrote each element."""
        return self.counts.owners

    @cached_property
    def lines(self) -> list[LineCounts]:
        """The lines that have instructions, the kernel's file first, then others; number 0 is code without a line."""
        lines: dict[tuple[str, int], LineCounts] = {}
        for function in self.counts.functions.values():
            for pc, step in enumerate(function.flow.steps):
                place = self._source_lines.place(step.instruction.location)
                if place not in lines:
                    lines[place] = LineCounts(Path(place[0]).name, place[1], self._source(place[0]).get(place[1], ""))
                line = lines[place]
                line.warps += function.warps[pc]
                line.threads += function.threads[pc]
                line.branches += function.branches[pc]
                line.divergent += function.divergent[pc]
                for traffic in function.traffic[pc].values():
                    line.add(traffic)
        ordered = sorted(lines, key=lambda place: (place[0] != self._source_lines.file, place))
        return [lines[place] for place in ordered if lines[place].warps]

    def text(self, number: int) -> str:
        """A line of the kernel's file."""
        return self._source(self._source_lines.file).get(number, "")

    def _source(self, file: str) -> dict[int, str]:
        """The lines of a file by their numbers; the compiled text holds those of the kernel's own file."""
        given = self.recipe.source if self.recipe and file == self._source_lines.file else None
        return numbered(given, file)

    @property
    def traffic(self) -> list[Traffic]:
        """Accesses of all lines, one entry for each space and operation; sizes are mixed, so bytes are not in them."""
        return [t for line in self.lines for t in line.traffic]

    def total(self, name: str, space: str, *operations: str) -> int:
        """The sum of one count, such as "sectors", over a space and its operations (all by default)."""
        chosen = [t for t in self.traffic if t.space == space and (not operations or t.operation in operations)]
        return sum(int(getattr(t, name)) for t in chosen)

    @property
    def moved(self) -> int:
        """Bytes that requests and TMA copies move between global memory and the multiprocessors, from L1 or beyond."""
        return SECTOR * self.total("sectors", "global") + self.total("moved", "bulk")

    @cached_property
    def metrics(self) -> dict[str, int]:
        """The counts under the names that ncu gives them."""
        counts = {"smsp__inst_executed.sum (PTX)": sum(line.warps for line in self.lines)}
        counts["smsp__thread_inst_executed.sum (PTX)"] = sum(line.threads for line in self.lines)
        for short, operations in OPERATIONS.items():
            for count in ("requests", "sectors"):
                name = f"l1tex__t_{count}_pipe_lsu_mem_global_op_{short}.sum"
                counts[name] = self.total(count, "global", *operations)
        for short, operations in SHARED_OPERATIONS.items():
            for count, what in (("wavefronts", "pipe_lsu_wavefronts"), ("conflicts", "bank_conflicts_pipe_lsu")):
                name = f"l1tex__data_{what}_mem_shared_op_{short}.sum"
                counts[name] = self.total(count, "shared", *operations)
        return counts

    @cached_property
    def resources(self) -> Resources | None:
        """What the kernel needs of a multiprocessor, compiled for `ARCH`; None if it is not known how it was compiled."""
        return self._compiled[0] if self._compiled else None

    @cached_property
    def _compiled(self) -> tuple[Resources, int] | None:
        if self.recipe is None:
            return None
        compiled = self.recipe.compile(ARCH)
        dynamic = self.dynamic_shared if compiled.shared is None else compiled.shared
        return resources(compiled.image, compiled.log)[self.kernel], dynamic

    def occupancy(self) -> Occupancy | None:
        """Blocks and warps that fit on a multiprocessor of `ARCH` at a time, and what limits them."""
        if self._compiled is None:
            return None
        need, dynamic = self._compiled
        return occupancy(need, ARCH, self.threads, dynamic)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        lines = [
            {k: getattr(line, k) for k in ("file", "number", "text", "warps", "threads", "branches", "divergent")}
            | {"traffic": [t.as_dict() for t in line.traffic]}
            for line in self.lines
        ]
        shape = {"kernel": self.kernel, "file": self.file, "grid": self.grid, "block": self.block}
        shared = {"static_shared": self.static_shared, "dynamic_shared": self.dynamic_shared}
        volume = {"bytes_moved": self.moved, "bytes_needed": self.needed}
        return shape | shared | volume | {"lines": lines, "metrics": self.metrics}


class Trace:
    """The launches seen so far."""

    def __init__(self, block: int = 0, warp: int = 0) -> None:
        self.drawn = Drawn(block, warp)
        self.launches: list[LaunchTrace] = []

    def begin(self, kernel: Any, grid: Triple, block: Triple, shared: int, arguments: Any) -> LaunchCounts:
        """See `watch_hook.Watcher`."""
        counts = LaunchCounts(self.drawn, array_arguments(arguments))
        self.launches.append(LaunchTrace(kernel, grid, block, shared, counts))
        return counts

    def picture(self, path: str | Path, title: str = "") -> None:
        """Draws all launches: an HTML page, or an SVG image if the name ends so."""
        from kernelmux.emulator.tracing.drawing import page

        page.write_picture([(title, launch) for launch in self.launches], Path(path))


@contextmanager
def trace(block: int = 0, warp: int = 0) -> Iterator[Trace]:
    """Counts what the launches inside the `with` do; `block` (linear number) and `warp` are the ones to be drawn."""
    collected = Trace(block, warp)
    with watch_hook.watching(collected):
        yield collected
