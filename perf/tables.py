"""The terminal: a table per operator, a section per workload; what fits the width."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kernelmux.perf import markdown, report
from kernelmux.perf.aa import Noise
from kernelmux.perf.columns import Columns
from kernelmux.perf.report import Group, Row

COLUMNS = ("us", "±", "rate", "floor", "torch", "rung", "held", "host", "graph", "bound")

LEGEND = (
    "us: median device time, cold L2; ±: interquartile range; floor: share of the least possible time; torch, rung:"
    " times faster than torch and than the variant above; held: us once power and clock have settled under calls back"
    " to back; host: us of the Python call; graph: us per call in a graph"
)


def show(console: Console, rows: list[Row], on_gpu: bool) -> None:
    """Print every group."""
    if not on_gpu:
        console.print(_cpu_table(console, rows))
    for group in report.groups(rows):
        if on_gpu:
            console.print(_table(console, group))
        for row in group.rows:
            if row["status"] == "failed":
                console.print(f"  FAILED {report.label(row)}: {escape(row['error'])}", style="red", soft_wrap=True)
    if on_gpu:
        console.print(LEGEND, style="dim", highlight=False)


ON_CPU = Columns(("", "input", "dtype", "us", "±", "GB/s", "GFLOP/s"), ("", "input", "dtype"), ("GFLOP/s", "GB/s"))
LADDER = Columns(
    ("", *COLUMNS, "advice"),
    ("", "bound", "advice"),
    ("advice", "graph", "host", "held", "bound", "rung", "rate", "torch", "floor"),
    {"advice": "dim"},
)


def _cpu_table(console: Console, rows: list[Row]) -> Table:
    """One table of everything, for there is one variant of each."""
    found: list[tuple[list[str], None]] = []
    for row in rows:
        if row["status"] == "ok":
            us = row["median_us"]
            cells = [f"  {row['op']} {report.label(row)}", row["workload"], row["dtype"], report.microseconds(us)]
            cells += [report.spread(row), f"{row['bytes'] / us / 1e3:.1f}", f"{row['flops'] / us / 1e3:.1f}"]
            found.append((cells, None))
    return ON_CPU.table(console, [([Text(c) for c in cells], style) for cells, style in found], "torch on this CPU")


def _table(console: Console, group: Group) -> Table:
    best = "bold green" if len(group.good) > 1 else None
    rows = [(_cells(group, row), best if group.leads(row) else None) for row in group.rows]
    return LADDER.table(console, rows, report.heading(group))


def _cells(group: Group, row: Row) -> list[Text]:
    name = ("* " if group.leads(row) else "  ") + report.label(row) + (" (stale)" if row.get("stale") else "")
    if row["status"] == "failed":
        return [Text(name), Text("FAILED", style="red")]
    cells = [name, report.microseconds(row["median_us"]), report.spread(row)]
    cells += [report.rate(row), report.percent(row.get("share"))]
    cells += [report.times(group.times_torch(row)), report.times(group.times_previous(row))]
    cells += [report.microseconds(row.get(name)) for name in ("held_us", "host_us", "graph_us")]
    return [Text(c) for c in (*cells, row.get("bound", ""), row.get("advice", ""))]


def noise(console: Console, found: Noise | None) -> int:
    """Print what A/A says; return how many variants differ from themselves beyond the gate."""
    if found is None:
        return 0
    console.print(str(found), highlight=False, markup=False, soft_wrap=True)
    for text in found.beyond:
        console.print(f"  UNSTABLE {text}", style="red", highlight=False, markup=False, soft_wrap=True)
    return len(found.beyond)


def busy(console: Console, rows: list[Row], overhead: list[dict[str, Any]]) -> None:
    """Say that the times are worth little, if the machine was busy."""
    if text := report.busy(rows, overhead):
        console.print(f"WARNING: {text}", style="yellow", markup=False, highlight=False, soft_wrap=True)


def summary(console: Console, rows: list[Row], errors: list[str]) -> None:
    """The last lines: what ran, what failed, what could not run."""
    count = {status: sum(r["status"] == status for r in rows) for status in ("ok", "failed", "skipped")}
    for error in errors:
        console.print(error, style="red", markup=False, highlight=False)
    reasons = {f"{report.label(r)}: {r['error']}" for r in rows if r["status"] == "skipped"}
    for reason in sorted(reasons)[:6]:
        console.print(f"not run: {reason}", style="dim", markup=False, highlight=False, soft_wrap=True)
    if len(reasons) > 6:
        console.print(f"not run: {len(reasons) - 6} more reasons; --list names them", style="dim", highlight=False)
    text = f"{count['ok']} rows timed and right, {count['failed']} failed, {count['skipped']} not applicable"
    console.print(text, style="bold red" if count["failed"] or errors else "bold", highlight=False)


def overhead(console: Console, rows: list[dict[str, Any]]) -> None:
    """Host microseconds of the dispatcher."""
    if not rows:
        return
    title = "host time of one call on a small input, us: kx.op(x, backend=...) against the implementation itself"
    found: list[tuple[list[Text], None]] = []
    for row in rows:
        name = Text(f"  {row['op']} {row['label']}")
        if "error" in row:
            console.print(f"FAILED {name}: {row['error']}", style="red", markup=False, soft_wrap=True)
            continue
        numbers = (f"{row['direct_us']:.2f}", f"{row['through_us']:.2f}", report.added(row))
        found.append(([name, *map(Text, numbers)], None))
    console.print(OVERHEAD.table(console, found, title))


OVERHEAD = Columns(("", "implementation", "through kx.op", "added"), ("",), ("implementation",))


def best(console: Console, rows: list[Row]) -> None:
    """Per operator and backend the fastest variant on the largest workload, from a record."""
    names = markdown.backends_of(rows)
    texts = ("operator", "workload")
    columns = Columns((*texts, "floor us", *names), (*texts, *names), ("floor us",))
    found = []
    for group in markdown.large_groups(rows):
        floor = report.microseconds((group.best or {}).get("floor_us"))
        cells = [Text(group.op), Text(f"{group.workload} {group.dtype}"), Text(floor)]
        found.append(([*cells, *(_best_cell(group, name) for name in names)], None))
    console.print(columns.table(console, found))


def _best_cell(group: Group, name: str) -> Text:
    row = group.best_of(name)
    if row is None:
        return Text("-")
    stale = " stale" if row.get("stale") else ""
    text = f"{report.microseconds(row['median_us'])} us {report.percent(row.get('share'))}{stale}"
    return Text(text, style="bold green" if row is group.best else "")
