"""Axes longer than 65,535, one after the other: what a grid can count in y and z ends there.

The other axes are short, so that the tensors are small. Of the emulator's blocks the first and the last few run; where
these do not write the last slices, or not from what earlier kernels of the call wrote whole, all do.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernelmux import emulator
from kernelmux.conformance.check import Check
from kernelmux.conformance.inputs import generate
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging.probe import Failed, Judge, Probe
from kernelmux.conformance.variations import large_tensors, resize
from kernelmux.conformance.variations import partial_emulation as some_blocks
from kernelmux.conformance.variations.partial_emulation import Unsuitable
from kernelmux.conformance.variations.resize import AxisName
from kernelmux.registry.backend import Backend
from kernelmux.registry.cases import Case
from kernelmux.registry.spec import REQUIRED, OpSpec

LONG = 65537  # prime
SHORT = 2  # the length of other axes, where that is allowed
ELEMENTS = 2**25  # of a tensor, at most
SECONDS = 3.0  # of processor time for an emulated call
SECONDS_OF_SUMS = 0.5  # where the axis is summed over: a block may walk along all of it


def run(probe: Probe) -> None:
    for base in _bases(probe):
        case = resize.case_of(probe, base)
        for axis in resize.axes(probe.spec, case):
            _long(probe, base, case, axis)
    if not probe.records:
        probe.skip_all("no axis may be that long")


def _bases(probe: Probe) -> list[Trial]:
    """The smallest trial of each rank with the usual choices, and with its own; where calls are emulated, of two ranks.

    A brief run has the highest rank alone, tier smoke the usual choices.
    """
    ranks: dict[int, Trial] = {}
    for trial in probe.sample(12):
        ranks.setdefault(max(x.dim() for x in trial.tensors.values()), trial)
    ordered = [ranks[rank] for rank in sorted(ranks, reverse=True)]
    usual = [_usual(probe, trial) for trial in ordered]
    if probe.emulated:
        return usual[: 1 if probe.brief else 2]
    ordered = [] if probe.options.tier == "smoke" else ordered
    return list({t.text: t for t in (*usual, *ordered)}.values())


def _usual(probe: Probe, trial: Trial) -> Trial:
    """The call with every choice at its default, if the variant can run it."""
    choices = {i.name: i.default for i in generate.choices(probe.spec)}
    if not choices or REQUIRED in choices.values():
        return trial
    case = generate.with_scalars(resize.case_of(probe, trial), choices)
    if generate.permitted(probe.spec, case, trial.dtype) is None:
        return trial
    made = probe.make(case, trial.dtype)
    return trial if probe.reasons(made) else made


def _long(probe: Probe, base: Trial, case: Case, axis: AxisName) -> None:
    """One call with that axis long, if the spec and the variant allow it."""
    dimensions = large_tensors.independent(probe.spec, case, axis, base.dtype)
    parts = probe.emulated and large_tensors.apart(probe.spec, case, axis, base.dtype) == dimensions
    for grown in _grown(probe.spec, case, axis):
        call = generate.permitted(probe.spec, grown, base.dtype)
        if call is None or any(x.numel() > ELEMENTS for x in call.arguments.values() if hasattr(x, "numel")):
            continue
        trial = probe.make(grown, base.dtype)
        if not probe.reasons(trial):
            with probe.judge(trial.changed(f"{axis} = {LONG}")) as judge:
                _examine(judge, dimensions, axis if parts else None)
            return
    probe.skip(base.changed(f"{axis} = {LONG}"), "the operator or the variant does not take such a shape")


def _grown(spec: OpSpec, case: Case, axis: AxisName) -> Iterator[Case]:
    """The case with that axis long: all others short, then as they are."""
    others = {other: min(n, SHORT) for other, n in _lengths(spec, case).items()}
    for lengths in (others | {axis: LONG}, {axis: LONG}):
        yield resize.resized(spec, case, lengths)


def _lengths(spec: OpSpec, case: Case) -> dict[AxisName, int]:
    shapes = case.shapes
    return {a: n for t in shapes for a, n in zip(resize.names(spec, case, t), shapes[t], strict=True)}


def _examine(judge: Judge, dimensions: dict[int, int], apart: AxisName | None) -> None:
    """apart: the axis, if each slice along it is a call of its own."""
    if not judge.probe.emulated:
        judge.accurate(judge.call())
        return
    seconds = SECONDS if dimensions else SECONDS_OF_SUMS
    try:
        with emulator.recorder() as launches:
            try:
                if dimensions and _some(judge, dimensions, apart):
                    return
            except Failed:
                if len(launches) < 2:
                    raise
                # The last blocks of a kernel may have read what blocks of the one before, that did not run, were to write.
                seconds, judge.record.budget = SECONDS_OF_SUMS, 0.0
        judge.accurate(some_blocks.call(judge.probe, judge.trial, seconds, some=False))
    except Unsuitable as reason:
        some_blocks.set_aside(judge, str(reason))


def _some(judge: Judge, dimensions: dict[int, int], apart: AxisName | None) -> bool:
    """Whether a few blocks write the last slices; what they write is right."""
    trial, outputs = judge.trial, some_blocks.call(judge.probe, judge.trial, SECONDS)
    judge.well_formed(outputs)
    if apart is not None:
        trial, outputs = _written(trial, outputs, dimensions, apart)
    bounds = trial.bounds(judge.probe.arithmetics(trial))
    for number, dimension in dimensions.items():
        got, ref = outputs[number], trial.references[number]
        last = [x.narrow(dimension, x.shape[dimension] - 1, 1) for x in (got, ref)]
        if bool(some_blocks.unwritten(*last).all()):
            return False
        some_blocks.judged(judge, trial, number, got, ref, bounds[number])
    return True


def _written(
    trial: Trial, outputs: tuple[torch.Tensor, ...], dimensions: dict[int, int], axis: AxisName
) -> tuple[Trial, tuple[torch.Tensor, ...]]:
    """The call and its outputs with the slices alone in which something was written, and the last one.

    The reference and the bounds of all others would take most of the time.
    """
    places = {LONG - 1}
    for number, dimension in dimensions.items():
        rows = outputs[number].movedim(dimension, 0).reshape(LONG, -1)
        places |= set((rows != 0).any(1).nonzero().flatten().tolist())
    chosen = torch.tensor(sorted(places))
    case = trial.spec.case(trial.text)
    names = {name: resize.names(trial.spec, case, name) for name in trial.tensors}
    cut = {n: x.index_select(names[n].index(axis), chosen) if axis in names[n] else x for n, x in trial.tensors.items()}
    kept = [outputs[i].index_select(dimensions[i], chosen) if i in dimensions else x for i, x in enumerate(outputs)]
    return trial.changed(trial.note, **cut), tuple(kept)


def _applies(backend: Backend, device: str) -> bool:
    """What runs on a CPU and is not emulated has no grids."""
    return backend.emulates or device == "cuda"


CHECK = Check(
    run=run,
    column="extent",
    applies=_applies,
    summary="axes longer than 65,535, which a grid cannot count in y and z",
)
