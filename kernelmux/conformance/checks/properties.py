"""What the spec says of several calls holds: rows that know nothing of one another, sums that forget a shift or an order.

Rows are compared bit by bit: some of them in another place, and one alone. A shift and another order change roundings, so
these results may differ by what both bounds allow together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from kernelmux.conformance.check import Check
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging.probe import Judge, Probe
from kernelmux.conformance.variations import large_tensors, neighbouring_trials, resize
from kernelmux.conformance.variations.resize import AxisName
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.conditions import Condition
from kernelmux.registry.spec import Axis, numerics
from kernelmux.registry.spec.metamorphic import BatchInvariant, PermutationInvariant, Property, ShiftInvariant

FEWEST = 3  # rows of a call, so that some can be left out and change places
MOST = 32  # rows that are asked backwards
ELEMENTS = {True: 2**14, False: 2**18}  # of the call with the most rows, by whether it is emulated
SHIFTS = (-512.0, 512.0)  # beyond what an exponential in fp32 survives, and within fp16
RAISED = 256.0  # by how much the first of a line lies above the others


def run(probe: Probe) -> None:
    if not probe.spec.properties:
        probe.skip_all("the spec says nothing of several calls")
        return
    for declared in probe.spec.properties:
        if isinstance(why := probe.implementation.exempt.get(type(declared).__name__), str):
            probe.skip_all(f"{type(declared).__name__}: {why}")
            continue
        _ASK[type(declared)](probe, declared)


# --- rows ------------------------------------------------------------------------------------------------------


def _rows(probe: Probe, declared: BatchInvariant) -> None:
    if registered.composite(probe.backend):  # its softmax on a CPU takes the last few columns in another way
        probe.skip_all("made of torch's operators, which do not promise that rows know nothing of one another")
        return
    asked = 0
    for trial in _with_rows(probe, declared):
        case = resize.case_of(probe, trial)
        for axis in _counting(probe, trial, declared):
            if dimensions := large_tensors.independent(probe.spec, case, axis, trial.dtype):
                asked += 1
                with probe.judge(replace(trial, note=f"rows along {axis}")) as judge:
                    _same_rows(judge, axis, dimensions)
    if not asked and not probe.records:
        but = f", beside {exempt.text}" if (exempt := _exempt(probe)) else ""
        probe.skip_all(f"no case that the variant can run has several rows{but}")


def _with_rows(probe: Probe, declared: BatchInvariant) -> list[Trial]:
    """Small calls with several rows that do not meet in an output, and the one that has the most of them."""
    exempt = _exempt(probe)

    def several(trial: Trial) -> bool:
        if exempt and exempt.check(trial.call) is None:
            return False
        axes = [a for a in _counting(probe, trial, declared) if _length(probe, trial, a) >= FEWEST]
        case = resize.case_of(probe, trial)
        return any(large_tensors.independent(probe.spec, case, axis, trial.dtype) for axis in axes)

    few = probe.sample(1 if neighbouring_trials.slow(probe) else 4, where=several)
    many = [t for t in neighbouring_trials.largest(probe, ELEMENTS[neighbouring_trials.slow(probe)]) if several(t)]
    many = sorted(many, key=lambda t: -max(_length(probe, t, axis) for axis in _counting(probe, t, declared)))
    return list({trial.text: trial for trial in (*few, *many[:1])}.values())


def _exempt(probe: Probe) -> Condition | None:
    """Of which calls the rows are not asked."""
    why = probe.implementation.exempt.get(BatchInvariant.__name__)
    return None if isinstance(why, str) else why


def _counting(probe: Probe, trial: Trial, declared: BatchInvariant) -> list[AxisName]:
    """The axes that count rows; none in a call that computes along another axis than the last one."""
    along = [
        (trial.call.arguments[i.name], trial.tensors[i.of].dim()) for i in probe.spec.scalars if isinstance(i, Axis)
    ]
    if any(axis != rank - 1 for axis, rank in along):
        return []
    last = {AxisName("...", axis) for axis, _ in along}
    return [
        axis for axis in neighbouring_trials.axes(probe, trial) if axis.letter in declared.axes and axis not in last
    ]


def _dimension(probe: Probe, trial: Trial, tensor: str, axis: AxisName) -> int | None:
    """Which dimension of a tensor is an axis, None if none."""
    names = resize.names(probe.spec, resize.case_of(probe, trial), tensor)
    return names.index(axis) if axis in names else None


def _length(probe: Probe, trial: Trial, axis: AxisName) -> int:
    places = ((x, _dimension(probe, trial, name, axis)) for name, x in trial.tensors.items())
    return max((x.shape[d] for x, d in places if d is not None), default=0)


def _same_rows(judge: Judge, axis: AxisName, dimensions: dict[int, int]) -> None:
    """The last and the first row in places of each other, without the others; the middle one alone; many, backwards."""
    probe, trial = judge.probe, judge.trial
    whole = judge.call()
    judge.well_formed(whole)
    n = _length(probe, trial, axis)
    for positions in ([n - 1, 0], [n // 2], list(range(n - 1, max(0, n - 1 - MOST), -1))):
        chosen = torch.tensor(positions, device=trial.call.device)
        dims = {name: _dimension(probe, trial, name, axis) for name in trial.tensors}
        cut = {
            name: x.index_select(d, chosen.to(x.device))
            for name, x in trial.tensors.items()
            if (d := dims[name]) is not None
        }
        fewer = trial.changed(trial.note, **cut)
        if probe.reasons(fewer):
            continue
        outputs = judge.call(*fewer.values)
        for number, dimension in dimensions.items():
            some = f"{positions[:2]}, ..." if len(positions) > 2 else positions
            name = f"{trial.spec.outputs[number].name} of rows {some} of {n} by themselves"
            judge.equal(name, outputs[number], whole[number].index_select(dimension, chosen).contiguous())


# --- roundings -------------------------------------------------------------------------------------------------


def _shifted(probe: Probe, declared: ShiftInvariant) -> None:
    for trial in _lines(probe, declared):
        for shift in SHIFTS:
            moved = trial.tensors[declared.tensor] + shift
            # The shift itself rounds: what it leaves of the values is what both calls are given.
            with probe.judge(
                trial.changed(f"{declared.tensor} shifted by {shift:g}", **{declared.tensor: moved})
            ) as judge:
                _agree(judge, trial.changed("", **{declared.tensor: moved - shift}), lambda y: y)


def _permuted(probe: Probe, declared: PermutationInvariant) -> None:
    for trial in _lines(probe, declared):
        axis = trial.call.arguments["axis"]
        raised = trial.tensors[declared.tensor].clone(memory_format=torch.contiguous_format)
        raised.select(axis, 0).add_(RAISED)
        base = trial.changed(f"{declared.tensor}: its first slice raised, backwards", **{declared.tensor: raised})
        turned = trial.changed(base.note, **{declared.tensor: raised.flip(axis)})
        with probe.judge(turned) as judge:
            _agree(judge, base, lambda y: y.flip(axis) if y.shape == raised.shape else y)  # noqa: B023


def _lines(probe: Probe, declared: ShiftInvariant | PermutationInvariant) -> Iterator[Trial]:
    """Small calls with ordinary values in which the axis is longer than one."""

    def long(trial: Trial) -> bool:
        axis = trial.call.arguments["axis"]
        return (
            not neighbouring_trials.special(trial)
            and axis is not None
            and trial.tensors[declared.tensor].shape[axis] > 1
        )

    yield from probe.sample(2 if neighbouring_trials.slow(probe) else 6, where=long)


def _agree(judge: Judge, base: Trial, turned: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The results of the trial are those of the base, turned, within what both bounds allow."""
    trial, how = judge.trial, judge.probe.arithmetics(judge.trial)
    ours, theirs = judge.call(), judge.call(*base.values)
    judge.well_formed(ours)
    limits = zip(trial.bounds(how), base.bounds(how), strict=True)
    for output, got, other, (own, their) in zip(trial.spec.outputs, ours, theirs, limits, strict=True):
        want = turned(other)
        if own is None or their is None:
            judge.equal(output.name, got, want.contiguous())
            continue
        found = numerics.compare(got, want.to(torch.float64), own.total + turned(their.total))
        judge.record.budget = max(judge.record.budget, found.budget)
        text = f"{output.name}: {found.budget:.3g} times what both bounds allow, first at {list(found.index)}"
        judge.require(
            found.passed, f"{text}: got {got[found.index].item():.6g}, otherwise {want[found.index].item():.6g}"
        )


_ASK: dict[type[Property], Callable[[Probe, Any], None]] = {
    BatchInvariant: _rows,
    ShiftInvariant: _shifted,
    PermutationInvariant: _permuted,
}

CHECK = Check(
    run=run, column="proper", summary="rows do not know of one another; shifts and orders that change nothing"
)
