"""The workloads of a sweep, made from one of the operator's own, and their rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch

from kernelmux.perf import peers
from kernelmux.perf.planning import memory_fit, plan
from kernelmux.perf.planning.brief import COMPILED, representative
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.perf.sweeps.grammar import Sweep
from kernelmux.registry import catalog, dtypes
from kernelmux.registry.cases import CHANNELS_LAST, TURNED, Case, written
from kernelmux.registry.errors import ArgumentError, KernelmuxError
from kernelmux.registry.spec import OpSpec

Places = dict[str, tuple[int, ...]]  # the dimensions of each tensor that have the length of a sweep


@dataclass(frozen=True)
class PlannedSweep:
    """A sweep with its rows: one workload for each length. shape: that workload, with axes in place of lengths."""

    sweep: Sweep
    shape: str
    dtype: str
    workloads: dict[str, int]
    rows: tuple[Row, ...]


def planned(sweep: Sweep, options: PerfOptions, every_peer: bool = False) -> PlannedSweep:
    """The rows of a sweep; ArgumentError for an axis or a length that the operator does not have.

    A backend is one line: what a call of it runs at that length. Variants that are named are a line each, and so is torch;
    of the other libraries torch.compile, or all of them.
    """
    spec = catalog.spec(sweep.op)
    options = replace(options, ops=(sweep.op,))
    if options.peers:
        peers.join()
    plan.check_names(options)
    dtype = _dtype(spec, options)
    base = _base(spec, sweep, dtype, options)
    places = _places(spec, base, sweep.axes)
    cases = {n: _resized(spec, base, places, n) for n in sweep.lengths}
    rows = [row for n, case in cases.items() for row in _rows(spec, case, dtype, n, sweep, options, every_peer)]
    shape = _text(base, places, sweep.axes[0])
    return PlannedSweep(sweep, shape, dtypes.SHORT[dtype], {case.text: n for n, case in cases.items()}, tuple(rows))


def _rows(
    spec: OpSpec, case: Case, dtype: torch.dtype, length: int, sweep: Sweep, options: PerfOptions, every_peer: bool
) -> list[Row]:
    try:
        if options.device == "cpu":
            memory_fit.require(spec.hypothetical(case, dtype), "inputs and outputs")
        rows = list(plan.of_group(spec, case, dtype, options))
    except KernelmuxError as error:
        raise ArgumentError(f"--sweep {sweep.op}:{sweep.axis}, at {length}: {error}") from error
    return picked(rows, options, every_peer)


def picked(rows: Iterable[Row], options: PerfOptions, every_peer: bool = False) -> list[Row]:
    """Of the rows of a group those that stand for their backends: what a call runs, or the variants that are named."""
    named = {label for label in options.backends if "/" in label}
    by_backend: dict[str, list[Row]] = {}
    for row in rows:
        by_backend.setdefault(row.backend, []).append(row)
    return [row for name, ladder in by_backend.items() for row in _picked(name, ladder, named, every_peer)]


def _picked(name: str, ladder: list[Row], named: set[str], every_peer: bool) -> list[Row]:
    """Of a backend the variants that are named, else what a call runs, the last that can; of torch its plain form."""
    if name == peers.NAME:
        return [row for row in ladder if every_peer or row.variant == COMPILED]
    if chosen := [row for row in ladder if row.label in named]:
        return chosen
    return [representative(ladder)]


def _dtype(spec: OpSpec, options: PerfOptions) -> torch.dtype:
    """The one that was asked for, else bf16 on a GPU and fp32 on a CPU, where halves are slow for torch."""
    if len(options.dtypes) > 1 or "all" in options.dtypes:
        raise ArgumentError(f"--sweep: expected a single --dtype, got {' '.join(options.dtypes)}")
    usual = torch.bfloat16 if options.device == "cuda" else torch.float32
    dtype = dtypes.parse(options.dtypes[0]) if options.dtypes else usual
    return dtype if dtype in spec.dtypes else spec.dtypes[0]


def _base(spec: OpSpec, sweep: Sweep, dtype: torch.dtype, options: PerfOptions) -> Case:
    """The workload whose axes change: the one of --workload that fits, else the first that has them."""
    if options.workloads:
        several = len(options.workloads) > 1  # a single one that does not fit is told with the reason
        found = plan.workloads(spec, replace(options, ops=()) if several else options)
        if len(found) != 1:
            told = f"{len(found)} of {spec.name} fit --workload {' '.join(options.workloads)}"
            raise ArgumentError(f"--sweep: expected a single workload, but {told}")
        _places(spec, found[0], sweep.axes)
        return found[0]
    reasons = []
    for case in _own(spec, options.device):
        if case.dtypes is None or dtype in case.dtypes:
            try:
                _places(spec, case, sweep.axes)
                return case
            except ArgumentError as error:
                reasons.append(error)
    raise reasons[0] if reasons else ArgumentError(f"--sweep: {spec.name} has no workload in {dtypes.SHORT[dtype]}")


def _own(spec: OpSpec, device: str) -> list[Case]:
    """The operator's workloads; on a CPU its small cases stand in for them, those of all dtypes and the largest first."""
    if device == "cuda":
        return list(spec.workloads)
    small = [case for case in spec.cases if case.tier in ("smoke", "ci") and case.inputs == "normal"]
    return sorted(small, key=lambda case: (case.dtypes is not None, -spec.hypothetical(case).cost.bytes))


