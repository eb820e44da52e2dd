"""Failures that are on record in `expected_failures.toml`: they do not fail a run, but their disappearance does."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

from kernelmux.conformance.execute import Outcome
from kernelmux.conformance.options import Options
from kernelmux.conformance.probe import Record
from kernelmux.registry.cases import TIERS
from kernelmux.registry.errors import SpecError

FILE = Path(__file__).with_name("expected_failures.toml")


@dataclass(frozen=True)
class Expected:
    """An entry: patterns over item ids and over trials ("case dtype note"), the device ("" = both), and why.

    tier: the smallest tier in which it shows ("" = all).
    """

    item: str
    reason: str
    trial: str = "*"
    device: str = ""
    tier: str = ""

    def applies(self, device: str, tier: str) -> bool:
        return self.device in ("", device) and (not self.tier or TIERS.index(tier) >= TIERS.index(self.tier))

    def matches(self, name: str, device: str, tier: str) -> bool:
        return fnmatchcase(name, self.item) and self.applies(device, tier)

    def covers(self, record: Record) -> bool:
        return fnmatchcase(f"{record.case} {record.dtype} {record.note}", self.trial)


@lru_cache(maxsize=4)
def entries(path: Path = FILE) -> tuple[Expected, ...]:
    """The entries of the file; SpecError for one without item or reason."""
    found = tomllib.loads(path.read_text()).get("expected", [])
    for entry in found:
        if set(entry) - {"device", "tier", "trial"} != {"item", "reason"} or not entry["reason"].strip():
            raise SpecError(f"{path.name}: an entry needs item and reason (may have trial, device, tier), got {entry}")
    return tuple(Expected(**entry) for entry in found)


def applied(outcome: Outcome, options: Options, known: tuple[Expected, ...] | None = None) -> Outcome:
    """The outcome in the light of the entries: an expected failure counts as skipped, an unexpected success fails."""
    listed = entries() if known is None else known
    entry = next((e for e in listed if e.matches(outcome.item.id, options.device, options.tier)), None)
    if entry is None:
        return outcome
    if outcome.status == "failed" and all(entry.covers(r) for r in outcome.records if r.status == "failed"):
        return replace(outcome, status="expected", text=f"expected failure: {entry.reason}")
    if outcome.status != "passed" or options.cases or options.dtypes:  # a part of an item may well pass
        return outcome
    text = f"{outcome.item.id}: passes, but {FILE.name} expects it to fail ({entry.reason}): remove the entry"
    return replace(outcome, status="failed", text=text)


def stale(names: Iterable[str], device: str, tier: str, known: tuple[Expected, ...] | None = None) -> list[str]:
    """Entries that match no item of a complete plan."""
    every = list(names)
    found = [e for e in (entries() if known is None else known) if e.applies(device, tier)]
    return [e.item for e in found if not any(e.matches(name, device, tier) for name in every)]
