"""What the command line does: run and report, show a record, update a document."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jinja2
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kernelmux.perf import aa, compare, files, markdown, overhead, page, report, resources, results, tables
from kernelmux.perf import run as running
from kernelmux.perf.options import Options
from kernelmux.perf.plan import BASELINE, Row
from kernelmux.perf.run import Event
from kernelmux.registry import backend as registered
from kernelmux.registry import terminal
from kernelmux.registry.errors import ArgumentError

OK, FAILED = 0, 1
BEGIN, END = "<!-- perf -->", "<!-- /perf -->"


class Watch:
    """A bar in a terminal, a line per row elsewhere."""

    def __init__(self, console: Console, total: int) -> None:
        self.console, self.failed = console, 0
        self.bar = Progress(
            TextColumn("perf"), BarColumn(24), MofNCompleteColumn(), TextColumn("{task.fields[failed]}"),
            TimeElapsedColumn(), TextColumn("[dim]{task.fields[last]}"),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self.task = self.bar.add_task("run", total=total, failed="", last="starting")

    def __enter__(self) -> Watch:
        self.bar.start()
        return self

    def __exit__(self, *details: object) -> None:
        self.bar.stop()

    def __call__(self, event: Event) -> None:
        if event["event"] == "start":
            self.bar.update(self.task, last=event["id"])
        elif event["event"] == "row":
            self.failed += event["status"] == "failed"
            self.bar.update(self.task, advance=1, failed=f"[red]{self.failed} failed" if self.failed else "")
            if not self.console.is_terminal:
                self.console.print(_line(event), markup=False, soft_wrap=True)


def _line(event: Event) -> str:
    if event["status"] != "ok":
        return f"FAILED {event['id']}: {event['error']}"
    share = f", {event['share']:.0%} of the floor" if "share" in event else ""
    return f"{event['id']}: {report.microseconds(event['median_us'])} us{share}, {event['seconds']:.1f} s"


def run(console: Console, rows: list[Row], options: Options, args: argparse.Namespace, command: str) -> int:
    """Run the rows, report, and return the exit status."""
    earlier = results.read(Path(args.compare)) if args.compare else None
    _check_places(args)
    with Watch(console, sum(not row.problem for row in rows)) as watch:
        outcome = running.run(rows, options, watch)
    if outcome.interrupted and not any(row["status"] == "ok" for row in outcome.rows):
        raise KeyboardInterrupt
    outcome.rows = aa.fold(outcome.rows)
    on_gpu = options.device == "cuda"
    _introduce(console, outcome, on_gpu)
    tables.show(console, outcome.rows, on_gpu)
    more: dict[str, Any] = {}
    if not options.quick and not outcome.interrupted:
        more["overhead"] = overhead.measure(options.ops, _overhead_backends(options), options.device)
        tables.overhead(console, more["overhead"])
    if not on_gpu and not outcome.interrupted:
        more["resources"] = resources.command(console, options)
        _show_records(console, options)
    found = results.of_run(outcome, command, more)
    _write(console, found, earlier, args)
    slower = compare.show(console, earlier, found) if earlier else 0
    unstable = tables.noise(console, aa.noise(outcome.rows))
    tables.busy(console, outcome.rows, more.get("overhead", []))
    tables.summary(console, outcome.rows, outcome.errors)
    if outcome.interrupted:
        return terminal.say("perf", "interrupted; the rows that were timed are kept", terminal.INTERRUPTED)
    broken = [r for r in more.get("resources", []) if r.get("error")]
    failed = any(r["status"] == "failed" for r in outcome.rows) or outcome.errors or slower or unstable or broken
    return FAILED if failed else OK


def _check_places(args: argparse.Namespace) -> None:
    """The reports can be written; asked before the work."""
    files.folder(Path(args.out), "--out")
    if args.html:
        files.writable(Path(args.html), "--html", made=True)


def _overhead_backends(options: Options) -> tuple[str, ...]:
    if options.device == "cpu":
        return (BASELINE,)
    asked = dict.fromkeys(name.partition("/")[0] for name in options.backends if name != "all")
    return (BASELINE, *(n for n in asked or registered.backend_names() if n != BASELINE))


def _introduce(console: Console, outcome: running.Outcome, on_gpu: bool) -> None:
    console.print(report.where(outcome.machine), style="bold", markup=False, soft_wrap=True)
    if outcome.ceilings:
        console.print(report.roofs(outcome.ceilings), markup=False)
    if not on_gpu:
        text = "no GPU: torch on this CPU by the wall clock, with small inputs; nothing emulated is ever timed"
        console.print(text, style="yellow")


def _write(console: Console, found: results.Results, earlier: results.Results | None, args: argparse.Namespace) -> None:
    folder = Path(args.out)
    if kept := results.keep(found, folder / "results.json"):
        console.print(f"\nkept: {kept}, which has rows that this run has not", markup=False, soft_wrap=True)
    results.write(found, folder / "results.json")
    markdown.write(found, folder, "report")
    page.write(found, earlier, Path(args.html) if args.html else folder / "report.html")
    if args.record:
        path = results.record(found)
        markdown.write(results.read(path), path.parent, path.stem)
        console.print(f"recorded: {path}", markup=False, soft_wrap=True)
    console.print(
        f"\nresults: {args.html or folder / 'report.html'}; {folder}/results.json, report.md, benchmark.json"
        " (pytest-benchmark compare)",
        markup=False,
        soft_wrap=True,
    )


def _show_records(console: Console, options: Options) -> None:
    for record in results.recorded():
        rows = [r for r in record.rows if not options.ops or r["op"] in options.ops]
        if rows:
            _print_record(console, record, rows, whole=False)


def _print_record(console: Console, record: results.Record, rows: list[report.Row], whole: bool) -> None:
    old = sum(row["stale"] for row in rows)
    note = f"; {old} of {len(rows)} rows are stale: their spec or source has changed since" if old else ""
    console.print(f"\n{record.title}{note}", style="bold", markup=False)
    if whole:
        tables.show(console, rows, on_gpu=True)
    else:
        tables.best(console, rows)


def show(console: Console, gpu: str) -> int:
    """Print the record of a GPU."""
    record = results.find(gpu)
    console.print(report.where(record.results["machine"]), style="bold", markup=False, soft_wrap=True)
    console.print(report.roofs(record.results["ceilings"]), markup=False)
    _print_record(console, record, record.rows, whole=True)
    return OK


def render(console: Console, source: Path, target: str | None, earlier: str | None) -> int:
    """Write the page of results that exist."""
    if target is None:
        raise ArgumentError("--render: expected --html FILE beside it, for the page")
    found, before = results.read(source), results.read(Path(earlier)) if earlier else None
    files.writable(Path(target), "--html", made=True)
    rows = [row | {"stale": results.stale(row)} if row.get("status") == "ok" else row for row in found["rows"]]
    try:
        text = page.html(found | {"rows": rows}, before)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, jinja2.TemplateError) as error:
        told = f"{type(error).__name__}: {error}"
        raise ArgumentError(f"--render: {source} is not of the form that this version writes ({told})") from error
    files.write(Path(target), text)
    console.print(f"wrote {target}", markup=False, soft_wrap=True)
    return OK


def update(console: Console, path: Path) -> int:
    """Write the table of all records between the markers of a document."""
    files.writable(path, "--update")
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, ValueError) as error:
        raise ArgumentError(f"--update: {path}: expected a text in UTF-8: {error}") from error
    if BEGIN not in text or END not in text:
        raise ArgumentError(f"--update: {path} has no {BEGIN} ... {END}")
    before, rest = text.split(BEGIN, 1)
    files.write(path, f"{before}{BEGIN}\n{markdown.best_tables()}\n{END}{rest.split(END, 1)[1]}")
    console.print(f"updated {path}", markup=False)
    return OK
