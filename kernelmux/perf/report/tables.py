"""The terminal: a table per operator, a section per workload; what fits the width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kernelmux.perf import peers
from kernelmux.perf.record.run_file import Overhead, PeerShare
from kernelmux.perf.report import beside, shares
from kernelmux.perf.rows.row_result import FAILED, LATE, OK, SKIPPED, STATUSES, WRONG, RowResult, Timed
from kernelmux.perf.wording import wording
from kernelmux.perf.wording.columns import Columns
from kernelmux.perf.wording.groups import ResultGroup, backends_of, groups, large_groups
from kernelmux.perf.wording.noise import Noise

COLUMNS = ("us", "±", "rate", "floor", "torch", "rung", "held", "host", "graph", "bound")

UNTIMED = {FAILED: "red", WRONG: "yellow", LATE: "dim"}
LEGEND = (
    "us: median device time, cold L2; ±: interquartile range; floor: share of the least possible time; torch, rung:"
    " times faster than torch and than the variant above; held: us once power and clock have settled under calls back"
    " to back; host: us of the Python call; graph: us per call in a graph"
)


def show(console: Console, rows: Sequence[RowResult], on_gpu: bool) -> None:
    """Print every group."""
    if not on_gpu:
        console.print(_cpu_table(console, rows))
    for group in groups(rows):
        if on_gpu:
            console.print(_table(console, group))
        failures(console, group.rows)
    if on_gpu:
        console.print(LEGEND, style="dim", highlight=False)
    if others := beside.lines(rows):
        body: list[tuple[Sequence[Text | str], None]] = [(line, None) for line in others]
        console.print(BESIDE.table(console, body, "beside other libraries"))


def random_shares(console: Console, found: Iterable[PeerShare]) -> None:
    """Our share of the best peer on random shapes, per family and backend."""
    body: list[tuple[Sequence[Text | str], None]] = [(line, None) for line in shares.lines(found)]
    if body:
        console.print(SHARES.table(console, body, shares.TITLE))
    else:
        console.print("no backend of kernelmux was to run: no share of a peer", style="yellow")


def failures(console: Console, rows: Iterable[RowResult]) -> None:
    """Why rows failed, or other libraries were wrong."""
    for row in rows:
        if row.status in (FAILED, WRONG):
            told = f"  {row.status.upper()} {row.op} {row.label}: {escape(row.error)}"
            console.print(told, style=UNTIMED[row.status], soft_wrap=True)


BESIDE = Columns(beside.HEAD, beside.HEAD[:1])
SHARES = Columns(shares.HEAD, shares.TEXT, ("failed", "not run"))
ON_CPU = Columns(("", "input", "dtype", "us", "±", "GB/s", "GFLOP/s"), ("", "input", "dtype"), ("GFLOP/s", "GB/s"))
LADDER = Columns(
    ("", *COLUMNS, "advice"),
    ("", "bound", "advice"),
    ("advice", "graph", "host", "held", "bound", "rung", "rate", "torch", "floor"),
    {"advice": "dim"},
)


def _cpu_table(console: Console, rows: Iterable[RowResult]) -> Table:
    """One table of everything, for there is one variant of each."""
    lines: list[tuple[list[str], None]] = []
    for row in rows:
        if isinstance(row, Timed):
            us = row.median_us
            cells = [f"  {row.op} {row.label}", row.workload, row.dtype, wording.microseconds(us)]
            cells += [wording.spread(row), f"{row.bytes / us / 1e3:.1f}", f"{row.flops / us / 1e3:.1f}"]
            lines.append((cells, None))
    return ON_CPU.table(console, [([Text(c) for c in cells], style) for cells, style in lines], "torch on this CPU")


def _table(console: Console, group: ResultGroup) -> Table:
    best = "bold green" if len(group.good) > 1 else None
    rows = [(_cells(group, row), best if group.leads(row) else None) for row in group.rows]
    return LADDER.without_empty(rows).table(console, rows, wording.heading(group))


def _cells(group: ResultGroup, row: RowResult) -> list[Text]:
    name = ("* " if group.leads(row) else "  ") + row.label
    if not isinstance(row, Timed):
        return [Text(name), Text(row.status.upper(), style=UNTIMED[row.status])]
    cells = [name + (" (stale)" if row.stale else ""), wording.microseconds(row.median_us), wording.spread(row)]
    cells += [wording.rate(row), wording.share(row)]
    cells += [wording.times(group.times_torch(row)), wording.times(group.times_previous(row))]
    cells += [wording.microseconds(us) for us in (row.held_us, row.host_us, row.graph_us)]
    return [Text(c) for c in (*cells, *((row.point.bound, wording.advice(row)) if row.point else ("", "")))]


def noise(console: Console, measured: Noise | None) -> int:
    """Print the noise of A/A; return how many variants have two timings that differ beyond the limits."""
    if measured is None:
        return 0
    console.print(str(measured), highlight=False, markup=False, soft_wrap=True)
    for text in measured.beyond:
        console.print(f"  UNSTABLE {text}", style="red", highlight=False, markup=False, soft_wrap=True)
    return len(measured.beyond)


def busy(console: Console, rows: Iterable[RowResult], overhead: Iterable[Overhead]) -> None:
    """Warn that the times are not reliable, if the machine was busy."""
    if text := wording.busy(rows, overhead):
        console.print(f"WARNING: {text}", style="yellow", markup=False, highlight=False, soft_wrap=True)


def summary(console: Console, rows: Iterable[RowResult], errors: Iterable[str], tested: str) -> None:
    """The last lines: what ran, what failed, what could not run. tested: the backends and the device of the run."""
    rows = tuple(rows)
    count = {status: sum(row.status == status for row in rows) for status in STATUSES}
    for error in errors:
        console.print(error, style="red", markup=False, highlight=False)
    if absent := sorted({row.variant for row in rows if _absent(row)}):
        console.print(f"not installed: {', '.join(absent)}", style="dim", markup=False, highlight=False, soft_wrap=True)
    reasons = {f"{r.label}: {r.error}" for r in rows if r.status == SKIPPED and not _absent(r)}
    for reason in sorted(reasons)[:6]:
        console.print(f"not run: {reason}", style="dim", markup=False, highlight=False, soft_wrap=True)
    if len(reasons) > 6:
        console.print(f"not run: {len(reasons) - 6} more reasons; --list names them", style="dim", highlight=False)
    wrong = f", {count[WRONG]} wrong in other libraries" if count[WRONG] else ""
    left = f", {count[LATE]} left out as the minutes were over" if count[LATE] else ""
    text = f"{count[OK]} rows timed and right, {count[FAILED]} failed{wrong}, {count[SKIPPED]} not applicable{left}"
    style = "bold red" if count[FAILED] or errors else "bold"
    console.print(f"{text}; {tested}", style=style, highlight=False, markup=False, soft_wrap=True)


def _absent(row: RowResult) -> bool:
    """Whether a library is not installed here, for which one line is enough."""
    return row.backend == peers.NAME and row.status == SKIPPED and peers.ABSENT in row.error


def overhead(console: Console, rows: Sequence[Overhead]) -> None:
    """Host microseconds of the dispatcher."""
    if not rows:
        return
    title = (
        "host time of one call on a small input, us: of the launch that is remembered; what kx.op(x, backend=...) and a"
        " call bound by kx.bind, checked and not, add to it; what a wanted gradient adds to kx.op"
    )
    lines: list[tuple[list[Text], None]] = []
    for row in rows:
        name = Text(f"  {row.op} {row.label}")
        if row.error:
            console.print(f"FAILED {name}: {row.error}", style="red", markup=False, soft_wrap=True)
            continue
        numbers = (f"{row.direct_us:.2f}", f"{row.through_us:.2f}", *wording.surcharges(row))
        lines.append(([name, *map(Text, numbers)], None))
    console.print(OVERHEAD.table(console, lines, title))


OVERHEAD = Columns(
    ("", "launch", "kx.op", *wording.SURCHARGES), ("",), ("gradient adds", "unchecked", "bound adds", "launch")
)


def best(console: Console, rows: Iterable[RowResult]) -> None:
    """Per operator and backend the fastest variant on the largest workload, from a record."""
    rows = tuple(rows)
    names = backends_of(rows)
    texts = ("operator", "workload")
    columns = Columns((*texts, "floor us", *names), (*texts, *names), ("floor us",))
    lines = []
    for group in large_groups(rows):
        cells = [Text(group.op), Text(f"{group.workload} {group.dtype}"), Text(wording.floor(group.best))]
        lines.append(([*cells, *(_best_cell(group, name) for name in names)], None))
    console.print(columns.table(console, lines))


def _best_cell(group: ResultGroup, name: str) -> Text:
    row = group.best_of(name)
    if row is None:
        return Text("-")
    stale = " stale" if row.stale else ""
    text = f"{wording.microseconds(row.median_us)} us {wording.share(row)}{stale}"
    return Text(text, style="bold green" if row is group.best else "")
