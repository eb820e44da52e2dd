"""The operators as operators of torch: `torch.ops.kernelmux.softmax(x, -1, 1.0, backend="triton")`.

Schema, shapes, gradients, autocast and vmap come from the spec. torch.compile, torch.export, fake tensors, torch.func and
torch.jit see these; what runs at the end is `dispatch.call` on plain tensors. An operator of torch returns every output,
those too that are saved for its backward. `backend` is a chain such as "cuda,triton"; None asks what is in force when the
operator runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.choice import gradient_support, precedence, warn_once
from kernelmux.registry.errors import ArgumentError, KernelmuxError, UnsupportedError, not_forward
from kernelmux.registry.interop import autocast, autograd, torch_errors
from kernelmux.registry.spec.gradient import Gradient
from kernelmux.registry.spec.signature import Axis, Call, Scalar, Spec, Tensor, schema
from kernelmux.registry.util import torch_modes

NAMESPACE = "kernelmux"
LIBRARY: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
PLAIN = (type(None), bool, int, float, str)  # scalars that torch takes as they are
INTS = (int, torch.SymInt)


def install_torch_ops() -> None:
    """Register every operator with torch, so that `torch.ops.kernelmux` and exported programs have them."""
    for op in catalog.usable():
        operator(op)


_lock = threading.RLock()  # torch refuses a second definition
_known: dict[str, Callable[..., Any]] = {}


def operator(op: str) -> Callable[..., Any]:
    """The operator of torch, registered with the operator of its gradient if it was not yet."""
    if op not in _known:
        with _lock:
            if op not in _known:
                _known[op] = _registered(op)
    return _known[op]


def _registered(op: str) -> Callable[..., Any]:
    spec = catalog.spec(op)
    LIBRARY.define(schema(spec), tags=(torch.Tag.pt2_compliant_tag,))
    LIBRARY.impl(op, partial(_run, spec), "CompositeExplicitAutograd")
    name = f"{NAMESPACE}::{op}"
    torch.library.register_fake(name, partial(shapes, spec), lib=LIBRARY)
    torch.library.register_vmap(name, partial(_mapped, spec), lib=LIBRARY)
    LIBRARY.impl(op, partial(_checked_differentiable, spec), "Autograd")
    for key, device in (("AutocastCPU", "cpu"), ("AutocastCUDA", "cuda")):
        LIBRARY.impl(op, partial(_autocast, spec, key, device), key)
    if isinstance(spec.gradient, Gradient):
        operator(spec.gradient.op)
    packet = getattr(getattr(torch.ops, NAMESPACE), op)
    found: Callable[..., Any] = packet.default
    return found


def handed(spec: Spec) -> str:
    """The arguments as the public function hands them to the operator of torch, as source text: see `taken`."""
    several = {item.name: item.length for item in spec.scalars if isinstance(item, Scalar) and item.length}
    texts = (
        f"({n},) * {several[n]} if isinstance({n}, _ints) else {n}" if n in several else n
        for n in spec.signature.parameters
    )
    return ", ".join(texts)


def runs(spec: Spec, values: tuple[Any, ...], backend: Any) -> Any:
    """Runs an operator on plain tensors: `dispatch.call`, which `dispatch` puts in its place."""
    raise KernelmuxError(f"{spec.name}: expected kernelmux.registry.call.dispatch to be imported before it is called")


def _run(spec: Spec, *values: Any, backend: str | None = None) -> Any:
    return runs(spec, complete(spec, values), backend)


def complete(spec: Spec, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """All arguments, with the defaults that torch leaves out."""
    return (*values, *(taken(item, item.default) for item in spec.inputs[len(values) :]))


def call(spec: Spec, *values: Any, backend: str | None = None) -> Any:
    """The operator of torch on all arguments of a public call."""
    return operator(spec.name)(*map(taken, spec.inputs, values), backend=backend)


def taken(item: Tensor | Scalar | Axis, value: Any) -> Any:
    """A value as the operator of torch takes it: no single number in place of a SymInt[2], no symbolic one of an int[2]."""
    if not (isinstance(item, Scalar) and item.length and isinstance(value, INTS)):
        return value
    return (value,) * item.length if item.extent or isinstance(value, torch.SymInt) else value


def checked(spec: Spec, *values: Any, backend: str | None = None) -> Any:
    """The operator of torch on arguments of the public function, which takes scalars that torch's own parser does not."""
    with torch_modes.untraced():
        bound = _bound(spec, values).arguments
    pairs = zip(spec.inputs, values, strict=True)
    given = (v if isinstance(i, Tensor) or type(v) in PLAIN else bound[i.name] for i, v in pairs)
    return call(spec, *given, backend=backend)


