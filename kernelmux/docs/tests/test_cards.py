"""The table of cards in README.md follows the record of the sweep and the verified ledger."""

from __future__ import annotations

from typing import Any

import pytest

from kernelmux.conformance.fits import calls, record
from kernelmux.conformance.fits.judge import OUTCOMES
from kernelmux.docs import cards
from kernelmux.docs.families import by_family
from kernelmux.registry import elsewhere

FAMILY = "Moving data"
OPS = by_family(elsewhere.own())[FAMILY]


def entry(card: str, op: str, backend: str, stale: bool = False, **counts: int) -> record.OperatorFits:
    found: dict[str, Any] = {"calls": {"fp32": [counts.get(o.replace(" ", "_"), 0) for o in OUTCOMES]}}
    return record.entry(card, f"{op}/{backend}", found, stale)


def column(monkeypatch: pytest.MonkeyPatch, found: list[record.OperatorFits]) -> dict[str, str]:
    """What the table says of a family, by the first card of a row."""
    monkeypatch.setattr(record, "entries", lambda: iter(found))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in cards.matrix().splitlines() if "|" in line]
    place = rows[0].index(FAMILY)
    return {row[0].partition(",")[0]: row[place] for row in rows[2:]}


def every(card: str, stale: bool = False, **counts: int) -> list[record.OperatorFits]:
    return [entry(card, op, backend, stale, **counts) for op in OPS for backend in ("auto", "cuda", "triton")]


def test_a_family_is_asked_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    told = column(monkeypatch, [*every("t4", fits=2), *every("a100", fits=1)[3:]])
    assert told["T4"] == "fits" and told["A100"] == told["GB10"] == "not asked"
    assert len(told) == len(calls.CARDS) and "RTX 4090" in told


def test_what_is_wrong_refused_stale_or_verified_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [*every("t4", refused=2), *every("a100", fits=1, does_not_fit=1), *every("b200", fits=1, stale=True)]
    monkeypatch.setattr(cards, "_verified", lambda sm: frozenset(OPS[:1] if sm == "sm_103" else OPS * (sm == "sm_90")))
    told = column(monkeypatch, [*found, *every("h100", fits=1), *every("b300", fits=1)])
    assert told["T4"].startswith(f"fits; not `{OPS[0]}` fp32") and told["A100"] == f"{3 * len(OPS)} do not fit"
    assert told["B200"] == "fits, stale" and told["H100"] == "verified"
    assert told["B300"] == f"1 of {len(OPS)} verified, others fit"


def test_a_page_with_the_markers_gets_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "entries", lambda: iter(()))
    page = cards.filled(f"before\n{cards.BEGIN}\n{cards.END}\nafter\n")
    assert page.startswith(f"before\n{cards.BEGIN}\n|") and page.endswith(f"{cards.END}\nafter\n")
    assert cards.filled("nothing") == "nothing"
