"""Right calls are accepted in every spelling and give fresh tensors; wrong ones are refused before anything runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from kernelmux.candidate.dispatch_mode import DispatchMode
from kernelmux.conformance.check import Check
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging.probe import Judge, Probe
from kernelmux.registry.call import dispatch
from kernelmux.registry.dtypes import computes
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.spec import REQUIRED, Axis, Scalar, Tensor
from kernelmux.registry.spec.signature import spread


def run(probe: Probe) -> None:
    sample = probe.sample(3)
    for trial in sample:
        with probe.judge(trial) as judge:
            _right_calls(judge)
    for trial in sample[:1]:
        for note, values in wrong_calls(trial):
            with probe.judge(trial.changed(note)) as judge:
                _refused(judge, note, values)


def _right_calls(judge: Judge) -> None:
    """By position, by keyword, with defaults left out: the same result, contiguous, on the right device, of its own."""
    trial, public = judge.trial, dispatch.function(judge.trial.spec.name)
    outputs = judge.call()
    judge.accurate(outputs)
    for output, got in zip(trial.spec.outputs, outputs, strict=True):
        judge.require(
            got.device == trial.call.device, f"{output.name}: expected it on {trial.call.device}, got {got.device}"
        )
        judge.require(not got.requires_grad, f"{output.name}: requires_grad without an input that does")
    named = {i.name: v for i, v in zip(trial.spec.inputs, trial.values, strict=True)}
    short = {i.name: v for i, v in zip(trial.spec.inputs, trial.values, strict=True) if not _is_default(i, v)}
    for spelling in (named, short):
        with judge.probe.environment():
            again = public(**spelling, backend=judge.probe.label)
        again, visible = again if isinstance(again, tuple) else (again,), trial.spec.visible
        judge.require(
            len(again) == visible, f"expected {visible} of the outputs, without those saved, got {len(again)}"
        )
        for output, got, want in zip(trial.spec.outputs, again, outputs, strict=False):
            judge.require(
                got.shape == want.shape and got.dtype == want.dtype,
                f"{output.name}: keywords gave another shape or dtype",
            )


def _is_default(item: Tensor | Scalar | Axis, value: Any) -> bool:
    """Whether an argument may be left out."""
    return (value is None and item.default is None) or (not isinstance(item, Tensor) and value == item.default)


class Quiet(DispatchMode):
    """Counts the torch operations of a call that should have been refused before the first of them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.aten.is_pinned.default:  # a question, not work
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def _refused(judge: Judge, note: str, values: tuple[Any, ...]) -> None:
    quiet, spec = Quiet(), judge.trial.spec
    try:
        with quiet, judge.probe.environment():
            dispatch.call(spec, values, judge.probe.label)
    except ArgumentError as error:
        judge.require(str(error).startswith(f"{spec.name}: "), f"{note}: the error does not name the operator: {error}")
        judge.require(not quiet.seen, lambda: f"{note}: {quiet.seen[0]} ran before the call was refused")
        return
    judge.require(False, f"{note}: expected an ArgumentError, but the call was accepted")


def wrong_calls(trial: Trial) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Calls that differ from a right one in one argument that the spec does not allow."""
    for i, item in enumerate(trial.spec.inputs):
        value = trial.values[i]
        found = _wrong_tensors(item, value, trial) if isinstance(item, Tensor) else _wrong_scalars(item, value, trial)
        for note, wrong in found:
            yield f"{item.name}: {note}", (*trial.values[:i], wrong, *trial.values[i + 1 :])


def _wrong_tensors(item: Tensor, value: torch.Tensor | None, trial: Trial) -> Iterator[tuple[str, Any]]:
    yield "not a tensor", [1.0, 2.0]
    if not item.optional:
        yield "None", None
    if value is None:
        return
    yield "dtype float64", value.to(torch.float64)
    if item.like:
        yield (
            "another dtype than its like",
            value.to(torch.bfloat16 if value.dtype != torch.bfloat16 else torch.float16),
        )
    if not item.any_rank and not any(spread(form, value[None].shape) is not None for form in item.forms):
        yield "an axis too many", value[None]
    if not any(spread(form, ()) is not None for form in item.forms):
        yield "no axes", value.flatten()[0]
    if len(trial.tensors) > 1:
        yield "another device", torch.empty(value.shape, dtype=value.dtype, device="meta")
    if (axis := _shared_axis(item, trial)) is not None:
        yield "a shared axis of another length", torch.cat([value, value], axis)
    if computes(value.dtype):  # of 8-bit floats torch makes none
        yield "a sparse tensor", value.to_sparse()


def _shared_axis(item: Tensor, trial: Trial) -> int | None:
    """The position, from the end, of an axis that another tensor of the call has as well."""
    given = {t.name: t.named(trial.tensors[t.name].shape) for t in trial.spec.tensors if t.name in trial.tensors}
    own = given.pop(item.name)
    shared = [i for i, axis in enumerate(own) if any(axis in others for others in given.values())]
    return max(shared, key=lambda i: (not own[i].startswith("..."), i if own[i][0] != "." else -i), default=None)


def _wrong_scalars(item: Scalar | Axis, value: Any, trial: Trial) -> Iterator[tuple[str, Any]]:
    yield "a tensor in place of a number", torch.ones(())
    if isinstance(item, Axis):
        rank = trial.tensors[item.of].dim()
        yield "beyond the last axis", rank
        yield "before the first axis", -rank - 1
        yield "a float", 0.5
        return
    yield "a list", [1]
    if not item.optional and item.default is not REQUIRED:
        yield "None", None
    if item.choices:
        yield "not one of the choices", "nonsense"
    if item.range:
        below, above = item.range
        real = item.type is float
        yield "below the range", math.nextafter(below, -math.inf) if real else below - 1
        yield "above the range", math.nextafter(above, math.inf) if real else above + 1
    if item.length:
        yield "one too many", (1,) * (item.length + 1)
        yield "a bool among them", (*(1,) * (item.length - 1), True)
        yield "a fraction among them", (*(1,) * (item.length - 1), 1.5)
    if item.type is float:
        yield "a bool", True
    if item.type is bool:
        yield "an int", 2


CHECK = Check(
    run=run,
    column="signat",
    summary="right calls in every spelling, fresh well-formed outputs, wrong calls refused at once",
)
