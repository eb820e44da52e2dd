"""Gradients at run time: what a forward call keeps, and the operators that its backward runs.

A spec says what its gradient is made of (`gradient.py`); here it runs. A call of a kernel becomes one node of torch's
graph. The node keeps the tensors that the wanted gradients read, and no others: for a frozen tensor nothing is computed,
and nothing kept that only its gradient reads. Its backward asks for the backends that the forward call was asked for:
autograd runs it on a thread of its own, where no `use()` of the caller is in force.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.autograd.function import _SingleLevelFunction
from torch.utils._python_dispatch import _disable_current_modes

from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.errors import UnsupportedError
from kernelmux.registry.spec import gradient
from kernelmux.registry.spec.cases import Case
from kernelmux.registry.spec.gradient import Composed, Gradient
from kernelmux.registry.spec.signature import Call, Spec
from kernelmux.registry.util import memory_format

Operator = Callable[[Spec, tuple[Any, ...]], Any]  # runs an operator on arguments in order; gives all of its outputs
Grads = Sequence["torch.Tensor | None"]


@dataclass(frozen=True, slots=True)
class GradientRule:
    """How one kind of call is differentiated. fn: its forward. operator: runs the operators of its backward.

    orders: per argument, the order in memory that its gradient gets, None where it stays as it is; empty if all do.
    """

    spec: Spec
    fn: Callable[..., Any]
    operator: Operator
    orders: tuple[memory_format.Order | None, ...] = ()


def orders(values: Sequence[Any]) -> tuple[memory_format.Order | None, ...]:
    """`GradientRule.orders` of a call: a gradient lies as its input does, so that the views behind it take no copy."""
    wanted = (v if isinstance(v, torch.Tensor) and v.requires_grad else None for v in values)
    found = tuple(None if x is None else memory_format.order(x) for x in wanted)
    return found if any(found) else ()


class Node:
    """A call of a kernel in torch's graph: `node(op)(rule, *arguments)` gives what `rule.fn` gives."""

    @staticmethod
    def forward(ctx: Any, rule: GradientRule, *values: Any) -> Any:
        result = rule.fn(*values)
        keep(ctx, rule.spec, values, result)
        ctx.rule = rule
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        rule: GradientRule = ctx.rule
        found = gradients(ctx, rule.spec, grads, ctx.needs_input_grad[1:], rule.operator)
        if rule.orders and not torch.is_grad_enabled():
            pairs = zip(found, rule.orders, strict=True)
            found = tuple(g if g is None or order is None else memory_format.laid(g, order) for g, order in pairs)
        return None, *found


@cache
def node(op: str) -> Callable[..., Any]:
    """`Node.apply` under the name of an operator, which torch shows in its errors and profiles.

    It goes past the part of `apply` in Python, which concerns torch.func: its transforms see operators of torch, which
    make a node per level. On the host of an H200 2.5 us less.
    """
    named: Any = type(f"kernelmux_{op}", (Node, torch.autograd.Function), {})
    found: Callable[..., Any] = super(torch.autograd.Function, named).apply
    return found


@cache
def node_of_level(op: str) -> Callable[..., Any]:
    """The same for one level of torch.func, inside `enable_single_level_autograd_function`.

    From torch 2.15 on a torch.autograd.Function looks at torch.func also below the part of `apply` in Python.
    """
    named: Any = type(f"kernelmux_{op}", (Node, _SingleLevelFunction), {})
    found: Callable[..., Any] = named.apply
    return found


def differentiable(spec: Spec) -> bool:
    """Whether the operator has a gradient."""
    return isinstance(spec.gradient, Gradient | Composed)


def keep(ctx: Any, spec: Spec, values: Sequence[Any], result: Any) -> None:
    """Store in the context of a node what `gradients` needs of a call and its outputs."""
    needs = _needs(spec.name, ctx.needs_input_grad[1:])
    known = (*values, *result) if isinstance(result, tuple) else (*values, result)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*[known[i] for i in needs.tensors])
    ctx.kept = needs.names
    ctx.rest = {name: known[i] for name, i in needs.scalars}
    for name, i in needs.outlines:
        ctx.rest[name] = _outline(known[i])
    ctx.returned = [Outline.of(known[i]) for i in needs.returned]
    if fixed := [known[i] for i in needs.outputs if i in needs.constant or not known[i].is_floating_point()]:
        ctx.mark_non_differentiable(*fixed)


class _Needs(NamedTuple):
    """Where among the arguments and, behind them, the outputs stands what the wanted gradients need.

    names: of the tensors. returned: outputs that the call returns, if these are several. constant: outputs from which no
    gradient comes.
    """

    names: tuple[str, ...]
    tensors: tuple[int, ...]
    scalars: tuple[tuple[str, int], ...]
    outlines: tuple[tuple[str, int], ...]
    returned: tuple[int, ...]
    outputs: tuple[int, ...]
    constant: frozenset[int]


