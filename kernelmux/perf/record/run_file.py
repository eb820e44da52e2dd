"""The results of a run, and the JSON file that holds them; of a record that ships in a shorter form (`compact`)."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelmux.perf.rows import compact, output_files
from kernelmux.perf.rows.codec import SPARSE, Malformed, decode, encode
from kernelmux.perf.rows.machine import MeasuringMachine
from kernelmux.perf.rows.roofline import Ceilings
from kernelmux.perf.rows.row_result import RowResult, Timed
from kernelmux.registry.backend.timings import KIND
from kernelmux.registry.errors import ArgumentError, shown
from kernelmux.registry.util.files import json_rows

SCHEMA = 1
COMPACT = 2  # the schema of `compact`


@dataclass(frozen=True)
class Overhead:
    """Host microseconds of one call on a small input, medians.

    direct_us: of what a remembered choice runs. through_us: of the public function. bound_us: of a call bound by `bind`,
    unchecked_us: with check=False. gradient_us: of the public function with a gradient wanted. None where there is none.
    """

    op: str
    label: str
    direct_us: float = 0.0
    through_us: float = 0.0
    bound_us: float | None = field(default=None, metadata=SPARSE)
    gradient_us: float | None = field(default=None, metadata=SPARSE)
    unchecked_us: float | None = field(default=None, metadata=SPARSE)
    date: str = field(default="", metadata=SPARSE)
    error: str = field(default="", metadata=SPARSE)

    @property
    def variant(self) -> str:
        return self.label.partition("/")[2]


@dataclass(frozen=True)
class KernelNeed:
    """One kernel of one variant: per thread registers and spilled bytes, per block bytes of static and dynamic shared
    memory and threads, per multiprocessor blocks and the share of its warps; error: why there is no more."""

    op: str
    label: str
    workload: str = ""
    dtype: str = ""
    kernel: str = ""
    registers: int = 0
    spills: int = 0
    shared: int = 0
    dynamic: int = 0
    threads: int = 0
    blocks: int = 0
    occupancy: float = 0.0
    limited_by: str = ""
    error: str = ""


@dataclass(frozen=True)
class Moved:
    """Bytes that a small call moves to and from memory, counted on the emulator, and those that it has to move.

    launches: of kernels. spec, source: hashes of what was counted; stale: they, or the call, have changed since.
    """

    op: str
    label: str
    workload: str
    dtype: str
    moved: int
    needed: int
    launches: int
    spec: str
    source: str
    stale: bool = field(default=False, metadata=SPARSE)

    @property
    def times(self) -> float:
        """Bytes moved for each byte that has to be moved."""
        return self.moved / self.needed if self.needed else 1.0


@dataclass(frozen=True)
class PeerShare:
    """What a backend reaches on the random shapes of a family: the time of the best peer of a shape over its own.

    shapes: those with both times. mean: geometric, of their shares; at_least: how many reach 0.98, and 0.95. worst: the
    least share, of worst_shape beside worst_peer. no_peer: shapes without a peer that ran; not_run: without a variant that
    could run, or without time for it; failed: with one that failed.
    """

    family: str
    backend: str
    shapes: int = 0
    mean: float | None = None
    at_least: tuple[int, ...] = ()
    worst: float | None = None
    worst_shape: str = ""
    worst_peer: str = ""
    no_peer: int = 0
    not_run: int = 0
    failed: int = 0


@dataclass(frozen=True, kw_only=True)
class Results:
    """All results of a run or of a record. errors: why rows could not be run at all. ceilings: of a GPU.

    tested: the backends that were timed. left: which operators the run was not about, in words. seconds: of the parts of
    the run; compiled: of each row that was compiled ahead. usage: how busy the workers were. shares: of a random sweep.
    """

    date: str
    command: str
    machine: MeasuringMachine
    ceilings: Ceilings | None
    rows: tuple[RowResult, ...]
    errors: tuple[str, ...] = ()
    tested: tuple[str, ...] = field(default=(), metadata=SPARSE)
    left: str = field(default="", metadata=SPARSE)
    seconds: dict[str, float] = field(default_factory=dict, metadata=SPARSE)
    compiled: dict[str, float] = field(default_factory=dict, metadata=SPARSE)
    usage: str = field(default="", metadata=SPARSE)
    overhead: tuple[Overhead, ...] = field(default=(), metadata=SPARSE)
    resources: tuple[KernelNeed, ...] = field(default=(), metadata=SPARSE)
    moved: tuple[Moved, ...] = field(default=(), metadata=SPARSE)
    shares: tuple[PeerShare, ...] = field(default=(), metadata=SPARSE)

    @property
    def timed(self) -> tuple[Timed, ...]:
        return tuple(row for row in self.rows if isinstance(row, Timed))


def write(results: Results, path: Path) -> None:
    """Write the JSON file of a run."""
    output_files.write(path, text({"schema": SCHEMA, "kind": KIND} | encode(results)))


def text(content: dict[str, Any]) -> str:
    return json_rows(content) + "\n"


def read(path: Path) -> Results:
    """Results or a record; ArgumentError says what is wrong with anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ArgumentError(f"{path}: expected results of {KIND}: {error}") from error
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise ArgumentError(f'{path}: expected results of {KIND} ("kind"), got something else')
    if (schema := content.get("schema")) not in (SCHEMA, COMPACT):
        raise ArgumentError(f"{path}: expected schema {SCHEMA} or {COMPACT}, got {shown(schema)}")
    try:
        return decode(Results, compact.whole(content) if schema == COMPACT else content, "")
    except (Malformed, compact.NotCompact) as error:
        raise ArgumentError(f"{path}: expected results of {KIND}: {error}") from error


def keep(results: Results, path: Path) -> Path | None:
    """Move earlier results aside if they have rows that a run has not, so that a small run does not overwrite a large one.

    Returns the new name, which holds their time; None if nothing would be lost.
    """
    try:
        earlier = read(path)
    except ArgumentError:
        return None
    if not {row.key for row in earlier.timed} - {row.key for row in results.timed}:
        return None
    when = time.strftime("%Y%m%d-%H%M%S", time.localtime(path.stat().st_mtime))
    names = (f"{path.stem}-{when}{f'-{i}' if i else ''}{path.suffix}" for i in itertools.count())
    kept = next(name for name in map(path.with_name, names) if not name.exists())
    path.rename(kept)
    return kept
