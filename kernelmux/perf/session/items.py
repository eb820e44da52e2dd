"""The items of a run: what is compiled ahead, and what is timed after it, on which workers and in how much time.

A row that has code of its own is an item twice. It is compiled by one of many workers, then timed by one that has a GPU
alone. Kernels that can be emulated are compiled on CPUs (`ahead`) while other rows are timed; what has other code is called
once on the GPU, which the workers share for that, before anything is timed there.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace

from kernelmux.perf.planning import time_budget
from kernelmux.perf.planning.plan import BASELINE, Row
from kernelmux.perf.rows.codec import encode
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.perf.session.pytest_plugin import COMPILE, TIME
from kernelmux.perf.timing import inputs
from kernelmux.runner.item import WorkItem
from kernelmux.runner.machine import Workers, available_cores
from kernelmux.runner.run import TimeLimit
from kernelmux.warm import compiling

LIMIT = 150.0  # seconds of compiling ahead; the timing workers compile what is left
JOBS = 24  # processes that compile ahead, at most: on a GPU each has a context
QUIET = 2  # cores that are left to the process that times, and to the one that gives out the items
WORTH = 12  # rows; with fewer, importing torch takes longer than compiling
CEILINGS = 30.0  # seconds; the first row of a worker has its ceilings measured before it
CONTEXT, COPIES = 1 << 30, 3  # bytes of a process on a GPU; inputs and outputs, and what a call keeps beside them


def items(rows: list[Row], options: PerfOptions) -> list[WorkItem]:
    """What there is to do at first: to compile, and to time the groups of which nothing is to be compiled.

    Compiling has the lower ranks: what is compiled on a GPU is so before the first row is timed there. Where the host time
    of rows is asked for too, which busy cores would disturb, nothing is timed before all is compiled.
    """
    groups = _groups(rows)
    compiling = [row for row in rows if _compiles(row)] if options.device == "cuda" and options.jobs else []
    if len(compiling) < WORTH:
        compiling = []
    compiled = {row.group for row in compiling}
    first = [row for row in rows if row.group not in compiled] if options.brief or not compiled else []
    return [*(_compile(row, groups[row.group]) for row in compiling), *timing(first, rows, options)]


def timing(some: list[Row], rows: list[Row], options: PerfOptions) -> list[WorkItem]:
    """The items that time some of the rows. Those of a group have the same inputs and are compared: one worker has them."""
    groups, on_gpu = _groups(rows), options.device == "cuda"
    return [
        WorkItem(
            row.id,
            [TIME, encode(row)],
            rank=len(groups) + groups[row.group],
            group=" ".join(row.group),
            together=True,
            gpus=int(on_gpu),
            alone=on_gpu,
            limit=options.row_limit + (CEILINGS if on_gpu else 0.0),
        )
        for row in some
    ]


def _groups(rows: list[Row]) -> dict[tuple[str, str, str], int]:
    """The places of the groups in the order of the rows."""
    return {group: place for place, group in enumerate(dict.fromkeys(row.group for row in rows))}


def _compiles(row: Row) -> bool:
    """Whether a row has code of its own, which its first call compiles."""
    return not row.again and row.backend != BASELINE


def _compile(row: Row, rank: int) -> WorkItem:
    name, group = f"{COMPILE}:{row.id}", f"{COMPILE}:{' '.join(row.group)}"
    made = WorkItem(name, [COMPILE, encode(row)], rank=rank, group=group, limit=LIMIT)
    if compiling.able(row.backend):
        return replace(made, cpu=True)
    return replace(made, gpus=1, memory=CONTEXT + COPIES * int(inputs.planned(row).bytes))


def compiling_processes() -> int:
    """The processes that compile ahead, unless a number is asked for: as many as leave `QUIET` cores."""
    return min(JOBS, max(1, available_cores() - QUIET))


def workers(options: PerfOptions, plan: list[WorkItem]) -> Workers:
    """The worker processes of a machine: for each GPU one that times alone, and those that compile; on a CPU one.

    What is timed may use all cores, as a program of a user does.
    """
    if options.device == "cpu":
        return Workers(cpu=True, most=1, timing=True)
    on_cpu, on_gpu = any(item.cpu for item in plan), any(_delays(item) for item in plan)
    return Workers(on_cpu, CONTEXT if on_gpu else 0, alone=True, most=options.jobs or None, timing=True)


def _delays(item: WorkItem) -> bool:
    """Whether nothing is timed on a GPU while this is compiled there."""
    return item.work[0] == COMPILE and not item.cpu


@dataclass(frozen=True)
class Minutes(TimeLimit):
    """The minutes of a run. compile_until: by time.monotonic, when nothing more is compiled ahead on a GPU.

    late: ids of rows whose compiler was stopped then, which are not timed.
    """

    until: float = math.inf
    required: int = -1
    compile_until: float = math.inf
    late: set[str] = field(default_factory=set)

    def share(self, item: WorkItem, remaining: int, workers: int) -> float | None:
        now, left = time.monotonic(), self.until - time.monotonic()
        over = now > self.compile_until if _delays(item) else item.id in self.late or left < 0
        return None if over else max(left, 0.0)

    def most(self, item: WorkItem) -> float:
        if not _delays(item):
            return item.limit
        return max(0.1, min(item.limit, self.compile_until - time.monotonic()))


def minutes(options: PerfOptions) -> Minutes:
    """Those of a run that begins now."""
    seconds = time_budget.compiling_seconds(options.until, LIMIT)
    return Minutes(options.until or math.inf, -1, time.monotonic() + seconds)
