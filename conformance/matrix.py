"""The outcome at a glance: a row per operator and backend/variant, a column per check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernelmux.conformance import check as catalogue
from kernelmux.conformance.execute import Outcome
from kernelmux.conformance.plan import BROKEN, UNAVAILABLE

STYLES = {"passed": "green", "failed": "bold red", "skipped": "yellow", "expected": "yellow"}


@dataclass(frozen=True)
class Row:
    """One line of the matrix: outcomes by check, or why there are none."""

    op: str
    label: str
    cells: dict[str, Outcome]
    problem: Outcome | None = None


def rows(outcomes: Iterable[Outcome]) -> list[Row]:
    """Outcomes by operator and backend/variant, in the order in which they come."""
    found: dict[tuple[str, str], Row] = {}
    for outcome in outcomes:
        row = found.setdefault((outcome.item.op, outcome.item.label), Row(outcome.item.op, outcome.item.label, {}))
        row.cells[outcome.item.check] = outcome
    return [_problem(row) for row in found.values()]


def _problem(row: Row) -> Row:
    outcome = row.cells.get(UNAVAILABLE) or row.cells.get(BROKEN)
    return Row(row.op, row.label, {}, outcome) if outcome else row


def columns(found: list[Row]) -> list[str]:
    return [name for name in catalogue.names() if any(name in row.cells for row in found)]


def cell(outcome: Outcome | None, notes: list[str]) -> str:
    """Trials passed, FAIL, or a dash with the number of the note that gives the reason; empty: does not apply."""
    if outcome is None:
        return ""
    if outcome.status == "failed":
        return "FAIL"
    if outcome.status == "passed":
        return str(outcome.passed)
    if outcome.text not in notes:
        notes.append(outcome.text)
    return f"{'xfail' if outcome.status == 'expected' else '-'} {notes.index(outcome.text) + 1}"


def show(console: Console, outcomes: list[Outcome], title: str) -> None:
    """Print the matrix with its notes."""
    found, notes = rows(outcomes), list[str]()
    console.print(f"\n{title}", style="bold", highlight=False)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("", no_wrap=True)
    names = columns(found)
    for name in names:
        table.add_column(catalogue.check(name).column, justify="right", no_wrap=True)
    op = ""
    for row in found:
        if row.op != op:
            table.add_row(Text(op := row.op, style="bold"))
        table.add_row(f"  {row.label}", *_cells(row, names, notes))
    console.print(table)
    legend = ", ".join(f"{catalogue.check(n).column} {n}" for n in names if catalogue.check(n).column != n)
    console.print(f"\ncells: trials passed; {legend}", style="dim", highlight=False)
    for number, note in enumerate(notes, 1):
        console.print(f"  - {number}: {note}", style="dim", highlight=False, markup=False)


def _cells(row: Row, names: list[str], notes: list[str]) -> list[Text]:
    if row.problem:
        return [Text(cell(row.problem, notes), style=STYLES[row.problem.status])]
    texts = [cell(row.cells.get(name), notes) for name in names]
    states = [row.cells[name].status if name in row.cells else "skipped" for name in names]
    return [Text(t, style=STYLES[s]) for t, s in zip(texts, states, strict=True)]


def markdown(outcomes: list[Outcome], title: str) -> str:
    """The matrix as a Markdown table with its notes and failures."""
    found, notes = rows(outcomes), list[str]()
    names = columns(found)
    lines = [f"## {title}", "", f"| op | backend/variant | {' | '.join(names)} |", "|---|---|" + "--:|" * len(names)]
    for row in found:
        texts = [cell(row.problem, notes)] if row.problem else [cell(row.cells.get(n), notes) for n in names]
        lines.append(f"| {row.op} | {row.label} | {' | '.join(texts)} |")
    lines += ["", "Cells hold the number of trials that passed.", ""]
    lines += [f"- `- {i}`: {note}" for i, note in enumerate(notes, 1)]
    for outcome in outcomes:
        if outcome.status == "failed":
            lines += ["", f"### FAILED {outcome.item.id}", "", "```", outcome.text, "```"]
    return "\n".join(lines) + "\n"
