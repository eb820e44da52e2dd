"""Rows of many tasks, and verdicts on their solutions, as a table, as JSON and as JUnit XML."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import JustifyMethod
from rich.markup import escape
from rich.table import Table

from kernelmux.candidate import sandbox
from kernelmux.judge.formats.bounds.expected import EQUAL, ESTIMATED, OWN
from kernelmux.judge.formats.judging import MISSING, PASSED, REFUSED, UNJUDGED, TaskVerdict
from kernelmux.judge.formats.reference.survey import EMPTY, FAILED, OK, OUT, TaskRow
from kernelmux.registry.util import files
from kernelmux.runner import worker

MARKS = {OK: "✓", PASSED: "✓", FAILED: "✗", REFUSED: "✗", OUT: "-", EMPTY: "○", UNJUDGED: "○", MISSING: "·"}
UNLAWFUL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML 1.0


def table(rows: Sequence[TaskRow]) -> Table:
    """A line per task: mark, name, what judges it, bytes of its inputs, share of the bound, and what is to be said."""
    made = Table(box=None, pad_edge=False)
    for name, justify in (
        ("", "left"),
        ("task", "left"),
        ("judged by", "left"),
        ("inputs", "right"),
        ("bound", "right"),
    ):
        made.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    made.add_column("", overflow="fold")
    for row in rows:
        used = "" if row.budget is None else f"{row.budget:.2f}"
        said = "; ".join(filter(None, (row.reason, row.note)))
        made.add_row(MARKS[row.status], row.task, row.judged, size(row.size) if row.size else "", used, said)
    return made


def size(count: int) -> str:
    """Bytes with three digits: 1.57 GB."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.3g} {unit}"
        count /= 1000  # type: ignore[assignment]
    raise AssertionError


def counts(rows: Sequence[TaskRow]) -> str:
    """The last line: how many were found, and what became of them."""
    by = Counter(row.status for row in rows)
    run = [row for row in rows if row.status in (OK, EMPTY)]
    own = sum(row.judged not in ("differential", "the task's own check", "") for row in run)
    differential = sum(row.judged == "differential" for row in run)
    checked = len(run) - own - differential
    parts = [
        f"{len(rows)} tasks",
        f"{len(run)} run: {own} by a spec, {differential} differentially, {checked} by their own check",
        f"{by[EMPTY]} of them tell nothing" if by[EMPTY] else "",
        f"{by[OUT]} out of scope" if by[OUT] else "",
        f"{by[FAILED]} failed" if by[FAILED] else "",
    ]
    return "; ".join(filter(None, parts))


def verdicts(rows: Sequence[TaskVerdict], folder: Path) -> Table:
    """A line per solution: mark, task, file, what judged it, trials that passed, worst error over its bound, status.

    folder: of the solutions; their files are named from there.
    """
    made = Table(box=None, pad_edge=False)
    for name in ("", "task", "solution", "judged by", "trials", "worst / bound", "status"):
        justify: JustifyMethod = "right" if name in ("trials", "worst / bound") else "left"
        made.add_column(name, justify=justify, overflow="fold", no_wrap=name not in ("task", "solution"))
    made.add_column("", overflow="fold")
    for row in rows:
        path, home = Path(row.solution), folder.expanduser().absolute()
        shown = str(path.relative_to(home)) if home in path.parents else path.name
        worst = "" if row.worst is None else f"{row.worst:.2g}"
        said = "; ".join(filter(None, (row.reason, *row.remarks)))
        cells = (row.task, shown, row.judged, str(row.trials or ""), worst, row.status, said)
        made.add_row(MARKS[row.status], *map(escape, cells))
    return made


def verdict_counts(rows: Sequence[TaskVerdict]) -> str:
    """The last line: how many solutions passed, by which bound, and what became of the others."""
    by, bounds = Counter(row.status for row in rows), Counter(row.judged for row in rows if row.status == PASSED)
    special = {name: bounds.pop(name, 0) for name in (ESTIMATED, EQUAL, OWN)}
    parts = {"by a spec": sum(bounds.values()), **{f"by {name}": n for name, n in special.items()}}
    names = {f"by {ESTIMATED}": "by an estimated bound", f"by {EQUAL}": "as equal", f"by {OWN}": f"by {OWN}"}
    how = ", ".join(f"{n} {names.get(name, name)}" for name, n in parts.items() if n)
    first = f"{by[PASSED]} of {len(rows)} passed" + (f" ({how})" if how else "")
    return ", ".join([first, *(f"{by[s]} {s}" for s in (FAILED, REFUSED, MISSING, UNJUDGED, OUT) if by[s])])


def write_verdicts(path: Path, rows: Sequence[TaskVerdict], seed: int, allow: Sequence[str], limit: int) -> None:
    """The verdicts as a JSON object, with what repeats them."""
    told = [{**asdict(row), "worst": "inf" if row.worst == float("inf") else row.worst} for row in rows]
    head = {"schema": 1, "suite": worker.version(), "seed": seed, "allow": list(allow), "limit": limit}
    files.write(path, json.dumps({**head, "not_held": sandbox.not_held(), "verdicts": told}, indent=1) + "\n")


def write_json(path: Path, rows: Sequence[TaskRow]) -> None:
    """The rows as a JSON array of objects with the fields of `TaskRow`."""
    files.write(path, json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def write_junit(path: Path, rows: Sequence[TaskRow] | Sequence[TaskVerdict], seconds: float) -> None:
    """The rows as JUnit XML: a case for each, of its format's class; what is out of scope, or not there, is skipped."""
    from junitparser import Failure, JUnitXml, Skipped, TestCase, TestSuite

    suite = TestSuite("judge")
    for row in rows:
        name = f"{row.task} {Path(row.solution).name}".strip() if isinstance(row, TaskVerdict) else row.task
        case = TestCase(_lawful(name), row.format, row.seconds)
        if row.status in (OUT, MISSING):
            case.result = Skipped(_lawful(row.reason or row.status))
        elif row.status not in (OK, PASSED):
            case.result = Failure(_lawful(f"{row.status}: {row.reason}"))
        suite.add_testcase(case)
    suite.time = round(seconds, 3)
    whole = JUnitXml()
    whole.add_testsuite(suite)
    whole.write(str(path), pretty=True)


def _lawful(text: str) -> str:
    return UNLAWFUL.sub("?", text)
