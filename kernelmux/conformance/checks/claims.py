"""What an implementation declares that it cannot run is refused with its reason, and what it declares to run is not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any

import torch

from kernelmux.candidate import allocations
from kernelmux.conformance.check import Check
from kernelmux.conformance.inputs import generate, layouts, trials
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging.probe import Judge, Probe
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.cases import Case
from kernelmux.registry.conditions import (
    Aligned,
    AtDefault,
    AtLeast,
    AtMost,
    Capability,
    Condition,
    Dtypes,
    Multiple,
    OneOf,
    sm,
)
from kernelmux.registry.errors import ArgumentError, UnsupportedError
from kernelmux.registry.spec import Axis, Call, Scalar, Tensor

KINDS = (Aligned, AtDefault, AtLeast, AtMost, Capability, Dtypes, Multiple, OneOf)  # what `unmet` knows
GPUS = (None, (7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0))  # capabilities; None: of the device


def run(probe: Probe) -> None:
    requires = probe.implementation.requires
    if not requires:
        probe.skip_all("declares no conditions: it runs every call of the spec")
        return
    asked, sample = 0, probe.sample(1)
    if not sample and not (probe.options.cases or probe.options.dtypes):
        _runs_something(probe)
    for base in sample:
        for condition in requires:
            if isinstance(condition, Capability):
                asked += _other_gpus(probe, base, condition)
                continue
            with probe.judge(replace(base, note=condition.text)) as judge:
                judge.require((why := condition.check(base.call)) is None, f"refuses a call that meets it: {why}")
            if not isinstance(condition, KINDS):
                asked += _own_kind(probe, base, condition)
            for trial in unmet(base, condition):
                asked += 1
                with probe.judge(trial) as judge:
                    _refused(judge, condition)
    if not asked and not probe.records:
        probe.skip_all("the spec allows no call that these conditions exclude")


def _runs_something(probe: Probe) -> None:
    """On a GPU of the right kind some case that is not empty must meet all conditions: else no check means anything."""
    newest = max((c.minimum for c in probe.implementation.requires if isinstance(c, Capability)), default=None)
    filled = [(c, d) for c, d in probe.pairs() if all(0 not in shape for shape in c.shapes.values())]
    made = [probe.make(case, dtype) for case, dtype in filled]
    if not made:
        return
    able = any(not probe.implementation.reasons(replace(t.call, capability=newest)) for t in made)
    with probe.judge(made[0]) as judge:
        judge.require(
            able,
            "no case that computes something meets all of its conditions,"
            f" the first for example not: {'; '.join(probe.reasons(made[0]))}",
        )


def _refused(judge: Judge, condition: Condition) -> None:
    reason = condition.check(judge.trial.call)
    judge.require(reason is not None, f"{condition.text}: expected a reason against this call, got none")
    try:
        judge.call()
    except UnsupportedError as error:
        judge.require(str(reason) in str(error), f"the error does not give the reason {reason!r}: {error}")
        return
    judge.require(False, f"{condition.text} is not met, but the call ran")


def _other_gpus(probe: Probe, base: Trial, condition: Capability) -> int:
    """A capability cannot be changed, but a call that claims to have one outside must be judged unable."""
    outside = [(condition.minimum[0] - 1, 0), *([condition.below] if condition.below else [])]
    for capability in outside:
        with probe.judge(replace(base, note=f"on {sm(capability)}")) as judge:
            reasons = probe.implementation.reasons(replace(base.call, capability=capability))
            judge.require(any(condition.text in r for r in reasons), f"expected {condition.text!r} in {reasons}")
    return len(outside)


def _own_kind(probe: Probe, base: Trial, condition: Condition) -> int:
    """Of a condition of the backend's own: what it has against any of the cases is why the call is refused.

    On other GPUs, to which no call can be made, it is what the variant says.
    """
    against: dict[str, tuple[Call, Trial | None]] = {}
    for case, dtype in probe.pairs():
        for call, turned in _hypothetical(probe, case, dtype):
            with probe.noted():
                reason = condition.check(call)
            if reason is not None and reason not in against:
                trial = None if call.capability else _laid_out(probe.make(case, dtype), turned)
                if trial and condition.check(trial.call) is None:  # the reason is one of another device
                    trial = None
                against[reason] = call, trial
    for reason, (call, trial) in against.items():
        with probe.judge(trial or replace(base, note=condition.text)) as judge:
            judge.require(reason in (found := probe.implementation.reasons(call)), f"expected {reason!r} in {found}")
            if trial:
                _refused(judge, condition)
    return len(against)


def _hypothetical(probe: Probe, case: Case, dtype: torch.dtype) -> Iterator[tuple[Call, str]]:
    """Calls without data: as the case says, and with the last two axes of a tensor exchanged in memory, by its name.

    Not where the variant would get a copy of that tensor.
    """
    for capability in GPUS:
        with suppress(ArgumentError):
            call = probe.spec.hypothetical(case, dtype, capability=capability)
            yield call, ""
            for name, x in call.tensors.items():
                turned = x.mT.contiguous().mT if x.dim() > 1 else x
                if x.dim() > 1 and registered.fits(turned, probe.implementation.layout.get(name, "any")):
                    given = {**call.arguments, name: turned}
                    yield probe.spec.bind(**given, device=call.device, capability=capability), name


def _laid_out(trial: Trial, turned: str) -> Trial:
    return trial.changed(f"{turned} turned", **{turned: trial.tensors[turned].mT.contiguous().mT}) if turned else trial


def unmet(base: Trial, condition: Condition) -> Iterator[Trial]:
    """Calls that the spec allows and the condition does not, made from a call that it does."""
    if isinstance(condition, Dtypes):
        item = next(t for t in base.spec.tensors if t.name == condition.name)
        alone = not item.like and item != base.spec.leading  # its dtype is its own
        for dtype in item.dtypes if alone else base.spec.dtypes:
            if dtype not in condition.allowed:
                first, given = (base.dtype, {item.name: dtype}) if alone else (dtype, {})
                made = replace(base, dtype=first, values=_cast(base, first, given), note=f"{item.name} as {dtype}")
                yield from _valid(made)
    elif isinstance(condition, Aligned):
        moved = layouts.laid_out(x := base.tensors[condition.name], allocations.contiguous_strides(x.shape), 1)
        yield from _valid(base.changed(f"{condition.name} one element off", **{condition.name: moved}))
    elif isinstance(condition, AtDefault):
        passed = (valid for trial in _passed(base, condition.name) for valid in _valid(trial))
        yield from (trial for trial in passed if condition.check(trial.call))
    else:
        for value in _outside(base, condition):
            yield from _valid(_with_value(base, condition.name, value))  # type: ignore[attr-defined]


def _cast(base: Trial, dtype: torch.dtype, given: dict[str, torch.dtype]) -> tuple[Any, ...]:
    kinds = base.spec.dtypes_for(dtype, given)
    pairs = zip(base.spec.inputs, base.values, strict=True)
    return tuple(v.to(kinds[item.name]) if isinstance(v, torch.Tensor) else v for item, v in pairs)


def _passed(base: Trial, name: str) -> Iterator[Trial | None]:
    """The call with other values of an argument than its default; of a tensor the first case that has it."""
    spec, item = base.spec, next(i for i in base.spec.inputs if i.name == name)
    if isinstance(item, Tensor):
        having = (c for c in spec.cases if name in c.shapes and base.dtype in (c.dtypes or spec.dtypes))
        for case in islice(having, 1):
            yield replace(trials.trial(spec, case, base.dtype, base.seed, base.call.device), note=f"with {name}")
        return
    values = generate.pool(item) if isinstance(item, Scalar) else range(base.tensors[item.of].dim())
    yield from (_with_value(base, name, value) for value in values)


def _outside(base: Trial, condition: Condition) -> list[Any]:
    """Values just beyond the border."""
    if isinstance(condition, AtLeast):
        return [condition.minimum - 1] if condition.minimum > 0 else []
    if isinstance(condition, AtMost):
        return [condition.maximum + 1]
    if isinstance(condition, Multiple):
        return [condition.factor + 1]
    if isinstance(condition, OneOf):
        item = next((i for i in base.spec.scalars if i.name == condition.name), None)
        if isinstance(item, Scalar):
            return [
                v for v in item.choices or ((True, False) if item.type is bool else ()) if v not in condition.allowed
            ]
        return [max(condition.allowed) + 1]
    return []


def _with_value(base: Trial, name: str, value: Any) -> Trial | None:
    """The call with another value of a scalar, or of an axis: tensors are made anew without touching their elements."""
    note, spec = f"{name} = {value}", base.spec
    if any(i.name == name for i in spec.scalars):
        values = tuple(value if i.name == name else v for i, v in zip(spec.inputs, base.values, strict=True))
        return replace(base, values=values, note=note)
    named = any(name in t.letters for t in spec.tensors)
    tensors = {}
    for item in (t for t in spec.tensors if t.name in base.tensors):
        x = base.tensors[item.name]
        letters = item.named(x.shape)
        if name in letters or (not named and x.dim()):
            axis = letters.index(name) if named else _derived_axis(base, item)
            shape = [value if i == axis % x.dim() else 1 if not named else n for i, n in enumerate(x.shape)]
            tensors[item.name] = trials.on_device(torch.zeros((), dtype=x.dtype), item, base.call.device).expand(shape)
    return base.changed(note, **tensors) if tensors else None


def _derived_axis(base: Trial, item: Tensor) -> int:
    """Which axis of a tensor a derived axis stands for: the one that the call names, or the last."""
    chosen = [base.call.arguments[s.name] for s in base.spec.scalars if isinstance(s, Axis) and s.of == item.name]
    return chosen[0] if chosen and chosen[0] is not None else -1


def _valid(trial: Trial | None) -> Iterator[Trial]:
    try:
        if trial is not None and trial.call:
            yield trial
    except ArgumentError:
        return


CHECK = Check(run=run, column="claims", summary="calls beyond a declared condition are refused with its reason")
