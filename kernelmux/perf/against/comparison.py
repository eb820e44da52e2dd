"""A whole comparison: every row that differs, and those that changed once more in processes of their own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import IO, Protocol

from kernelmux.perf.against.agenda import Agenda, agenda
from kernelmux.perf.against.session import Session, Setup
from kernelmux.perf.against.verdict import CONFIDENCE, FASTER, SLOWER, Judged, confirmed
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.rows import machine
from kernelmux.perf.rows.codec import DERIVED
from kernelmux.perf.rows.machine import MeasuringMachine
from kernelmux.perf.rows.options import PerfOptions


class ComparisonProgress(Protocol):
    """Sees how far a comparison is."""

    def expect(self, rows: int, again: bool) -> None:
        """So many rows follow; again: for the second time."""

    def begin(self, row: Row) -> None:
        """A row begins."""

    def end(self, judged: Judged) -> None:
        """A row has its verdict."""


@dataclass(frozen=True, kw_only=True)
class TreeComparison:
    """What came of it. base, here: the trees; equal, only_base, only_here: names of rows that were not compared.

    respecified: operators whose specs differ in the two trees. confidence: of each interval.
    """

    date: str
    command: str
    machine: MeasuringMachine
    base: str
    here: str
    confidence: float
    rows: tuple[Judged, ...]
    equal: tuple[str, ...]
    only_base: tuple[str, ...]
    only_here: tuple[str, ...]
    respecified: tuple[str, ...]
    interrupted: bool = field(default=False, metadata=DERIVED)

    def having(self, *verdicts: str) -> list[Judged]:
        """The rows with one of some verdicts."""
        return [row for row in self.rows if row.verdict in verdicts]


def compare(
    setup: Setup, options: PerfOptions, everything: bool, command: str, log: IO[str], watch: ComparisonProgress
) -> TreeComparison:
    """Time and judge; Ctrl-C ends it with the rows it has. BackendUnavailable for a tree that cannot be imported."""
    judged: list[Judged] = []
    interrupted = False
    try:
        with Session(setup, log) as session:
            found, on = agenda(*session.rows(options), everything), session.machine()
            _all(session, found.rows, judged, watch)
        _confirm(setup, found, judged, log, watch)
    except KeyboardInterrupt:
        if not judged:
            raise
        interrupted = True
    return TreeComparison(
        date=machine.today(),
        command=command,
        machine=on,
        base=setup.base.name,
        here=setup.here.name,
        confidence=CONFIDENCE,
        rows=(*found.broken, *judged),
        equal=tuple(found.equal),
        only_base=tuple(found.only_base),
        only_here=tuple(found.only_here),
        respecified=tuple(found.respecified),
        interrupted=interrupted,
    )


def _all(session: Session, rows: list[Row], judged: list[Judged], watch: ComparisonProgress) -> None:
    watch.expect(len(rows), again=False)
    for row in rows:
        watch.begin(row)
        judged.append(session.judge(row))
        watch.end(judged[-1])


def _confirm(setup: Setup, found: Agenda, judged: list[Judged], log: IO[str], watch: ComparisonProgress) -> None:
    """Time again what has changed, in new processes: where memory lies can move a time by as much as a change does."""
    doubted = [i for i, row in enumerate(judged) if row.verdict in (SLOWER, FASTER)]
    if not doubted:
        return
    for i in doubted:
        judged[i] = replace(judged[i], note="not confirmed")  # what Ctrl-C leaves
    watch.expect(len(doubted), again=True)
    with Session(setup, log) as session:
        for i in doubted:
            watch.begin(found.rows[i])
            judged[i] = confirmed(replace(judged[i], note=""), session.judge(found.rows[i]))
            watch.end(judged[i])
