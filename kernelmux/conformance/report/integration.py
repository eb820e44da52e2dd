"""The table of the check `integration`: a row per operator, a column per way of torch, how many answers were equal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernelmux.conformance.session.execute import Outcome
from kernelmux.conformance.variations.torch_ways import NO_GRADIENT, STATIC, WAYS

CHECK = "integration"
NOTHING = "-"


@dataclass
class Cell:
    """What was asked of an operator in one way, on all backends. lacks: STATIC, NO_GRADIENT. reasons: of what was not."""

    equal: int = 0
    differ: int = 0
    lacks: set[str] = field(default_factory=set)
    reasons: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        if not self.equal and not self.differ:
            return "no module" if self.reasons == {"no module"} else NOTHING
        told = " ".join([str(self.equal), *sorted(self.lacks)])
        return f"{self.differ} DIFFER, {told}" if self.differ else told


def cells(outcomes: Iterable[Outcome]) -> dict[str, dict[str, Cell]]:
    """By operator and way, of the items of the check; {} if there is none."""
    found: dict[str, dict[str, Cell]] = {}
    for outcome in outcomes:
        if outcome.item.check != CHECK:
            continue
        row = found.setdefault(outcome.item.op, {name: Cell() for name in WAYS})
        for record in outcome.records:
            if record.note not in row:
                continue
            cell, failed = row[record.note], record.status == "failed"
            cell.differ += failed
            cell.equal += record.assertions - (failed and record.assertions > 0)
            cell.lacks |= {
                known for known in (STATIC, NO_GRADIENT) for text in record.remarks if text.startswith(known)
            }
            cell.reasons |= {record.text} if record.status == "skipped" else set()
    return {op: row for op, row in found.items() if any(cell.equal or cell.differ for cell in row.values())}


def totals(found: dict[str, dict[str, Cell]]) -> list[str]:
    """A line per way: how many answers were equal, and how many differ."""
    columns = {name: [row[name] for row in found.values()] for name in WAYS}
    return [
        f"{name}: {sum(c.equal for c in own)} equal, {sum(c.differ for c in own)} differ,"
        f" {sum(bool(c.equal or c.differ) for c in own)} operators"
        for name, own in columns.items()
    ]


def show(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Print the table and its totals; nothing where the check did not run."""
    if not (found := cells(outcomes)):
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("answers that are equal")
    for name in WAYS:
        table.add_column(name, justify="right", no_wrap=True)
    for op, row in found.items():
        texts = [Text(str(row[name]), style="bold red" if row[name].differ else "") for name in WAYS]
        table.add_row(op, *texts)
    console.print()
    console.print(table)
    console.print("; ".join(totals(found)), style="dim", highlight=False, soft_wrap=True)


def markdown(outcomes: Sequence[Outcome]) -> str:
    """The same in Markdown, "" where the check did not run."""
    if not (found := cells(outcomes)):
        return ""
    lines = [f"| operator | {' | '.join(WAYS)} |", "|---|" + "--:|" * len(WAYS)]
    lines += [f"| {op} | {' | '.join(str(row[name]) for name in WAYS)} |" for op, row in found.items()]
    return "\n".join([*lines, "", *(f"- {line}" for line in totals(found))])
