"""Results on disk: the JSON of a run, the record of each GPU, and whether a record still speaks of today's sources."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kernelmux.perf import files, machine, report
from kernelmux.perf.report import Row
from kernelmux.perf.run import Outcome
from kernelmux.registry import backend as registered
from kernelmux.registry import catalog
from kernelmux.registry.errors import ArgumentError

SCHEMA = 1
FOLDER = Path(__file__).with_name("results")
# What a record keeps of a row: facts, not what reports derive from them.
KEPT = (
    "op", "workload", "dtype", "backend", "variant", "idea", "spec", "source", "median_us", "spread", "least_us",
    "rounds", "bytes", "flops", "unit", "link", "floor_us", "floor_by", "share", "rate", "rate_unit", "bound",
    "host_us", "graph_us", "budget", "sampled", "advice", "again_us", "again_spread", "apart",
    "mhz", "held_us", "held_mhz",
)  # fmt: skip

Results = dict[str, Any]


def of_run(outcome: Outcome, command: str, more: dict[str, Any]) -> Results:
    """All that a run found, in the form of the JSON file."""
    return {
        "schema": SCHEMA,
        "kind": "kernelmux.perf",
        "date": machine.today(),
        "command": command,
        "machine": outcome.machine,
        "ceilings": outcome.ceilings,
        "rows": outcome.rows,
        "errors": outcome.errors,
        **more,
    }


def write(results: Results, path: Path) -> None:
    files.write(path, json.dumps(results, indent=1) + "\n")


def keep(results: Results, path: Path) -> Path | None:
    """Move earlier results aside if they have rows that a run has not, so that a small run costs no large one.

    The new place, beside the old one and named by its time; None if nothing would be lost.
    """
    try:
        earlier = read(path)
    except ArgumentError:
        return None
    if not _timed(earlier) - _timed(results):
        return None
    when = time.strftime("%Y%m%d-%H%M%S", time.localtime(path.stat().st_mtime))
    names = (f"{path.stem}-{when}{f'-{i}' if i else ''}{path.suffix}" for i in itertools.count())
    kept = next(place for place in map(path.with_name, names) if not place.exists())
    path.rename(kept)
    return kept


def _timed(results: Results) -> set[str]:
    return {report.key(row) for row in results["rows"] if row["status"] == "ok"}


def read(path: Path) -> Results:
    """Results or a record; ArgumentError for anything else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ArgumentError(f"{path}: expected results of kernelmux.perf: {error}") from error
    if not isinstance(found, dict) or found.get("kind") != "kernelmux.perf":
        raise ArgumentError(f'{path}: expected results of kernelmux.perf ("kind"), got something else')
    if found.get("schema") != SCHEMA:
        raise ArgumentError(f"{path}: expected schema {SCHEMA}, got {found.get('schema')}")
    if problem := _problem(found):
        raise ArgumentError(f"{path}: expected results of kernelmux.perf: {problem}")
    return found


HEAD: dict[str, type | tuple[type, ...]] = {"date": str, "command": str, "machine": dict, "rows": list}
NAMES = ("op", "workload", "dtype", "backend", "variant", "status")
NUMBERS = ("median_us", "spread", "bytes", "flops")


def _problem(found: Results) -> str | None:
    """What is wrong with the form of results, or None."""
    wrong = [name for name, kind in HEAD.items() if not isinstance(found.get(name), kind)]
    if not isinstance(found.get("ceilings"), dict | None):
        wrong.append("ceilings")
    if wrong:
        return f"no usable {', '.join(wrong)}"
    for number, row in enumerate(found["rows"]):
        if not isinstance(row, dict):
            return f"row {number} is no object"
        if wrong := _wrong_fields(row):
            return f"row {number} has no usable {', '.join(wrong)}"
    return None


