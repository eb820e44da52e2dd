"""Tables of what was found on each GPU: a file of JSON by its name, with a row on each line.

`measured` keeps times so, and `tuning` configurations. A row counts while what it was found with is unchanged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from kernelmux.registry import backend as registered
from kernelmux.registry import elsewhere
from kernelmux.registry.errors import SpecError
from kernelmux.registry.files import file_stem

SCHEMA = 1
Row = TypeVar("Row")


@dataclass(frozen=True)
class Table(Generic[Row]):
    """The rows of one GPU, by its name."""

    gpu: str
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True, eq=False)
class Tables(Generic[Row]):
    """The tables in a folder.

    what: they hold, as an error names it. label: of the rows in a file. row: a dataclass from what a file holds of it.
    """

    folder: Path
    what: str
    label: str
    row: Callable[[Any], Row]
    _known: dict[str, Table[Row]] = field(default_factory=dict, init=False, repr=False)
    _elsewhere: dict[str, Tables[Row]] = field(default_factory=dict, init=False, repr=False)

    def of(self, gpu: str) -> Table[Row]:
        """The table of a GPU, read once; an empty one where there is no file."""
        if gpu not in self._known:
            path = self.path(gpu)
            self._known[gpu] = self.read(path) if path.exists() else Table(gpu)
        return self._known[gpu]

    def everywhere(self, gpu: str) -> Table[Row]:
        """The table of a GPU with the rows that packages with operators have of their own implementations.

        A table of theirs that cannot be read is left out, and `kernelmux doctor` says so.
        """
        found = self.of(gpu)
        for name, tables in self._packages().items():
            with suppress(SpecError):
                rows = (row for row in tables.of(gpu).rows if _whose(row) == name)
                found = replace(found, rows=(*found.rows, *rows))
        return found

    def all(self) -> tuple[Tables[Row], ...]:
        """These tables, and those in the folder of the same name of each package with operators."""
        return (self, *self._packages().values())

    def _packages(self) -> dict[str, Tables[Row]]:
        for name, package in elsewhere.listed().packages.items():
            if name not in self._elsewhere:
                self._elsewhere[name] = replace(self, folder=package.folder / self.folder.name)
        return {name: self._elsewhere[name] for name in elsewhere.listed().packages}

    def path(self, gpu: str) -> Path:
        """The file of a GPU."""
        return self.folder / f"{file_stem(gpu)}.json"

    def read(self, path: Path) -> Table[Row]:
        """The table in a file; SpecError for one of another form."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["schema"] != SCHEMA:
                raise ValueError(f"schema {found['schema']}")
            return Table(str(found["gpu"]), tuple(map(self.row, found[self.label])))
        except (OSError, ValueError, KeyError, TypeError) as error:
            told = f"{type(error).__name__}: {error}"
            raise SpecError(f"{path}: expected {self.what} of schema {SCHEMA}, got {told}") from error

    def text(self, table: Table[Row]) -> str:
        """The file of a table."""
        rows = ",\n".join(f"  {json.dumps(vars(row))}" for row in table.rows)
        return f'{{\n "schema": {SCHEMA},\n "gpu": {json.dumps(table.gpu)},\n "{self.label}": [\n{rows}\n ]\n}}\n'

    def summary(self, lines: Callable[[Table[Row]], Iterable[str]]) -> Iterator[str]:
        """What there is to say of each table; of one that cannot be read the error, behind "! "."""
        for path in sorted(self.folder.glob("*.json")):
            try:
                yield from lines(self.read(path))
            except SpecError as error:
                yield f"! {error}"

    def forget(self) -> None:
        """Read the files again when they are next asked, and the sources that rows are compared with."""
        self._known.clear()
        self._elsewhere.clear()
        _source.cache_clear()


def _whose(row: Any) -> str | None:
    """The package with operators whose implementation a row is about."""
    package = elsewhere.whose(row.op, row.variant)
    return package.name if package else None


def source(backend: str, op: str, variant: str) -> str:
    """The hash of the files of an implementation, read once."""
    return _source(backend, op, variant if registered.joined(op, variant) else "")


@cache
def _source(backend: str, op: str, variant: str) -> str:
    return registered.source_hash(backend, op, variant)


@cache
def gpu(device: torch.device | int) -> str | None:
    """The name of a GPU, also by its index; None for a CPU (-1), and where torch sees no GPU."""
    on_gpu = device >= 0 if isinstance(device, int) else device.type == "cuda"
    return torch.cuda.get_device_name(device) if on_gpu and torch.cuda.is_available() else None


def octaves(one: Iterable[float], other: Iterable[float]) -> float:
    """How far lengths are from others: the sum of |log2 ratio|, a length of 0 taken as 1."""
    return sum(abs(math.log2((a or 1) / (b or 1))) for a, b in zip(one, other, strict=True))
