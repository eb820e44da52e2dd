"""Failures that are on record in `expected_failures.toml`: they do not fail a run, but their disappearance does.

The suite has such a file, every package of a backend or of operators may have one for its own items, and `--expected` names
more.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from kernelmux.conformance.judging.trial_outcome import Record
from kernelmux.conformance.options import Options
from kernelmux.conformance.session.execute import WHOLE, Outcome
from kernelmux.registry import elsewhere
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.cases import TIERS
from kernelmux.registry.errors import SpecError

NAME = "expected_failures.toml"
FILE = Path(__file__).parents[1] / NAME
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Expected:
    """An entry: patterns over item ids and over trials ("case dtype note"), the device ("" = both), and why.

    trial: one of these patterns fits, and none of those behind a "!". tier: the smallest tier in which it shows ("" = all).
    sometimes: on which of these devices ("" = all); that the item passes fails no run then.
    """

    item: str
    reason: str
    trial: tuple[str, ...] = ("*",)
    device: str = ""
    tier: str = ""
    sometimes: str = ""

    def applies(self, device: str, tier: str) -> bool:
        return self.device in ("", device) and (not self.tier or TIERS.index(tier) >= TIERS.index(self.tier))

    def matches(self, name: str, device: str, tier: str) -> bool:
        return fnmatchcase(name, self.item) and self.applies(device, tier)

    def covers(self, record: Record) -> bool:
        text = f"{record.case} {record.dtype} {record.note}"
        if any(fnmatchcase(text, pattern[1:]) for pattern in self.trial if pattern.startswith("!")):
            return False
        return any(fnmatchcase(text, pattern) for pattern in self.trial)


@dataclass(frozen=True)
class Book:
    """The entries of one file. backend, package: the only one whose items they speak of, "" for all."""

    path: Path
    entries: tuple[Expected, ...]
    backend: str = ""
    package: str = ""

    def find(self, outcome: Outcome, options: Options) -> Expected | None:
        """The first entry about an outcome."""
        item = outcome.item
        if self.backend not in ("", item.backend):
            return None
        if self.package and getattr(elsewhere.whose(item.op, item.variant), "name", "") != self.package:
            return None
        return next((e for e in self.entries if e.matches(item.name, options.device, options.tier)), None)

    def complete(self, options: Options) -> bool:
        """Whether the run holds every item that the entries may speak of."""
        chosen = not options.backends or (
            self.backend in options.backends if self.backend else self.path != FILE and not self.package
        )
        return options.complete and not options.ops and not options.mutants and chosen


@lru_cache(maxsize=64)
def entries(path: Path = FILE) -> tuple[Expected, ...]:
    """The entries of a file; SpecError for one that is not well formed."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8")).get("expected", [])
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: expected a TOML file of [[expected]] entries; {error}") from error
    return tuple(_entry(entry, path) for entry in (found if isinstance(found, list) else [found]))


def _entry(entry: Any, path: Path) -> Expected:
    known = isinstance(entry, dict) and set(entry) - {"device", "tier", "trial", "sometimes"} == {"item", "reason"}
    trial = entry.get("trial", "*") if known else "*"
    patterns = trial if isinstance(trial, list) and trial else [trial]
    texts = [*patterns, *(entry[key] for key in entry if key != "trial")] if known else [None]
    if not all(isinstance(v, str) for v in texts) or not entry["reason"].strip():
        also = "trial, device, tier, sometimes"
        raise SpecError(f"{path.name}: an entry needs item and reason (may have {also}), got {entry}")
    if entry.get("device", "cpu") not in DEVICES or entry.get("tier", "ci") not in TIERS:
        raise SpecError(f"{path.name}: expected a device in {DEVICES} and a tier in {TIERS}, got {entry}")
    return Expected(**{**entry, "trial": tuple(patterns)})


def books(options: Options) -> list[Book]:
    """All files that a run takes account of: the suite's, those of packages elsewhere, those of `--expected`."""
    found = [Book(FILE, entries()), *_of_backends(), *_of_packages()]
    return [*found, *(Book(Path(name), entries(Path(name).resolve())) for name in options.expected)]


def _of_backends() -> Iterator[Book]:
    for name in registered.backends():
        folder = registered.folder(name)
        if folder is not None and (folder / NAME).is_file():
            yield Book(folder / NAME, entries(folder / NAME), name)


def _of_packages() -> Iterator[Book]:
    for package in elsewhere.listed().packages.values():
        if (path := package.folder / NAME).is_file():
            yield Book(path, entries(path), package=package.name)


def applied(outcome: Outcome, options: Options, known: list[Book] | None = None) -> Outcome:
    """The outcome in the light of the entries: an expected failure counts as skipped, an unexpected success fails."""
    listed = books(options) if known is None else known
    found = ((book, entry) for book in listed if (entry := book.find(outcome, options)))
    book, entry = next(found, (None, None))
    if book is None or entry is None:
        return outcome
    if outcome.status == "failed" and all(entry.covers(r) for r in outcome.records if r.status == "failed"):
        return replace(outcome, status="expected", text=f"expected failure: {entry.reason}")
    if outcome.status != "passed" or not _passes(entry, outcome, options):
        return outcome
    name = outcome.item.id
    text = f"{name}: passes, but {book.path.name} expects it to fail ({entry.reason}): remove the entry"
    return replace(outcome, status="failed", text=text)


def _passes(entry: Expected, outcome: Outcome, options: Options) -> bool:
    """Whether trials that the entry covers ran, all of them that there are, for the only seed: then it is wrong.

    A part of them may well pass.
    """
    part = options.cases or options.dtypes or options.seeds or outcome.asked != WHOLE or outcome.small
    return not (part or entry.sometimes) and any(entry.covers(r) for r in outcome.records if r.status == "passed")


def stale(names: Iterable[str], options: Options, known: list[Book] | None = None) -> list[str]:
    """Entries that match no item of the plan, of those files that the run covers as a whole: "file: pattern"."""
    every = list(names)
    listed = [book for book in (books(options) if known is None else known) if book.complete(options)]
    found = [(b, e) for b in listed for e in b.entries if e.applies(options.device, options.tier)]
    return [
        f"{book.path.name}: {entry.item}"
        for book, entry in found
        if not any(fnmatchcase(name, entry.item) for name in every)
    ]
