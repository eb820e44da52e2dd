"""The record of each GPU, and whether its rows are of the sources as they are.

A user's records lie in the user's folder (`registry.util.user_folder`), results/<gpu>.json, and their times beside them.
Those that ship are records/<gpu>/perf.json, in a shorter form (`compact`), which is read for times too. A package with
operators keeps the rows of its own implementations in its folder `results`, and their times in `times`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from kernelmux.perf import peers
from kernelmux.perf.record.run_file import COMPACT, SCHEMA, Overhead, Results, read, text
from kernelmux.perf.rows import compact, output_files
from kernelmux.perf.rows.codec import encode
from kernelmux.perf.rows.machine import MeasuringMachine, found_with
from kernelmux.perf.rows.roofline import NOISY
from kernelmux.perf.rows.row_result import RowResult, Timed
from kernelmux.registry import catalog, elsewhere
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend import timings as measured
from kernelmux.registry.backend.device_tables import Table
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.util import user_folder as home
from kernelmux.registry.util.files import GpuFiles, file_stem

NAME = "results"  # of the folder of a user and of a package
PLACE = measured.TABLES.place  # of those that ship
# What a record keeps of a row, in this order.
KEPT = (
    "op",
    "workload",
    "dtype",
    "backend",
    "variant",
    "idea",
    "spec",
    "source",
    "median_us",
    "spread",
    "least_us",
    "rounds",
    "bytes",
    "flops",
    "unit",
    "link",
    "floor_us",
    "floor_by",
    "share",
    "rate",
    "rate_unit",
    "bound",
    "host_us",
    "graph_us",
    "budget",
    "sampled",
    "again_us",
    "again_spread",
    "apart",
    "mhz",
    "held_us",
    "held_mhz",
    "status",
    "date",
    "packages",
)
DIGITS = 6


def record(results: Results, folder: Path | None = None) -> Path:
    """Merge the timed rows of a run into the record of its GPU; what failed loses its row, what was noisy keeps it.

    folder: of records of a user or of a package; without it the record is the one that ships.
    """
    check(results)
    path = (GpuFiles(folder) if folder else PLACE).of(results.machine.name)
    known = read(path) if path.exists() else replace(results, rows=(), overhead=())
    head = results if results.rows else known  # a run of host times alone says nothing of the ceilings
    kept = [_of_then(row, known.machine, head.machine) for row in known.timed]
    made = replace(head, rows=merged(kept, results), overhead=_overhead(known, results))
    output_files.write(path, text(form(made) if folder else shipped(made)))
    recorded.cache_clear()
    measured.forget()
    return path


def check(results: Results) -> None:
    """ArgumentError for what is not of a real GPU."""
    if results.machine.kind != "cuda":
        raise ArgumentError("--record: only times of a real GPU are recorded")


def folder_of_user() -> Path:
    """The user's records; ArgumentError where there is no place for them."""
    return home.required(NAME, "--record")


def record_for_user(results: Results) -> Path:
    """`record` and `derive` in the user's folder, whosever implementations were timed; the file of the record."""
    path = record(results, folder_of_user())
    derive(path, home.required(measured.TABLES.name, "--record"))
    return path


def record_all(results: Results) -> list[Path]:
    """The same where the sources lie, for ours and for each package whose implementations were timed."""
    packages = {name: package.folder for name, package in elsewhere.listed().packages.items()}
    parts = {_whose(row.op, row.variant) for row in results.rows} | {_whose(r.op, r.variant) for r in results.overhead}
    paths = []
    for name in sorted(parts or {""}):
        rows = tuple(row for row in results.rows if _whose(row.op, row.variant) == name)
        overhead = tuple(row for row in results.overhead if _whose(row.op, row.variant) == name)
        home = packages.get(name)
        paths.append(record(replace(results, rows=rows, overhead=overhead), home / NAME if home else None))
        if home:
            derive(paths[-1], home / measured.TABLES.name)
    return paths


def _whose(op: str, variant: str) -> str:
    """The package with operators whose implementation this is, "" for ours."""
    package = elsewhere.whose(op, variant)
    return package.name if package else ""


def merged(known: Iterable[Timed], results: Results) -> tuple[Timed, ...]:
    """The rows on record with those of a run in place of older ones, in the order of a report; not noisy ones, nor those of
    other libraries."""
    rows = {row.key: row for row in known}
    for row in results.rows:
        if row.status == "failed":
            rows.pop(row.key, None)
        elif isinstance(row, Timed) and row.spread <= NOISY and row.backend != peers.NAME:
            rows[row.key] = replace(row, date=results.date)
    return tuple(sorted(rows.values(), key=_rank))


def _of_then(row: Timed, then: MeasuringMachine, now: MeasuringMachine) -> Timed:
    """A row whose record gets the head of another run: it names the packages that it was timed with, if they are others."""
    own = row.packages or found_with(then)
    return replace(row, packages={} if own == found_with(now) else own)