def _wrong_fields(row: Row) -> list[str]:
    wrong = [name for name in NAMES if not isinstance(row.get(name), str)]
    if row.get("status") == "ok":
        wrong += [name for name in NUMBERS if not isinstance(row.get(name), int | float)]
        wrong += [name for name in ("spec", "source") if not isinstance(row.get(name), str)]
        wrong += ["median_us"] if isinstance(row.get("median_us"), int | float) and not row["median_us"] > 0 else []
    elif row.get("status") in ("failed", "skipped"):
        wrong += [] if isinstance(row.get("error"), str) else ["error"]
    else:
        wrong += ["status"]
    return wrong


def path_for(gpu: str) -> Path:
    return FOLDER / f"{machine.slug(gpu)}.json"


def record(results: Results, folder: Path | None = None) -> Path:
    """Merge the good rows of a run into the record of its GPU; a variant that failed loses its row."""
    if results["machine"].get("kind") != "cuda":
        raise ArgumentError("--record: only times of a real GPU are recorded")
    path = (folder or FOLDER) / path_for(results["machine"]["name"]).name
    book = read(path) if path.exists() else {"schema": SCHEMA, "kind": "kernelmux.perf", "rows": []}
    write(merged(book, results), path)
    recorded.cache_clear()
    return path


def merged(book: Results, results: Results) -> Results:
    """A record with the rows of a run in place of older ones, in the order of operators, workloads and ladders."""
    rows = {report.key(row): row for row in book["rows"]}
    run = {k: results[k] for k in ("date", "command", "machine", "ceilings")}
    for row in results["rows"]:
        if row["status"] == "failed":
            rows.pop(report.key(row), None)
        elif row["status"] == "ok":
            kept = {k: _rounded(row[k]) for k in KEPT if k in row}
            rows[report.key(row)] = kept | {"status": "ok", "date": results["date"]}
    return {**book, **run, "rows": sorted(rows.values(), key=_place)}


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _place(row: Row) -> tuple[Any, ...]:
    """Where a row stands in a report: operators by name, workloads as in the spec, backends by priority, ladders."""
    try:
        spec = catalog.spec(row["op"])
        texts = [c.text for c in spec.workloads]
        ladder = list(registered.variants(row["backend"], row["op"]))
        priority = registered.backend(row["backend"]).priority
    except Exception:  # of an operator or a backend that is not here any more, or cannot be loaded
        texts, ladder, priority = [], [], 1 << 30
    at = texts.index(row["workload"]) if row["workload"] in texts else len(texts)
    rung = ladder.index(row["variant"]) if row["variant"] in ladder else len(ladder)
    return row["op"], at, row["workload"], row["dtype"], priority, row["backend"], rung, row["variant"]


@dataclass(frozen=True)
class Record:
    """What is known about one GPU."""

    gpu: str
    results: Results

    @property
    def rows(self) -> list[Row]:
        """All rows; `stale` tells those whose spec or source has changed since."""
        return [row | {"stale": stale(row)} for row in self.results["rows"]]

    @property
    def title(self) -> str:
        dates = sorted({row.get("date", self.results["date"]) for row in self.results["rows"]})
        when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}" if dates else ""
        return f"recorded on {self.gpu}, {when}"


@cache
def recorded() -> tuple[Record, ...]:
    """The records of all GPUs."""
    found = [read(path) for path in sorted(FOLDER.glob("*.json"))]
    return tuple(Record(results["machine"]["name"], results) for results in found)


def find(gpu: str) -> Record:
    """The record of a GPU by its name, its file name or a part of either; ArgumentError names what there is."""
    for record_ in recorded():
        if not gpu or machine.slug(gpu) in machine.slug(record_.gpu):
            return record_
    known = ", ".join(r.gpu for r in recorded()) or "none"
    raise ArgumentError(f"no recorded results{f' of {gpu}' if gpu else ''}; recorded GPUs: {known}")


def stale(row: Row) -> bool:
    """Whether the spec or the source of a recorded row is no longer what was measured."""
    return (row["spec"], row["source"]) != _hashes(row["op"], row["backend"])


@cache
def _hashes(op: str, backend: str) -> tuple[str, str]:
    try:
        return catalog.spec(op).hash, registered.source_hash(backend, op)
    except Exception:
        return "", ""