def shapes(spec: Spec, *values: Any, backend: str | None = None) -> Any:
    """The outputs of a call on tensors without memory: right in shape and dtype, without values."""
    found = autograd.hollow(_bound(spec, complete(spec, values)))
    return found if len(found) > 1 else found[0]


def _bound(spec: Spec, values: Sequence[Any]) -> Call:
    """The checked call on tensors that may have no memory."""
    given = (v for t, v in zip(spec.inputs, values, strict=True) if not (isinstance(t, Tensor) and t.host))
    devices = {v.device for v in given if isinstance(v, torch.Tensor)}
    return spec.bind(*values, device=next(iter(devices)) if len(devices) == 1 else None)


def _checked_differentiable(spec: Spec, *values: Any, backend: str | None = None) -> Any:
    """What `_differentiable` gives; what torch says of the class of a tensor is an error of ours."""
    if torch._C._len_torch_dispatch_stack() or any(isinstance(v, FakeTensor) for v in values):
        torch_errors.check_memory(spec, values)
    try:
        return _differentiable(spec, *values, backend=backend)
    except Exception as error:
        torch_errors.tell(error, spec, values)
        raise


def _differentiable(spec: Spec, *values: Any, backend: str | None = None) -> Any:
    """A node of autograd where a gradient is wanted, and what lies below autograd."""
    full = complete(spec, values)
    transformed = torch_modes.transformed()
    if (transformed or forward_ad._current_level >= 0) and (given := _carrying(spec, full)):
        return _forward_derivative(spec, full, backend, given)
    if not (torch.is_grad_enabled() and any(isinstance(v, torch.Tensor) and v.requires_grad for v in full)):
        with torch._C._AutoDispatchBelowAutograd():
            return operator(spec.name)(*full, backend=backend)
    if lack := _lack(spec, full):
        return _seen_into(spec, full, backend, lack)
    if not autograd.differentiable(spec):  # integers
        with torch.no_grad():
            return operator(spec.name)(*full, backend=backend)
    found = rule(spec, backend)
    if not transformed:
        return autograd.node(spec.name)(found, *full)
    with enable_single_level_autograd_function():  # torch.func has come down to the level of these tensors
        return autograd.node_of_level(spec.name)(replace(found, fn=partial(_lowered, spec, backend)), *full)


def _lowered(spec: Spec, backend: str | None, *values: Any) -> Any:
    """The call at the next level of torch.func, which may want a derivative of its own."""
    with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True), torch._C._AutoDispatchBelowAutograd():
        return operator(spec.name)(*values, backend=backend)


def _carrying(spec: Spec, values: tuple[Any, ...]) -> str:
    """The name of an argument that carries a forward derivative, or ""."""
    if not any(gradient_support.real(o) for o in spec.outputs):
        return ""
    found = (
        i.name
        for i, v in zip(spec.inputs, values, strict=True)
        if isinstance(v, torch.Tensor) and torch_modes.carries_tangent(v)
    )
    return next(found, "")


def _forward_derivative(spec: Spec, values: tuple[Any, ...], backend: str | None, given: str) -> Any:
    """By a backend made of torch's operators, which compute it; kernels would drop it."""
    if composites := _composites(spec, values, backend):
        return runs(spec, values, composites)
    raise not_forward(spec.name, given)


def _composites(spec: Spec, values: tuple[Any, ...], backend: str | None) -> list[str]:
    """Those of the backends that a call asks for that are made of torch's operators."""
    request = precedence.requested(spec.name, backend)
    device = next(v.device for v in values if isinstance(v, torch.Tensor))
    heads = registered.by_priority(device) if request.auto else precedence.heads(request.names)
    return [name for name in (heads[:1] if request.strict else heads) if registered.composite(name)]