@cache
def _needs(op: str, wanted: tuple[bool, ...]) -> _Needs:
    """The spec behind `kept`, so that a call looks up no names. wanted: for each argument, whether its gradient is."""
    spec = catalog.spec(op)
    at = {item.name: i for i, item in enumerate((*spec.inputs, *spec.outputs))}
    tensors, outlines = kept(op, tuple(i.name for i, want in zip(spec.inputs, wanted, strict=True) if want))
    outputs = tuple(at[o.name] for o in spec.outputs)
    return _Needs(
        names=tensors,
        tensors=tuple(at[name] for name in tensors),
        scalars=tuple((i.name, at[i.name]) for i in spec.scalars),
        outlines=tuple((name, at[name]) for name in outlines),
        returned=outputs[: spec.visible] if spec.visible > 1 else (),
        outputs=outputs,
        constant=frozenset(at[o.name] for o in spec.outputs if o.name not in gradient.varying(spec)),
    )


def gradients(
    ctx: Any, spec: Spec, grads: Grads, needs: Sequence[bool], operator: Operator
) -> tuple[torch.Tensor | None, ...]:
    """One gradient per argument, None where none is needed, from those of the returned outputs (None: zeros)."""
    given = grads[: spec.visible]
    if all(g is None for g in given):
        return (None,) * len(spec.inputs)
    names, varying = [o.name for o in spec.outputs[: spec.visible]], gradient.varying(spec)
    wanted = [(i, n, g) for i, (n, g) in enumerate(zip(names, given, strict=True)) if n in varying]
    complete = {n: ctx.returned[i].zeros() if g is None else g for i, n, g in wanted}
    values = {**ctx.rest, **dict(zip(ctx.kept, ctx.saved_tensors, strict=True))}
    found = _declared(spec, values, complete, operator, [i.name for i, n in zip(spec.inputs, needs, strict=True) if n])
    return tuple(found.get(i.name) if need else None for i, need in zip(spec.inputs, needs, strict=False))


def _declared(
    spec: Spec, values: Mapping[str, Any], grads: gradient.Tensors, operator: Operator, wanted: Sequence[str]
) -> Mapping[str, torch.Tensor]:
    """The gradients of the wanted tensors, and perhaps of others, as the spec declares them."""
    if isinstance(spec.gradient, Composed):
        composed = spec.gradient.compute(Operators(operator), values, grads, wanted)
        again = spec.gradient.constant and torch.is_grad_enabled()
        return _once(spec, composed, [torch.empty(0, requires_grad=True)]) if again else composed
    assert isinstance(spec.gradient, Gradient)  # `lack` refused the call otherwise
    backward = catalog.spec(spec.gradient.op)
    asked = tuple(gradient.arguments(spec, backward, values, grads).values())
    with torch.no_grad():
        result = operator(backward, asked)
    found = dict(zip(spec.gradient.wrt, result if isinstance(result, tuple) else (result,), strict=True))
    if torch.is_grad_enabled():
        found = _once(spec, found, [v for v in asked if isinstance(v, torch.Tensor)])
    return {**found, **{name: found[other] for name, other in spec.gradient.same.items()}}


