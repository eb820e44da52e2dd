"""The command line: times launches of the emulator."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kernelmux.emulator import nvrtc
from kernelmux.emulator.settings import LEVELS
from kernelmux.emulator.validation.progress import bar
from kernelmux.emulator.validation.speed.cases import cases
from kernelmux.emulator.validation.speed.measuring import Times, measure

OK, WRONG, USAGE = 0, 1, 2


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        prog="python -m kernelmux.emulator.validation.speed",
        description="Times launches on the emulator, in fast and in full mode, and checks every result.",
        epilog="Exit status: 0 all results are right, 1 some are wrong, 2 usage error.",
    )
    made.add_argument("--only", action="append", default=[], metavar="CASE", help="cases of this name")
    made.add_argument("--repeat", type=int, default=5, metavar="N", help="timed runs of each case, 5 by default")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    args = parser().parse_args(arguments)
    if problem := _problem(args):
        print(f"speed: {problem}", file=sys.stderr)
        return USAGE
    console = Console(highlight=False)
    times = _run(args.only or list(cases), args.repeat)
    console.print(_table(times))
    for each in times:
        if each.wrong:
            console.print(f"{each.case}, {each.mode}: {each.wrong}", style="red", markup=False)
    console.print(f"compiling and the first launches: {sum(each.first for each in times):.1f} s")
    return WRONG if any(each.wrong for each in times) else OK


def _problem(args: argparse.Namespace) -> str | None:
    if unknown := [name for name in args.only if name not in cases]:
        return f"no case is called {', '.join(unknown)}; there are {', '.join(cases)}"
    if args.repeat < 1:
        return f"--repeat {args.repeat}: at least 1 is needed"
    return nvrtc.unavailable()


def _run(names: list[str], repeat: int) -> list[Times]:
    times: list[Times] = []
    with bar() as progress:
        task = progress.add_task("speed", total=len(names) * len(LEVELS))
        for name in names:
            for mode in LEVELS:
                progress.update(task, description=escape(f"{name}, {mode}"))
                times.append(measure(name, cases[name], mode, repeat))
                progress.advance(task)
    return times


def _table(times: list[Times]) -> Table:
    """A row for each case: the best milliseconds in each mode."""
    best = {(each.case, each.mode): f"{1e3 * min(each.each):,.1f}" for each in times if not each.wrong}
    made = Table("case")
    for mode in LEVELS:
        made.add_column(f"{mode}, ms", justify="right")
    for case in dict.fromkeys(each.case for each in times):
        made.add_row(escape(case), *(best.get((case, mode), "[bold red]wrong[/]") for mode in LEVELS))
    return made
