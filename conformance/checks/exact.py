"""Inputs for which every order of evaluation gives the same bits: a term dropped or rounded too early shows."""

from __future__ import annotations

from kernelmux.conformance import trials
from kernelmux.conformance.check import Check
from kernelmux.conformance.probe import Judge, Probe
from kernelmux.registry.spec import NoExact

# Of the value: what an eps beside 2^24 leaves in float64, and nothing that could decide a rounding to fp32.
NEGLIGIBLE = 2.0**-36


def run(probe: Probe) -> None:
    exact = probe.spec.exact
    if isinstance(exact, NoExact):
        probe.skip_all(exact.reason)
        return
    for case, dtype in probe.turns():
        trial = trials.exact_trial(probe.spec, case, dtype, probe.options.seed, probe.device)
        if trial is not None and probe.able(trial):
            with probe.judge(trial) as judge:
                _equal(judge)
    if not probe.records and not probe.options.cases:
        raise LookupError(f"{probe.spec.name}: exact inputs exist for no case of tier {probe.options.tier}")


def _equal(judge: Judge) -> None:
    outputs = judge.call()
    judge.well_formed(outputs)
    for output, got, ref in zip(judge.trial.spec.outputs, outputs, judge.trial.references, strict=True):
        want = ref.to(got.dtype)
        off = (want.to(ref.dtype) - ref).abs() > ref.abs() * NEGLIGIBLE if ref.is_floating_point() else want != ref
        judge.require(not off.any(), f"the exact inputs of the spec are not exact: {output.name}")
        judge.equal(output.name, got, want)


CHECK = Check(run=run, column="exact", summary="bit equality with the reference on inputs without rounding")
