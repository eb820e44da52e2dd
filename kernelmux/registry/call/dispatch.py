"""A call: bound to its spec, given to the variant that is chosen for it, and remembered per kind of call."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch.autograd import forward_ad

from kernelmux.registry import catalog, elsewhere
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend import timings, tuned_configs
from kernelmux.registry.call import fast_path
from kernelmux.registry.call.plan import CallPlan, CallPlans, plan_of
from kernelmux.registry.choice import determinism, precedence, refusals, scope, warn_once
from kernelmux.registry.choice.decide import decide, refuse, verdicts
from kernelmux.registry.choice.decision import Decision, Verdict, describe
from kernelmux.registry.choice.requests import Request
from kernelmux.registry.choice.scope import Choice, asked
from kernelmux.registry.interop import autocast, autograd, torch_errors, torch_ops
from kernelmux.registry.observe import call_log, counters, gpu_failures
from kernelmux.registry.spec.binding import bind, identity
from kernelmux.registry.spec.docstrings import documentation
from kernelmux.registry.spec.signature import Call, Spec, Tensor
from kernelmux.registry.util import cards, keywords, torch_modes
from kernelmux.registry.util.torch_modes import Surroundings

__all__ = [
    "Decision",
    "Verdict",
    "call",
    "decide",
    "describe",
    "documentation",
    "explain",
    "function",
    "install_torch_ops",
    "outputs",
    "verdicts",
    "which",
]

_C: Any = torch._C
_autocast, _modes, _jit = _C._is_any_autocast_enabled, _C._len_torch_dispatch_stack, _C._get_tracing_state


_plans = CallPlans()
cards.when_changed(_plans.clear)
ANEW = 4  # comparisons at most that are made for a plan
Asked = precedence.Names | Request | None  # `backend=`: names, or the request of a forward call
KeyOf = Callable[..., object]
UNTRACED = nullcontext()
PLAIN = frozenset((type(None), str, Request))  # of these, what can stand in a key as it is


def _key_of(spec: Spec) -> KeyOf:
    """A function from the arguments of a call, its `backend=` and `scope.asked()` to what a choice depends on.

    That is, per tensor: kind, shape, strides, dtype, device, alignment, negative bit, and whether a gradient is wanted;
    the scalars; the request in force. Compiled, because it runs at every call: 0.5 us less than a loop over the values.
    """
    parts = [repr(spec.name)]
    for item in spec.inputs:
        n = item.name
        if isinstance(item, Tensor):
            facts = [f"{n}.__class__", f"{n}.shape", f"{n}.stride()", f"{n}.dtype", f"{n}.device", f"{n}.is_neg()"]
            facts += [f"p & 15 if (p := {n}.data_ptr()) > {fast_path.LOWEST} else -1", f"{n}.requires_grad and grad()"]
            facts += [f"{n}.is_pinned()"] if spec.hosted else []
            parts += [f"None if {n} is None else ({', '.join(facts)})"] if item.optional else facts
        elif getattr(item, "length", None):
            parts += [f"{n}.__class__", f"identity({n})"]
        else:
            parts += [f"{n}.__class__", n]
    chain = "backend if backend.__class__ in plain else tuple(backend)"
    names = ", ".join(i.name for i in spec.inputs)
    namespace: dict[str, Any] = {"grad": torch.is_grad_enabled, "plain": PLAIN, "identity": identity}
    exec(f"def key({names}, backend, state):\n    return ({', '.join(parts)}, {chain}, state)", namespace)
    found: KeyOf = namespace["key"]
    return found


_keys: dict[int, KeyOf] = {}  # by the id of the spec, which the function keeps alive


def _plan(
    spec: Spec, values: tuple[Any, ...], argument: Asked, scopes: tuple[Choice, ...], around: Surroundings
) -> CallPlan:
    if id(spec) not in _keys:
        _keys[id(spec)] = _key_of(spec)
    try:
        with torch_modes.untraced() if around.traced else UNTRACED:
            plan, chosen = resolve(spec, values, argument, scopes, around)
    except Exception as error:
        torch_errors.tell(error, spec, values)
        raise
    if chosen.emulated:
        warn_once.warn_emulated(chosen.backend)
    return plan


def resolve(
    spec: Spec,
    values: tuple[Any, ...],
    argument: Asked,
    scopes: tuple[Choice, ...] | None = None,
    around: Surroundings | None = None,
) -> tuple[CallPlan, Verdict]:
    """How a call on plain tensors runs, and on which variant; raises as the call would, and runs nothing.

    This is the path of the first call of a kind: each step takes what the one before gave, and none asks what surrounds
    the call. scopes, around: what does, where it was read already.
    """
    around = around or torch_modes.surroundings(values)
    bound = bind(spec, dict(zip(spec.signature.parameters, values, strict=True)), around=around)
    request = precedence.requested(spec.name, argument, bound, scopes)
    decision = decide(bound, request, around=around)
    chosen = decision.chosen or refuse(decision)
    plan = plan_of(bound, decision, values, around, call)
    if request.shadow is None:
        return plan, chosen
    from kernelmux.registry.call import shadow

    along = shadow.Shadowed(spec, plan, chosen, request.shadow, resolve)
    return replace(plan, fn=along, direct=True), chosen


def _seen(spec: Spec, values: tuple[Any, ...], argument: Asked) -> Callable[..., Any] | None:
    """How to run a call that torch watches: as an operator of torch, or as shapes; None where torch sees into it."""
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    if not tensors or any(x.is_nested for x in tensors):
        return None  # binding says what is wrong
    device = tensors[0].device
    if any(x.is_meta for x in tensors) and not torch_modes.traces():
        if not all(x.is_meta for x in tensors):
            return None  # as above
        wanted = autograd.differentiable(spec) and torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
        if not wanted:
            return partial(torch_ops.shapes, spec)
        return partial(torch_ops.checked, spec, backend=precedence.written(spec.name, argument))
    request = precedence.requested(spec.name, argument)
    first = registered.by_priority(device)[:1] if request.auto else [registered.split(n)[0] for n in request.names[:1]]
    if first and registered.composite(first[0]) and not torch_modes.without_examples(tensors):
        return None
    return partial(torch_ops.checked, spec, backend=precedence.written(spec.name, argument))


def call(spec: Spec, values: tuple[Any, ...], argument: Asked, key_of: KeyOf | None = None) -> Any:
    """Run an operator: bind, choose, copy what the layout needs, compute. The choice is remembered per kind of call.

    Returns what the implementation does: a tensor, or a tuple of several, saved ones among them.
    Nothing is remembered of a call that is traced, or whose arguments have no key: no tensors, no memory, no hash.
    key_of: given by the public function, which compares its calls with an earlier one before it comes here (`fast_path`).
    """
    casts = _autocast()
    if casts and (device := _cast_for(values)):
        values = autocast.cast(spec, values, device)
    state = asked()
    try:
        unusual = (_modes() and torch_modes.traces()) or _jit() is not None or torch_modes.transformed()
        unusual = unusual or forward_ad._current_level >= 0
        key = None if unusual else (key_of or _keys[id(spec)])(*values, argument, state)
        plan = _plans.get(key)
        if plan and plan.mode is not None and plan.mode != determinism.mode():
            plan = None
    except Exception:  # binding says what is wrong
        key = plan = None
    if plan is None:
        around = torch_modes.surroundings(values)
        if around.watched and (seen := _seen(spec, values, argument)):
            with torch_errors.TorchErrorTranslation(spec, values):
                return seen(*values)
        plan = _plan(spec, values, argument, state[0], around)
        if key is not None and plan.settled:
            _plans.remember(key, plan)
    if key_of and key is not None and not casts:
        if _plans.looked_up.get(spec.name) is plan:
            _prefer(spec, plan, values, argument)
        else:
            _plans.looked_up[spec.name] = plan
    plan.tick()
    if call_log.logs:
        call_log.note(plan.ran, plan.copies, values)
    try:
        if casts:
            with torch_modes.plain(plan.device):
                return plan.fn(*values) if plan.direct else plan.run(values)
        return plan.fn(*values) if plan.direct else plan.run(values)
    except Exception as error:
        if not _descends(spec, plan, error, values, argument):
            raise
    return call(spec, values, argument, key_of)  # on the next rung: each is noted once, so this ends


vars(torch_ops)["runs"] = call  # which it cannot import
install_torch_ops = torch_ops.install_torch_ops  # from here, where what they run is known


def _descends(spec: Spec, plan: CallPlan, error: Exception, values: tuple[Any, ...], argument: Asked) -> bool:
    """Whether a call goes on to another rung, as its launch was refused or its kernel does not compile; this one is noted.

    Raises an error of ours from others that it knows. Nothing is launched anew while a CUDA graph is captured.
    """
    refusal = gpu_failures.refusal(error, plan.ran, values)
    if refusal is None or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        gpu_failures.tell(error, plan.ran, values)
        return False
    with torch_modes.untraced():
        bound = spec.bind(*values)
        chosen = _next(bound, precedence.requested(spec.name, argument, bound), plan.ran.variant, refusal)
    if chosen is None:
        gpu_failures.tell(error, plan.ran, values)
        return False
    _plans.drop(spec.name, plan)
    counters.refuse(plan.ran)
    warn_once.warn_refused(spec.name, plan.ran.variant, refusal.text, chosen)
    return True


def _next(bound: Call, request: Request, refused: str, refusal: refusals.Refusal) -> Verdict | None:
    """What runs calls like this one from now on in place of a variant, which is noted; None where nothing may or can."""
    if not request.descends:
        return None
    refusals.note(bound, refused, refusal)
    if not (chosen := decide(bound, request).chosen):
        refusals.withdraw(bound, refused)
    return chosen


def _prefer(spec: Spec, plan: CallPlan, values: tuple[Any, ...], argument: Asked) -> None:
    """Let the public function look for calls like this one first, if they can be compared without their key.

    Calls of one key may differ in what the comparison sees, such as inference mode: if it failed, it is made anew.
    """
    now = _plans.quick.get(spec.name)
    if not plan.quick or (now and now is plan.quick[-1] and len(plan.quick) < ANEW):
        plain = argument.__class__ in PLAIN
        descends = partial(_descends, spec, plan)
        plan.quick.append(fast_path.again(spec, plan, values, argument, descends) if plain else None)
    if quick := plan.quick[-1]:
        _plans.quick[spec.name] = quick
    elif now:
        _plans.quick.pop(spec.name, None)


def _cast_for(values: tuple[Any, ...]) -> str | None:
    """The type of device whose autocast is on for these tensors, or None."""
    kind = next((v.device.type for v in values if isinstance(v, torch.Tensor)), "")
    return kind if kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind) else None


@cache
def function(op: str) -> Callable[..., Any]:
    """The public function of an operator, with the spec's own signature plus `backend=`.

    It is compiled from the signature, and `help()` shows that. A wrong call gets Python's own TypeError, with the name
    that was probably meant: hence the keywords that no argument has, and the default of those that must be given.
    torch.compile, which sees the first branches alone, finds the operator of torch and the choice that is in force.
    """
    spec = catalog.spec(op)
    _keys[id(spec)] = key_of = _key_of(spec)
    names = ", ".join(i.name for i in spec.inputs)
    parameters, unexpected, missing = keywords.written(op, spec.signature)
    known: dict[str, Any] = {"_spec": spec, "_call": call, "_keywords": keywords, "_absent": keywords.ABSENT}
    known |= {"_tracing": torch.compiler.is_dynamo_compiling, "_compiler": torch.compiler, "_ints": torch_ops.INTS}
    known |= {"_operator": torch_ops.operator(op), "_in_force": in_force, "_dispatch": sys.modules[__name__]}
    known |= {"_missed": fast_path.MISSED, "_key_of": key_of}
    lines = [
        f"def {op}({parameters}):",
        *unexpected,
        "    if _tracing() or _compiler._is_compiling_flag:",  # is_compiling(), without two frames: 0.05 us
        f"        return _operator({torch_ops.handed(spec)}, backend=_in_force({op!r}, backend)){returned(spec)}",
        f"    if quick := _dispatch._plans.quick.get({op!r}):",
        f"        result = quick({names}, backend)",
        "        if result is not _missed:",
        f"            return result{returned(spec)}",
        *missing,
        f"    return _call(_spec, ({names},), backend, _key_of){returned(spec)}",
    ]
    exec("\n".join(lines), known)
    public: Callable[..., Any] = known[op]
    vars(public)["__signature__"] = keywords.public(spec.signature)
    public.__doc__ = documentation(spec)
    public.__module__ = "kernelmux"
    return public


def in_force(op: str, argument: precedence.Names | None) -> str:
    """What a call asks for here, as an operator of torch takes it."""
    with scope.traced():
        return precedence.written(op, argument)


vars(in_force)["_dynamo_marked_constant"] = True  # torch.compiler.assume_constant_result, without its import


def returned(spec: Spec) -> str:
    """What the public function takes of the outputs, as source text: all, one, or all but those that are saved."""
    if spec.visible == len(spec.outputs):
        return ""
    return "[0]" if spec.visible == 1 else f"[:{spec.visible}]"


def outputs(op: str, *args: Any, backend: precedence.Names | None = None, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    """Every output of a call, those too that it saves for its backward and that the public function does not return.

    loss, lse = dispatch.outputs("cross_entropy", logits, target)
    """
    spec = catalog.spec(op)
    result = call(spec, spec.given(*args, **kwargs), backend)
    return result if isinstance(result, tuple) else (result,)


def explain(op: str, *args: Any, backend: precedence.Names | None = None, **kwargs: Any) -> Decision:
    """Who would run this call, who asked for it, and the reasons of all others; nothing is computed."""
    return _decided(op, backend, args, kwargs, thorough=True)


def which(op: str, *args: Any, backend: precedence.Names | None = None, **kwargs: Any) -> str:
    """The name, such as "torch_ref/exact", of the variant that would run this call; raises as the call would."""
    decision = _decided(op, backend, args, kwargs, thorough=False)
    return (decision.chosen or refuse(decision)).name


def _decided(op: str, backend: Any, args: tuple[Any, ...], kwargs: dict[str, Any], thorough: bool) -> Decision:
    spec = catalog.spec(op)
    values = spec.given(*args, **kwargs)
    if _autocast() and (cast_for := _cast_for(values)):
        values = autocast.cast(spec, values, cast_for)
    around = torch_modes.surroundings(values)
    device = next((v.device for v in values if isinstance(v, torch.Tensor)), None) if around.watched else None
    with torch_modes.untraced():
        bound = bind(spec, dict(zip(spec.signature.parameters, values, strict=True)), device=device, around=around)
        return decide(bound, precedence.requested(op, backend, bound), thorough, around=around)


def refresh() -> None:
    """What a process that gets further operators calls: packages are listed anew, and every call is chosen for again."""
    face = vars(importlib.import_module("kernelmux"))
    for name in ("__all__", *elsewhere.listed().owners):
        face.pop(name, None)
    catalog.forget()
    registered.forget()
    timings.forget()
    tuned_configs.forget()
    _plans.clear()
    precedence.reread()
    torch_ops.install_torch_ops()
