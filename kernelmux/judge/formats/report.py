"""Rows of many tasks as a table, as JSON and as JUnit XML."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from kernelmux.judge.formats.survey import EMPTY, FAILED, OK, OUT, TaskRow
from kernelmux.registry.util import files

MARKS = {OK: "✓", FAILED: "✗", OUT: "-", EMPTY: "○"}
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


def write_json(path: Path, rows: Sequence[TaskRow]) -> None:
    """The rows as a JSON array of objects with the fields of `TaskRow`."""
    files.write(path, json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def write_junit(path: Path, rows: Sequence[TaskRow], seconds: float) -> None:
    """The rows as JUnit XML: a case per task, of its format's class; one out of scope is skipped."""
    from junitparser import Failure, JUnitXml, Skipped, TestCase, TestSuite

    suite = TestSuite("judge")
    for row in rows:
        case = TestCase(_lawful(row.task), row.format, row.seconds)
        if row.status == OUT:
            case.result = Skipped(_lawful(row.reason))
        elif row.status != OK:
            case.result = Failure(_lawful(f"{row.status}: {row.reason}"))
        suite.add_testcase(case)
    suite.time = round(seconds, 3)
    whole = JUnitXml()
    whole.add_testsuite(suite)
    whole.write(str(path), pretty=True)


def _lawful(text: str) -> str:
    return UNLAWFUL.sub("?", text)
