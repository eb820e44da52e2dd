"""What the command line does: run and report, show a record, update a document."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from kernelmux.perf import peers
from kernelmux.perf.emulated import moved, resources
from kernelmux.perf.pictures import curves
from kernelmux.perf.planning import plan
from kernelmux.perf.planning.plan import BASELINE, Row
from kernelmux.perf.record import history, run_file
from kernelmux.perf.record.history import GpuRecord
from kernelmux.perf.record.run_file import Results
from kernelmux.perf.report import compare, fewer_bytes, markdown, page, tables
from kernelmux.perf.report import contribute as contribution
from kernelmux.perf.rows import machine, output_files
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.perf.rows.row_result import FAILED as ROW_FAILED
from kernelmux.perf.rows.row_result import RowResult, Timed
from kernelmux.perf.session import run as session
from kernelmux.perf.session.run import RunPlace, WorkerReports
from kernelmux.perf.timing import noise_floor, overhead
from kernelmux.perf.wording import noise, wording
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.package_versions import missing_packages
from kernelmux.registry.cli import terminal
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.util.files import between, file_stem
from kernelmux.runner.results import folder as writable_folder

OK, FAILED = 0, 1
TABLES = {
    "perf": markdown.best_tables,
    "bytes": fewer_bytes.tables,
    "sweeps": curves.section,
}  # by the marker in a document: <!-- perf -->


class RowProgress:
    """A bar in a terminal, elsewhere a line per row, or nothing."""

    def __init__(self, console: Console, total: int, by_row: bool = True) -> None:
        self.console, self.failed, self.by_row = console, 0, by_row
        self.bar = Progress(
            TextColumn("perf"),
            BarColumn(24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[failed]}"),
            TimeElapsedColumn(),
            TextColumn("[dim]left"),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[last]}", table_column=Column(ratio=1, no_wrap=True)),
            console=console,
            transient=True,
            expand=True,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("run", total=total, failed="", last="starting")

    def __enter__(self) -> RowProgress:
        self.bar.start()
        return self

    def __exit__(self, *details: object) -> None:
        self.bar.stop()

    def __call__(self, seen: str | RowResult) -> None:
        if isinstance(seen, str):
            self.bar.update(self.task, last=seen)
            return
        self.failed += seen.status == ROW_FAILED
        self.bar.update(self.task, advance=1, failed=f"[red]{self.failed} failed" if self.failed else "")
        if self.by_row and not self.console.is_terminal:
            self.console.print(_line(seen), markup=False, soft_wrap=True)


def _line(row: RowResult) -> str:
    if not isinstance(row, Timed):
        return f"{row.status.upper()} {row.id}: {row.error}"
    share = f", {row.point.share:.0%} of the floor" if row.point else ""
    return f"{row.id}: {wording.microseconds(row.median_us)} us{share}, {row.seconds:.1f} s"


def run(console: Console, rows: list[Row], options: PerfOptions, args: argparse.Namespace, command: str) -> int:
    """Run the rows, report, and return the exit status."""
    return reported(console, rows, options, args, True, lambda one, given: _one(console, one, options, given, command))


def reported(
    console: Console,
    rows: list[Row],
    options: PerfOptions,
    args: argparse.Namespace,
    by_row: bool,
    report: Callable[[WorkerReports, argparse.Namespace], int],
) -> int:
    """Run the rows, report on each kind of card, in a folder of its own if there are several; the worst exit status."""
    check_outputs(args)
    with RowProgress(console, sum(not row.problem for row in rows), by_row) as watch:
        outcomes = session.run(rows, options, watch, where(args))
    if outcomes[0].interrupted and not any(isinstance(row, Timed) for one in outcomes for row in one.rows):
        raise KeyboardInterrupt
    if len(outcomes) == 1:
        return report(outcomes[0], args)
    statuses = []
    for outcome in outcomes:
        own = {"out": str(Path(args.out) / outcome.card), "html": None}
        statuses.append(report(outcome, argparse.Namespace(**{**vars(args), **own})))
        console.print()
    return max(statuses)


def where(args: argparse.Namespace) -> RunPlace:
    """Where the rows run."""
    return RunPlace(args.resume, args.cluster, tuple(args.on))


def _one(console: Console, outcome: WorkerReports, options: PerfOptions, args: argparse.Namespace, command: str) -> int:
    left = "" if options.ops else catalog.left_out(plan.chosen_dtypes(options))
    measured = replace(results_of(outcome, command, options), left=left)
    introduce(console, measured, options)
    tables.show(console, measured.rows, options.device == "cuda")
    interrupted = outcome.interrupted
    if not interrupted and not options.elsewhere:
        try:
            measured = _further(console, measured, options)
        except KeyboardInterrupt:  # the rows are timed, and are kept
            interrupted = True
    for told in wording.left_out(measured):
        console.print(told, markup=False, highlight=False, soft_wrap=True)
    earlier = write(console, measured, args)
    return conclude(console, measured, earlier, args.aa, interrupted)


def overheads(console: Console, options: PerfOptions, args: argparse.Namespace, command: str) -> int:
    """Measure the host time of calls alone, show it, and return the exit status."""
    here = machine.describe(options.device)
    console.print(wording.where(here), style="bold", markup=False, soft_wrap=True)
    with console.status("host time of calls"):
        found = overhead.measure(options.ops, _overhead_backends(options), options.device)
    tables.overhead(console, found)
    measured = Results(date=machine.today(), command=command, machine=here, ceilings=None, rows=(), overhead=found)
    tables.busy(console, (), found)
    if args.record:
        _record(console, measured, args)
    return FAILED if any(row.error for row in found) else OK


def results_of(outcome: WorkerReports, command: str, options: PerfOptions) -> Results:
    """What the workers reported, each variant with its second time; a backend that lacks its package is an error."""
    rows = tuple(noise_floor.fold(outcome.rows))
    return Results(
        date=machine.today(),
        command=command,
        machine=outcome.machine,
        ceilings=outcome.ceilings,
        rows=rows,
        errors=(*outcome.errors, *(() if options.elsewhere else lacking(options))),
        seconds=outcome.seconds,
        compiled=outcome.compiled,
        usage=outcome.usage,
        tested=tuple(dict.fromkeys(row.backend for row in rows if isinstance(row, Timed))),
    )


def lacking(options: PerfOptions) -> Iterator[str]:
    """What a run leaves out: operators elsewhere that cannot be loaded; backends that lack a package, and what to do."""
    absent = missing_packages(torch.device(options.device), plan.chosen_backends(options))
    for op in () if options.ops else catalog.names():
        if why := catalog.problem(op):
            yield f"operator {op} was left out: {why}"
    others = " ".join(name for name in registered.backend_names() if name not in absent and name != peers.NAME)
    for name, told in absent.items():
        yield f"backend {name} could run here and was left out: {told}; or run without it: --backend {others}"


def _further(console: Console, measured: Results, options: PerfOptions) -> Results:
    """The dispatcher's overhead; without a GPU also what each kernel needs and moves, and what is on record."""
    if not options.quick and not options.brief:
        measured = replace(
            measured, overhead=overhead.measure(options.ops, _overhead_backends(options), options.device)
        )
        tables.overhead(console, measured.overhead)
    if options.device != "cuda":
        measured = replace(measured, resources=resources.command(console, options), moved=moved.known(options.ops))
        moved.show(console, measured.moved)
        _show_records(console, options)
    return measured


