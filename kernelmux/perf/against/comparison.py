"""A whole comparison: every row that differs, and those that changed once more in processes of their own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from kernelmux.perf.against.agenda import Agenda, agenda
from kernelmux.perf.against.session import Session, Setup
from kernelmux.perf.against.verdict import CONFIDENCE, FASTER, SLOWER, Judged, confirmed
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.rows import machine
from kernelmux.perf.rows.codec import DERIVED, decode, encode
from kernelmux.perf.rows.machine import MeasuringMachine
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.runner import results
from kernelmux.runner.results import ResultsFile
from kernelmux.runner.worker import version_of


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


AGAIN = "again:"  # before the name of a row that is timed for the second time


@dataclass
class Verdicts:
    """The rows that have been judged, by name, and the file that gets each as it comes."""

    file: ResultsFile
    known: dict[str, Judged]

    def of(self, session: Session, row: Row, before: str = "") -> Judged:
        """The verdict of a row, which is timed unless a run before this one has done it."""
        name = before + row.id
        if name not in self.known:
            self.known[name] = session.judge(row)
            self.file.append({"item": name, "row": encode(self.known[name])})
        return self.known[name]


def compare(
    setup: Setup,
    options: PerfOptions,
    everything: bool,
    command: str,
    home: Path,
    watch: ComparisonProgress,
    resume: bool = False,
) -> TreeComparison:
    """Time and judge; Ctrl-C ends it with the rows it has. BackendUnavailable for a tree that cannot be imported.

    home: the folder that gets the verdicts as they come, and what the processes print. resume: go on with those there.
    """
    judged: list[Judged] = []
    interrupted = False
    with results.opened(home, _head(setup, options, everything), resume) as (file, done):
        known = {line["item"]: decode(Judged, line["row"], line["item"]) for line in done if "item" in line}
        verdicts, logs = Verdicts(file, known), home / "logs"
        logs.mkdir(exist_ok=True)
        try:
            with Session(setup, logs) as session:
                session.greet()
                found, on = agenda(*session.rows(options), everything), session.machine()
                _all(session, found.rows, judged, verdicts, watch)
            _confirm(setup, found, judged, verdicts, logs, watch)
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


def _head(setup: Setup, options: PerfOptions, everything: bool) -> dict[str, Any]:
    """What verdicts are of: both trees as they stand, and what was asked for."""
    sources = [version_of([tree.root / "kernelmux"]) for tree in (setup.base, setup.here)]
    chosen = {name: value for name, value in options.as_dict().items() if name != "out"}
    asked = {"options": chosen, "rounds": setup.rounds, "everything": everything}
    return {"program": "perf --against", "version": " ".join(sources), "asked": asked}


def _all(
    session: Session, rows: list[Row], judged: list[Judged], verdicts: Verdicts, watch: ComparisonProgress
) -> None:
    watch.expect(len(rows), again=False)
    for row in rows:
        watch.begin(row)
        judged.append(verdicts.of(session, row))
        watch.end(judged[-1])


def _confirm(
    setup: Setup, found: Agenda, judged: list[Judged], verdicts: Verdicts, logs: Path, watch: ComparisonProgress
) -> None:
    """Time again what has changed, in new processes: where memory lies can move a time by as much as a change does."""
    doubted = [i for i, row in enumerate(judged) if row.verdict in (SLOWER, FASTER)]
    if not doubted:
        return
    for i in doubted:
        judged[i] = replace(judged[i], note="not confirmed")  # what Ctrl-C leaves
    watch.expect(len(doubted), again=True)
    with Session(setup, logs) as session:
        session.greet()
        for i in doubted:
            watch.begin(found.rows[i])
            judged[i] = confirmed(replace(judged[i], note=""), verdicts.of(session, found.rows[i], AGAIN))
            watch.end(judged[i])
