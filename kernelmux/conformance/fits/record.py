"""`records/cards/fits.json`: by card, operator and backend how many calls compile and fit, and why others do not.

An entry is "stale" once a source of its backend for the operator, the spec, or what is known of the card has changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kernelmux.conformance.fits.judge import OUTCOMES
from kernelmux.conformance.report import output_files
from kernelmux.registry import catalog
from kernelmux.registry.backend import device_tables, package_versions
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.errors import KernelmuxError, SpecError
from kernelmux.registry.util import cards
from kernelmux.registry.util.files import RECORDS
from kernelmux.registry.util.fingerprint import digest

FILE = RECORDS / "cards/fits.json"
SCHEMA = 1
AUTO = "auto"


@dataclass(frozen=True)
class OperatorFits:
    """How the calls of an operator fare on a card, asked of "auto" or of a backend: a number per dtype and outcome.

    why: reasons of what is not good, "outcome: reason", each with a call. spills: the most bytes that a kernel spills per
    thread, stores and loads together, and the call. stale: whether the sources have changed since.
    """

    card: str
    operator: str
    backend: str
    calls: Mapping[str, Mapping[str, int]]
    why: Mapping[str, str]
    spills: tuple[int, str]
    stale: bool

    def count(self, *outcomes: str) -> int:
        """The calls that came out so; of all outcomes without any."""
        return sum(found[o] for found in self.calls.values() for o in outcomes or OUTCOMES)


@cache
def source(op: str, name: str) -> str:
    """A digest of what decides about an operator in a backend; of "auto" in all of them."""
    found = registered.backends() if name == AUTO else (name,)
    sources = [_source(op, backend) for backend in found if registered.implements(backend, op)]
    return digest([catalog.spec(op).hash, cards.FILE.read_text("utf-8"), *sources])


def _source(op: str, backend: str) -> str:
    try:
        return device_tables.source(backend, op, "")
    except KernelmuxError:  # a backend whose package is not installed
        return ""


def entries(path: Path | None = None) -> Iterator[OperatorFits]:
    """All that is on record; SpecError for a damaged file."""
    for card, of in read(path)["cards"].items():
        for key, found in of.items():
            op, _, backend = key.partition("/")
            yield entry(card, key, found, op not in catalog.names() or found["source"] != source(op, backend))


def entry(card: str, key: str, found: Mapping[str, Any], stale: bool) -> OperatorFits:
    """An entry as the file has it, by "operator/backend"."""
    op, _, backend = key.partition("/")
    calls = {dtype: dict(zip(OUTCOMES, row, strict=True)) for dtype, row in found["calls"].items()}
    return OperatorFits(card, op, backend, calls, found.get("why", {}), tuple(found.get("spills", (0, ""))), stale)


def versions() -> dict[str, str]:
    """The compilers at hand, with their ptxas."""
    from kernelmux.emulator import nvrtc

    return {"NVRTC": ".".join(map(str, nvrtc.version())), "triton": package_versions.version("triton") or ""}


def read(path: Path | None = None) -> dict[str, Any]:
    """The file, or an empty record where there is none."""
    place = path or FILE
    if not place.exists():
        return {"schema": SCHEMA, "versions": {}, "cards": {}}
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
        if found["schema"] != SCHEMA or not isinstance(found["cards"], dict):
            raise ValueError(f"expected schema {SCHEMA} and cards")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecError(f"{place}: the record of cards is damaged ({error}); restore it, or record anew") from error
    return dict(found)


def merge(made: Mapping[str, Mapping[str, Any]], versions: Mapping[str, str], path: Path | None = None) -> None:
    """Put entries, by card and by "operator/backend", in place of what the file has of them."""
    book = read(path)
    for card, of in made.items():
        book["cards"].setdefault(card, {}).update(of)
    book["versions"] = dict(versions)
    output_files.write(path or FILE, _text(book))


def _text(book: Mapping[str, Any]) -> str:
    """JSON with a line an entry."""
    rows = []
    for card in sorted(book["cards"]):
        of = book["cards"][card]
        lines = ",\n".join(f"   {json.dumps(key)}: {json.dumps(of[key], sort_keys=True)}" for key in sorted(of))
        rows.append(f"  {json.dumps(card)}: {{\n{lines}\n  }}")
    head = f'{{\n "schema": {SCHEMA},\n "versions": {json.dumps(book["versions"], sort_keys=True)},\n "cards": {{\n'
    return head + ",\n".join(rows) + "\n }\n}\n"
