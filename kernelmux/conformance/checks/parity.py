"""Every variant against plain torch: two that agree with each other and not with the reference accuse it."""

from __future__ import annotations

from typing import Any

import torch

from kernelmux.conformance.check import Check
from kernelmux.conformance.judging.probe import Judge, Probe
from kernelmux.registry.backend import Backend, Implementation
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.spec import numerics

BASELINE = "torch_ref"


def run(probe: Probe) -> None:
    ladder = registered.variants(BASELINE, probe.spec.name) if BASELINE in registered.backends() else {}
    if not ladder:
        probe.skip_all(f"{BASELINE} has no {probe.spec.name} to compare with")
        return
    for trial in probe.sample(3 if probe.emulated else 12):
        verdict = dispatch.verdicts(trial.call, BASELINE)[-1]
        if not verdict.able:
            probe.skip(trial, f"{BASELINE}: {'; '.join(verdict.reasons)}")
            continue
        with probe.judge(trial) as judge:
            _compare(judge, dispatch.call(probe.spec, trial.values, verdict.name), ladder[verdict.variant])


def _compare(judge: Judge, theirs: Any, baseline: Implementation) -> None:
    ours, trial, outputs = judge.call(), judge.trial, judge.trial.spec.outputs
    judge.well_formed(ours)
    other = theirs if isinstance(theirs, tuple) else (theirs,)
    own = trial.bounds(judge.probe.arithmetics(trial))
    their = trial.bounds([baseline.computes(o.name, trial.dtype, trial.call.scalars) for o in outputs])
    for i, output in enumerate(outputs):
        mine, base = own[i], their[i]
        if mine is None or base is None:
            judge.equal(output.name, ours[i], other[i])
        else:
            pair, limits = (ours[i], other[i]), (mine.total, base.total)
            _judge_one(judge, output.name, pair, trial.references[i], limits)


def _judge_one(
    judge: Judge,
    name: str,
    pair: tuple[torch.Tensor, torch.Tensor],
    ref: torch.Tensor,
    limits: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """Who stands alone: the variant (a failure), the baseline (a remark), or the reference (a failure of the spec)."""
    got, base = pair
    between = numerics.compare(got, base.to(torch.float64), limits[0] + limits[1])
    mine, theirs = numerics.compare(got, ref, limits[0]), numerics.compare(base, ref, limits[1])
    judge.record.budget = max(judge.record.budget, between.budget)
    accused = between.passed and not mine.passed and not theirs.passed
    judge.require(
        not accused,
        f"{name}: the variant and {BASELINE} agree with each other and not with the reference: it is the outlier",
    )
    if not between.passed and mine.passed:
        judge.remark(f"{name}: {BASELINE} is the outlier, {theirs.budget:.3g} of its own bound")
        return
    where = f"first at {list(between.index)}"
    judge.require(
        between.passed, f"{name}: differs from {BASELINE} by {between.budget:.3g} times the sum of both bounds, {where}"
    )


def _applies(backend: Backend, device: str) -> bool:
    return backend.name != BASELINE


CHECK = Check(run=run, column="parity", applies=_applies, summary="agrees with torch_ref within the sum of both bounds")
