"""What came of a sweep, and its file: a CSV whose head says what it was measured on.

    # kernelmux.perf sweep 1
    # axis: N
    # shape: x=4096xN
    # date: 2026-11-21
    # command: python -m kernelmux.perf --sweep softmax:N=256..65536 --record
    # machine: {"name": "NVIDIA H200", ...}
    # ceilings: {"copy": 4.2e12, ...}
    length,op,workload,dtype,backend,variant,median_us,...

`pandas.read_csv(path, comment="#")` reads it too. Records of a user are results/sweeps/<gpu>-<op>-<axis>.csv in the user's
folder, those that ship records/<gpu>/sweeps/<op>-<axis>.csv; those of channels-last tensors end with -channels-last.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args, get_type_hints

from kernelmux.perf import peers
from kernelmux.perf.planning import plan
from kernelmux.perf.record import history
from kernelmux.perf.rows import output_files
from kernelmux.perf.rows.codec import Malformed, decode, encode
from kernelmux.perf.rows.machine import MeasuringMachine
from kernelmux.perf.rows.roofline import Ceilings
from kernelmux.perf.rows.row_result import OK, RooflinePoint, Timed
from kernelmux.registry.cases import CHANNELS_LAST
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.util.files import RECORDS, file_stem

FOLDER, NAME = RECORDS, "sweeps"  # of those that ship: <gpu>/sweeps
HEAD = "kernelmux.perf sweep 1"
COLUMNS = (
    "op",
    "workload",
    "dtype",
    "backend",
    "variant",
    "median_us",
    "spread",
    "least_us",
    "rounds",
    "rate",
    "rate_unit",
    "floor_us",
    "floor_by",
    "share",
    "bytes",
    "flops",
    "unit",
    "link",
    "budget",
    "sampled",
    "mhz",
    "spec",
    "source",
)
TYPES = get_type_hints(Timed) | get_type_hints(RooflinePoint)
DIGITS = 6


@dataclass(frozen=True)
class Point:
    """One variant at one length."""

    length: int
    row: Timed


@dataclass(frozen=True)
class Curve:
    """A sweep that was measured. axis: "N", or "M=N=K"; shape: the workload with the axis in place of the length.

    points: by length, then as in the run. ceilings: None on a CPU.
    """

    axis: str
    shape: str
    date: str
    command: str
    machine: MeasuringMachine
    ceilings: Ceilings | None
    points: tuple[Point, ...]

    @property
    def op(self) -> str:
        return self.points[0].row.op

    @property
    def stem(self) -> str:
        """Its name in the names of files: softmax-N, matmul-M-N-K, conv2d-C-O-channels-last."""
        return "-".join([self.op, self.axis.replace("=", "-").replace("...", ""), *self.order])

    @property
    def order(self) -> tuple[str, ...]:
        """Of its tensors in memory, if that is not the usual one."""
        return (CHANNELS_LAST,) if CHANNELS_LAST in self.shape.split() else ()

    @property
    def title(self) -> str:
        return f"{self.op} {self.shape} {self.points[0].row.dtype}"

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(point.length for point in self.points))

    @cached_property
    def lines(self) -> dict[str, dict[int, Timed]]:
        """The rows of each line by length: torch first, then other libraries, then ours in the order of the run.

        A backend is one line where a single variant of it was timed at each length, else each variant is one.
        """
        together: dict[str, dict[int, dict[str, Timed]]] = {}
        for point in self.points:
            together.setdefault(point.row.backend, {}).setdefault(point.length, {})[point.row.variant] = point.row
        first = {plan.BASELINE: 0, peers.NAME: 1}
        ordered = sorted(together, key=lambda backend: first.get(backend, len(first)))
        return dict(line for backend in ordered for line in _lines(backend, together[backend]))

    @property
    def stale(self) -> tuple[str, ...]:
        """The lines whose source, or whose work, has changed since; other libraries do not change here."""
        return tuple(name for name, rows in self.lines.items() if any(map(_stale, rows.values())))


def _lines(backend: str, by_length: dict[int, dict[str, Timed]]) -> Iterator[tuple[str, dict[int, Timed]]]:
    variants = dict.fromkeys(variant for rows in by_length.values() for variant in rows)
    if len(variants) > 1 and all(len(rows) == 1 for rows in by_length.values()) and backend != peers.NAME:
        yield backend, {n: row for n, rows in by_length.items() for row in rows.values()}
    else:
        for variant in variants:
            yield f"{backend}/{variant}", {n: rows[variant] for n, rows in by_length.items() if variant in rows}


def _stale(row: Timed) -> bool:
    return row.backend != peers.NAME and history.stale(row)


def text(curve: Curve) -> str:
    """The file of a sweep."""
    ceilings = curve.ceilings and encode(curve.ceilings)
    head = {"axis": curve.axis, "shape": curve.shape, "date": curve.date, "command": curve.command}
    head |= {"machine": json.dumps(encode(curve.machine)), "ceilings": json.dumps(ceilings)}
    out = io.StringIO()
    out.writelines([f"# {HEAD}\n", *(f"# {key}: {value}\n" for key, value in head.items())])
    table = csv.writer(out, lineterminator="\n")
    table.writerow(("length", *COLUMNS))
    for point in curve.points:
        told = encode(point.row)
        table.writerow((point.length, *(_cell(told.get(name)) for name in COLUMNS)))
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if value.is_integer() else f"{value:.{DIGITS}g}"
    return "" if value is None else value


def read(path: Path) -> Curve:
    """The sweep in a file; ArgumentError says what is wrong with another one."""
    try:
        return _parsed(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError) as error:
        told = f"no {error}" if isinstance(error, KeyError) else error
        raise ArgumentError(f"{path}: expected a sweep of kernelmux.perf: {told}") from error


def _parsed(content: str) -> Curve:
    lines = content.splitlines()
    if not lines or lines[0] != f"# {HEAD}":
        raise Malformed(f"expected {HEAD!r} in the first line, got {lines[0][:40] if lines else 'nothing'!r}")
    head = dict(line[2:].split(": ", 1) for line in lines[1:] if line.startswith("# "))
    points = tuple(map(_point, csv.DictReader(line for line in lines if not line.startswith("#"))))
    if not points:
        raise Malformed("it has no rows")
    machine, ceilings = json.loads(head["machine"]), json.loads(head["ceilings"])
    return Curve(
        head["axis"],
        head["shape"],
        head["date"],
        head["command"],
        decode(MeasuringMachine, machine, "machine"),
        ceilings and decode(Ceilings, ceilings, "ceilings"),
        points,
    )


def _point(cells: dict[str, str]) -> Point:
    """A line of the table; an empty cell is a field without a value."""
    given = {name: _value(name, cells[name]) for name in COLUMNS}
    told = {name: value for name, value in given.items() if value is not None}
    return Point(int(cells["length"]), decode(Timed, told | {"status": OK}, f"length {cells['length']}"))


def _value(name: str, cell: str) -> Any:
    kind = next((part for part in get_args(TYPES[name]) if part is not type(None)), TYPES[name])
    return kind(cell) if cell else None


def record(curve: Curve, folder: Path | None = None) -> Path:
    """Write the record of a sweep in place of an older one of the same GPU, operator and axis."""
    path = path_of(curve, folder)
    output_files.write(path, text(curve))
    return path


def name_of(curve: Curve) -> str:
    """With its GPU: nvidia_h200-softmax-N."""
    return f"{file_stem(curve.machine.name)}-{curve.stem}"


def path_of(curve: Curve, folder: Path | None = None) -> Path:
    """The file of its record: in a folder of all GPUs, or the one that ships."""
    return (
        folder / f"{name_of(curve)}.csv"
        if folder
        else FOLDER / file_stem(curve.machine.name) / NAME / f"{curve.stem}.csv"
    )


def folder_of_user() -> Path:
    """The user's sweeps; ArgumentError where there is no place for them."""
    return history.folder_of_user() / NAME


def shipped() -> list[Path]:
    """The files of sweeps that ship."""
    return sorted(FOLDER.glob(f"*/{NAME}/*.csv"))


def recorded(gpu: str = "", ops: tuple[str, ...] = (), *folders: Path) -> list[Curve]:
    """The recorded sweeps, of a GPU by a part of its name and of some operators; ArgumentError names what there is.

    folders: of the user, whose sweeps come before those that ship.
    """
    known = [read(path) for folder in folders for path in sorted(folder.glob("*.csv"))] + [*map(read, shipped())]
    found = [c for c in known if file_stem(gpu) in file_stem(c.machine.name) and (not ops or c.op in ops)]
    if found:
        return found
    names = ", ".join(f"{c.machine.name} {c.stem}" for c in known) or "none"
    raise ArgumentError(f"no recorded sweeps{f' of {gpu}' if gpu else ''}; recorded: {names}")
