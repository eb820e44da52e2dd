"""The items of a run: what is compiled ahead, and what is timed after it, on which workers and in how much time.

A row that has code of its own is an item twice. It is compiled by one of many workers, which share the GPU; then it is
timed by a worker that has a GPU alone. Compiling, too, is on the GPU: CuPy names its files by the GPU at hand and loads
what it has compiled, and launchers of ours choose by the card, so that what is made without it may be found by none.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from kernelmux.perf.planning import time_budget
from kernelmux.perf.planning.plan import BASELINE, Row
from kernelmux.perf.rows.codec import encode
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.perf.session.pytest_plugin import COMPILE, TIME
from kernelmux.perf.timing import inputs
from kernelmux.runner.item import WorkItem
from kernelmux.runner.machine import Workers, available_cores
from kernelmux.runner.run import TimeLimit

LIMIT = 150.0  # seconds of compiling ahead; the timing workers compile what is left
JOBS = 24  # processes that compile ahead, at most: each has a context on the GPU
WORTH = 12  # rows; with fewer, importing torch takes longer than compiling
CEILINGS = 30.0  # seconds; the first row of a worker has its ceilings measured before it
CONTEXT, COPIES = 1 << 30, 3  # bytes of a process on a GPU; inputs and outputs, and what a call keeps beside them


def items(rows: list[Row], options: PerfOptions) -> list[WorkItem]:
    """What there is to do at first: to compile, and to time the groups of which nothing is to be compiled.

    Compiling has the lower ranks: on one GPU it is over before the first row is timed there.
    """
    groups = _groups(rows)
    ahead = [row for row in rows if _compiles(row)] if options.device == "cuda" and options.jobs else []
    if len(ahead) < WORTH:
        ahead = []
    compiled = {row.group for row in ahead}
    first = [row for row in rows if row.group not in compiled]
    return [*(_compile(row, groups[row.group]) for row in ahead), *timing(first, rows, options)]


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
    name, memory = f"{COMPILE}:{row.id}", CONTEXT + COPIES * int(inputs.planned(row).bytes)
    group = f"{COMPILE}:{' '.join(row.group)}"
    return WorkItem(name, [COMPILE, encode(row)], rank=rank, group=group, gpus=1, memory=memory, limit=LIMIT)


def compiling_processes() -> int:
    """The processes that compile ahead, unless a number is asked for: all cores but that of the one that times."""
    return min(JOBS, max(1, available_cores() - 1))


def workers(options: PerfOptions, plan: list[WorkItem]) -> Workers:
    """The worker processes of a machine: for each GPU one that times alone, and those that compile; on a CPU one.

    What is timed may use all cores, as a program of a user does.
    """
    if options.device == "cpu":
        return Workers(cpu=True, most=1, timing=True)
    ahead = any(item.work[0] == COMPILE for item in plan)
    return Workers(gpu=CONTEXT if ahead else 0, alone=True, most=options.jobs or None, timing=True)


@dataclass(frozen=True)
class Minutes(TimeLimit):
    """The minutes of a run. compile_until: by time.monotonic, when nothing more is compiled ahead.

    late: ids of rows whose compiler was stopped then, which are not timed.
    """

    until: float = math.inf
    required: int = -1
    compile_until: float = math.inf
    late: set[str] = field(default_factory=set)

    def share(self, item: WorkItem, remaining: int, workers: int) -> float | None:
        now, left = time.monotonic(), self.until - time.monotonic()
        over = now > self.compile_until if item.work[0] == COMPILE else item.id in self.late or left < 0
        return None if over else max(left, 0.0)

    def most(self, item: WorkItem) -> float:
        if item.work[0] != COMPILE:
            return item.limit
        return max(0.1, min(item.limit, self.compile_until - time.monotonic()))


def minutes(options: PerfOptions) -> Minutes:
    """Those of a run that begins now."""
    seconds = time_budget.compiling_seconds(options.until, LIMIT)
    return Minutes(options.until or math.inf, -1, time.monotonic() + seconds)
