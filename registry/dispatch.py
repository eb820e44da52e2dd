"""Who runs a call and why: validation, choice, layout copies, the call itself, and the explanation of all that."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn

import torch

from kernelmux.registry import backend as registered
from kernelmux.registry import catalog, selection
from kernelmux.registry.backend import Implementation
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.errors import BackendUnavailable, SpecError, UnsupportedError, unknown
from kernelmux.registry.spec import Call, OpSpec, Output

EMULATED = (9, 0)  # the compute capability that the emulator stands for


@dataclass(frozen=True)
class Verdict:
    """What became of one variant: able, or not and why; copies: inputs that would be copied to fit its layout."""

    backend: str
    variant: str
    reasons: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    emulated: bool = False

    @property
    def name(self) -> str:
        return f"{self.backend}/{self.variant}" if self.variant else self.backend

    @property
    def able(self) -> bool:
        return not self.reasons


@dataclass(frozen=True)
class Decision:
    """The answer of `explain`: the chosen variant (None if nobody can), who asked, and the verdict on every variant."""

    call: Call
    request: selection.Request
    chosen: Verdict | None
    verdicts: tuple[Verdict, ...]

    def __str__(self) -> str:
        head = f"{self.call.spec.name}: {describe(self.call)}"
        strict = "; strict" if self.request.strict else ""
        asked = f"  requested: {', '.join(self.request.names)} (from {self.request.source}{strict})"
        picked = f"  chosen: {self.chosen.name}" if self.chosen else "  chosen: nobody can run this call"
        return "\n".join([head, asked, picked, *(_line(v, v == self.chosen) for v in self.verdicts)])


def _line(verdict: Verdict, chosen: bool) -> str:
    notes = ["emulated on the CPU"] if verdict.emulated else []
    notes += [f"copies {', '.join(verdict.copies)} to a layout it can read"] if verdict.copies else []
    text = "; ".join(verdict.reasons) if verdict.reasons else "yes" + (f" ({'; '.join(notes)})" if notes else "")
    return f"  {'->' if chosen else '  '} {verdict.name:<28} {'no: ' if verdict.reasons else ''}{text}"


def describe(call: Call) -> str:
    """The call in one line: shapes, dtypes, unusual strides, device, scalars."""
    parts = []
    for name, value in call.arguments.items():
        if isinstance(value, torch.Tensor):
            strides = "" if value.is_contiguous() else f" strides {tuple(value.stride())}"
            parts.append(f"{name} {SHORT[value.dtype]}{list(value.shape)}{strides}")
        else:
            parts.append(f"{name}={value!r}")
    return f"{', '.join(parts)} on {call.device}"


def _emulated(name: str, call: Call) -> bool:
    return call.device.type == "cpu" and registered.backend(name).emulates


def _judge(name: str, variant: str, implementation: Implementation, call: Call) -> Verdict:
    emulated = _emulated(name, call)
    if emulated and call.capability is None:
        call = Call(call.spec, call.arguments, call.axes, call.device, EMULATED, call.hypothetical)
    copies = [k for k, layout in implementation.layout.items() if not registered.fits(call.arguments[k], layout)]
    try:
        reasons = tuple(implementation.reasons(call))
    except SpecError as error:
        raise SpecError(f"{name}/{variant} declares what {call.spec.name} does not have: {error}") from error
    return Verdict(name, variant, reasons, tuple(copies), emulated)


def verdicts(call: Call, name: str, only: str | None = None) -> list[Verdict]:
    """The verdict on each variant of one backend (or on one of them), in ladder order."""
    if reason := registered.unavailable(name, call.device):
        return [Verdict(name, only or "", (reason,))]
    ladder = registered.variants(name, call.spec.name)
    if not ladder:
        return [Verdict(name, only or "", (f"has no implementation of {call.spec.name}",))]
    if only is not None and only not in ladder:
        raise unknown(f"variant of {name} for {call.spec.name}", only, ladder)
    return [_judge(name, v, i, call) for v, i in ladder.items() if only in (None, v)]


def _automatic(call: Call) -> list[str]:
    """Backends by priority; never one that would be emulated."""
    usable = [n for n in registered.backends() if not registered.unavailable(n, call.device) and not _emulated(n, call)]
    return sorted(usable, key=lambda n: -registered.backend(n).priority)


def decide(call: Call, request: selection.Request, thorough: bool = False) -> Decision:
    """Choose for a call; `thorough` also judges the backends that nobody asked for."""
    order = _automatic(call) if request.auto else list(request.names)
    judged: list[Verdict] = []
    chosen: Verdict | None = None
    for label in order:
        name, only = registered.split(label, request.source)
        found = verdicts(call, name, only)
        judged += found
        chosen = chosen or next((v for v in reversed(found) if v.able), None)
        if chosen and not thorough:
            break
    if thorough or not chosen:
        seen = {v.backend for v in judged}
        for name in registered.backends():
            judged += verdicts(call, name) if name not in seen else []
    return Decision(call, request, chosen, tuple(judged))


def _refuse(decision: Decision) -> NoReturn:
    """Raise for a decision without a choice; the text lists all reasons and what could run instead."""
    able = [v.name for v in decision.verdicts if v.able]
    hint = f'\n  try: backend="{able[-1]}"' if able else ""
    names = decision.request.names
    asked = [v for v in decision.verdicts if v.backend in {n.partition("/")[0] for n in names}]
    down = asked and all(registered.unavailable(v.backend, decision.call.device) for v in asked)
    kind = BackendUnavailable if down else UnsupportedError
    raise kind(f"no requested backend can run this call\n{decision}{hint}")


@cache
def _warn_emulated(name: str) -> None:
    warnings.warn(
        f'backend "{name}" runs its GPU kernels on the emulator for CPU tensors: right, checked, and slow',
        stacklevel=5,  # past _plan, call and the compiled public function: the line of the user
    )


@dataclass(frozen=True)
class Plan:
    """A remembered choice: what to call, which inputs to copy first, the normalised scalars by position; no tensors."""

    fn: Callable[..., Any]
    copies: tuple[int, ...]
    scalars: tuple[tuple[int, Any], ...]

    def run(self, values: tuple[Any, ...]) -> Any:
        arguments = list(values)
        for i, value in self.scalars:
            arguments[i] = value
        for i in self.copies:
            arguments[i] = arguments[i].contiguous()
        return self.fn(*arguments)


_plans: dict[object, Plan] = {}
PLANS = 4096  # enough for a model's distinct calls; beyond it the table starts anew


def _key(spec: OpSpec, values: tuple[Any, ...], argument: selection.Names | None) -> object:
    """What a choice depends on: shapes, strides, dtypes, devices, alignment, scalars, and the request in force."""
    parts = [
        (v.shape, v.stride(), v.dtype, v.device, v.data_ptr() & 15) if isinstance(v, torch.Tensor) else (type(v), v)
        for v in values
    ]
    pinned = [v.is_pinned() for v in values if isinstance(v, torch.Tensor)] if spec.hosted else ()
    chain = argument if argument is None or isinstance(argument, str) else tuple(argument)
    return (spec.name, *parts, *pinned, chain, selection.state())


def _plan(spec: OpSpec, values: tuple[Any, ...], argument: selection.Names | None) -> Plan:
    bound = spec.bind(*values)
    decision = decide(bound, selection.requested(spec.name, argument))
    chosen = decision.chosen or _refuse(decision)
    if chosen.emulated:
        _warn_emulated(chosen.backend)
    names = [i.name for i in spec.inputs]
    return Plan(
        fn=registered.variants(chosen.backend, spec.name)[chosen.variant].fn,
        copies=tuple(names.index(c) for c in chosen.copies),
        scalars=tuple((names.index(k), v) for k, v in bound.scalars.items()),
    )


def call(spec: OpSpec, values: tuple[Any, ...], argument: selection.Names | None) -> Any:
    """Run an operator: bind, choose, copy what the layout needs, compute. The choice is remembered per kind of call."""
    try:
        key = _key(spec, values, argument)
        plan = _plans.get(key)
    except (TypeError, RuntimeError):  # an unhashable scalar or a tensor without storage: binding says what is wrong
        spec.bind(*values)
        raise
    if plan is None:
        if len(_plans) >= PLANS:
            _plans.clear()
        plan = _plans[key] = _plan(spec, values, argument)
    return plan.run(values)


@cache
def function(op: str) -> Callable[..., Any]:
    """The public function of an operator, with the spec's own signature plus `backend=`.

    It is compiled from the signature, so that wrong calls get Python's own TypeError and `help()` shows the truth.
    """
    spec = catalog.spec(op)
    names = ", ".join(i.name for i in spec.inputs)
    parameters = ", ".join(str(p) for p in spec.signature.parameters.values())
    scope: dict[str, Any] = {"_spec": spec, "_call": call}
    exec(f"def {op}({parameters}, *, backend=None):\n    return _call(_spec, ({names},), backend)", scope)
    public: Callable[..., Any] = scope[op]
    public.__doc__ = documentation(spec)
    public.__module__ = "kernelmux"
    return public


def documentation(spec: OpSpec) -> str:
    """The docstring of a public operator, from its spec."""
    lines = [spec.summary, "", f"    {spec.math}", "", "Arguments:"]
    lines += [f"    {i.name}: {_kind(i)}{'; ' + i.doc if i.doc else ''}" for i in spec.inputs]
    lines += ['    backend: a backend, a variant such as "cuda/tiled", or a list to try in order', "", "Returns:"]
    lines += [f"    {o.name}: dtype of {o.like}, {_shape(o)}" for o in spec.outputs]
    lines += ["", "Raises: ArgumentError, UnsupportedError, BackendUnavailable, UnknownName"]
    lines += [f"Source: {s}" for s in spec.sources]
    return "\n".join(lines)


def _shape(output: Output) -> str:
    if output.dims == "like":
        return f"shape of {output.like}"
    return f"[{output.dims}]" if isinstance(output.dims, str) else "the reduced shape"


def _kind(item: Any) -> str:
    if hasattr(item, "dims"):
        kinds = f"like {item.like}" if item.like else "/".join(SHORT[d] for d in item.dtypes)
        return f"[{item.dims}] {kinds}{', in host memory' if item.host else ''}"
    if hasattr(item, "of"):
        return f"axis of {item.of}"
    choices = f", one of {item.choices}" if item.choices else ""
    return f"{item.type.__name__}{' or None' if item.optional else ''}{choices}"


def explain(op: str, *args: Any, backend: selection.Names | None = None, **kwargs: Any) -> Decision:
    """Who would run this call, who asked for it, and the reasons of all others; nothing is computed."""
    spec = catalog.spec(op)
    return decide(spec.bind(*args, **kwargs), selection.requested(op, backend), thorough=True)


def which(op: str, *args: Any, backend: selection.Names | None = None, **kwargs: Any) -> str:
    """The name, such as "torch_ref/eager", of the variant that would run this call; raises as the call would."""
    spec = catalog.spec(op)
    decision = decide(spec.bind(*args, **kwargs), selection.requested(op, backend))
    return (decision.chosen or _refuse(decision)).name