def _places(spec: OpSpec, case: Case, axes: Iterable[str]) -> Places:
    """Where the axes stand in the tensors of a case; ArgumentError names the axes that it has."""
    names = _names(spec, case)
    known = _known(spec, case, names)
    for axis in axes:
        if axis not in known:
            parts = axis in spec.hypothetical(case).axes
            why = f" ({axis} is made of several of them: name a workload in which it is one)" if parts else ""
            told = f"--sweep: {spec.name} has no axis {axis} in {case.text!r}{why}; expected one of {', '.join(known)}"
            raise ArgumentError(told)
    wanted = {known[axis] for axis in axes}
    return {tensor: _of(of_tensor, wanted) for tensor, of_tensor in names.items()}


def _names(spec: OpSpec, case: Case) -> dict[str, tuple[str, ...]]:
    """The axis that each dimension of each tensor is; "...0" is the first of those that have no letter."""
    return {t.name: t.named(case.shapes[t.name]) for t in spec.tensors if t.name in case.shapes}


def _of(names: tuple[str, ...], wanted: set[str]) -> tuple[int, ...]:
    return tuple(i for i, name in enumerate(names) if name in wanted)


def _known(spec: OpSpec, case: Case, names: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """The axes of a case by name: those of its tensors, and what the spec derives from the length of a single one.

    So softmax's N is the dimension that sums to one.
    """
    own = {name: name for of_tensor in names.values() for name in of_tensor}
    before = spec.hypothetical(case).axes
    for name in list(own):
        places = {tensor: _of(of_tensor, {name}) for tensor, of_tensor in names.items()}
        length = next(case.shapes[tensor][at[0]] for tensor, at in places.items() if at)
        try:
            after = spec.hypothetical(_resized(spec, case, places, 2 * length)).axes
        except ArgumentError:  # an axis that goes with another
            continue
        for axis, n in before.items():
            if n == length and after.get(axis) == 2 * length:
                own.setdefault(axis, name)
    return own


def _resized(spec: OpSpec, case: Case, places: Places, length: int) -> Case:
    return replace(case, text=_text(case, places, length), dtypes=None, spec=spec)


def _text(case: Case, places: Places, length: int | str) -> str:
    """The text of a case with that length at all places."""
    shapes, scalars, formats = case.parsed
    words = []
    for name, shape in shapes.items():
        at = places.get(name, ())
        lengths = "x".join(str(length if i in at else n) for i, n in enumerate(shape)) or "scalar"
        lies = TURNED if name in case.turned else ""
        words.append(f"{name}={lengths}{lies}" + (f":{dtypes.SHORT[formats[name]]}" if name in formats else ""))
    words += [f"{name}={written(value)}" for name, value in scalars.items()]
    return " ".join([*words, *([CHANNELS_LAST] if case.channels_last else [])])
