"""What searches found faster than the rules beside the kernels: `registry/tuned/<gpu>.json`, and who reads it.

An entry counts while spec and versions are those that it was found with, and its variant launches the same by the rule
(`launch_keys`). A problem has the entry of its very sizes, else the nearest of those whose sizes round up to the same
powers of two, of the same variant and kind. Without an entry, or without a table, the rule decides. A plan asks once,
when it is made. `python -m kernelmux.tune` writes entries.
"""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kernelmux.registry import catalog, gpu_tables, launch_keys, packages
from kernelmux.registry.errors import SpecError, TunedTableWarning
from kernelmux.registry.gpu_tables import Table, Tables
from kernelmux.registry.space import Config, Key, Space

FOUND_WITH = ("torch", "triton", "cupy")


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
        return self._changed(versions())

    @property
    def edited(self) -> str:
        """What has changed in this repository since it was found, "" if nothing: then packages decide if it counts."""
        return self._changed({})

    def _changed(self, packages: dict[str, str]) -> str:
        try:
            source = gpu_tables.source(self.backend, self.op, self.variant)
            now = {"spec": catalog.spec(self.op).hash, "source": source} | packages
        except Exception:
            return "its operator or backend is not here"
        item = launch_keys.workload(self.workload, self.dtype)
        if (
            launch_keys.compared(self.op, self.backend, self.variant, self.source, now["source"], item)
            == launch_keys.SAME
        ):
            del now["source"]
        then = {"spec": self.spec, "source": self.source} | self.versions
        return ", ".join(
            f"{name} is {now[name]} and was {then.get(name)}" for name in now if now[name] != then.get(name)
        )


def find(space: Space, problem: Any) -> Entry | None:
    """The entry for a problem on its GPU, or None: there the rule decides."""
    _asked.add(space)
    if (name := gpu_tables.gpu(problem.device)) is None or not (entries := _entries(name, space)):
        return None
    key = space.key(problem)
    alike = [entry for entry in entries if entry.key.bucket == key.bucket]
    nearest = min(alike, key=lambda entry: gpu_tables.octaves(entry.sizes, key.sizes), default=None)
    return nearest if nearest and not space.refusal(nearest.config, problem) else None


_asked: weakref.WeakSet[Space] = weakref.WeakSet()


@cache
def _entries(name: str, space: Space) -> tuple[Entry, ...]:
    """The entries of a variant that count."""
    of_variant = (e for e in _table(name).rows if (e.backend, e.op, e.variant) == _names(space))
    return tuple(entry for entry in of_variant if space.holds(entry.config) and not entry.stale)


def _names(space: Space) -> tuple[str, str, str]:
    return space.backend, space.op, space.variant


def times(name: str, op: str, workload: str, dtype: str) -> dict[str, float]:
    """Microseconds of the variants, "triton/persistent", whose entries for a workload count."""
    alike = (e for e in _table(name).rows if (e.op, e.workload, e.dtype) == (op, workload, dtype) and not e.stale)
    return {f"{entry.backend}/{entry.variant}": entry.us for entry in alike}


@cache
def _table(name: str) -> Table[Entry]:
    """The table of a GPU; an empty one, with a warning, where it cannot be read."""
    try:
        return TABLES.everywhere(name)
    except SpecError as error:
        warnings.warn(f"{error}; it is ignored", TunedTableWarning, stacklevel=2)
        return Table(name)


@cache
def versions() -> dict[str, str]:
    """Of the packages that compile and launch, as far as they are installed."""
    found = {name: next(filter(None, map(packages.version, packages.PACKAGES[name])), "") for name in FOUND_WITH}
    return {name: version for name, version in found.items() if version}


def _entry(row: Any) -> Entry:
    sizes, config, found_with = tuple(map(int, row["sizes"])), dict(row["config"]), dict(row["versions"])
    return Entry(**{**row, "sizes": sizes, "config": config, "rule": dict(row["rule"]), "versions": found_with})


TABLES = Tables(Path(__file__).with_name("tuned"), "tuned configurations", "entries", _entry)


def merged(table: Table[Entry], more: Iterable[Entry], refuted: Collection[tuple[str, ...]] = ()) -> Table[Entry]:
    """The table with entries in place of those for the same sizes, and without stale ones of the refuted places."""
    before = (entry for entry in table.rows if entry.place not in refuted or not entry.stale)
    found = {entry.place: entry for entry in (*before, *more)}
    return Table(table.gpu, tuple(found[place] for place in sorted(found)))


def forget() -> None:
    """Read the tables again, and make plans anew; for tests, and after new entries were written."""
    TABLES.forget()
    for cached in (_table, _entries):
        cached.cache_clear()
    for space in _asked:
        space.renew()


def summary() -> list[str]:
    """A line about each table, and about all entries that do not count for one reason; a problem begins with "!"."""
    return [line for tables in TABLES.all() for line in tables.summary(_told)]


def _told(table: Table[Entry]) -> Iterator[str]:
    stale: dict[str, list[Entry]] = {}
    for entry in table.rows:
        if why := entry.stale:
            stale.setdefault(why, []).append(entry)
    yield f"{table.gpu}: {len(table.rows) - sum(map(len, stale.values()))} of {len(table.rows)} tuned configurations count"
    for why, entries in stale.items():
        each = Counter(f"{e.op} {e.backend}/{e.variant}" for e in entries)
        yield f"  stale: {', '.join(f'{name} ({count})' for name, count in each.items())}: {why}"
