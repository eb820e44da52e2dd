"""What came of one row, typed; `json_form` turns it into JSON and back.

A `RowResult` is `Timed` (it was timed and its output was right) or `NotTimed` (it failed, or cannot run here).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import inf
from typing import Any

from kernelmux.perf.rows.codec import DERIVED, PART, SPARSE
from kernelmux.registry.cases import Case
from kernelmux.registry.errors import shown

OK, FAILED, SKIPPED, WRONG, LATE = "ok", "failed", "skipped", "wrong", "late"
BOUNDS = ("launch", "link", "memory", "compute", "")  # what limits a call; "" where nothing is known
STATUSES = (OK, FAILED, SKIPPED, WRONG, LATE)


@dataclass(frozen=True)
class Contestant:
    """One variant of an operator on one workload in one dtype; again: as a second contestant, for A/A."""

    op: str
    workload: str
    dtype: str
    backend: str
    variant: str
    again: bool = field(default=False, kw_only=True)

    @property
    def id(self) -> str:
        return f"{self.op}-{Case(self.workload).name}-{self.dtype}-{self.label}" + ("-again" if self.again else "")

    @property
    def label(self) -> str:
        return f"{self.backend}/{self.variant}" if self.variant else self.backend

    @property
    def group(self) -> tuple[str, str, str]:
        """Contestants of one group do the same work."""
        return self.op, self.workload, self.dtype

    @property
    def key(self) -> tuple[str, ...]:
        """What identifies it in records, whichever of the two times it is."""
        return *self.group, self.backend, self.variant

    @property
    def name(self) -> str:
        """For a reader: softmax x=16384x8192 bf16 cuda/online."""
        return " ".join((*self.group, self.label))

    @property
    def identity(self) -> dict[str, Any]:
        """The fields that a result takes over."""
        return {f.name: getattr(self, f.name) for f in fields(Contestant)}

    def not_timed(self, status: str, error: str) -> NotTimed:
        """The result without a time."""
        return NotTimed(**self.identity, status=status, error=error)


@dataclass(frozen=True)
class RowResult(Contestant):
    """What came of a contestant. status: as `NotTimed` says, or "ok"; error: why there is no time. seconds: of all work."""

    status: str = field(default=OK, kw_only=True)
    error: str = field(default="", kw_only=True, metadata=SPARSE)
    seconds: float = field(default=0.0, kw_only=True)

    @classmethod
    def chosen(cls, value: dict[str, Any]) -> type[RowResult]:
        """The class of a row of JSON, by its status."""
        status = value.get("status")
        if status not in STATUSES:
            raise ValueError(f"status: expected one of {', '.join(STATUSES)}, got {shown(status)}")
        return Timed if status == OK else NotTimed


@dataclass(frozen=True, kw_only=True)
class NotTimed(RowResult):
    """A row without a time; error gives the reason.

    status: "failed", "skipped" for what cannot run here, "wrong" for another library that computes something else,
    "late" for what did not fit into the minutes of the run.
    """

    status: str = field()
    error: str = field()


@dataclass(frozen=True, kw_only=True)
class RooflinePoint:
    """A time against the ceilings of its run: the least time and what sets it, share of the floor, achieved rate."""

    floor_us: float
    floor_by: str
    share: float
    rate: float
    rate_unit: str
    bound: str = ""

    def __post_init__(self) -> None:
        if self.bound not in BOUNDS:
            raise ValueError(f"bound: expected one of {', '.join(filter(None, BOUNDS))}, got {shown(self.bound)}")


@dataclass(frozen=True, kw_only=True)
class SecondTiming:
    """The same variant timed once more (A/A); apart: how much longer the longer of the two times is, relative."""

    again_us: float
    apart: float
    again_spread: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Timed(RowResult):
    """A row that was timed and whose output was right. Times in microseconds, spread relative to the median.

    idea: of the variant. spec, source: hashes of what was measured. unit: the key of the compute ceiling.
    budget: the share of the error bound in use; sampled: what was checked, "" for everything.
    host_us: of the Python call alone; graph_us: per call inside a CUDA graph, or graph_note: why there is none.
    mhz: the clock before the samples; held_us, held_mhz: time and clock once power and clock have settled.
    first_s: seconds of the first call; copies: sets of inputs. point: None without ceilings; second: None without A/A.
    parts: seconds of the parts of its work. date: of a row in a record. stale: the source or the work has changed since.
    packages: of a row in a record, what it was timed with (`registry.backend.device_tables`), if that is not what
    the machine says.
    """

    spec: str
    source: str
    median_us: float
    spread: float
    least_us: float
    rounds: int
    bytes: float
    flops: float
    unit: str
    link: str
    budget: float
    sampled: str = ""
    idea: str = ""
    host_us: float | None = None
    graph_us: float | None = None
    graph_note: str = ""
    mhz: float | None = None
    held_us: float | None = None
    held_mhz: float | None = None
    first_s: float | None = None
    copies: int | None = None
    point: RooflinePoint | None = field(default=None, metadata=PART)
    second: SecondTiming | None = field(default=None, metadata=PART)
    parts: dict[str, float] = field(default_factory=dict, metadata=SPARSE)
    date: str = field(default="", metadata=SPARSE)
    packages: dict[str, str] = field(default_factory=dict, metadata=SPARSE)
    stale: bool = field(default=False, metadata=DERIVED)

    def __post_init__(self) -> None:
        if not 0 < self.median_us < inf:
            raise ValueError(f"median_us: expected microseconds, more than 0, got {self.median_us}")

    @property
    def apart(self) -> float:
        """How far the two times of a variant lie apart; 0 without A/A."""
        return self.second.apart if self.second else 0.0

    @property
    def lesser_us(self) -> float:
        """Of the two times the lesser: what disturbs a machine for a moment only adds time."""
        return min(self.median_us, self.second.again_us) if self.second else self.median_us