def _once(spec: Spec, found: gradient.Tensors, inputs: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    made = Once.apply(spec, len(found), *found.values(), *inputs)  # type: ignore[no-untyped-call]
    return dict(zip(found, made, strict=True))


class Once(torch.autograd.Function):
    """Hands on gradients whose own gradient no operator gives: to ask for it, by `inputs`, is an error that says so."""

    generate_vmap_rule = True

    @staticmethod
    def forward(spec: Spec, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(g.view_as(g) for g in tensors[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.spec = inputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        spec: Spec = ctx.spec
        if isinstance(spec.gradient, Composed):
            reason = f"it takes {', '.join(spec.gradient.constant)} for constant"
        else:
            reason = f"{getattr(spec.gradient, 'op', '')} has no gradient"
        raise UnsupportedError(
            f"{spec.name}: its gradient cannot be differentiated again: {reason};"
            f" leave out create_graph=True, or use a backend made of torch's operators, such as torch_ref"
        )


class Operators:
    """The operators as functions, `kx.matmul(a, b)`, for a gradient that is composed of them."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def __getattr__(self, op: str) -> Callable[..., Any]:
        spec = catalog.spec(op)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = self._operator(spec, spec.given(*args, **kwargs))
            if not isinstance(result, tuple):
                return result
            return result[0] if spec.visible == 1 else result[: spec.visible]

        return call


@dataclass(frozen=True, slots=True)
class Outline:
    """What is known of a tensor without it."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, x: torch.Tensor) -> Outline:
        """The outline of a tensor."""
        return cls(x.shape, x.dtype, x.device)

    def dim(self) -> int:
        """How many axes there are."""
        return len(self.shape)

    def zeros(self) -> torch.Tensor:
        """Such a tensor, of zeros."""
        return torch.zeros(self.shape, dtype=self.dtype, device=self.device)


def _outline(x: torch.Tensor | None) -> Outline | None:
    return None if x is None else Outline.of(x)


@cache
def kept(op: str, wanted: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The arguments and outputs that the wanted gradients read, and those of which an `Outline` is enough."""
    spec = catalog.spec(op)
    if isinstance(spec.gradient, Gradient):
        own = {t.name for t in spec.tensors} | set(spec.gradient.saves)
        return tuple(i.name for i in catalog.spec(spec.gradient.op).inputs if i.name in own), ()
    assert isinstance(spec.gradient, Composed)
    taken, read = set[str](), set[str]()
    with _disable_current_modes():  # the first to ask may be a trace
        for case in (c for c in spec.cases if sum(map(math.prod, c.shapes.values())) <= SMALL):
            _watch(spec.gradient, sample(spec, case), wanted, taken, read)
    order = [n for n in (*(i.name for i in spec.inputs), *(o.name for o in spec.outputs)) if n in taken]
    return tuple(n for n in order if n in read), tuple(n for n in order if n not in read)


def hollow(call: Call) -> tuple[torch.Tensor, ...]:
    """The outputs of a call as new tensors on its device, whose values are not computed."""
    made = ((o.shape(call), o.dtype_of(call), o.memory_format(call)) for o in call.spec.outputs)
    return tuple(torch.empty(n, dtype=dtype, device=call.device, memory_format=f) for n, dtype, f in made)


def lacking(call: Call, backend: str) -> list[str]:
    """The operators that give the gradient of a call and that a backend does not have; nothing is computed."""
    spec, used = call.spec, dict[str, None]()

    def noted(op: Spec, values: tuple[Any, ...]) -> Any:
        used[op.name] = None
        return hollow(op.bind(*values))

    if isinstance(spec.gradient, Composed):
        made = dict(zip((o.name for o in spec.outputs), hollow(call), strict=True))
        grads = {name: torch.zeros_like(made[name]) for name in gradient.varying(spec)}
        spec.gradient.compute(Operators(noted), {**call.arguments, **made}, grads)
    elif isinstance(spec.gradient, Gradient):
        used[spec.gradient.op] = None
    return [op for op in used if not registered.implements(backend, op)]


SMALL = 1 << 12  # elements of a case that shows what a gradient reads


def sample(spec: Spec, case: Case) -> Call:
    """A call of a case on zeros, in the first dtype."""
    tensors = {name: torch.zeros_like(x) for name, x in spec.untouched(case, spec.dtypes[0]).items()}
    given: dict[str, Any] = {**tensors, **case.scalars}
    return spec.bind(**given)


def _watch(declared: Composed, call: Call, wanted: tuple[str, ...], taken: set[str], read: set[str]) -> None:
    """Run a composed gradient on small tensors; note which values it takes, and which of these it reads."""
    outputs = dict(zip((o.name for o in call.spec.outputs), hollow(call), strict=True))
    tensors = {**call.tensors, **outputs}
    values = Taken({**call.arguments, **{n: Watched.of(x, n, read) for n, x in tensors.items()}}, tensors, taken)
    grads = {n: torch.zeros_like(y) for n, y in outputs.items()}
    declared.compute(Operators(_uncomputed), values, grads, wanted)


def _uncomputed(spec: Spec, values: tuple[Any, ...]) -> Any:
    return hollow(spec.bind(*(v.data if isinstance(v, Watched) else v for v in values)))


class Taken(dict[str, Any]):
    """The values of a call; `taken` gets the names of the tensors that are looked up."""

    def __init__(self, values: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], taken: set[str]) -> None:
        super().__init__(values)
        self._tensors, self._taken = tensors, taken

    def __getitem__(self, name: str) -> Any:
        if name in self._tensors:
            self._taken.add(name)
        return super().__getitem__(name)


class Watched(torch.Tensor):
    """A tensor that adds its name to `read` once it is asked for more than its outline."""

    known: str
    read: set[str]
    OUTLINE = (torch.Tensor.shape.__get__, torch.Tensor.dtype.__get__, torch.Tensor.device.__get__, torch.Tensor.dim)  # type: ignore[attr-defined]

    @classmethod
    def of(cls, x: torch.Tensor, name: str, read: set[str]) -> Watched:
        """The tensor x under its name."""
        made = x.as_subclass(cls)
        made.known, made.read = name, read
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in cls.OUTLINE:
            for x in args:
                if isinstance(x, Watched) and "known" in vars(x):
                    x.read.add(x.known)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))
