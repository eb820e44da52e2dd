"""The default report on one screen: an operator in a line, and below it what was not timed and where the rest is."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from kernelmux.perf import peers
from kernelmux.perf.planning.plan import BASELINE
from kernelmux.perf.record.history import GpuRecord
from kernelmux.perf.record.run_file import KernelNeed, Overhead, Results
from kernelmux.perf.report import tables
from kernelmux.perf.rows.row_result import FAILED, LATE, WRONG, Timed
from kernelmux.perf.wording import wording
from kernelmux.perf.wording.columns import Columns
from kernelmux.perf.wording.groups import ResultGroup, backends_of, groups, large_groups

WIDEST = 22  # letters of an input
MOST_SAVED = 0.5  # microseconds: a call that takes less time than its launch was measured on a busy machine
MARKS = {FAILED: "FAILED", WRONG: "wrong", LATE: "left out"}
SPREAD = (
    "us: median device time with a cold L2 cache; *: nothing is faster by more than 3 %; of roof: share of the least"
    " possible time, x torch: times faster than torch, both of the fastest of our backends"
)


def on_gpu(console: Console, results: Results) -> None:
    """A line per operator: torch, torch.compile, each backend, and how near to the roof the best of ours is."""
    together = groups(results.rows)
    ours = [name for name in backends_of(results.rows) if name not in (BASELINE, peers.NAME)]
    names = ("operator", "input", "torch us", "torch.compile", *(f"{name} us" for name in ours), "of roof", "x torch")
    columns = Columns(names, names[:2], ("input", "torch.compile"))
    lines = [(_line(group, ours), None) for group in together]
    console.print(columns.table(console, lines))
    console.print(SPREAD, style="dim", highlight=False)
    for group in together:
        tables.failures(console, group.rows)


def _line(group: ResultGroup, ours: Sequence[str]) -> list[Text]:
    best = best_of(group, ours)
    cells = [_cell(group, backend) for backend in (BASELINE, peers.NAME, *ours)]
    ends = (wording.share(best), wording.times(group.times_torch(best))) if best else ("", "")
    return [Text(group.op), Text(brief_input(group)), *cells, *map(Text, ends)]


def best_of(group: ResultGroup, ours: Iterable[str]) -> Timed | None:
    """The fastest row of our backends."""
    mine = (row for row in map(group.best_of, ours) if row)
    return min(mine, key=lambda row: row.median_us, default=None)


def _cell(group: ResultGroup, backend: str) -> Text:
    row = group.baseline if backend == BASELINE else group.best_of(backend)
    if row is None:
        status = next((row.status for row in group.rows if row.backend == backend), "")
        return Text(MARKS.get(status, "-"), style=tables.UNTIMED.get(status, "dim"))
    mark = "*" if group.leads(row) else ""
    return Text(mark + wording.microseconds(row.median_us), style="bold green" if mark else "")


def brief_input(group: ResultGroup) -> str:
    """The shape of the first tensor, and the dtype."""
    first = group.workload.split()[0].partition("=")[2].partition(":")[0]
    return f"{first[:WIDEST]} {group.dtype}"


def on_cpu(console: Console, results: Results, known: GpuRecord | None) -> None:
    """A line per operator: torch here, and what is on record of a GPU."""
    here = {group.op: group for group in groups(results.rows)}
    there = {group.op: group for group in large_groups(known.rows)} if known else {}
    ours = [name for name in backends_of(known.rows) if name not in (BASELINE, peers.NAME)] if known else []
    names = ("operator", "input here", "torch us", "input there", "torch us ", *(f"{n} us" for n in ours), "of roof")
    columns = Columns(names, (names[0], names[1], names[3]), ("input there", "input here"))
    told = f"; there: {known.title}, *: fastest" if known else ""
    console.print(f"no GPU here, so kernels are compiled and not timed; here: torch on this CPU{told}", style="yellow")
    console.print(columns.table(console, [(_both(op, here[op], there.get(op), ours), None) for op in here]))
    for group in here.values():
        tables.failures(console, group.rows)


def _both(op: str, here: ResultGroup, there: ResultGroup | None, ours: Sequence[str]) -> list[Text]:
    row = here.baseline
    cells = [op, brief_input(here), wording.microseconds(row.median_us) if row else "-"]
    if there is None:
        return list(map(Text, cells))
    best = best_of(there, ours)
    recorded = [_cell(there, backend) for backend in (BASELINE, *ours)]
    return [*map(Text, cells), Text(brief_input(there)), *recorded, Text(wording.share(best) if best else "")]


def overhead(rows: Iterable[Overhead]) -> Iterator[str]:
    """What the dispatcher adds on this host, over several operators, in a line."""
    good = [row for row in rows if not row.error and not wording.impossible(row)]
    if not good:
        return
    told = [f"kx.op adds {_range(good, lambda row: row.through_us - row.direct_us)}"]
    told += [f"kx.bind {_range(good, lambda row: row.bound_us and row.bound_us - row.direct_us)}"]
    yield f"host time of a call, us, median (range) of {len(good)} kernels: {'; '.join(told)}"


def _range(rows: Iterable[Overhead], added: Callable[[Overhead], float | None]) -> str:
    values = [value for row in rows if (value := added(row)) is not None and value > -MOST_SAVED]
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})" if values else "nothing known"


def resources(needs: Sequence[KernelNeed], left: Sequence[str], arch: str) -> Iterator[str]:
    """What the compiled kernels need at most, in a few lines."""
    good = [need for need in needs if not need.error]
    if good:
        variants = len({(need.op, need.label) for need in good})
        most, spilled = max(good, key=lambda n: n.registers), [n for n in good if n.spills]
        worst = max(spilled, key=lambda n: n.spills, default=None)
        told = f"; most spilled bytes: {worst.spills} ({worst.op} {worst.label})" if worst else ""
        yield (
            f"compiled for {arch}: {len(good)} kernels of {variants} default variants; most registers: {most.registers}"
            f" ({most.op} {most.label}); {len(spilled)} of them spill{told}"
        )
    for need in needs:
        if need.error:
            yield f"FAILED to compile: {need.op} {need.label}: {need.error}"
    if left:
        yield f"not compiled, as the minutes were over: {wording.named(left)}; --every-row compiles every variant"
