"""Tables of what was found on each GPU: a file of JSON for each, with a row on each line.

`timings` keeps times so, and `tuned_configs` configurations: those that ship (`files.RECORDS`), those of packages with
operators, and the user's (`user_folder`). A row counts while what it was found with is unchanged. One that was found with
other packages or another driver is "older": it counts after those of the packages at hand. A GPU has the rows of its name
first, then those of GPUs with the same multiprocessors: their compute capability and how many there are. This module alone
reads the files.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from kernelmux.registry import elsewhere
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend import package_versions as packages
from kernelmux.registry.errors import SpecError
from kernelmux.registry.util import cards, user_folder
from kernelmux.registry.util.cards import Card
from kernelmux.registry.util.files import GpuFiles, in_full, said_once

SCHEMA = 2  # 1 had a head of the name alone: its rows are older, and are for a GPU of that name
FOUND_WITH = ("torch", "triton", "cupy")
DRIVER = Path("/proc/driver/nvidia/version")
ALIKE = "which has the same multiprocessors"
Row = TypeVar("Row")


@dataclass(frozen=True)
class Table(Generic[Row]):
    """The rows of one GPU, by its name.

    capability: "9.0". processors: how many multiprocessors; 0 where that is not known. packages: the versions that the rows
    were found with, but for those that name their own, and of the driver.
    """

    gpu: str
    rows: tuple[Row, ...] = ()
    capability: str = ""
    processors: int = 0
    packages: Mapping[str, str] = field(default_factory=dict)

    def alike(self, card: Card) -> bool:
        """Whether its GPU has the multiprocessors of a card."""
        return (self.capability, self.processors) == (card.number, card.processors)


@dataclass(frozen=True)
class FoundRow(Generic[Row]):
    """A row. gpu: where it was found; older: which packages are others since, "" if none is."""

    row: Row
    gpu: str
    older: str


@dataclass(frozen=True, eq=False)
class Tables(Generic[Row]):
    """The tables of all GPUs in one place.

    name: of the folder that the user, and a package with operators, has for them. what: they hold, as an error names it.
    label: of the rows in a file. row: a dataclass from what a file holds of it. form: what a file holds as a table of this
    form, where it is another. said_once: fields of a row that the files that ship say once for all rows that share them.
    theirs: behind the name of a GPU in a summary.
    """

    place: GpuFiles
    name: str
    what: str
    label: str
    row: Callable[[Any], Row]
    form: Callable[[Any], Any] = dict
    said_once: tuple[str, ...] = ()
    theirs: str = ""
    _known: dict[Path, Table[Row]] = field(default_factory=dict, init=False, repr=False)
    _beside: dict[Path, Tables[Row]] = field(default_factory=dict, init=False, repr=False)

    def of(self, gpu: str) -> Table[Row]:
        """The table of a GPU, read once; an empty one where there is no file."""
        path = self.path(gpu)
        if path not in self._known:
            self._known[path] = self.read(path) if path.exists() else Table(gpu)
        return self._known[path]

    def everywhere(self, gpu: str, card: Card | None = None) -> tuple[FoundRow[Row], ...]:
        """What there is of a GPU, best first: the user's rows, ours, and those that packages with operators have of their
        own implementations; then, given its card, the same of other GPUs with the same multiprocessors.

        A table that is not ours and cannot be read is left out, and `kernelmux doctor` says so.
        """
        places = [("", tables) for tables in (*self._user(), self)]
        own, others = list[FoundRow[Row]](), list[FoundRow[Row]]()
        for whose, tables in (*places, *self._packages().items()):
            with suppress(*(() if tables is self else (SpecError,))):
                own += _rows_of(tables.of(gpu), whose)
            for table in tables._alike(gpu, card) if card else ():
                others += _rows_of(table, whose)
        return *own, *others

    def _alike(self, gpu: str, card: Card) -> Iterator[Table[Row]]:
        """The tables of other GPUs with the multiprocessors of a card."""
        for path in self.place.all():
            with suppress(SpecError):
                if path not in self._known:
                    self._known[path] = self.read(path)
                if self._known[path].gpu != gpu and self._known[path].alike(card):
                    yield self._known[path]

    def all(self) -> tuple[Tables[Row], ...]:
        """These tables, those in the folder of the same name of each package with operators, and the user's."""
        return (self, *self._packages().values(), *self._user())

    def _packages(self) -> dict[str, Tables[Row]]:
        listed = elsewhere.listed().packages
        return {name: self.at(package.folder / self.name) for name, package in listed.items()}

    def _user(self) -> list[Tables[Row]]:
        place = user_folder.folder()
        return [self.at(place / self.name, ", yours")] if place else []

    def at(self, folder: Path, theirs: str = "") -> Tables[Row]:
        """The tables in another folder, a file for each GPU in it."""
        if folder == self.place.folder:
            return self
        return self._beside.setdefault(folder, replace(self, place=GpuFiles(folder), theirs=theirs))

    def path(self, gpu: str) -> Path:
        """The file of a GPU."""
        return self.place.of(gpu)

    def read(self, path: Path) -> Table[Row]:
        """The table in a file; SpecError for one of another form."""
        try:
            found = self.form(json.loads(path.read_text(encoding="utf-8")))
            if found["schema"] not in (1, SCHEMA):
                raise ValueError(f"schema {found['schema']}")
            rows = tuple(map(self.row, in_full(found, found[self.label], *self.said_once)))
            head = {} if found["schema"] == 1 else {name: found[name] for name in HEAD}
            return Table(str(found["gpu"]), rows, **head)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            told = f"{type(error).__name__}: {error}"
            raise SpecError(f"{path}: expected {self.what} of schema {SCHEMA}, got {told}") from error

    def text(self, table: Table[Row]) -> str:
        """The file of a table."""
        head = {"schema": SCHEMA, "gpu": table.gpu} | {name: getattr(table, name) for name in HEAD}
        told = "".join(f" {json.dumps(name)}: {json.dumps(value)},\n" for name, value in head.items())
        found = [_kept(row) for row in table.rows]
        if self.place.name:
            shared, found = said_once(found, *self.said_once)
            told += "".join(f" {json.dumps(name)}: {json.dumps(values)},\n" for name, values in shared.items())
        rows = ",\n".join(f"  {json.dumps(row)}" for row in found)
        return f'{{\n{told} "{self.label}": [\n{rows}\n ]\n}}\n'

    def summary(self, lines: Callable[[Table[Row], str], Iterable[str]]) -> Iterator[str]:
        """What there is to say of each table, by its GPU and whose it is; behind "!" the error of one that is damaged."""
        for path in self.place.all():
            try:
                table = self.read(path)
                yield from lines(table, f"{table.gpu}{self.theirs}")
            except SpecError as error:
                yield f"! {error}"

    def forget(self) -> None:
        """Read the files again when they are next asked, and the sources that rows are compared with."""
        self._known.clear()
        self._beside.clear()
        _source.cache_clear()


