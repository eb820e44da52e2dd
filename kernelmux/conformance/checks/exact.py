"""Inputs for which every order of evaluation gives the same bits: a term dropped or rounded too early shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

import torch

from kernelmux.conformance.check import Check
from kernelmux.conformance.inputs import trials
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging import asked_less
from kernelmux.conformance.judging.probe import Judge, Probe
from kernelmux.registry.cases import Case
from kernelmux.registry.dtypes import UNIT
from kernelmux.registry.spec import NoExact, exact_arguments

# Of the value: what an eps beside 2^24 leaves in float64, and nothing that could decide a rounding to fp32.
NEGLIGIBLE = 2.0**-36
FORMS = 8  # units of 2^-24 between sound forms of one formula: 4 ulps


def run(probe: Probe) -> None:
    exact = probe.spec.exact
    if isinstance(exact, NoExact):
        probe.skip_all(exact.reason)
        return
    for trial in asked_less.shared_out(probe, filter(probe.able, _trials(probe))):
        with probe.judge(trial) as judge:
            _equal(judge)
    if not (probe.records or probe.options.cases or probe.options.dtypes):
        raise LookupError(f"{probe.spec.name}: exact inputs exist for no case of tier {probe.options.tier}")


def _trials(probe: Probe) -> Iterator[Trial]:
    """The trials of the tier; one of tier ci for an operator whose cases of tier smoke have no exact inputs."""
    found = False
    for trial in _exact(probe, probe.turns()):
        found = True
        yield trial
    if not found and probe.options.tier == "smoke":
        cases = replace(probe.options, tier="ci").cases_of(probe.spec)
        pairs = ((case, dtype) for case in cases for dtype in probe.options.dtypes_of(probe.spec, case))
        able = ((case, dtype) for case, dtype in pairs if not probe.reasons(probe.make(case, dtype)))
        yield from islice(_exact(probe, able), 1)


def _exact(probe: Probe, pairs: Iterable[tuple[Case, torch.dtype]]) -> Iterator[Trial]:
    """The trials of those cases for which there are exact inputs, each made when it is asked for."""
    options, spec = probe.options, probe.spec
    made = (trials.exact_trial(spec, case, dtype, options.seed, probe.device) for case, dtype in pairs)
    return (trial for trial in made if trial is not None)


def _equal(judge: Judge) -> None:
    outputs = judge.call()
    judge.well_formed(outputs)
    for i, (output, got) in enumerate(zip(judge.trial.spec.outputs, outputs, strict=True)):
        ref = judge.trial.references[i]
        want = ref.to(got.dtype)
        off = (want.to(ref.dtype) - ref).abs() > ref.abs() * NEGLIGIBLE if ref.is_floating_point() else want != ref
        if output.saved and off.any():
            continue  # such as a logarithm: it has its bound
        judge.require(not off.any(), f"the exact inputs of the spec are not exact: {output.name}")
        spread = allowance(judge.trial, i)
        if spread is not None:
            near = (ref - spread).to(got.dtype) <= got
            near &= got <= (ref + spread).to(got.dtype)
            want = torch.where(near, got, want)
        judge.equal(output.name, got, want)


def allowance(trial: Trial, output: int) -> torch.Tensor | None:
    """How far off an output may be before it is rounded to its dtype, or None where every bit counts.

    Sums and products of integers, and values that are moved, are exact in every form that a kernel can give the
    formula. Where exponentials, roots and quotients take part there are forms that are as good as the reference's and
    not exact: a softmax that subtracts another number than the maximum, a norm that takes the root before it divides by
    the root of the length. They are off by some ulps of fp32, and where the spec lets an intermediate be rounded to the
    storage dtype by that; a term that is left out, or rounded too early, is off by far more.
    """
    model, ref = trial.spec.errors[output], trial.references[output]
    numbers = [x.to(torch.float64) for x in (*trial.tensors.values(), ref)]
    whole = all(bool((x.isfinite() & (x == x.round())).all()) for x in numbers)
    if model.roundings == 0 or whole:
        return None
    spread = FORMS * UNIT[torch.float32] * ref.abs()
    if model.intermediate is not None:
        inner = model.intermediate(*exact_arguments(trial.call)).to(ref).expand_as(ref)
        spread = spread + UNIT[trial.dtype] * inner
    return spread


CHECK = Check(
    run=run,
    column="exact",
    summary="bits of the reference on integers, its last ulps elsewhere, on inputs without rounding",
)
