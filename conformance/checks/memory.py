"""What a call does to memory: it writes all of its outputs and nothing else, and shares or reuses nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernelmux.conformance.check import Check
from kernelmux.conformance.guard import Guard, Guarded, haloed, poison_left
from kernelmux.conformance.probe import Judge, Probe
from kernelmux.conformance.trials import Trial

Tensors = Sequence[torch.Tensor]


def run(probe: Probe) -> None:
    for trial in probe.sample(3 if probe.emulated else 8):
        with probe.judge(trial) as judge:
            _examine(judge, probe, trial)


def _examine(judge: Judge, probe: Probe, trial: Trial) -> None:
    inputs = {name: haloed(x) for name, x in trial.tensors.items()}
    before = {name: g.whole.clone() for name, g in inputs.items()}
    guard = Guard()
    placed = trial.changed("", **{name: g.view for name, g in inputs.items()})
    with guard:
        outputs = judge.call(*placed.values)
    for made in guard.memory:
        judge.require((found := made.damage()) is None, lambda: f"wrote outside of {made.name}: {found}")  # noqa: B023
    for name, g in inputs.items():
        judge.require(torch.equal(g.whole, before[name]), lambda: _touched(name, g, before[name]))  # noqa: B023
    judge.accurate(outputs, [poison_left(out) for out in outputs])
    _apart(judge, outputs, inputs)
    _second_call(judge, probe, trial, outputs)


def _touched(name: str, now: Guarded, before: torch.Tensor) -> str:
    """Which part of an input was changed."""
    places = (now.whole != before).nonzero().flatten()
    first, end = now.used
    inside = int(((places >= first) & (places < end)).sum())
    where = f"{inside} bytes of its values" if inside else f"{places.numel()} bytes around it"
    return f"the input {name} was changed: {where}, first at byte {int(places[0]) - first}"


def _apart(judge: Judge, outputs: Tensors, inputs: dict[str, Guarded]) -> None:
    """No output shares memory with an input or another output."""
    for i, out in enumerate(outputs):
        if out.numel() == 0:
            continue
        name = judge.trial.spec.outputs[i].name
        for other, g in inputs.items():
            judge.require(not g.owns(out), f"{name} shares its memory with the input {other}")
        for j, later in enumerate(outputs[i + 1 :], i + 1):
            shared = later.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()
            judge.require(not shared, f"{name} shares its memory with {judge.trial.spec.outputs[j].name}")


def _second_call(judge: Judge, probe: Probe, trial: Trial, first: Tensors) -> None:
    """A call with other values leaves the first result alone and gives one of its own."""
    kept = [out.clone() for out in first]
    case = next((c for c in probe.cases if c.name == trial.case), None)
    other = probe.make(case, trial.dtype, trial.seed + 1) if case else trial
    second = judge.call(*other.values)
    for output, out, copy, new in zip(trial.spec.outputs, first, kept, second, strict=True):
        judge.equal(f"{output.name} after a second call", out, copy)
        fresh = new.numel() == 0 or new.data_ptr() != out.data_ptr()
        judge.require(fresh, f"{output.name}: a second call returned the memory of the first result")


CHECK = Check(
    run=run, column="memory", summary="canaries, NaN halo, poisoned outputs, inputs unchanged, nothing shared or reused"
)
