"""The command line: runs the catalogue and prints what full mode notices."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kernelmux.emulator import nvrtc
from kernelmux.emulator.validation.defects.catalogue import defects, has_triton
from kernelmux.emulator.validation.defects.model import Defect
from kernelmux.emulator.validation.defects.running import DefectRunner, DefectVerdict
from kernelmux.emulator.validation.progress import bar

OK, FAILED, USAGE = 0, 1, 2
STYLES = {"caught": "green", "blind": "yellow", "lost": "bold red", "stale": "bold red", "false alarm": "bold red"}
NARROW = 120  # columns, where the output is no terminal

EPILOG = """
Every kernel also runs without its defect, and must pass. Exit status: 0 all is as the catalogue says, 1 a defect is no
longer reported (lost), a right kernel is reported (false alarm) or a known blind spot is reported now (stale), 2 usage
error.
"""


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        prog="python -m kernelmux.emulator.validation.defects",
        description="Runs kernels with planted defects on the emulator with full checks, and shows what it reports.",
        epilog=EPILOG,
    )
    made.add_argument("--family", action="append", default=[], metavar="TEXT", help="families whose name contains TEXT")
    made.add_argument("--only", action="append", default=[], metavar="NAME", help="defects of this name")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes to FILE as well")
    made.add_argument("--list", action="store_true", help="name the defects and what is wrong; runs nothing")
    return made


def chosen(args: argparse.Namespace) -> list[Defect]:
    """The defects that were asked for."""
    every = defects()
    unknown = [name for name in args.only if name not in {defect.name for defect in every}]
    if unknown:
        raise LookupError(f"no defect is called {', '.join(unknown)} (--list names all)")
    wanted = [d for d in every if not args.only or d.name in args.only]
    wanted = [d for d in wanted if not args.family or any(text.lower() in d.family.lower() for text in args.family)]
    if not wanted:
        families = sorted({defect.family for defect in every})
        raise LookupError(f"no defect fits; the families are: {', '.join(families)}")
    return wanted


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    warnings.filterwarnings("ignore", "TRITON_DEFAULT_FP_FUSION is unset")  # the kernels here do not depend on it
    args = parser().parse_args(arguments)
    console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=NARROW)
    try:
        selected = chosen(args)
    except LookupError as error:
        print(f"defects: {error}", file=sys.stderr)
        return USAGE
    if args.list:
        console.print(_contents(selected))
        return OK
    if (reason := nvrtc.unavailable()) is not None:
        print(f"defects: {reason}", file=sys.stderr)
        return USAGE
    outcomes = _run(selected)
    console.print(_table(outcomes))
    console.print(_totals(outcomes), style="bold")
    if not has_triton():
        console.print("Triton is not installed: its families were left out")
    if args.json:
        args.json.write_text(json.dumps([_record(outcome) for outcome in outcomes], indent=1) + "\n")
    return OK if all(outcome.good for outcome in outcomes) else FAILED


def _run(selected: list[Defect]) -> list[DefectVerdict]:
    judge, outcomes = DefectRunner(), list[DefectVerdict]()
    with bar() as progress:
        task = progress.add_task("defects", total=len(selected))
        for defect in selected:
            progress.update(task, description=escape(defect.name))
            outcomes.append(judge(defect))
            progress.advance(task)
    return outcomes


def _contents(selected: list[Defect]) -> Table:
    table = Table("family", "defect", "what is wrong", "on a GPU")
    for family, defect in _by_family(selected):
        table.add_row(family, defect.name, escape(defect.wrong), escape(defect.gpu))
    return table


def _by_family(selected: list[Defect]) -> list[tuple[str, Defect]]:
    """The family is named once."""
    first = {defect.family: defect for defect in reversed(selected)}
    return [(defect.family if first[defect.family] is defect else "", defect) for defect in selected]


def _table(outcomes: list[DefectVerdict]) -> Table:
    table = Table("family", "defect", "result", "what full mode says")
    rows = zip(_by_family([outcome.defect for outcome in outcomes]), outcomes, strict=True)
    for (family, defect), outcome in rows:
        style = STYLES[outcome.state]
        table.add_row(family, defect.name, f"[{style}]{outcome.state}[/]", escape(_said(outcome)))
    return table


def _said(outcome: DefectVerdict) -> str:
    if outcome.state == "blind":
        return f"nothing: {outcome.defect.blind}"
    if outcome.state != "lost":
        return outcome.text
    lines = f" at line {' or '.join(map(str, outcome.defect.lines))}" if outcome.defect.lines else ""
    return f"{outcome.text} (expected: {' or '.join(outcome.defect.kinds) or 'a wrong result'}{lines})"


def _totals(outcomes: list[DefectVerdict]) -> str:
    count = {state: sum(outcome.state == state for outcome in outcomes) for state in STYLES}
    text = ", ".join(f"{count[state]} {state}" for state in ("caught", "blind", "lost"))
    extra = {"stale": "known blind spots that are reported now", "false alarm": "false alarms"}
    return text + "".join(f", {count[state]} {name}" for state, name in extra.items() if count[state])


def _record(outcome: DefectVerdict) -> dict[str, object]:
    defect, error = outcome.defect, outcome.broken.error
    return {
        "family": defect.family,
        "defect": defect.name,
        "wrong": defect.wrong,
        "gpu": defect.gpu,
        "state": outcome.state,
        "by": "error" if error is not None else "result" if outcome.broken.difference else None,
        "kind": error.kind if error is not None else None,
        "line": error.line if error is not None else None,
        "text": outcome.text,
    }
