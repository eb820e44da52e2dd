"""Axes longer than 65,535, one after the other: what a grid can count in y and z ends there.

The other axes are short, so that the tensors are small. Of the emulator's blocks the first and the last few run; where
these do not write the last slices, or not from what earlier kernels of the call wrote whole, all do.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernelmux import emulator
from kernelmux.conformance import generate, huge, resize
from kernelmux.conformance import partial as some_blocks
from kernelmux.conformance.check import Check
from kernelmux.conformance.partial import Unsuitable
from kernelmux.conformance.probe import Failed, Judge, Probe
from kernelmux.conformance.resize import AxisName
from kernelmux.conformance.trials import Trial
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
            dimensions = huge.independent(probe.spec, case, axis, base.dtype)
            _long(probe, base, case, axis, dimensions)
    if not probe.records:
        probe.skip_all("no axis may be that long")


def _bases(probe: Probe) -> list[Trial]:
    """The smallest trial of each rank with the usual choices, and with its own; where calls are emulated, of two ranks.

    A brief run has the highest rank alone.
    """
    ranks: dict[int, Trial] = {}
    for trial in probe.sample(12):
        ranks.setdefault(max(x.dim() for x in trial.tensors.values()), trial)
    ordered = [ranks[rank] for rank in sorted(ranks, reverse=True)]
    usual = [_usual(probe, trial) for trial in ordered]
    if probe.emulated:
        return usual[: 1 if probe.brief else 2]
    return list({t.text: t for t in (*usual, *ordered)}.values())


def _usual(probe: Probe, trial: Trial) -> Trial:
    """The call with every choice at its default, if the variant can run it."""
    choices = {i.name: i.default for i in generate.choices(probe.spec)}
    if not choices or REQUIRED in choices.values():
        return trial
    case = generate.with_scalars(resize.case_of(probe, trial), choices)
    if generate.hypothetical(probe.spec, case, trial.dtype) is None:
        return trial
    made = probe.make(case, trial.dtype)
    return trial if probe.reasons(made) else made


def _long(probe: Probe, base: Trial, case: Case, axis: AxisName, dimensions: dict[int, int]) -> None:
    """One call with that axis long, if the spec and the variant allow it."""
    for grown in _grown(probe.spec, case, axis):
        call = generate.hypothetical(probe.spec, grown, base.dtype)
        if call is None or any(x.numel() > ELEMENTS for x in call.arguments.values() if hasattr(x, "numel")):
            continue
        trial = probe.make(grown, base.dtype)
        if not probe.reasons(trial):
            with probe.judge(trial.changed(f"{axis} = {LONG}")) as judge:
                _examine(judge, dimensions)
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


def _examine(judge: Judge, dimensions: dict[int, int]) -> None:
    if not judge.probe.emulated:
        judge.accurate(judge.call())
        return
    seconds = SECONDS if dimensions else SECONDS_OF_SUMS
    with emulator.recorder() as launches:
        try:
            if dimensions and _some(judge, dimensions):
                return
        except Unsuitable as reason:
            some_blocks.set_aside(judge, str(reason))
            return
        except Failed:
            if len(launches) < 2:
                raise
            # The last blocks of a kernel may have read what blocks of the one before, that did not run, were to write.
            seconds, judge.record.budget = SECONDS_OF_SUMS, 0.0
    try:
        outputs = some_blocks.call(judge.probe, judge.trial, seconds, some=False)
    except Unsuitable as reason:
        some_blocks.set_aside(judge, str(reason))
        return
    judge.accurate(outputs)


def _some(judge: Judge, dimensions: dict[int, int]) -> bool:
    """Whether a few blocks write the last slices; what they write is right."""
    outputs = some_blocks.call(judge.probe, judge.trial, SECONDS)
    judge.well_formed(outputs)
    bounds = judge.trial.bounds(judge.probe.arithmetics(judge.trial))
    for number, dimension in dimensions.items():
        got, ref = outputs[number], judge.trial.references[number]
        last = [x.narrow(dimension, LONG - 1, 1) for x in (got, ref)]
        if bool(some_blocks.unwritten(*last).all()):
            return False
        some_blocks.judged(judge, judge.trial, number, got, ref, bounds[number])
    return True


CHECK = Check(run=run, column="extent", summary="axes longer than 65,535, which a grid cannot count in y and z")