def conclude(console: Console, measured: Results, earlier: Results | None, strict: bool, interrupted: bool) -> int:
    """The last lines and the exit status. strict: two timings of a variant that disagree fail the run."""
    slower = compare.show(console, earlier, measured) if earlier else 0
    unstable = tables.noise(console, noise.noise(measured.rows))
    tables.busy(console, measured.rows, measured.overhead)
    if measured.usage:
        console.print(measured.usage, style="dim", markup=False, highlight=False, soft_wrap=True)
    tables.summary(console, measured.rows, measured.errors, wording.tested(measured))
    if interrupted:
        return terminal.say("perf", "interrupted; the rows that were timed are kept", terminal.INTERRUPTED)
    broken = any(need.error for need in measured.resources)
    failed = any(row.status == ROW_FAILED for row in measured.rows)
    return FAILED if failed or broken or measured.errors or slower or (strict and unstable) else OK


def check_outputs(args: argparse.Namespace) -> None:
    """Checks that the reports can be written, and what they are compared with be read; called before the work."""
    if args.compare:
        run_file.read(Path(args.compare))
    writable_folder(Path(args.out), "--out")
    if args.record:
        writable_folder(history.PLACE.folder if args.into_checkout else history.folder_of_user(), "--record")
    if args.html:
        output_files.writable(Path(args.html), "--html", made=True)


def _overhead_backends(options: PerfOptions) -> tuple[str, ...]:
    if options.device == "cpu":
        return (BASELINE,)
    asked = dict.fromkeys(name.partition("/")[0] for name in options.backends if name != "all")
    return (BASELINE, *(n for n in asked or registered.backend_names() if n != BASELINE))


def introduce(console: Console, measured: Results, options: PerfOptions) -> None:
    """Print the machine, its ceilings, and what is different without a GPU."""
    console.print(wording.where(measured.machine), style="bold", markup=False, soft_wrap=True)
    console.print(wording.tested(measured), markup=False, highlight=False, soft_wrap=True)
    if measured.ceilings:
        console.print(wording.roofs(measured.ceilings), markup=False)
    if options.device != "cuda":
        text = (
            "no GPU: torch on this CPU is timed by the wall clock, with small inputs; emulated kernels are never timed"
        )
        console.print(text, style="yellow")