def _overhead(known: Results, results: Results) -> tuple[Overhead, ...]:
    """The host times on record, those of a run in place of all older ones of the same operator and backend."""
    fresh = [replace(row, date=results.date) for row in results.overhead if not row.error]
    measured = {(row.op, row.label.partition("/")[0]) for row in fresh}
    kept = [row for row in known.overhead if (row.op, row.label.partition("/")[0]) not in measured]
    return tuple(sorted([*kept, *fresh], key=lambda row: (row.op, row.label)))


def form(results: Results) -> dict[str, Any]:
    """The JSON of a record: the rows first, of each the kept fields, with the digits that are significant."""
    head = encode(results)
    rows = [{k: _rounded(row[k]) for k in KEPT if k in row} for row in head.pop("rows")]
    kept = ("date", "command", "machine", "ceilings")
    made = {"schema": SCHEMA, "kind": measured.KIND, "rows": rows, **{name: head[name] for name in kept}}
    if "overhead" in head:
        made["overhead"] = [{k: _rounded(v) for k, v in row.items()} for row in head["overhead"]]
    return made


def shipped(results: Results) -> dict[str, Any]:
    """The JSON of a record that ships."""
    return compact.form({**form(results), "schema": COMPACT})


def _rounded(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _rank(row: RowResult) -> tuple[Any, ...]:
    """Where a row stands in a report: operators by name, workloads as in the spec, backends by priority, ladders."""
    try:
        spec = catalog.spec(row.op)
        texts = [c.text for c in spec.workloads]
        ladder = list(registered.variants(row.backend, row.op))
        priority = registered.backend(row.backend).priority
    except Exception:  # of an operator or a backend that is not here any more, or cannot be loaded
        texts, ladder, priority = [], [], 1 << 30
    at = texts.index(row.workload) if row.workload in texts else len(texts)
    rung = ladder.index(row.variant) if row.variant in ladder else len(ladder)
    return row.op, at, row.workload, row.dtype, priority, row.backend, rung, row.variant


@dataclass(frozen=True)
class GpuRecord:
    """What is on record about one GPU."""

    results: Results

    @property
    def gpu(self) -> str:
        return self.results.machine.name

    @property
    def rows(self) -> tuple[Timed, ...]:
        """All rows; `stale` is set where the source or the work has changed since."""
        return tuple(map(seen, self.results.timed))

    @property
    def title(self) -> str:
        dates = sorted({row.date or self.results.date for row in self.results.timed})
        when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}" if dates else ""
        return f"recorded on {self.gpu}, {when}"


@cache
def recorded() -> tuple[GpuRecord, ...]:
    """The records of all GPUs."""
    return tuple(GpuRecord(read(path)) for path in PLACE.all())


def everywhere() -> tuple[GpuRecord, ...]:
    """The same, with the rows of packages with operators."""
    found = {known.gpu: known.results for known in recorded()}
    for name, package in elsewhere.listed().packages.items():
        for path in GpuFiles(package.folder / NAME).all():
            theirs = read(path)
            rows = tuple(row for row in theirs.timed if _whose(row.op, row.variant) == name)
            known = found.get(theirs.machine.name, replace(theirs, rows=(), overhead=()))
            found[theirs.machine.name] = replace(known, rows=(*known.rows, *rows))
    return tuple(map(GpuRecord, found.values()))


def of_user() -> tuple[GpuRecord, ...]:
    """The user's own records."""
    place = home.folder()
    return tuple(GpuRecord(read(path)) for path in GpuFiles(place / NAME).all()) if place else ()


def find(gpu: str, shipped: bool = False) -> GpuRecord:
    """The record of a GPU by its name, its file name or a part of either; ArgumentError names what there is.

    The user's comes before others; shipped: those alone.
    """
    there = everywhere() if shipped else (*of_user(), *everywhere())
    for known in there:
        if not gpu or file_stem(gpu) in file_stem(known.gpu):
            return known
    names = ", ".join(dict.fromkeys(known.gpu for known in there)) or "none"
    raise ArgumentError(f"no recorded results{f' of {gpu}' if gpu else ''}; recorded GPUs: {names}")


def seen(row: Timed) -> Timed:
    """A row of a file as of now: whether it is stale, and the idea of its variant, which records that ship have not."""
    try:
        idea = row.idea or registered.variants(row.backend, row.op)[row.variant].idea
    except Exception:  # of an operator or a backend that is not here any more, or cannot be loaded
        idea = ""
    return replace(row, stale=stale(row), idea=idea)


def stale(row: Timed) -> bool:
    """Whether the source of a recorded row has changed since, or its operator counts other bytes or flops by now."""
    return not measured.time_of(row).current


def derive(path: Path, folder: Path) -> Path:
    """Write the times of a record, in the file at `path`, into a folder where the choice of a backend reads them."""
    found = read(path)
    times, machine = tuple(map(measured.time_of, found.timed)), found.machine
    table = Table(machine.name, times, machine.capability, machine.processors or 0, found_with(machine))
    made = folder / path.name
    output_files.write(made, measured.TABLES.text(table))
    measured.forget()
    return made
