"""Branches and blocks that no trial has to run, each with its reason, in `coverage_waivers.toml`.

The suite has such a file, and the package of a backend may have one for its own sources.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from kernelmux.conformance.coverage import branches
from kernelmux.conformance.coverage.findings import CodePart, code_at
from kernelmux.conformance.options import Options
from kernelmux.conformance.source_constants import cuda_source
from kernelmux.conformance.source_constants.python_source import shortened
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.errors import SpecError

NAME = "coverage_waivers.toml"
FILE = Path(__file__).parents[1] / NAME
NEEDS = ("device", "elements", "full", "package", "no call")
LOWER = ("smoke", "ci")  # tiers
DEVICES = ("cpu", "cuda")
FIELDS = {"backend", "file", "code", "needs", "reason"}
FURTHER = {"device", "kernel", "within"}


@dataclass(frozen=True)
class CoverageWaiver:
    """Code that need not run.

    file: in the folder of the backend. code: of a branch as the report has it (`if n > 8`, `if n > 8 that does not hold`),
    of a block its line. needs: "elements", more than 2^28 of them; "full", a case that only tier full has; "package", a
    launcher of another package; "device", another than `device` ("": than any that runs the suite); or "no call": a
    compiler has kept what none can come to. kernel: whose block, within: the line that it was inlined at, "" for all.
    """

    backend: str
    file: str
    code: str
    needs: str
    reason: str
    device: str = ""
    kernel: str = ""
    within: str = ""

    def covers(self, backend: str, part: CodePart) -> bool:
        """Whether it speaks of a part of a backend's code."""
        named = (backend, part.file, part.text.replace("`", "")) == (self.backend, self.file, self.code)
        if not named or self.kernel not in ("", part.kernel):
            return False
        folder, (file, _, line) = registered.folder(backend), part.within.rpartition(":")
        outer = code_at(folder / file, int(line)).replace("`", "") if folder and file else ""
        return self.within in ("", outer)

    def applies(self, options: Options) -> bool:
        """Whether it counts in a run: on its device, and what needs large cases in tiers that have none."""
        large = {"elements": options.tier == "huge", "full": options.tier not in LOWER}.get(self.needs, False)
        return self.device in ("", options.device) and not large

    def is_stale_where_run(self, options: Options) -> bool:
        """Whether a trial that runs its code shows that it is wrong: not one on another device, for a card, or by name."""
        if self.needs == "full":
            return options.complete
        anywhere = self.needs in ("elements", "package", "no call")
        return anywhere or (not options.card and options.device in ("cpu", self.device))

    def __str__(self) -> str:
        return f"{self.backend}/{self.file} `{self.code}`"


def all_of(backends: Iterable[str]) -> list[CoverageWaiver]:
    """The waivers of these backends; SpecError for a file that is not well formed."""
    found = [w for w in entries(FILE) if w.backend in set(backends)]
    for name in backends:
        folder = registered.folder(name)
        if folder is not None and (folder / NAME).is_file():
            found += [w for w in entries(folder / NAME) if w.backend == name]
    return found


@lru_cache(maxsize=64)
def entries(path: Path) -> tuple[CoverageWaiver, ...]:
    """The entries of a file; SpecError for one that is not well formed."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8")).get("waived", [])
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: expected a TOML file of [[waived]] entries; {error}") from error
    return tuple(_entry(entry, path) for entry in (found if isinstance(found, list) else [found]))


def _entry(entry: Any, path: Path) -> CoverageWaiver:
    known = isinstance(entry, dict) and set(entry) - FURTHER == FIELDS
    if not known or not all(isinstance(v, str) and v.strip() for v in entry.values()):
        also = f"may have {', '.join(sorted(FURTHER))}"
        raise SpecError(f"{path.name}: an entry needs {', '.join(sorted(FIELDS))} ({also}), got {entry}")
    if entry["needs"] not in NEEDS or entry.get("device", "cpu") not in DEVICES:
        raise SpecError(f"{path.name}: expected needs in {NEEDS} and a device in {DEVICES}, got {entry}")
    return CoverageWaiver(**entry)


def stale(waiver: CoverageWaiver, reached: Iterable[CodePart]) -> str:
    """Why an entry is wrong, "" if it is not: its code is not there, or a trial has run it."""
    folder = registered.folder(waiver.backend)
    if folder is None or not _stands(waiver, folder / waiver.file):
        return f"{NAME}: {waiver}: no such code; remove the entry or mend it"
    if any(waiver.covers(waiver.backend, part) for part in reached):
        return f"{NAME}: {waiver}: a trial has run it ({waiver.reason}): remove the entry"
    return ""


def _stands(waiver: CoverageWaiver, path: Path) -> bool:
    """Whether a file has such a branch, or such a line."""
    ways = [point.way(way).replace("`", "") for point in branches.points(path) for way in point.asked]
    source = cuda_source.read(path)
    lines = [shortened(line) for line in source.text.splitlines()] if source else []
    return waiver.code in ways or waiver.code in lines