def write(console: Console, measured: Results, args: argparse.Namespace) -> Results | None:
    """Write the reports; the earlier results that --compare names."""
    earlier, folder = run_file.read(Path(args.compare)) if args.compare else None, Path(args.out)
    if kept := run_file.keep(measured, folder / "results.json"):
        console.print(f"\nkept: {kept}, with rows that this run did not time", markup=False, soft_wrap=True)
    run_file.write(measured, folder / "results.json")
    if args.record:  # before anything is drawn: a run may be stopped while it is
        _record(console, measured, args)
    markdown.write(measured, folder, "report")
    page.write(measured, earlier, Path(args.html) if args.html else folder / "report.html")
    console.print(
        f"\nresults: {args.html or folder / 'report.html'}; {folder}/results.json, report.md, benchmark.json"
        " (pytest-benchmark compare)",
        markup=False,
        soft_wrap=True,
    )
    return earlier


def _record(console: Console, measured: Results, args: argparse.Namespace) -> None:
    for path in history.record_all(measured) if args.into_checkout else [history.record_for_user(measured)]:
        if path != history.PLACE.of(measured.machine.name):  # of which `nox -s docs` draws the page
            markdown.write(run_file.read(path), path.parent, path.stem)
        console.print(f"recorded: {path}", markup=False, soft_wrap=True)


def _show_records(console: Console, options: PerfOptions) -> None:
    for known in (*history.of_user(), *history.everywhere()):
        rows = [row for row in known.rows if not options.ops or row.op in options.ops]
        if rows:
            _print_record(console, known, rows, whole=False)


def _print_record(console: Console, known: GpuRecord, rows: Sequence[Timed], whole: bool) -> None:
    old = sum(row.stale for row in rows)
    note = f"; {old} of {len(rows)} rows are stale: what they launch has changed since" if old else ""
    console.print(f"\n{known.title}{note}", style="bold", markup=False)
    if whole:
        tables.show(console, rows, on_gpu=True)
    else:
        tables.best(console, rows)


def show(console: Console, gpu: str) -> int:
    """Print the record of a GPU."""
    known = history.find(gpu)
    console.print(wording.where(known.results.machine), style="bold", markup=False, soft_wrap=True)
    if known.results.ceilings:
        console.print(wording.roofs(known.results.ceilings), markup=False)
    _print_record(console, known, known.rows, whole=True)
    return OK


def contribute(console: Console, target: str | None, source: str | None) -> int:
    """Write the user's record for a pull request, or say what is wrong with one; FAILED for what cannot ship."""
    found, wrong = contribution.export(Path(target)) if target else contribution.check(Path(str(source)))
    for line in wrong:
        console.print(line, style="red", markup=False, soft_wrap=True)
    what = f"{target or source}: {len(found.timed)} rows of {found.machine.name}, {len(wrong)} problems"
    if not wrong:
        what += f"; add it as kernelmux/records/{file_stem(found.machine.name)}/perf.json"
    console.print(f"{what}; not written" if target and wrong else what, markup=False, soft_wrap=True)
    return FAILED if wrong else OK


def render(console: Console, source: Path, target: str | None, earlier: str | None) -> int:
    """Write the page of results that exist."""
    if target is None:
        raise ArgumentError("--render: expected --html FILE beside it, for the page")
    recorded, before = run_file.read(source), run_file.read(Path(earlier)) if earlier else None
    output_files.writable(Path(target), "--html", made=True)
    rows = tuple(history.seen(row) if isinstance(row, Timed) else row for row in recorded.rows)
    try:
        text = page.html(replace(recorded, rows=rows), before)
    except (ArithmeticError, LookupError, ValueError) as error:
        told = f"{type(error).__name__}: {error}"
        raise ArgumentError(f"--render: {source}: expected results of a run: {told}") from error
    output_files.write(Path(target), text)
    console.print(f"wrote {target}", markup=False, soft_wrap=True)
    return OK


def update(console: Console, path: Path) -> int:
    """Write the tables of all records between the markers of a document."""
    output_files.writable(path, "--update")
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, ValueError) as error:
        raise ArgumentError(f"--update: {path}: expected a text in UTF-8: {error}") from error
    marked = {f"<!-- {name} -->": made for name, made in TABLES.items() if f"<!-- {name} -->" in text}
    if not marked:
        raise ArgumentError(f"--update: {path} has no {' and no '.join(f'<!-- {name} -->' for name in TABLES)}")
    for begin, made in marked.items():
        end = begin.replace("!-- ", "!-- /")
        try:
            text = between(text, begin, end, made())
        except ValueError as error:
            raise ArgumentError(f"--update: {path} has no {begin} ... {end}") from error
    output_files.write(path, text)
    console.print(f"updated {path}", markup=False)
    return OK
