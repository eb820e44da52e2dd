"""The report as one HTML page: marks, matrix, operators, each failing case with its bound and a map of its errors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmux.conformance import check as catalogue
from kernelmux.conformance.failures import error_heatmap, failure_bundle
from kernelmux.conformance.failures.error_heatmap import ErrorMap
from kernelmux.conformance.judging.trial_outcome import Record
from kernelmux.conformance.options import Options
from kernelmux.conformance.report import artifacts, board, causes, matrix, not_reached, trials_left_out
from kernelmux.conformance.report.causes import FailureCause
from kernelmux.conformance.report.matrix import MatrixRow
from kernelmux.conformance.session import worker_facts
from kernelmux.conformance.session.execute import Outcome
from kernelmux.conformance.session.tested_backends import Tested
from kernelmux.registry import catalog
from kernelmux.registry.util import html_pages

TEMPLATE = Path(__file__).with_name("page.html")
CASES = 4  # failing cases of an item that are shown in full
ITEMS = 200  # failing items that are shown in full
BLOCK = 15  # rows of marks, beside the next block where there is room
BOUND = re.compile(r"^bound = (?P<total>\S+) = (?P<terms>.*?)\s+\[(?P<how>.*)\]$")
LABEL = re.compile(r"^(worst|first|pattern|poison|tensors|reproduce)[: ]\s*(.*)")


@dataclass(frozen=True)
class Term:
    """A term of a bound: its name, its value, its share of the whole in percent."""

    name: str
    value: str
    percent: float


@dataclass(frozen=True)
class FailedCase:
    """A failing case: its first line, (label, text) for what follows, the terms of its bound and what they come from."""

    head: str
    facts: list[tuple[str, str]]
    more: list[str]
    total: str
    terms: list[Term]
    how: str
    map: ErrorMap | None
    output: str


def html(chosen: Options, outcomes: list[Outcome], told: Tested, title: str, usage: str = "") -> str:
    """The text of the page of a run. usage: of its workers."""
    context = {"title": title, "tested": told, **_marks(outcomes), **_context(chosen, outcomes)}
    context["facts"] += [("workers", usage)] if usage else []
    return html_pages.rendered(TEMPLATE, context, {})


def _marks(outcomes: list[Outcome]) -> dict[str, Any]:
    """Operator x backend, in blocks of so many rows."""
    found = board.of(outcomes)
    return {
        "board": found,
        "blocks": board.in_parts(list(found.marks), BLOCK),
        "marks": board.MARKS,
        "means": [(mark, board.MEANS[mark]) for mark in found.occurring],
    }


def _context(chosen: Options, outcomes: list[Outcome]) -> dict[str, Any]:
    rows, notes = matrix.rows(outcomes), list[str]()
    names = matrix.columns(rows)
    failed = [o for o in outcomes if o.status == "failed"]
    shown = {o.id for o in failed[:ITEMS]}
    return {
        "counts": artifacts.counts(outcomes),
        "facts": _facts(chosen),
        "levels": error_heatmap.LEVELS,
        "columns": [(catalogue.check(n).column, f"{n}: {catalogue.check(n).summary}") for n in names],
        "rows": [_line(row, names, notes, shown) for row in rows],
        "notes": notes,
        "causes": [_cause(cause, chosen, shown) for cause in causes.of(failed)],
        "left_out": max(0, len(failed) - ITEMS),
        "not_asked": trials_left_out.lines(outcomes),
        "not_reached": not_reached.lines(chosen, outcomes),
        "ops": [_operator(op, rows, [o for o in failed if o.id in shown]) for op in _ops(rows)],
    }


def _facts(chosen: Options) -> list[tuple[str, str]]:
    asked = {"operators": chosen.ops, "backends": chosen.backends, "checks": chosen.checks, "cases": chosen.cases}
    seeds = ", ".join(map(str, chosen.seeds or (chosen.seed,)))
    told = [("tier", chosen.tier), ("seed", seeds), *((k, ", ".join(v)) for k, v in asked.items() if v)]
    return [*told, *([("implementation", chosen.impl)] if chosen.impl else []), *worker_facts.versions().items()]


def _cause(cause: FailureCause, chosen: Options, shown: set[str]) -> dict[str, Any]:
    """What failed for one reason; item: the first of them, if it is shown below."""
    first = cause.outcomes[0].id
    told = {"where": cause.where, "what": cause.what, "command": cause.command(chosen)}
    return {**told, "item": first if first in shown else ""}


def _ops(rows: Iterable[MatrixRow]) -> list[str]:
    return list(dict.fromkeys(row.op for row in rows))


def _line(row: MatrixRow, names: list[str], notes: list[str], shown: set[str]) -> dict[str, Any]:
    """A line of the matrix: cells of text, status and the item that they lead to."""
    line: dict[str, Any] = {"op": row.op, "label": row.label, "problem": None, "cells": []}
    if row.problem:
        return line | {"problem": (matrix.cell(row.problem, notes), row.problem.status)}
    found = [row.cells.get(name) for name in names]
    return line | {
        "cells": [(matrix.cell(o, notes), o.status if o else "", o.id if o and o.id in shown else "") for o in found]
    }


def _operator(op: str, rows: list[MatrixRow], failed: list[Outcome]) -> dict[str, Any]:
    """Of an operator: what it means, how much of the bound each variant uses, and its failing items."""
    own, broken = [row for row in rows if row.op == op], catalog.problem(op)
    spec = None if broken else catalog.spec(op)
    return {
        "op": op,
        "summary": spec.summary if spec else broken,
        "math": spec.math if spec else "",
        "variants": [_variant(row) for row in own if not row.problem],
        "failing": [_item(o) for o in failed if o.item.op == op],
    }


def _variant(row: MatrixRow) -> dict[str, Any]:
    cells = list(row.cells.values())
    worst = max(cells, key=lambda o: o.budget if o.status == "passed" else 0.0)
    budget = worst.budget if worst.status == "passed" else 0.0
    return {
        "label": row.label,
        "passed": sum(o.passed for o in cells),
        "failed": [o.item.check for o in cells if o.status == "failed"],
        "budget": f"{budget:.2f}" if budget else "",
        "where": worst.item.check if budget else "",
        "seconds": f"{sum(o.seconds for o in cells):.1f}",
    }


def _item(outcome: Outcome) -> dict[str, Any]:
    wrong = [r for r in outcome.records if r.status == "failed"]
    first = sorted(wrong, key=lambda r: not r.saved)[:CASES]
    whole = outcome.text.splitlines()
    return {
        "id": outcome.id,
        "cases": [_case(record) for record in first],
        "text": "" if first else outcome.text,
        "rest": len(wrong) - len(first),
        "across": next((line for line in whole if line.startswith("across the trials")), ""),
    }


def _case(record: Record) -> FailedCase:
    """A record's text taken apart: the bound as terms, labelled lines, and all others."""
    head, *lines = [line.strip() for line in record.text.splitlines()]
    facts, more, bound = list[tuple[str, str]](), list[str](), None
    for line in lines:
        if found := BOUND.match(line):
            bound = found
        elif labelled := LABEL.match(line):
            facts.append((labelled[1], labelled[2]))
        elif line:
            more.append(line)
    total, terms, how = (bound["total"], _terms(bound), bound["how"]) if bound else ("", [], "")
    kept = failure_bundle.load(record.saved) if record.saved else None
    return FailedCase(
        head, facts, more, total, terms, how, error_heatmap.draw(*kept[1:]) if kept else None, kept[0] if kept else ""
    )


def _terms(found: re.Match[str]) -> list[Term]:
    pairs = [term.split(" ", 1) for term in found["terms"].split(" + ") if term]  # a bound of 0 has none
    whole = sum(float(value) for value, _ in pairs) or 1.0
    return [Term(name, value, 100 * float(value) / whole) for value, name in pairs]
