"""The outcome in full: a row per operator and backend/variant, a column per check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernelmux.conformance import check as catalogue
from kernelmux.conformance.session.execute import Outcome
from kernelmux.conformance.session.plan import BROKEN, UNAVAILABLE

WORSE = ("skipped", "passed", "expected", "failed")
STYLES = {"passed": "green", "failed": "bold red", "skipped": "yellow", "expected": "yellow"}


@dataclass(frozen=True)
class MatrixRow:
    """One line of the matrix: outcomes by check, or why there are none."""

    op: str
    label: str
    cells: dict[str, Outcome]
    problem: Outcome | None = None

    @property
    def backend(self) -> str:
        """The backend, on its card where there are several."""
        first = self.problem or next(iter(self.cells.values()))
        return first.on_card(first.item.backend)


def rows(outcomes: Iterable[Outcome]) -> list[MatrixRow]:
    """Outcomes by operator and backend/variant, in the order in which they come; those of several seeds as one."""
    found: dict[tuple[str, str], MatrixRow] = {}
    for outcome in outcomes:
        where = outcome.item.op, outcome.label
        row = found.setdefault(where, MatrixRow(*where, {}))
        known = row.cells.get(outcome.item.check)
        row.cells[outcome.item.check] = outcome if known is None else _merged(known, outcome)
    return [_problem(row) for row in found.values()]


def _merged(first: Outcome, second: Outcome) -> Outcome:
    """Two seeds of one item: the worse status with its text, and all trials."""
    worse = max(first, second, key=lambda o: WORSE.index(o.status))
    return replace(worse, seconds=first.seconds + second.seconds, records=[*first.records, *second.records])


def _problem(row: MatrixRow) -> MatrixRow:
    outcome = row.cells.get(UNAVAILABLE) or row.cells.get(BROKEN)
    return MatrixRow(row.op, row.label, {}, outcome) if outcome else row


def columns(found: list[MatrixRow]) -> list[str]:
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


def show(console: Console, outcomes: list[Outcome]) -> None:
    """Print the matrix with its notes, in several tables one below the other where one is too wide."""
    found, notes = rows(outcomes), list[str]()
    names = columns(found)
    texts = [_cells(row, names, notes) for row in found]
    console.print()
    for part in _parts(found, names, texts, console.width):
        console.print(_table(found, names, texts, part))
        console.print()
    _legend(console, [catalogue.check(n).column for n in names], names, notes)


def _parts(found: list[MatrixRow], names: list[str], texts: list[list[Text]], width: int) -> list[list[int]]:
    """The columns of each table, so that none is wider than the console."""
    label = max((len(row.label) + 3 for row in found), default=0)
    parts, used = [list[int]()], label
    for i, name in enumerate(names):
        cells = (len(row_texts[i]) for row, row_texts in zip(found, texts, strict=True) if not row.problem)
        need = max(len(catalogue.check(name).column), *cells, 0) + 1
        if used + need > width and parts[-1]:
            parts.append([])
            used = label
        parts[-1].append(i)
        used += need
    return parts


def _table(found: list[MatrixRow], names: list[str], texts: list[list[Text]], part: list[int]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("", overflow="fold")
    for i in part:
        table.add_column(catalogue.check(names[i]).column, justify="right", no_wrap=True)
    op = ""
    for row, cells in zip(found, texts, strict=True):
        if row.op != op:
            table.add_row(Text(op := row.op, style="bold"))
        shown = cells if row.problem else [cells[i] for i in part]
        table.add_row(f"  {row.label}", *shown)
    return table


def _legend(console: Console, heads: list[str], names: list[str], notes: list[str]) -> None:
    """What the cells, the headers and the numbers mean."""
    short = [f"{head} {name}" for head, name in zip(heads, names, strict=True) if head != name]
    console.print("; ".join(["cells: trials passed", *([", ".join(short)] if short else [])]), style="dim")
    for number, note in enumerate(notes, 1):
        console.print(f"  - {number}: {note}", style="dim", highlight=False, markup=False)


def _cells(row: MatrixRow, names: list[str], notes: list[str]) -> list[Text]:
    if row.problem:
        return [Text(cell(row.problem, notes), style=STYLES[row.problem.status])]
    texts = [cell(row.cells.get(name), notes) for name in names]
    states = [row.cells[name].status if name in row.cells else "skipped" for name in names]
    return [Text(t, style=STYLES[s]) for t, s in zip(texts, states, strict=True)]


def markdown(outcomes: list[Outcome]) -> str:
    """The matrix as a Markdown table with its notes and failures."""
    found, notes = rows(outcomes), list[str]()
    names = columns(found)
    lines = [f"| op | backend/variant | {' | '.join(names)} |", "|---|---|" + "--:|" * len(names)]
    for row in found:
        texts = [cell(row.problem, notes)] if row.problem else [cell(row.cells.get(n), notes) for n in names]
        lines.append(f"| {row.op} | {row.label} | {' | '.join(texts)} |")
    lines += ["", "Cells hold the number of trials that passed.", ""]
    lines += [f"- `- {i}`: {note}" for i, note in enumerate(notes, 1)]
    for outcome in outcomes:
        if outcome.status == "failed":
            lines += ["", f"### FAILED {outcome.id}", "", "```", outcome.text, "```"]
    return "\n".join(lines) + "\n"
