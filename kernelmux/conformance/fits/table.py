"""What is on record of cards, as text: `kernelmux support --cards`, and the end of a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kernelmux.conformance.fits import calls, record
from kernelmux.conformance.fits.judge import COMPILE, FAILS, FITS, GOOD, OUTCOMES, REFUSED, ROOM, TORCH
from kernelmux.conformance.fits.record import AUTO, OperatorFits
from kernelmux.registry import catalog
from kernelmux.registry.util import cards, text_tables
from kernelmux.registry.util.cards import Card

YES, NOT_ASKED = "yes", "-"
COLUMNS = {FITS: "fit", TORCH: "left to torch", REFUSED: "refused", COMPILE: COMPILE, ROOM: ROOM, FAILS: "fail"}
HEAD = "calls of each spec that compile for a card and fit on it; nothing of it ran there"
LEGEND = (
    "yes: by every backend. no bf16: the card does not have what the kernels for it need, and they say so; under backend"
    " auto torch runs such a call if it can. stale: the sources have changed since; kernelmux conformance --fits --record"
    " asks again"
)


def text(ops: Sequence[str], width: int = text_tables.WIDTH) -> str:
    """Operators and cards, then the totals and the problems."""
    found = _chosen(ops)
    shown = [card for card in calls.CARDS if any(e.card == card for e in found)]
    if not shown:
        return f"{HEAD}: nothing is on record; kernelmux conformance --fits --record asks"
    rows = [(op, *(cell(found, op, card) for card in shown)) for op in ops or catalog.usable()]
    parts = [*text_tables.wrapped(HEAD, width), "", text_tables.text(("operator", *shown), rows, width=width), ""]
    parts += [*text_tables.wrapped(LEGEND, width), *text_tables.wrapped(others(), width), "", totals(found, width)]
    return "\n".join([*parts, *problems(found, width)])


def _chosen(ops: Sequence[str]) -> list[OperatorFits]:
    return [e for e in record.entries() if not ops or e.operator in ops]


def others() -> str:
    """The cards for which another of the same capability stands."""
    asked = {cards.table()[key].capability: key for key in calls.CARDS}
    rest = [card for key, card in cards.table().items() if key not in calls.CARDS]
    return "; ".join(f"{card.key} as {asked[card.capability]}" for card in rest)


def stands_for(card: Card) -> str:
    """The name of the card that is asked in place of one: of the same capability."""
    return next(key for key in calls.CARDS if cards.table()[key].capability == card.capability)


def cell(found: Iterable[OperatorFits], op: str, card: str) -> str:
    """What a card makes of an operator: YES, or what is refused or wrong, by backend where they differ."""
    own = [e for e in found if (e.operator, e.card) == (op, card)]
    if not own:
        return NOT_ASKED
    told = {e.backend: _faults(e) for e in own if e.backend != AUTO}
    if len(set(told.values())) == 1:
        lines = [next(iter(told.values())) or YES]
    else:
        lines = [f"{name}: {says}" for name, says in told.items() if says]
    lines += [f"{AUTO}: {says}" for e in own if e.backend == AUTO and (says := _wrong(e)) and not any(told.values())]
    return "\n".join([*(lines or [YES]), *(["stale"] if any(e.stale for e in own) else [])])


def _faults(entry: OperatorFits) -> str:
    """What of the calls of a backend is refused or wrong; "" if nothing is."""
    whole = [dtype for dtype, found in entry.calls.items() if found[REFUSED] == sum(found.values())]
    part = entry.count(REFUSED) - sum(entry.calls[dtype][REFUSED] for dtype in whole)
    refused = [f"no {'/'.join(whole)}"] if whole else []
    return ", ".join([*refused, *([f"{part} refused"] if part else []), *filter(None, [_wrong(entry)])])


def _wrong(entry: OperatorFits) -> str:
    words = {COMPILE: "do not compile", ROOM: "do not fit", FAILS: "fail"}
    return ", ".join(f"{count} {text}" for outcome, text in words.items() if (count := entry.count(outcome)))


def totals(found: Sequence[OperatorFits], width: int = text_tables.WIDTH) -> str:
    """A row per card: how many calls, and what came of them."""
    rows = []
    for key in dict.fromkeys(e.card for e in found):
        own = [e for e in found if e.card == key]
        counts = [f"{sum(e.count(outcome) for e in own):,}" for outcome in OUTCOMES]
        rows.append((key, cards.named(key).sm, f"{sum(e.count() for e in own):,}", *counts))
    columns = ("card", "capability", "calls", *COLUMNS.values())
    return text_tables.text(columns, rows, right=columns[2:], width=width)


def problems(found: Iterable[OperatorFits], width: int = text_tables.WIDTH) -> Iterator[str]:
    """What does not compile, does not fit or fails: by operator, backend and reason the cards, and a call."""
    at: dict[tuple[str, str], list[str]] = {}
    calls_of: dict[tuple[str, str], str] = {}
    for e in found:
        for why, call in e.why.items():
            if not why.startswith(tuple(f"{word}:" for word in GOOD)):
                place = (f"{e.operator} {e.backend}", why)
                at.setdefault(place, []).append(e.card)
                calls_of.setdefault(place, call)
    for (name, why), where in at.items():
        line = f"{name} on {', '.join(where)}: {why} ({calls_of[name, why]})"
        yield from text_tables.wrapped(line, width, "", "  ")


def spills(found: Iterable[OperatorFits], width: int = text_tables.WIDTH) -> Iterator[str]:
    """What spills most, by operator and backend: bytes per thread and the cards, with a call."""
    at: dict[str, list[OperatorFits]] = {}
    for e in found:
        if e.backend != AUTO and e.spills[0]:
            at.setdefault(f"{e.operator} {e.backend}", []).append(e)
    for name, own in at.items():
        where = ", ".join(f"{e.spills[0]:,} bytes on {e.card}" for e in own)
        yield from text_tables.wrapped(f"{name} spills {where} ({own[0].spills[1]})", width, "", "  ")


def document(ops: Sequence[str] = ()) -> dict[str, Any]:
    """The same as one JSON document."""
    entries = [
        {
            **{"card": e.card, "capability": cards.named(e.card).sm, "operator": e.operator, "backend": e.backend},
            **{"calls": {dtype: dict(found) for dtype, found in e.calls.items()}, "why": dict(e.why), "stale": e.stale},
            "spills": e.spills[0],
        }
        for e in _chosen(ops)
    ]
    stands = {card.key: stands_for(card) for card in cards.table().values()}
    return {"versions": record.read()["versions"], "stands_for": stands, "entries": entries}
