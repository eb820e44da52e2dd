"""`--against`: opens the trees, compares them, shows and writes the verdicts; the exit status says if a row is slower."""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kernelmux.perf.against import trees, verdict_text
from kernelmux.perf.against.comparison import TreeComparison, compare
from kernelmux.perf.against.session import ROUNDS, Setup
from kernelmux.perf.against.verdict import AMBIGUOUS, FAILED, FASTER, FEWEST, SAME, SLOWER, Judged
from kernelmux.perf.planning import plan
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.rows import output_files
from kernelmux.perf.rows.codec import encode
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.registry.cli import terminal
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.util.files import json_rows
from kernelmux.runner.results import folder as writable_folder

OK, WORSE, NOTHING = 0, 1, 3
ALONE = (
    "aa",
    "peers",
    "overhead",
    "record",
    "compare",
    "html",
    "render",
    "show",
    "update",
    "list",
    "samples",
    "jobs",
    "sweep",
    "rest",
)


class Progressing:
    """A bar with the time that is left in a terminal, a line per row elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console, self.began, self.done, self.total = console, time.monotonic(), 0, 0
        self.bar = Progress(
            TextColumn("against"),
            BarColumn(24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[last]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("rows", total=None, last="starting")

    def __enter__(self) -> Progressing:
        self.bar.start()
        return self

    def __exit__(self, *details: object) -> None:
        self.bar.stop()

    def expect(self, rows: int, again: bool) -> None:
        self.began, self.done, self.total = time.monotonic(), 0, rows
        self.bar.reset(self.task, total=rows, last="again, in new processes" if again else "starting")
        if again and not self.console.is_terminal:
            self.console.print(f"{rows} changed: once more, in new processes", highlight=False)

    def begin(self, row: Row) -> None:
        self.bar.update(self.task, last=row.name)

    def end(self, judged: Judged) -> None:
        self.done += 1
        self.bar.update(self.task, advance=1)
        if not self.console.is_terminal:
            left = (time.monotonic() - self.began) / self.done * (self.total - self.done)
            text = f"{verdict_text.line(judged)} ({self.done} of {self.total}, about {left:.0f} s left)"
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def run(console: Console, options: PerfOptions, args: argparse.Namespace, command: str) -> int:
    """Compare this tree with another one and return the exit status; ArgumentError before the work for wrong options."""
    _check(args)
    plan.rows(options)  # for its errors
    folder = writable_folder(Path(args.out))
    with terminable(), trees.opened(args.against, trees.here()) as base:
        setup = Setup(base, trees.here(), options.device, options.row_limit, args.rounds or ROUNDS)
        with Progressing(console) as watch:
            found = compare(setup, options, args.all, command, folder, watch, args.resume)
    verdict_text.show(console, found)
    _write(console, found, folder)
    return status(found)


def _check(args: argparse.Namespace) -> None:
    for name in ALONE:
        if getattr(args, name) not in (None, False, []):
            raise ArgumentError(f"--against: times rows in a way of its own; leave out --{name}")
    if args.rounds is not None and args.rounds < FEWEST:
        raise ArgumentError(f"--rounds: expected at least {FEWEST}, for 99 % confidence, got {args.rounds}")


@contextmanager
def terminable() -> Iterator[None]:
    """Inside, a polite request to end, as a CI sends it, is Ctrl-C: work trees and processes are removed."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _write(console: Console, found: TreeComparison, folder: Path) -> None:
    told = {"kind": "kernelmux.perf.against", "schema": 1, **encode(found)}
    output_files.write(folder / "against.json", json_rows(told) + "\n")
    output_files.write(folder / "against.md", verdict_text.markdown(found))
    console.print(f"verdicts: {folder}/against.md, against.json; logs/", markup=False, soft_wrap=True)


def status(found: TreeComparison) -> int:
    """The exit status of a comparison."""
    if found.interrupted:
        return terminal.say("perf", "interrupted; the rows that were judged are kept", terminal.INTERRUPTED)
    if found.having(SLOWER, FAILED):
        return WORSE
    return OK if found.equal or found.having(SAME, FASTER, AMBIGUOUS) else NOTHING