HEAD = ("capability", "processors", "packages")


def _kept(row: Any) -> dict[str, Any]:
    """The fields of a row; without packages of its own it has those of the head."""
    return {name: value for name, value in vars(row).items() if name != "packages" or value}


def _rows_of(table: Table[Row], whose: str) -> Iterator[FoundRow[Row]]:
    """The rows of a table; whose: of the implementations of this package alone, unless it is empty."""
    for row in table.rows:
        if not whose or _whose(row) == whose:
            yield FoundRow(row, table.gpu, older_packages(table, row))


def older_packages(table: Table[Row], row: Row) -> str:
    """Which packages are others than those that a row of a table was found with, "" if none is."""
    return changed_packages(tuple((getattr(row, "packages", None) or table.packages).items()))


@cache
def changed_packages(then: tuple[tuple[str, str], ...]) -> str:
    """Which of the packages here, and of the driver, are other versions than then, "" if none is."""
    now = installed()
    told = (f"{name} is {now[name]} and was {version}" for name, version in then if now.get(name, version) != version)
    return ", ".join(told) if then else "its packages are not known"


@cache
def installed() -> Mapping[str, str]:
    """The versions of the packages that compile and launch, and of the driver, as far as they are here."""
    names = (distribution for name in FOUND_WITH for distribution in packages.PACKAGES[name])
    return versions_of({name: packages.version(name) for name in names}, _driver())


def versions_of(distributions: Mapping[str, str], driver: str) -> dict[str, str]:
    """What tables keep of the versions of distributions: by package, without what is local to a build ("2.13.0+cpu")."""
    found = {name: next(filter(None, map(distributions.get, packages.PACKAGES[name])), "") for name in FOUND_WITH}
    found = {name: version.partition("+")[0] for name, version in found.items()} | {"driver": driver}
    return {name: version for name, version in found.items() if version}


def _driver() -> str:
    """The version of NVIDIA's kernel module, as Linux tells it; "" where it does not."""
    try:
        found = re.search(r"Kernel Module[^\n]*?\b(\d+\.\d+(?:\.\d+)*)", DRIVER.read_text(encoding="utf-8"))
    except OSError:
        return ""
    return found[1] if found else ""


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
    """The name of a GPU, also by its index; None for a CPU (-1), where torch sees no GPU, and for one that stands for
    a lesser card (`cards`): what was found on it was found with other kernels."""
    if (found := card(device)) is None:
        return None
    name = found.title if _emulated else torch.cuda.get_device_name(device)
    return name if found.title == name else None


def card(device: torch.device | int) -> Card | None:
    """The card of a GPU; None for a CPU, and where torch sees no GPU."""
    if _emulated:
        return cards.emulated()
    if not torch.cuda.is_available() or (index := _index(device)) < 0:
        return None
    return cards.of(index)


_emulated = False
cards.when_changed(gpu.cache_clear)


@contextmanager
def of_emulated() -> Iterator[None]:
    """Inside, calls have the tables of the GPU that the emulator stands for: for who compiles for it and launches nothing.

    It is known by the driver's name of it ("NVIDIA H200"), if KERNELMUX_EMULATED_GPU gives that.
    """
    global _emulated
    before, _emulated = _emulated, True
    cards.forget()
    try:
        yield
    finally:
        _emulated = before
        cards.forget()


def emulating() -> bool:
    """Whether calls have the tables of the GPU that the emulator stands for."""
    return _emulated


def on_this_gpu(table: Table[Row]) -> Table[Row]:
    """A table with the head of what is at hand: the multiprocessors of the GPU, if there is one, and the packages."""
    made = replace(table, packages=dict(installed()))
    found = card(torch.device("cuda"))
    return replace(made, capability=found.number, processors=found.processors) if found else made


def _index(device: torch.device | int) -> int:
    if isinstance(device, int):
        return device
    if device.type != "cuda":
        return -1
    return torch.cuda.current_device() if device.index is None else device.index


def octaves(one: Iterable[float], other: Iterable[float]) -> float:
    """How far lengths are from others: the sum of |log2 ratio|, a length of 0 taken as 1."""
    return sum(abs(math.log2((a or 1) / (b or 1))) for a, b in zip(one, other, strict=True))
