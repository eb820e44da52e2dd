"""Calls as source text that compares the next call with one that ran, and then does nothing but run it again.

What is compared where:

- one call of C++, torch.compile's TensorGuards, sees per tensor its class, shape, strides, dtype, device, negative and
  conjugate bit, and whether it requires a gradient; and of what surrounds a call the autocast of these devices,
  torch.jit.trace, transforms of torch.func, inference mode. 0.13 us for one tensor, 0.18 for two, where Python
  that reads the same facts and looks them up takes 0.8 and 1.3. It takes no tensor twice in one call, so it gets each
  once, and the text says which arguments are one tensor;
- the text adds what the guard does not see, or not always: alignment, pinned memory, dispatch modes (that of make_fx
  passes it), forward derivatives, and where a tensor requires a gradient the mode of gradients (`surroundings`);
- for an ordinary call (`again`) it adds freed memory, tensors that are left out, scalars, `backend=`,
  `scope.asked`, and autocast of other devices; torch's deterministic algorithms where the choice depends on them.

So it is at least as strict as the key under which an ordinary call is remembered: what differs is looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from kernelmux.registry.call.launch_replay import Replayed, Text, defined
from kernelmux.registry.call.plan import CallPlan
from kernelmux.registry.choice import determinism
from kernelmux.registry.choice.scope import asked
from kernelmux.registry.observe import call_log, gpu_failures
from kernelmux.registry.spec.binding import identity
from kernelmux.registry.spec.signature import Spec, Tensor

_C: Any = torch._C
LOWEST = 65535  # no memory has an address up to here: a small one is an offset from a storage that was freed
MISSED = object()
CLASSES = (torch.Tensor, torch.nn.Parameter)  # a guard keeps no reference to a class: these stay
CONSTANTS = (type(None), bool, int, float, str)  # of scalars, and of what a tuple of them holds


def again(
    spec: Spec, plan: CallPlan, values: tuple[Any, ...], backend: Any, descends: Callable[..., bool]
) -> Callable[..., Any] | None:
    """A function of the arguments of `spec` and `backend` that runs `plan` for calls like this one, which just ran.

    It returns `MISSED` for all others, so that no frame of it lies between them and the line of the user. None where
    the comparison cannot stand for the key: tensors without memory or of classes that may go; inside of autocast or of a
    dispatch mode. descends: of an error, the arguments and `backend`, whether the call goes on
    to another rung; then it returns `MISSED` too.
    """
    given = {i.name: v for i, v in zip(spec.inputs, values, strict=True) if isinstance(v, torch.Tensor)}
    others = {i: v for i, v in zip(spec.inputs, values, strict=True) if i.name not in given}
    first: dict[int, str] = {}
    same = {n: m for n, x in given.items() if (m := first.setdefault(id(x), n)) != n}
    given = {n: x for n, x in given.items() if n not in same}
    tensors = list(given.values())
    if not (all(map(_constant, others.values())) and _comparable(tensors)):
        return None
    scope: dict[str, Any] = {"_autocast": _C._is_any_autocast_enabled}
    parts = [*(f"{n} is {m}" for n, m in same.items()), *alike(list(given), tensors, scope)]
    parts += [f"{LOWEST} < (_p := {n}.data_ptr()) and _p & 15 == {x.data_ptr() & 15}" for n, x in given.items()]
    parts += [f"{n}.is_pinned() is {x.is_pinned()}" for n, x in given.items() if spec.hosted]
    parts += [f"{i.name} is None" if isinstance(i, Tensor) else _same(i.name, v, scope) for i, v in others.items()]
    parts.append("(backend is _backend or backend.__class__ is _backend_class and backend == _backend)")
    parts += ["_state() == _at", *surroundings(tensors), "not _autocast()", *determined(plan, scope)]
    scope |= {"_backend": backend, "_backend_class": backend.__class__, "_state": asked}
    scope |= {"_at": asked(), "_missed": MISSED}
    arguments = [i.name for i in spec.inputs]
    names = ", ".join(arguments)
    for i, value in plan.scalars:
        arguments[i] = f"_normal_{arguments[i]}"
        scope[arguments[i]] = value
    lines = [
        f"def {spec.name}({names}, backend):",
        f"    if not ({' and '.join(parts)}):",
        "        return _missed",
        *running(plan, arguments, scope, descends=descends),
    ]
    return defined(spec.name, lines, scope)


def determined(plan: CallPlan, scope: dict[str, Any]) -> list[str]:
    """That deterministic algorithms are asked for as when the plan was made, as source text; nothing where all is one."""
    if plan.mode is None:
        return []
    scope["_mode"] = determinism.mode
    return [f"_mode() == {plan.mode}"]


def _comparable(tensors: list[torch.Tensor]) -> bool:
    """Whether what `again` compares says all that the key says, for these tensors and around this call."""
    if any(x.__class__ not in CLASSES or x.is_nested or x.data_ptr() <= LOWEST for x in tensors):
        return False
    return not _C._len_torch_dispatch_stack() and not _C._is_any_autocast_enabled()


def _same(name: str, value: Any, scope: dict[str, Any]) -> str:
    """Whether a scalar is that of the call; 1, 1.0 and True are equal, and not one call. A default is often one object."""
    scope |= {f"_value_{name}": value, f"_class_{name}": value.__class__}
    equal = f"{name} == _value_{name}"
    if isinstance(value, tuple):
        scope |= {"_identity": identity, f"_identity_{name}": identity(value)}
        equal = f"_identity({name}) == _identity_{name}"
    return f"({name} is _value_{name} or {name}.__class__ is _class_{name} and {equal})"


def _constant(value: Any) -> bool:
    """Whether a scalar stays what it is: a list may be changed by the caller."""
    return value.__class__ in CONSTANTS or (value.__class__ is tuple and all(v.__class__ in CONSTANTS for v in value))


def running(
    plan: CallPlan,
    arguments: Sequence[str],
    scope: dict[str, Any],
    returned: str = "",
    replayed: Text | None = None,
    taken: Collection[str] = (),
    descends: Callable[..., bool] | None = None,
) -> list[str]:
    """The end of a function that runs a plan: counted, recorded, called with arguments whose scalars are normalised.

    scope: gets what the lines name. replayed: what the call does, which then stands here, and needs no frame of its own;
    taken: names of addresses that the lines before have taken. descends: as for `again`; None where an error stays one.
    """
    whole = not plan.direct and bool(plan.copies or plan.emulation)
    tick: Any = plan.tick
    scope |= {"_calls": tick.__self__, "_record": call_log, "_ran": plan.ran, "_copies": plan.copies}
    scope |= {"_modes": _C._len_torch_dispatch_stack, "_forward": forward_ad, "_grad": torch.is_grad_enabled}
    scope |= {"_fn": plan.run if whole else plan.fn, "_tell": gpu_failures.tell}
    values = ", ".join(arguments)
    counted = [
        "    next(_calls)",  # the iterator's own method takes twice as long
        "    if _record.logs:",
        f"        _record.note(_ran, _copies, ({values},))",
    ]
    if replayed:
        scope |= replayed.scope
        tried = ["    try:", *(f"    {line}" for line in replayed.lines(arguments, taken, returned))]
    else:
        run = "_fn.run" if isinstance(scope["_fn"], Replayed) else "_fn"  # past a frame: 0.1 us
        tried = [
            f"    try: return {run}({f'({values},)' if whole else values}){returned}"
        ]  # in one line: no NOP for it
    told = [f"        _tell(_error, _ran, ({values},))"]
    if descends:
        scope |= {"_descends": descends, "__name__": __name__}  # the name, for the place of its warning
        told = [f"        if _descends(_error, ({values},), backend): return _missed"]
    return [*counted, *tried, "    except Exception as _error:", *told, "        raise"]


def alike(names: Sequence[str], given: Sequence[torch.Tensor], scope: dict[str, Any]) -> list[str]:
    """That the tensors of these names are like the given ones, as source text; no tensor is kept.

    The guard ends the process at a nested tensor, whose strides it asks for outside of any handler: such tensors, and
    what is no tensor, do not get there. 0.05 us per tensor.
    """
    sizes, strides = [list(x.shape) for x in given], [list(x.stride()) for x in given]
    made = _C._dynamo.guards.TensorGuards(*given, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    scope |= {"_check": made.check} | {f"_class_{n}": x.__class__ for n, x in zip(names, given, strict=True)}
    flat = [f"{n}.__class__ is _class_{n} and not {n}.is_nested" for n in names]
    return [*flat, f"_check({', '.join(names)})"]


def surroundings(given: Sequence[torch.Tensor]) -> list[str]:
    """That nothing surrounds a call which the guard does not see, as source text; names stand in `running`'s scope."""
    mode = [f"_grad() is {torch.is_grad_enabled()}"] if any(x.requires_grad for x in given) else []
    return [*mode, "not _modes()", "_forward._current_level < 0"]
