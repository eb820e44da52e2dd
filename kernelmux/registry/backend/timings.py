"""What "auto" knows of a GPU: the times of the variants that were measured on it, or on one with the same multiprocessors.

`times/<gpu>.json`, in the folder of the user (`user_folder`), is written with the record of `python -m kernelmux.perf
--record`, from the same rows. Of what ships the record itself is read, `records/<gpu>/perf.json`. A time counts while its
variant launches for its workload what was measured (`launch_keys`), and that is the same work (bytes and flops); other rows
say nothing. A call is compared with the nearest workload of its operator: the same dtypes, options, reduced axis and order
of images in memory, and the least sum of |log2(length / length of the workload)| over the axes, at most FURTHEST. Workloads
measured on this GPU with the packages at hand are asked first, then those of other packages, then those of another GPU.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

import torch

from kernelmux.registry import catalog, dtypes
from kernelmux.registry.backend import device_tables, launch_keys, tuned_configs
from kernelmux.registry.backend.device_tables import ALIKE, FoundRow, Table, Tables
from kernelmux.registry.backend.launch_keys import SAME, compared
from kernelmux.registry.spec.op_spec import OpSpec
from kernelmux.registry.spec.signature import Axis, Call
from kernelmux.registry.spec.value_domains import Count
from kernelmux.registry.util import cards, torch_modes
from kernelmux.registry.util.cards import Card
from kernelmux.registry.util.files import RECORDS, GpuFiles, in_full, rows_of

FURTHEST = 4.0  # sixteen times the work, or a sixteenth: beyond it another variant may well be the fastest
EQUAL = 1.03  # times within 3 % differ from run to run: the priority decides between them
DIGITS = 6  # of bytes and flops, as records keep them


@dataclass(frozen=True)
class Time:
    """The median time of a variant for a workload. source: of the backend's files; bytes, flops: of the workload.

    packages: that it was measured with, if not with those of the table.
    """

    op: str
    workload: str
    dtype: str
    backend: str
    variant: str
    median_us: float
    source: str
    bytes: float
    flops: float
    packages: dict[str, str] = field(default_factory=dict)

    @property
    def current(self) -> bool:
        """Whether the source is the tree's or launches the same for the workload, which is the same work as then.

        Where values decide how much work there is (lengths in use), the sources alone are compared.
        """
        try:
            spec = catalog.spec(self.op)
            cost = spec.hypothetical(*_workload(self)).cost
            source = device_tables.source(self.backend, self.op, self.variant)
        except Exception:  # of an operator or a backend that is not here any more, or cannot be loaded
            return False
        known = not any(isinstance(tensor.domain, Count) for tensor in spec.tensors)
        same = not known or (_same(self.bytes, cost.bytes) and _same(self.flops, cost.flops))
        item = launch_keys.workload(self.workload, self.dtype)
        return same and compared(self.op, self.backend, self.variant, self.source, source, item) == SAME


@dataclass(frozen=True)
class Nearest:
    """The workload that a call is most like, and the times (in microseconds) of the variants, "cuda/tiled", for it.

    alike: measured on another GPU, with the same multiprocessors. older: of all times, which packages are others since.
    """

    gpu: str
    workload: str
    dtype: str
    times: dict[str, float]
    alike: bool = False
    older: str = ""

    @property
    def source(self) -> str:
        """Who speaks, as decisions tell it."""
        where = f"{self.gpu}, {ALIKE}" if self.alike else self.gpu
        return f"auto: measured on {where}, {self.workload} {self.dtype}{self.older and f'; older: {self.older}'}"

    def fastest(self, names: Sequence[str]) -> str | None:
        """Of these variants the fastest, None if no time is known; names: by priority, for equal times."""
        known = [name for name in names if name in self.times]
        if not known:
            return None
        limit = min(self.times[name] for name in known) * EQUAL
        close = [name for name in known if self.times[name] <= limit]
        best = close[0].partition("/")[0]
        return min((name for name in close if name.partition("/")[0] == best), key=lambda name: self.times[name])


def nearest(call: Call) -> Nearest | None:
    """What is known of the GPU of a call for a workload like it; None on a CPU, and where nothing near was measured.

    None also where a tensor has no memory of its own (traced, vmapped): kernels do not run such calls.
    """
    if (name := device_tables.gpu(call.device)) is None or not all(map(torch_modes.has_memory, call.tensors.values())):
        return None
    kind, at = _kind(call), _lengths(call)
    points = (point for point in _points(name, device_tables.card(call.device), call.spec.name) if point.kind == kind)
    near = [(point.rank, distance, point) for point in points if (distance := _distance(at, point.lengths)) <= FURTHEST]
    if not near:
        return None
    *_, point = min(near, key=lambda found: found[:2])
    return point.tuned if _same_bucket(at, point.lengths) else point.known


def lack(device: torch.device) -> str:
    """What to say of a GPU without any table; "" for others, and for a CPU."""
    name = device_tables.gpu(device)
    if name is None or _times(name, device_tables.card(device)):
        return ""
    return f"no measured times for {name}: backends by priority; `kernelmux perf --record` measures them in about 5 minutes"


def borrowed(device: torch.device) -> str:
    """What to say of a GPU that has the times of others alone; "" for others."""
    name = device_tables.gpu(device)
    known = dict.fromkeys(found.gpu for found in _times(name, device_tables.card(device))) if name else ()
    own = "; `kernelmux perf --record` measures its own in about 5 minutes"
    return "" if not known or name in known else f"{name}: by the times of {', '.join(known)}, {ALIKE}{own}"


@dataclass(frozen=True)
class _Point:
    """tuned: `known` with the times of tuned configurations, which calls of nearly the same sizes have (`tuned_configs`).

    rank: what is asked before it has a lower one.
    """

    kind: object
    lengths: dict[str, float]
    known: Nearest
    tuned: Nearest

    @property
    def rank(self) -> tuple[bool, bool]:
        return self.known.alike, bool(self.known.older)


@cache
def _times(name: str, card: Card | None) -> tuple[FoundRow[Time], ...]:
    return TABLES.everywhere(name, card)


@cache
def _points(name: str, card: Card | None, op: str) -> tuple[_Point, ...]:
    """The workloads of an operator with the times that count, read once; best first where several are of one variant."""
    found = [f for f in _times(name, card) if f.row.op == op and f.row.current]
    groups: dict[tuple[str, str, str], list[FoundRow[Time]]] = {}
    for f in found:
        groups.setdefault((f.gpu, f.row.workload, f.row.dtype), []).append(f)
    return tuple(_point(name, card, catalog.spec(op), group) for group in groups.values())


def _point(name: str, card: Card | None, spec: OpSpec, group: Sequence[FoundRow[Time]]) -> _Point:
    """A workload in a dtype on one GPU; a variant without a time of the packages at hand has its older one."""
    group = sorted(group, key=lambda f: bool(f.older))
    first, gpu, older = group[0].row, group[0].gpu, group[0].older
    call, scale = spec.hypothetical(*_workload(first)), _scale(first, gpu, card)
    times = {f"{f.row.backend}/{f.row.variant}": f.row.median_us * scale for f in reversed(group)}
    tuned = tuned_configs.times(gpu, spec.name, first.workload, first.dtype)
    faster = {variant: min(us, tuned.get(variant, us / scale) * scale) for variant, us in times.items()}
    known, best = (Nearest(gpu, first.workload, first.dtype, each, gpu != name, older) for each in (times, faster))
    return _Point(_kind(call), _lengths(call), known, best)


def _scale(time: Time, gpu: str, card: Card | None) -> float:
    """How much longer a workload that memory binds takes on a card than where it was measured; 1 for others.

    Multiprocessors are the same, memory need not be. It multiplies the times of all variants of a workload alike: which is
    the fastest stays what was measured.
    """
    there = cards.by_device_name(gpu, card.capability) if card and card.title != gpu else None
    if card is None or there is None:
        return 1.0
    rate = there.rates.get(time.dtype, there.rates["fp32"])
    return there.bandwidth / card.bandwidth if time.bytes / there.bandwidth > time.flops / rate else 1.0


def _workload(time: Time) -> tuple[Any, torch.dtype]:
    """The case of a time, and the dtype of its leading tensor."""
    return catalog.spec(time.op).case(time.workload), dtypes.parse(time.dtype)


# --- which calls are alike --------------------------------------------------------------------------------------


def _kind(call: Call) -> object:
    """What must be equal for two calls to be compared: dtypes, the order of images in memory, options by name or flag, and
    the axis that is named."""
    formats = tuple((name, x.dtype) for name, x in call.tensors.items())
    orders = (output.memory_format(call) for output in call.spec.outputs)
    options = ((item.name, _option(call, item)) for item in call.spec.scalars)
    return formats, tuple(orders), tuple(options)


def _option(call: Call, item: Any) -> object:
    """An axis as its place from the end; a text, a flag or a tuple itself; of a number only whether there is one."""
    value = call.scalars[item.name]
    if isinstance(item, Axis) and value is not None:
        return value - call.arguments[item.of].dim()
    return value if isinstance(value, str | bool | tuple) else value is None


def _lengths(call: Call) -> dict[str, float]:
    """The axes by letter; under "..." the product of those that it stands for, without what is an axis of its own."""
    letters = {letter for tensor in call.spec.tensors for letter in tensor.letters}
    found = {name: float(n) for name, n in call.axes.items() if name != "..."}
    if "..." in call.axes:
        derived = math.prod(n for name, n in found.items() if name not in letters)
        found["..."] = math.prod(call.axes["..."]) / derived if derived else 0.0
    return found


def _same_bucket(one: dict[str, float], other: dict[str, float]) -> bool:
    """Whether all lengths round up to the same powers of two."""
    return all(math.ceil(math.log2(one[name])) == math.ceil(math.log2(other[name])) for name in one)


def _distance(one: dict[str, float], other: dict[str, float]) -> float:
    """The sum of |log2 ratio| over the axes; infinite where they have not the same axes, or nothing is computed."""
    if one.keys() != other.keys() or not all((*one.values(), *other.values())):
        return math.inf
    return device_tables.octaves(one.values(), (other[name] for name in one))


# --- files ------------------------------------------------------------------------------------------------------

KIND = "kernelmux.perf"  # of perf's records


def _table(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """A record of perf as a table of times; a table as it is."""
    if found.get("kind") != KIND:
        return found
    machine, names = found["machine"], {field.name for field in fields(Time)}
    rows = [{name: x for name, x in row.items() if name in names} for row in rows_of(found)]
    head = {"schema": device_tables.SCHEMA, "gpu": machine["name"], "capability": machine.get("capability", "")}
    head |= {
        "processors": machine.get("processors") or 0,
        "packages": device_tables.versions_of(machine["versions"], machine.get("driver", "")),
    }
    return head | {"rows": in_full(found, rows, "packages")}


TABLES = Tables(GpuFiles(RECORDS, "perf.json"), "times", "times", "rows", lambda row: Time(**row), _table)


def _same(one: float, other: float) -> bool:
    return f"{one:.{DIGITS}g}" == f"{other:.{DIGITS}g}"


def time_of(row: Any) -> Time:
    """The time that a row of perf's record holds."""
    return Time(**{field.name: getattr(row, field.name) for field in fields(Time)})


def forget() -> None:
    """Read the tables again when they are next asked; for tests, and after new ones were written."""
    TABLES.forget()
    for cached in (_times, _points):
        cached.cache_clear()


def summary() -> list[str]:
    """A line about each table: how many of its times count, which do not, since what they measured has changed, and how
    many were measured with other packages.

    A problem begins with "!".
    """
    return [line for tables in TABLES.all() for line in tables.summary(_times_summary)]


def _times_summary(table: Table[Time], name: str) -> Iterator[str]:
    current = {id(t): t.current for t in table.rows}
    stale = Counter(f"{t.op} {t.backend}" for t in table.rows if not current[id(t)])
    told = f"{name}: {len(table.rows) - stale.total()} of {len(table.rows)} measured times count"
    older = Counter(filter(None, (device_tables.older_packages(table, t) for t in table.rows if current[id(t)])))
    told += "".join(f", {count} of them older ({why})" for why, count in older.items())
    names = ", ".join(f"{name} ({count})" for name, count in sorted(stale.items()))
    yield f"{told}; the source or the work of these has changed since: {names}" if stale else told
