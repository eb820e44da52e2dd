"""What a call does to memory: it writes all of its outputs and nothing else, and shares or reuses nothing.

Inputs are contiguous, have gaps, and have axes of length one, whose views look as fresh as a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from zlib import crc32

import torch

from kernelmux.candidate.allocations import Guard, Guarded, Strides
from kernelmux.conformance.check import Check
from kernelmux.conformance.inputs.layouts import LAYOUTS, LayoutRule
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging import ahead
from kernelmux.conformance.judging.probe import Judge, Probe
from kernelmux.conformance.judging.redzones import haloed, poison_left
from kernelmux.conformance.variations import neighbouring_trials

Tensors = Sequence[torch.Tensor]
Placed = dict[str, Guarded]
FEW = ("transposed", "every second element", "rows with an aligned gap")  # layouts of emulated calls


def run(probe: Probe) -> None:
    for one in ahead.placed(probe, _placements(probe), lambda one: one.trial, lambda one: one.calls):
        with probe.judge(one.trial) as judge:
            _examine(judge, one)


@dataclass(frozen=True)
class Placement:
    """A trial whose inputs lie in memory with poison around it. before: what that memory holds.

    other: a call with other values that follows and leaves the first result alone; None if there is none.
    """

    trial: Trial
    inputs: Placed
    before: dict[str, torch.Tensor]
    other: Trial | None

    @property
    def calls(self) -> list[Trial]:
        return [one for one in (self.trial, self.other) if one]


def _placement(probe: Probe, trial: Trial, inputs: Placed, again: bool = True) -> Placement:
    """A placed trial. again: whether another call follows."""
    before = {name: g.whole.clone() for name, g in inputs.items()}
    return Placement(trial, inputs, before, neighbouring_trials.again(probe, trial, 1) if again else None)


def _placements(probe: Probe) -> Iterator[Placement]:
    """The trials, each in every place that is asked for."""
    trials = probe.sample(2 if neighbouring_trials.slow(probe) else 8)
    for trial in trials:
        inputs = {name: haloed(x) for name, x in trial.tensors.items()}
        yield _placement(probe, _placed(trial, inputs, trial.note), inputs)
    large = () if neighbouring_trials.slow(probe) else neighbouring_trials.largest(probe)
    for trial in (*_thin(probe, trials[:1]), *trials[-1:], *large):
        for note, inputs in _with_gaps(probe, trial):
            placed = _placed(trial, inputs, note)
            if not probe.reasons(placed):
                yield _placement(probe, placed, inputs, again=not neighbouring_trials.slow(probe))


def _placed(trial: Trial, inputs: Placed, note: str) -> Trial:
    return trial.elsewhere(note, **{name: g.view for name, g in inputs.items()})


def _thin(probe: Probe, trials: Sequence[Trial]) -> Iterator[Trial]:
    """The trials with each of their axes (not of what is `verified`), and with all of them, of length one."""
    for trial in trials:
        axes = neighbouring_trials.axes(probe, trial)
        for chosen in ([[axis] for axis in axes] if len(axes) > 1 and not probe.verified else []) + [axes]:
            if made := neighbouring_trials.resized(probe, trial, dict.fromkeys(chosen, 1)):
                yield made


def _with_gaps(probe: Probe, trial: Trial) -> Iterator[tuple[str, Placed]]:
    """All inputs as each layout has them; an input for which a layout means nothing is contiguous. No gaps come first.

    Of what is `verified` the layouts are asked where axes are longer, one of them for each variant and seed.
    """
    if 1 in {n for x in trial.tensors.values() for n in x.shape}:
        yield "axes of length one", {name: haloed(x) for name, x in trial.tensors.items()}
        if probe.verified and {n for x in trial.tensors.values() for n in x.shape} == {1}:
            return
    asked = [(layout.name, found) for layout in LAYOUTS if (found := _strides(probe, trial, layout))]
    turn = crc32(probe.label.encode()) + probe.options.seed
    for name, strides in asked[turn % len(asked) :][:1] if probe.verified and asked else asked:
        yield name, {tensor: haloed(x, strides.get(tensor)) for tensor, x in trial.tensors.items()}


def _strides(probe: Probe, trial: Trial, layout: LayoutRule) -> dict[str, Strides]:
    """The strides of each input that has this layout; none for a layout that is not asked for."""
    if not layout.same or (neighbouring_trials.slow(probe) and layout.name not in FEW):
        return {}
    found: dict[str, Strides] = {}
    for name, x in trial.tensors.items():
        made = layout.strides(tuple(x.shape), x.element_size()) if x.numel() else None
        if made is not None and not made[1]:
            found[name] = made[0]
    return found


def _examine(judge: Judge, one: Placement) -> None:
    guard, before = Guard(), one.before
    with guard:
        outputs = judge.call()
    for made in guard.memory:
        judge.require((found := made.damage()) is None, lambda: f"wrote outside of {made.name}: {found}")  # noqa: B023
    for name, g in one.inputs.items():
        judge.require(torch.equal(g.whole, before[name]), lambda: _touched(name, g, before[name]))  # noqa: B023
    poison = [poison_left(out) for out in outputs]
    if one.other:
        _second_call(judge, one.other, outputs)
    judge.accurate(outputs, poison)
    _apart(judge, outputs, one.inputs)


def _touched(name: str, now: Guarded, before: torch.Tensor) -> str:
    """Which part of an input was changed."""
    places = (now.whole != before).nonzero().flatten()
    first, end = now.used
    inside = int(((places >= first) & (places < end)).sum())
    where = f"{inside} bytes of its values or between them" if inside else f"{places.numel()} bytes around it"
    return f"the input {name} was changed: {where}, first at byte {int(places[0]) - first}"


def _apart(judge: Judge, outputs: Tensors, inputs: Placed) -> None:
    """No output shares memory with an input or another output, or has several elements in one place."""
    for i, out in enumerate(outputs):
        if out.numel() == 0:
            continue
        name = judge.trial.spec.outputs[i].name
        for other, g in inputs.items():
            judge.require(not g.owns(out), f"{name} shares its memory with the input {other}")
        for j, later in enumerate(outputs[i + 1 :], i + 1):
            shared = later.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()
            judge.require(not shared, f"{name} shares its memory with {judge.trial.spec.outputs[j].name}")
        form = judge.trial.spec.outputs[i].memory_format(judge.trial.call)
        dense = out.is_contiguous(memory_format=form)
        judge.require(dense, f"{name} has gaps or another order: shape {list(out.shape)}, strides {out.stride()}")


def _second_call(judge: Judge, other: Trial, first: Tensors) -> None:
    """A call with other values leaves the first result alone and gives one of its own."""
    kept = [out.clone() for out in first]
    second = judge.call(*other.values)
    for output, out, copy, new in zip(judge.trial.spec.outputs, first, kept, second, strict=True):
        judge.equal(f"{output.name} after a second call", out, copy)
        fresh = new.numel() == 0 or new.data_ptr() != out.data_ptr()
        judge.require(fresh, f"{output.name}: a second call returned the memory of the first result")


CHECK = Check(
    run=run, column="memory", summary="canaries, NaN halo, poisoned outputs, inputs unchanged, nothing shared or reused"
)