def _lack(spec: Spec, values: tuple[Any, ...]) -> str | None:
    """Why a tensor that wants a gradient gets none by the rule of the operator, or None."""
    given = zip(spec.inputs, values, strict=True)
    wanted = (i.name for i, v in given if isinstance(v, torch.Tensor) and v.requires_grad)
    return next(filter(None, (gradient_support.lack(spec, "", name) for name in wanted)), None)


def _seen_into(spec: Spec, values: tuple[Any, ...], backend: str | None, lack: str) -> Any:
    """By a backend made of torch's operators, which torch sees into and differentiates."""
    if composites := _composites(spec, values, backend):
        if any(isinstance(v, torch.Tensor) and v.is_meta for v in values):
            made = shapes(spec, *values)
            return _followed(spec, made if isinstance(made, tuple) else (made,), values)
        return runs(spec, values, composites)
    raise UnsupportedError(f"torch.ops.{NAMESPACE}.{spec.name}: {lack}: call it under torch.no_grad()")


def rule(spec: Spec, backend: str | None) -> autograd.GradientRule:
    """How a call of the operator of torch is differentiated: by operators of torch."""
    following = precedence.without_variants(backend)

    def run(other: Spec, values: tuple[Any, ...]) -> Any:
        return call(other, *values, backend=following)

    return autograd.GradientRule(spec, partial(operator(spec.name), backend=backend), run)


def _autocast(spec: Spec, key: str, device: str, *values: Any, backend: str | None = None) -> Any:
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    with torch_errors.TorchErrorTranslation(spec, values), torch._C._ExcludeDispatchKeyGuard(keys):
        return operator(spec.name)(*autocast.cast(spec, values, device), backend=backend)


Given = list[tuple[Tensor | Scalar | Axis, Any, "int | None"]]  # each argument, and the axis that vmap maps over


def _mapped(spec: Spec, info: Any, in_dims: tuple[Any, ...], *values: Any, backend: str | None = None) -> Any:
    """What `_vmap` gives; what torch says of the class of a tensor is an error of ours."""
    torch_errors.check_memory(spec, values)
    with torch_errors.TorchErrorTranslation(spec, values):
        return _vmap(spec, info, in_dims, *values, backend=backend)


def _vmap(spec: Spec, info: Any, in_dims: tuple[Any, ...], *values: Any, backend: str | None = None) -> Any:
    """One call along a leading axis that the operator leaves free, else one call per example; each is a legal call."""
    given: Given = list(zip(spec.inputs, complete(spec, values), _padded(spec, in_dims), strict=True))
    example = _bound(spec, [value if at is None else _example(value, at) for _, value, at in given])
    moved, reason = _batch(spec, given, example, info.batch_size)
    if reason:
        warn_once.warn_looped(spec.name, reason)
        computes = info.batch_size and example.device.type != "meta"
        result = _looped(spec, given, backend) if computes else _hollow(given, example, info.batch_size)
    else:
        result = operator(spec.name)(*moved, backend=backend)
    return result, (0,) * len(result) if isinstance(result, tuple) else 0


def _padded(spec: Spec, in_dims: tuple[Any, ...]) -> tuple[int | None, ...]:
    """For each argument the axis that vmap maps over; torch gives a list of them for a list of numbers."""
    every = (*in_dims, *(None for _ in spec.inputs[len(in_dims) :]))
    return tuple(at if isinstance(item, Tensor) else None for item, at in zip(spec.inputs, every, strict=True))


def _example(value: torch.Tensor, at: int) -> torch.Tensor:
    """The first of a batch, or one like those that an empty batch does not have."""
    if value.shape[at]:
        return value.select(at, 0)
    at %= value.dim()
    return value.new_empty([n for i, n in enumerate(value.shape) if i != at])


