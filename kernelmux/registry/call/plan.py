"""What is remembered of a kind of call: what to call, and what to do to the arguments first; how it is made and kept."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from kernelmux.registry.backend import device_tables
from kernelmux.registry.call import checked_results, checked_values, launch_replay
from kernelmux.registry.choice import precedence, requests, warn_once
from kernelmux.registry.choice.decision import Decision
from kernelmux.registry.choice.requests import Request
from kernelmux.registry.interop import autograd
from kernelmux.registry.observe import counters, profiler_ranges
from kernelmux.registry.spec.binding import identity
from kernelmux.registry.spec.signature import Call, Spec
from kernelmux.registry.util.torch_modes import Surroundings

PLANS = 4096  # enough for a model's distinct calls; beyond it the table starts anew
Run = Callable[[Spec, tuple[Any, ...], Request], Any]  # runs a call as a request asks: `dispatch.call`


@dataclass(frozen=True, slots=True)
class CallPlan:
    """A remembered choice: what to call, and what to do to the arguments first; no tensors.

    resolved, copies: positions of inputs whose negative or conjugate bit is applied, and that are made contiguous.
    scalars: normalised values by position, where they differ from what was passed. emulation: entered around the call.
    direct: none of these, so that the arguments go on as they are. ran, tick: what `stats` and `record` say of a call.
    settled: whether it is to be remembered; not before a result of the implementation was right (`checked_results`).
    mode: that of `determinism` for which the choice was made; None where it is the same in each.
    quick: functions that compare a call with those of this plan, the last in use; None if none can (`fast_path.again`).
    """

    fn: Callable[..., Any]
    device: torch.device
    resolved: tuple[int, ...]
    copies: tuple[int, ...]
    scalars: tuple[tuple[int, Any], ...]
    emulation: Callable[[], AbstractContextManager[object]] | None
    direct: bool
    ran: counters.Ran
    tick: Callable[[], int]
    settled: bool = True
    mode: int | None = None
    quick: list[Callable[..., Any] | None] = field(default_factory=list, init=False, compare=False)

    def run(self, values: tuple[Any, ...]) -> Any:
        """The result for the arguments of a call of this kind."""
        if self.direct:
            return self.fn(*values)
        arguments = list(values)
        for i, value in self.scalars:
            arguments[i] = value
        if self.copies:
            for i in self.resolved:
                arguments[i] = arguments[i].resolve_conj().resolve_neg()
            for i in self.copies:
                arguments[i] = arguments[i].contiguous()
        if self.emulation is None:
            return self.fn(*arguments)
        with self.emulation():
            return self.fn(*arguments)


def plan_of(call: Call, decision: Decision, values: tuple[Any, ...], around: Surroundings, run: Run) -> CallPlan:
    """The plan of a decision for calls like this one, with its counter, its range and what is said of it.

    values: the arguments before they were checked. run: the operators of a backward run by it.
    """
    if (chosen := decision.chosen) is None or (candidate := chosen.candidate) is None:
        raise AssertionError(f"{call.spec.name}: expected a decision with a variant that was chosen")
    spec, home, fn = call.spec, candidate.home, candidate.implementation.fn
    names = [i.name for i in spec.inputs]
    copies = tuple([names.index(k) for k in chosen.copies])
    given = [(i, call.scalars[n]) for i, n in enumerate(names) if n in call.scalars]
    scalars = tuple([(i, v) for i, v in given if v is not values[i] and _differs(v, values[i])])
    emulation = home.emulation if candidate.emulated else None
    wanted = around.grad and any([x.requires_grad for x in call.tensors.values()])
    if decision.fallbacks or candidate.varies or emulation or call.capability or device_tables.gpu(call.device):
        warn_once.warn(decision, chosen)
    reasons = dict.fromkeys(fallback.reason for fallback in decision.fallbacks) if decision.fallbacks else ()
    ran = counters.Ran(spec.name, candidate.name, decision.request.source, " | ".join(reasons))
    tick = counters.counter(ran).tick
    checked, ranged = requests.flag(checked_values.VARIABLE), requests.flag(profiler_ranges.VARIABLE)
    if not candidate.own:
        fn = checked_results.looking(spec, candidate.name, fn)
    settled = fn is candidate.implementation.fn
    if home.replays and call.device.type == "cuda" and not (emulation or spec.hosted):
        fn = launch_replay.Replayed(fn)
    if checked:
        fn = checked_values.looking(call, fn)
    if ranged or profiler_ranges.opened:
        fn = profiler_ranges.Ranged(fn, f"{spec.name}[{candidate.name}]")
    if wanted and not home.composite and autograd.differentiable(spec):
        rule = autograd.GradientRule(spec, fn, _following(spec, decision.request, run), autograd.orders(values))
        fn = partial(autograd.node(spec.name), rule)
    return CallPlan(
        fn=fn,
        device=call.device,
        resolved=tuple([i for i in copies if values[i].is_neg() or values[i].is_conj()]),
        copies=copies,
        scalars=scalars,
        emulation=emulation,
        direct=not (copies or scalars or emulation),
        ran=ran,
        tick=tick,
        settled=settled,
        mode=around.deterministic if any([v.varies for v in decision.verdicts]) else None,
    )


def _differs(value: Any, given: Any) -> bool:
    """Whether a normalised scalar is not what was passed: 1, 1.0 and True are equal, and not one value."""
    if value.__class__ is not given.__class__:
        return True
    return bool(identity(value) != identity(given) if isinstance(value, tuple) else value != given)


def _following(spec: Spec, request: Request, run: Run) -> autograd.Operator:
    """Runs the operators of a backward as its forward call was asked to run."""
    source, along = f"the forward call of {spec.name}: {request.source}", request.shadow and request.shadow.following
    same = replace(request, names=precedence.heads(request.names), source=source, shadow=along)
    return lambda other, values: run(other, values, same)


class CallPlans(dict[object, CallPlan]):
    """The plans by the key of a call.

    quick: per operator, the comparison that its public function makes first. looked_up: per operator, the plan of the
    last public call that came past it. A plan becomes the quick one when it is looked up twice and no other in
    between: calls of three kinds that take turns pay for one comparison that fails, 0.2 us, and for no change.
    """

    __slots__ = ("looked_up", "quick")

    def __init__(self) -> None:
        super().__init__()
        self.quick: dict[str, Callable[..., Any]] = {}
        self.looked_up: dict[str, CallPlan] = {}

    def remember(self, key: object, plan: CallPlan) -> None:
        """Keep the plan of a kind of call."""
        if len(self) >= PLANS:
            self.clear()
        self[key] = plan

    def drop(self, op: str, plan: CallPlan) -> None:
        """Forget one plan, under all its keys."""
        for key in [key for key, known in list(self.items()) if known is plan]:
            self.pop(key, None)
        if self.quick.get(op) in plan.quick:
            self.quick.pop(op, None)
        if self.looked_up.get(op) is plan:
            self.looked_up.pop(op, None)

    def clear(self) -> None:
        """Forget all plans, the quick ones too."""
        super().clear()
        self.quick.clear()
        self.looked_up.clear()
