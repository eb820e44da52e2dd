"""What searches found faster than the rules beside the kernels: `registry/tuned/<gpu>.json`, and who reads it.

An entry counts while spec, source and versions are those that it was found with. A problem has the entry of its very
sizes, else the nearest of those whose sizes round up to the same powers of two, of the same variant and kind. Without an
entry, or without a table, the rule decides. A plan asks once, when it is made. `python -m kernelmux.tune` writes entries.
"""

from __future__ import annotations

import json
import math
import warnings
import weakref
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from kernelmux.registry import backend as registered
from kernelmux.registry import catalog
from kernelmux.registry.errors import SpecError, TunedTableWarning
from kernelmux.registry.files import file_stem
from kernelmux.registry.space import Config, Key, Space

FOLDER = Path(__file__).with_name("tuned")
SCHEMA = 1
PACKAGES = {"torch": ("torch",), "triton": ("triton",), "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy")}


@dataclass(frozen=True)
class Entry:
    """A configuration that was faster than the rule's.

    kind, sizes: its key. us, rule_us: medians of samples taken in turns. workload, dtype: the call that was timed.
    spec, source: hashes of the spec and of the backend's files. versions: of the packages that compiled and launched.
    """

    op: str
    backend: str
    variant: str
    kind: str
    sizes: tuple[int, ...]
    config: Config
    us: float
    rule: Config
    rule_us: float
    workload: str
    dtype: str
    spec: str
    source: str
    versions: dict[str, str]

    @property
    def key(self) -> Key:
        return Key(self.kind, self.sizes)

    @property
    def place(self) -> tuple[str, ...]:
        """What at most one entry of a table has."""
        return self.op, self.backend, self.variant, self.kind, *map(str, self.sizes)

    @property
    def stale(self) -> str:
        """What has changed since it was found, "" if it counts."""
        try:
            now = {"spec": catalog.spec(self.op).hash, "source": _source(self.backend, self.op)} | versions()
        except Exception:
            return "its operator or backend is not here"
        then = {"spec": self.spec, "source": self.source} | self.versions
        changed = (f"{name} is {now.get(name)} and was {then.get(name)}" for name in now if now[name] != then.get(name))
        return ", ".join(changed)


@dataclass(frozen=True)
class Table:
    """The entries of one GPU, by its name."""

    gpu: str
    entries: tuple[Entry, ...] = ()

    def with_entries(self, more: Iterable[Entry]) -> Table:
        """The table with entries in place of those for the same sizes."""
        found = {entry.place: entry for entry in (*self.entries, *more)}
        return replace(self, entries=tuple(found[place] for place in sorted(found)))


def find(space: Space, problem: Any) -> Entry | None:
    """The entry for a problem on its GPU, or None: there the rule decides."""
    _asked.add(space)
    if (name := gpu(problem.device)) is None or not (entries := _entries(name, space)):
        return None
    key = space.key(problem)
    alike = [entry for entry in entries if entry.key.bucket == key.bucket]
    nearest = min(alike, key=lambda entry: _distance(entry.sizes, key.sizes), default=None)
    return nearest if nearest and not space.refusal(nearest.config, problem) else None


_asked: weakref.WeakSet[Space] = weakref.WeakSet()


def gpu(device: int) -> str | None:
    """The name of a GPU by its index; None for -1, a CPU."""
    return None if device < 0 else _gpu_name(device)


@cache
def _gpu_name(device: int) -> str:
    return torch.cuda.get_device_name(device)


def _distance(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """The sum of |log2 ratio| over lengths of one bucket; 0 for the same ones."""
    return sum(abs(math.log2(max(a, 1) / max(b, 1))) for a, b in zip(one, other, strict=True))


@cache
def _entries(name: str, space: Space) -> tuple[Entry, ...]:
    """The entries of a variant that count."""
    of_variant = (e for e in _table(name).entries if (e.backend, e.op, e.variant) == _names(space))
    return tuple(entry for entry in of_variant if space.holds(entry.config) and not entry.stale)


def _names(space: Space) -> tuple[str, str, str]:
    return space.backend, space.op, space.variant


def times(name: str, op: str, workload: str, dtype: str) -> dict[str, float]:
    """Microseconds of the variants, "triton/persistent", whose entries for a workload count."""
    if not (FOLDER / f"{file_stem(name)}.json").exists():
        return {}
    alike = (e for e in _table(name).entries if (e.op, e.workload, e.dtype) == (op, workload, dtype) and not e.stale)
    return {f"{entry.backend}/{entry.variant}": entry.us for entry in alike}


@cache
def _table(name: str) -> Table:
    """The table of a GPU; an empty one where there is none, or, with a warning, where it cannot be read."""
    path = FOLDER / f"{file_stem(name)}.json"
    if not path.exists():
        return Table(name)
    try:
        return read(path)
    except SpecError as error:
        warnings.warn(f"{error}; it is ignored", TunedTableWarning, stacklevel=2)
        return Table(name)


@cache
def _source(backend: str, op: str) -> str:
    return registered.source_hash(backend, op)


@cache
def versions() -> dict[str, str]:
    """Of the packages that compile and launch, as far as they are installed."""
    found = {name: next(filter(None, map(_version, names)), "") for name, names in PACKAGES.items()}
    return {name: version for name, version in found.items() if version}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def read(path: Path) -> Table:
    """The table in a file; SpecError for one of another form."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["schema"] != SCHEMA:
            raise ValueError(f"schema {found['schema']}")
        return Table(str(found["gpu"]), tuple(_entry(row) for row in found["entries"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        told = f"{type(error).__name__}: {error}"
        raise SpecError(f"{path}: expected tuned configurations of schema {SCHEMA}, got {told}") from error


def _entry(row: Any) -> Entry:
    sizes, config, found_with = tuple(map(int, row["sizes"])), dict(row["config"]), dict(row["versions"])
    return Entry(**{**row, "sizes": sizes, "config": config, "rule": dict(row["rule"]), "versions": found_with})


def text(table: Table) -> str:
    """The file of a table: an entry on each line."""
    rows = ",\n".join(f"  {json.dumps(asdict(entry))}" for entry in table.entries)
    return f'{{\n "schema": {SCHEMA},\n "gpu": {json.dumps(table.gpu)},\n "entries": [\n{rows}\n ]\n}}\n'


def forget() -> None:
    """Read the tables again, and make plans anew; for tests, and after new entries were written."""
    for cached in (_table, _entries, _source):
        cached.cache_clear()
    for space in _asked:
        space.renew()


def summary() -> list[str]:
    """A line about each table and each entry that does not count; a problem begins with "!"."""
    return [line for path in sorted(FOLDER.glob("*.json")) for line in _told(path)]


def _told(path: Path) -> list[str]:
    try:
        table = read(path)
    except SpecError as error:
        return [f"! {error}"]
    stale = [(entry, why) for entry in table.entries if (why := entry.stale)]
    count = f"{table.gpu}: {len(table.entries) - len(stale)} of {len(table.entries)} tuned configurations count"
    return [count, *(f"  stale: {e.op} {e.backend}/{e.variant} {e.workload} {e.dtype}: {why}" for e, why in stale)]