def _batch(spec: Spec, given: Given, example: Call, size: int) -> tuple[list[Any], str]:
    """The arguments of one call for all examples, or why there is no such call.

    Tensors with any number of axes get one more in front, the others are shared; axes count from the front.
    """
    if reason := next(filter(None, (_stuck(item, value, at) for item, value, at in given)), ""):
        return [], reason
    lead, moved = (size, *_leading(given)), []
    for item, value, at in given:
        if isinstance(item, Tensor):
            moved.append(None if value is None else _in_front(item, value, at, lead))
        else:
            moved.append(example.arguments[item.name] + 1 if isinstance(item, Axis) else value)
    try:
        whole = _bound(spec, moved)
    except ArgumentError:
        return [], "the operator takes no batch of such arguments"
    shapes_of = ((o.name, tuple(o.shape(whole)), (size, *o.shape(example))) for o in spec.outputs)
    mixed = next((name for name, got, expected in shapes_of if got != expected), None)
    return moved, f"{mixed} of a batch is not that of each example" if mixed else ""


def _stuck(item: Tensor | Scalar | Axis, value: Any, at: int | None) -> str:
    """Why an argument keeps examples from sharing a call, or ""."""
    if isinstance(item, Axis) and value is None:
        return f"{item.name} is None, which means all axes of an example"
    if isinstance(item, Tensor) and at is not None and not item.any_rank:
        return f"{item.name} has the axes {item.shapes} and no leading ones"
    return ""


def _looped(spec: Spec, given: Given, backend: str | None) -> Any:
    """A call per example, and their outputs stacked."""
    shared = [value for _, value, _ in given]
    mapped = {i: value.unbind(at) for i, (_, value, at) in enumerate(given) if at is not None}
    examples = zip(*mapped.values(), strict=True)
    calls = ({**dict(enumerate(shared)), **dict(zip(mapped, own, strict=True))} for own in examples)
    found = [operator(spec.name)(*values.values(), backend=backend) for values in calls]
    if isinstance(found[0], tuple):
        return tuple(_stacked(outputs) for outputs in zip(*found, strict=True))
    return _stacked(found)


def _stacked(outputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """The outputs of all examples. Below vmap autocast stays on; it refuses to stack other 16 bits than its own."""
    dtype = outputs[0].dtype
    if torch._C._is_any_autocast_enabled() and dtype.is_floating_point and dtype.itemsize < 4:
        return torch.stack([y.float() for y in outputs]).to(dtype)
    return torch.stack(tuple(outputs))


def _hollow(given: Given, example: Call, size: int) -> Any:
    """The outputs of so many examples without values: of none, or without memory."""
    made = [y.new_empty((size, *y.shape)) for y in autograd.hollow(example)]
    return _followed(example.spec, made, [value for _, value, _ in given])


def _followed(spec: Spec, made: Sequence[torch.Tensor], values: Sequence[Any]) -> Any:
    """Outputs without values, which autograd can follow to the tensors that want a gradient."""
    for value in values:
        if isinstance(value, torch.Tensor) and value.requires_grad:
            made = [y + value.sum() if gradient_support.real(o) else y for o, y in zip(spec.outputs, made, strict=True)]
    return tuple(made) if len(made) > 1 else made[0]


def _leading(given: Given) -> tuple[int, ...]:
    """The lengths of the axes that "..." stands for in a tensor that always has them, without the one of vmap."""
    for item, value, at in given:
        if isinstance(item, Tensor) and all(form[:1] == ("...",) for form in item.forms) and value is not None:
            shape = [n for i, n in enumerate(value.shape) if at is None or i != at % value.dim()]
            return tuple(shape[: len(shape) + 1 - len(item.forms[0])])
    return ()


def _fixed(item: Tensor, value: torch.Tensor, at: int | None) -> bool:
    """Whether what vmap shows of a tensor has one of the forms without leading axes that it may have."""
    rank = value.dim() - (at is not None)
    return any("..." not in form and len(form) == rank for form in item.forms)


def _in_front(item: Tensor, value: torch.Tensor, at: int | None, lead: tuple[int, ...]) -> torch.Tensor:
    if not item.any_rank:
        return value
    if at is None:
        shared = _fixed(item, value, at) and len(item.forms) > 1
        return value if shared else value.unsqueeze(0).expand(lead[0], *value.shape)
    front = value.movedim(at, 0)
    if not _fixed(item, value, at) or len(lead) == 1:
        return front
    own = front.shape[1:]  # it has leading axes only if it has all of them
    return front.view(lead[0], *(1 for _ in lead[1:]), *own).expand(*lead, *own)
