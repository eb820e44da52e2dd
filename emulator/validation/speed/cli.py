"""The command line: times launches of this emulator, alone or against another implementation."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from kernelmux.emulator.compilers import nvrtc
from kernelmux.emulator.settings import LEVELS
from kernelmux.emulator.validation.progress import bar
from kernelmux.emulator.validation.speed import cases, implementations, report
from kernelmux.emulator.validation.speed.cases import Case
from kernelmux.emulator.validation.speed.implementations import Side
from kernelmux.emulator.validation.speed.measuring import Times, measure

OK, WRONG, USAGE = 0, 1, 2
NARROW = 110  # columns, where the output is no terminal

EPILOG = """
FOLDER holds ptxemu.py with RawKernel(source, name, mode=, arch=)(grid, block, arguments, shared_mem=, out=), cases.py
with a dictionary `cases` like the one of kernelmux.emulator.validation.speed.cases, and kernels/*.cu. Its Python files are
executed. Both sides run the same cases in turns; the first run of each compiles and is kept apart. Exit status: 0 all
results are right, 1 some are wrong, 2 usage error.
"""


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        prog="python -m kernelmux.emulator.validation.speed",
        description="Times launches on the emulator, in fast and in full mode; best of several, compiled before.",
        epilog=EPILOG,
    )
    made.add_argument("--against", type=Path, metavar="FOLDER", help="compare with the implementation in FOLDER")
    made.add_argument("--only", action="append", default=[], metavar="CASE", help="cases of this name")
    made.add_argument("--repeat", type=int, default=5, metavar="N", help="timed runs of each case, 5 by default")
    made.add_argument("--json", type=Path, metavar="OUT", help="write the figures to OUT as well")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    args = parser().parse_args(given)
    console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=NARROW)
    try:
        every, kernels, sides = _what(args.against)
        selected = _selected(every, args.only)
        if args.repeat < 1:
            raise LookupError(f"--repeat {args.repeat}: at least 1 is needed")
    except (OSError, ImportError, LookupError, AttributeError) as error:
        print(f"speed: {error}", file=sys.stderr)
        return USAGE
    if (reason := nvrtc.unavailable()) is not None:
        print(f"speed: {reason}", file=sys.stderr)
        return USAGE
    times = _run(selected, kernels, sides, args.repeat)
    record = report.record(
        times, f"python -m kernelmux.emulator.validation.speed {_named(given)}".rstrip(), args.repeat
    )
    console.print(report.table(record))
    _say(console, times)
    if args.json:
        args.json.write_text(report.text(record))
    return WRONG if any(each.wrong for each in times) else OK


def _what(folder: Path | None) -> tuple[dict[str, Case], Path, list[Side]]:
    """The cases, the folder of their kernels, and the emulators that run them."""
    if folder is None:
        return cases.cases, cases.KERNELS, [implementations.ours()]
    theirs = implementations.other(implementations.module(folder / "ptxemu.py"))
    their_cases: dict[str, Case] = implementations.module(folder / "cases.py").cases
    return their_cases, folder / "kernels", [theirs, implementations.ours()]


def _selected(every: dict[str, Case], only: list[str]) -> dict[str, Case]:
    if unknown := [name for name in only if name not in every]:
        raise LookupError(f"no case is called {', '.join(unknown)}; there are {', '.join(every)}")
    return {name: case for name, case in every.items() if not only or name in only}


def _named(given: Sequence[str]) -> str:
    """The arguments without the folders of this machine."""
    return shlex.join(Path(text).name if Path(text).is_absolute() else text for text in given)


def _run(selected: dict[str, Case], kernels: Path, sides: list[Side], repeat: int) -> list[Times]:
    times: list[Times] = []
    with bar() as progress:
        task = progress.add_task("speed", total=len(selected) * len(LEVELS))
        for name, case in selected.items():
            for mode in LEVELS:
                progress.update(task, description=escape(f"{name}, {mode}"))
                times += measure(name, case, mode, kernels, sides, repeat)
                progress.advance(task)
    return times


def _say(console: Console, times: list[Times]) -> None:
    for each in times:
        if each.wrong:
            text = f"{each.implementation}, {each.case}, {each.mode}: {each.wrong}"
            console.print(text, style="red", markup=False)
    for side in dict.fromkeys(each.implementation for each in times):
        first = sum(each.first for each in times if each.implementation == side)
        console.print(f"compiling and the first launches, {side}: {first:.1f} s")
