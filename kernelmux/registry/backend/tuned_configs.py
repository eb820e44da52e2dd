"""What searches found faster than the rules beside the kernels, by GPU, and who reads it.

It lies in the folder of the user (`user_folder`), `tuned/<gpu>.json`, and ships as `records/<gpu>/tuned.json`. An entry
counts while its variant launches the same by the rule as at the search (`launch_keys`). A problem has
the entry of its very sizes, else the nearest of those whose sizes round up to the same powers of two, of the same variant
and kind: of this GPU and the packages at hand, else older ones, else of a GPU with the same multiprocessors. Without an
entry, or without a table, the rule decides. A plan asks once, when it is made. `python -m kernelmux.tune` writes entries.
"""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from kernelmux.registry import catalog
from kernelmux.registry.backend import device_tables, launch_keys, search_space
from kernelmux.registry.backend.device_tables import FoundRow, Table, Tables
from kernelmux.registry.backend.search_space import Config, Key, Space
from kernelmux.registry.errors import SpecError, TunedTableWarning
from kernelmux.registry.util.cards import Card
from kernelmux.registry.util.files import RECORDS, GpuFiles


@dataclass(frozen=True)
class TunedConfig:
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
    def packages(self) -> dict[str, str]:
        return self.versions

    @property
    def stale(self) -> str:
        """What has changed since it was found, "" if it counts."""
        try:
            source = device_tables.source(self.backend, catalog.spec(self.op).name, self.variant)
        except Exception:
            return "its operator or backend is not here"
        item = launch_keys.workload(self.workload, self.dtype)
        same = launch_keys.compared(self.op, self.backend, self.variant, self.source, source, item) == launch_keys.SAME
        return "" if same else f"source is {source} and was {self.source}"

    @property
    def older(self) -> str:
        """Which packages are others since it was found, "" if none is: then it counts before those that are older."""
        return device_tables.changed_packages(tuple(self.versions.items()))


def find(space: Space, problem: Any) -> TunedConfig | None:
    """The entry for a problem on its GPU, or None: there the rule decides."""
    _asked.add(space)
    name = device_tables.gpu(problem.device)
    if name is None or not (entries := _entries(name, device_tables.card(problem.device), space)):
        return None
    key = space.key(problem)
    alike = [found for found in entries if found.row.key.bucket == key.bucket]

    def distance(found: FoundRow[TunedConfig]) -> tuple[bool, bool, float]:
        return found.gpu != name, bool(found.older), device_tables.octaves(found.row.sizes, key.sizes)

    nearest = min(alike, key=distance, default=None)
    return nearest.row if nearest and not space.refusal(nearest.row.config, problem) else None


_asked: weakref.WeakSet[Space] = weakref.WeakSet()


@cache
def _entries(name: str, card: Card | None, space: Space) -> tuple[FoundRow[TunedConfig], ...]:
    """The entries of a variant that count."""
    of_variant = (f for f in _rows_for(name, card) if (f.row.backend, f.row.op, f.row.variant) == _names(space))
    return tuple(found for found in of_variant if space.holds(found.row.config) and not found.row.stale)


def _names(space: Space) -> tuple[str, str, str]:
    return space.backend, space.op, space.variant


def times(name: str, op: str, workload: str, dtype: str) -> dict[str, float]:
    """Microseconds of the variants, "triton/persistent", whose entries for a workload count, by the GPU of this name."""
    alike = [f for f in _rows_for(name) if (f.row.op, f.row.workload, f.row.dtype) == (op, workload, dtype)]
    count = sorted((f for f in alike if not f.row.stale), key=lambda f: bool(f.older))  # best first
    return {f"{found.row.backend}/{found.row.variant}": found.row.us for found in reversed(count)}


@cache
def _rows_for(name: str, card: Card | None = None) -> tuple[FoundRow[TunedConfig], ...]:
    """The entries for a GPU; none, with a warning, where our table cannot be read."""
    try:
        return TABLES.everywhere(name, card)
    except SpecError as error:
        _ignored(str(error))
        return ()


@cache
def _ignored(error: str) -> None:
    warnings.warn(f"{error}; it is ignored", TunedTableWarning, stacklevel=3)


def _entry(row: Any) -> TunedConfig:
    sizes, config, found_with = tuple(map(int, row["sizes"])), dict(row["config"]), dict(row["versions"])
    return TunedConfig(**{**row, "sizes": sizes, "config": config, "rule": dict(row["rule"]), "versions": found_with})


PLACE = GpuFiles(RECORDS, "tuned.json")
TABLES = Tables(PLACE, "tuned", "tuned configurations", "entries", _entry, said_once=("versions",))


def merged(
    table: Table[TunedConfig], more: Iterable[TunedConfig], refuted: Collection[tuple[str, ...]] = ()
) -> Table[TunedConfig]:
    """The table with entries in place of those for the same sizes, and without stale and older ones of refuted places."""
    before = (e for e in table.rows if e.place not in refuted or not (e.stale or e.older))
    found = {entry.place: entry for entry in (*before, *more)}
    return replace(table, rows=tuple(found[place] for place in sorted(found)))


def forget() -> None:
    """Read the tables again, and make plans anew; for tests, and after new entries were written."""
    TABLES.forget()
    for cached in (_rows_for, _entries, _ignored):
        cached.cache_clear()
    for space in _asked:
        space.renew()


def summary() -> list[str]:
    """A line about each table, and about all entries that do not count, or are older, for one reason; a problem begins
    with "!"."""
    return [line for tables in TABLES.all() for line in tables.summary(_configs_summary)]


def _configs_summary(table: Table[TunedConfig], name: str) -> Iterator[str]:
    stale, older = dict[str, list[TunedConfig]](), dict[str, list[TunedConfig]]()
    for entry in table.rows:
        if why := entry.stale:
            stale.setdefault(why, []).append(entry)
        elif why := entry.older:
            older.setdefault(why, []).append(entry)
    yield f"{name}: {len(table.rows) - sum(map(len, stale.values()))} of {len(table.rows)} tuned configurations count"
    for word, found in {"stale": stale, "older": older}.items():
        for why, entries in found.items():
            each = Counter(f"{e.op} {e.backend}/{e.variant}" for e in entries)
            yield f"  {word}: {', '.join(f'{name} ({count})' for name, count in each.items())}: {why}"


vars(search_space)["lookup"] = find  # which it cannot import
