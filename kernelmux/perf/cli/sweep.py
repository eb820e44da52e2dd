"""What `--sweep` and `--show-sweeps` do: run and write curves, show those on record."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from kernelmux.perf.cli import command
from kernelmux.perf.pictures import curves, figures
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.record.run_file import Results
from kernelmux.perf.report import tables
from kernelmux.perf.rows import output_files
from kernelmux.perf.rows.options import QUICK_SAMPLES, PerfOptions
from kernelmux.perf.rows.row_result import FAILED as ROW_FAILED
from kernelmux.perf.session import run as session
from kernelmux.perf.sweeps import curve as measured
from kernelmux.perf.sweeps.curve import Curve, Point
from kernelmux.perf.sweeps.grammar import parse
from kernelmux.perf.sweeps.plan import PlannedSweep, planned
from kernelmux.perf.wording import wording
from kernelmux.registry import catalog
from kernelmux.registry.cli import terminal
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.util import user_folder
from kernelmux.runner.results import folder as writable_folder

ELSEWHERE = ("aa", "compare", "html", "overhead", "quick")


def add(made: argparse.ArgumentParser) -> None:
    """The options of a sweep."""
    made.add_argument(
        "--sweep",
        nargs="+",
        action="extend",
        default=[],
        metavar="OP:AXIS=FROM..TO",
        help="time over the length of an axis: N=256..65536 (powers of two and lengths between), N=256..65536:x2,"
        " N=1000..50000:9 (so many), N=1000,50257 (these); several axes: M=N=K=256..8192",
    )
    made.add_argument(
        "--plot",
        nargs="*",
        choices=("svg", "png"),
        help="draw the sweeps, in the folder of --out (default: svg and png)",
    )
    made.add_argument(
        "--show-sweeps",
        nargs="?",
        const="",
        metavar="GPU",
        help="print recorded sweeps, draw with --plot; runs nothing",
    )


def plans(args: argparse.Namespace, options: PerfOptions) -> list[PlannedSweep]:
    """The sweeps of a command line with their rows; ArgumentError for options that do not go with them."""
    if given := [f"--{name}" for name in ELSEWHERE if getattr(args, name)]:
        raise ArgumentError(f"--sweep: expected no {', '.join(given)}, which is for single workloads")
    asked = [parse(text, options.ops[0] if len(options.ops) == 1 else None) for text in args.sweep]
    for sweep in asked:
        catalog.spec(sweep.op)
    if options.ops and (others := {sweep.op for sweep in asked} - set(options.ops)):
        raise ArgumentError(
            f"--sweep: expected operators of --op {' '.join(options.ops)}, got {', '.join(sorted(others))}"
        )
    if len({(sweep.op, sweep.axes) for sweep in asked}) < len(asked):
        raise ArgumentError("--sweep: expected each operator and axis once, as a file is named after them")
    return [planned(sweep, options, args.peers) for sweep in asked]


def rows_of(sweeps: Iterable[PlannedSweep]) -> list[Row]:
    return [row for sweep in sweeps for row in sweep.rows]


def options_for(args: argparse.Namespace, options: PerfOptions) -> PerfOptions:
    """Few samples after a rest and nothing else; torch.compile is a line wherever there is a GPU."""
    samples = args.samples or QUICK_SAMPLES
    return replace(options, samples=samples, brief=True, peers=options.device == "cuda")


def run(console: Console, sweeps: list[PlannedSweep], options: PerfOptions, args: argparse.Namespace, told: str) -> int:
    """Measure the sweeps, show and write them, and return the exit status. told: the command line without them."""
    out = writable_folder(Path(args.out), "--out")
    _check_plot(args)
    rows = rows_of(sweeps)
    with command.RowProgress(console, sum(not row.problem for row in rows)) as watch:
        (outcome,) = session.run(rows, options, watch, session.RunPlace(args.resume))
    results = command.results_of(outcome, told, options)
    if outcome.interrupted and not results.timed:
        raise KeyboardInterrupt
    command.introduce(console, results, options)
    for sweep in sweeps:
        if made := curve_of(sweep, results):
            _deliver(console, made, out, args, record=args.record and _complete(sweep, results))
    for row in results.rows:
        if style := tables.UNTIMED.get(row.status):
            console.print(f"{row.status.upper()} {row.name}: {row.error}", style=style, markup=False, soft_wrap=True)
    tables.busy(console, results.rows, ())
    tables.summary(console, results.rows, results.errors, wording.tested(results))
    if outcome.interrupted:
        return terminal.say("perf", "interrupted; what was timed is kept", terminal.INTERRUPTED)
    failed = any(row.status == ROW_FAILED for row in results.rows)
    return command.FAILED if failed or results.errors else command.OK


def show(console: Console, args: argparse.Namespace) -> int:
    """Print the recorded sweeps of a GPU, and draw them with --plot."""
    _check_plot(args)
    out = writable_folder(Path(args.out), "--out") if args.plot is not None else Path()
    own = [measured.folder_of_user()] if user_folder.folder() else []
    for known in measured.recorded(args.show_sweeps, tuple(args.op), *own):
        curves.show(console, known)
        console.print(f"{known.machine.name}, {known.date}: {known.command}", style="dim", markup=False, soft_wrap=True)
        _draw(console, known, out / measured.name_of(known), args)
    return command.OK


def curve_of(sweep: PlannedSweep, results: Results) -> Curve | None:
    """The measured points of a sweep by length, and the command that measures it alone; None if there are none."""
    mine = {row.key for row in sweep.rows}
    found = [Point(sweep.workloads[row.workload], row) for row in results.timed if row.key in mine]
    points = tuple(sorted(found, key=lambda point: point.length))
    asked = sweep.sweep
    told = f"{results.command} --sweep {asked.op}:{asked.axis}={asked.words}"
    about = (results.date, told, results.machine, results.ceilings)
    return Curve(asked.axis, sweep.shape, *about, points) if points else None


def _complete(sweep: PlannedSweep, results: Results) -> bool:
    """Whether each row that can run has ended, so that a record is not replaced by a part of one."""
    ended = {row.key for row in results.rows}
    return all(row.key in ended for row in sweep.rows)


def _deliver(console: Console, made: Curve, out: Path, args: argparse.Namespace, record: bool) -> None:
    console.print()
    curves.show(console, made)
    path = out / f"sweep-{made.stem}.csv"
    output_files.write(path, measured.text(made))
    console.print(f"wrote {path}", markup=False, soft_wrap=True)
    _draw(console, made, path.with_suffix(""), args)
    if record:
        path = measured.record(made, None if args.into_checkout else measured.folder_of_user())
        console.print(f"recorded: {path}", markup=False, soft_wrap=True)
    elif args.record:
        console.print("not recorded: it is not complete", style="yellow")


def _draw(console: Console, made: Curve, path: Path, args: argparse.Namespace) -> None:
    if args.plot is not None:
        names = ", ".join(map(str, curves.draw(made, path, args.plot or curves.FORMATS)))
        console.print(f"drew {names}", markup=False, soft_wrap=True)


def _check_plot(args: argparse.Namespace) -> None:
    if args.plot is not None and not figures.available():
        raise ArgumentError(
            "--plot: matplotlib is not installed; pip install matplotlib, or leave out --plot for the CSV"
        )
