"""The terminal: a table per operator, a section per workload, at most 120 columns."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kernelmux.perf import markdown, report
from kernelmux.perf.aa import Noise
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
        console.print(_cpu_table(rows))
    for group in report.groups(rows):
        if on_gpu:
            console.print(_table(group))
        for row in group.rows:
            if row["status"] == "failed":
                console.print(f"  FAILED {report.label(row)}: {escape(row['error'])}", style="red", soft_wrap=True)
    if on_gpu:
        console.print(LEGEND, style="dim", highlight=False)


def _cpu_table(rows: list[Row]) -> Table:
    """One table of everything, for there is one variant of each."""
    table = Table(title="torch on this CPU", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in ("", "input", "dtype", "us", "±", "GB/s", "GFLOP/s"):
        table.add_column(name, justify="left" if name in ("", "input", "dtype") else "right")
    for row in rows:
        if row["status"] == "ok":
            us = row["median_us"]
            cells = [f"  {row['op']} {report.label(row)}", row["workload"], row["dtype"], report.microseconds(us)]
            cells += [report.percent(row["spread"]), f"{row['bytes'] / us / 1e3:.1f}", f"{row['flops'] / us / 1e3:.1f}"]
            table.add_row(*map(Text, cells))
    return table


def _table(group: Group) -> Table:
    table = Table(
        title=escape(report.heading(group)), title_justify="left", title_style="bold", box=None, pad_edge=False
    )
    table.add_column("", min_width=22, no_wrap=True)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "bound" else "right", no_wrap=True)
    table.add_column("advice", style="dim", no_wrap=True)
    for row in group.rows:
        table.add_row(*_cells(group, row), style="bold green" if group.leads(row) and len(group.good) > 1 else None)
    return table


def _cells(group: Group, row: Row) -> list[Text]:
    name = ("* " if group.leads(row) else "  ") + report.label(row) + (" (stale)" if row.get("stale") else "")
    if row["status"] == "failed":
        return [Text(name), Text("FAILED", style="red")]
    cells = [name, report.microseconds(row["median_us"]), report.percent(row["spread"])]
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
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in ("", "implementation", "through kx.op", "added"):
        table.add_column(name, justify="right" if name else "left")
    for row in rows:
        if "error" in row:
            table.add_row(f"  {row['op']} {row['label']}", Text(row["error"], style="red"))
            continue
        added = row["through_us"] - row["direct_us"]
        table.add_row(
            f"  {row['op']} {row['label']}", f"{row['direct_us']:.2f}", f"{row['through_us']:.2f}", f"{added:+.2f}"
        )
    console.print(table)


def best(console: Console, rows: list[Row]) -> None:
    """Per operator and backend the fastest variant on the largest workload, from a record."""
    names = markdown.backends_of(rows)
    table = Table(box=None, pad_edge=False)
    for name in ("operator", "workload", "floor us", *names):
        table.add_column(name, justify="left" if name in ("operator", "workload") else "right", overflow="fold")
    for group in markdown.large_groups(rows):
        cells = [group.op, f"{group.workload} {group.dtype}", report.microseconds((group.best or {}).get("floor_us"))]
        table.add_row(*cells, *(_best_cell(group, name) for name in names))
    console.print(table)


def _best_cell(group: Group, name: str) -> Text:
    row = group.best_of(name)
    if row is None:
        return Text("-")
    stale = " stale" if row.get("stale") else ""
    text = f"{report.microseconds(row['median_us'])} us {report.percent(row.get('share'))}{stale}"
    return Text(text, style="bold green" if row is group.best else "")
