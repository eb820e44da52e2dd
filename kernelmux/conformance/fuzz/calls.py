"""A call drawn at random: operator, arguments in every spelling, how it is called, and what surrounds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kernelmux.conformance.fuzz import odd
from kernelmux.registry import catalog
from kernelmux.registry.choice import determinism, precedence
from kernelmux.registry.spec import (
    REQUIRED,
    Axis,
    Computed,
    Constraint,
    Count,
    Index,
    OpSpec,
    Scalar,
    Tensor,
    value_domains,
)
from kernelmux.registry.spec.signature import lengths

LAZY = (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer)
LENGTHS = (0, 1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
SURROUNDINGS = ("autocast", "inference", "no_grad", "float64", "use", "default", "autocast fp16")
WILD_SURROUNDINGS = (*SURROUNDINGS, "fake", "meta", "deterministic", "strict")
FUNCTION, OPERATOR, WHICH, EXPLAIN, BIND, MAPPED, MAPPED_OPERATOR = (
    "function",
    "torch.ops",
    "which",
    "explain",
    "bind",
    "vmap",
    "vmap of torch.ops",
)
ROUTES = (FUNCTION, FUNCTION, FUNCTION, OPERATOR, OPERATOR, WHICH, EXPLAIN, BIND, MAPPED, MAPPED_OPERATOR)
KEYWORDS = ("unheard_of", "dim", "input", "out", "_others", "backends", "self")


class Draw:
    """Choices made of whole numbers. integer: one from the first to the second, both included; wild: odd things too."""

    def __init__(self, integer: Callable[[int, int], int], wild: bool = False) -> None:
        self.integer, self.wild = integer, wild

    def pick(self, values: Sequence[Any]) -> Any:
        """One of the values, which need neither hash nor equality."""
        return values[self.integer(0, len(values) - 1)]

    def rarely(self, often: int) -> bool:
        """True about once in so many draws: hypothesis prefers the ends of a range."""
        return self.integer(0, often) == often // 2

    def boolean(self) -> bool:
        return self.integer(0, 1) == 1

    def evenly(self, values: Sequence[Any]) -> Any:
        """One of the values, each as often."""
        return self.pick(values)

    def some(self, values: Sequence[Any], most: int, unique: bool = False) -> list[Any]:
        """Up to so many of the values."""
        found = [self.pick(values) for _ in range(self.integer(0, most))]
        return list(dict.fromkeys(found)) if unique else found


@dataclass
class Draft:
    """One call: the operator, its arguments, `backend=`, the route, and what is around it.

    missing: an argument that is left out, or a keyword that is too many. notes: what is odd about the tensors.
    """

    spec: OpSpec
    arguments: dict[str, Any]
    backend: Any
    surroundings: list[str]
    notes: list[str] = field(default_factory=list)
    missing: str = ""
    route: str = FUNCTION

    @property
    def given(self) -> dict[str, Any]:
        """The keywords of the call, without `backend`."""
        found = {name: value for name, value in self.arguments.items() if name != self.missing}
        return found if self.missing in ("", *self.arguments) else {**found, self.missing: 1}

    def __repr__(self) -> str:
        shown = ", ".join(f"{k}={described(v)}" for k, v in self.given.items())
        around = f" in {', '.join(self.surroundings)}" if self.surroundings else ""
        call = f"{self.spec.name}({shown}, backend={described(self.backend)}) by {self.route}{around}"
        return f"{call} ({'; '.join(self.notes)})" if self.notes else call


def described(value: Any) -> str:
    """A value in a few words, whatever its repr() does."""
    try:
        if isinstance(value, torch.Tensor):
            kind = type(value).__name__
            if isinstance(value, LAZY):
                return kind
            strides = (
                f" {value.stride()}" if value.layout == torch.strided and not value.is_nested else f" {value.layout}"
            )
            grad = " grad" if value.requires_grad else ""
            return f"{kind} {list(value.shape)}{strides} {value.dtype} {value.device}{grad}"
        return repr(value)[:60]
    except Exception:
        return type(value).__name__


# --- tensors ------------------------------------------------------------------------------------------------------


def _axes(draw: Draw, spec: OpSpec) -> dict[str, Any]:
    """A length for every axis of the operator; of a few tries the first that its constraints allow."""
    letters = ["...", *sorted({letter for item in spec.tensors for letter in item.letters})]
    usual = {s.name: _usual(s) for s in spec.scalars}
    axes: dict[str, Any] = {}
    for _ in range(12):
        axes = {
            letter: tuple(draw.some((0, 1, 2, 3, 5), 2)) if letter == "..." else draw.evenly(LENGTHS)
            for letter in letters
        }
        if all(_allows(c, {**usual, **axes}) for c in spec.constraints if not _asks(c, spec)):
            break
    return axes


def _usual(item: Scalar | Axis) -> Any:
    """The default of a scalar as constraints see it."""
    if not (isinstance(item, Scalar) and item.length) or item.default in (None, REQUIRED):
        return item.default
    return item.default if isinstance(item.default, tuple) else (item.default,) * item.length


def _allows(constraint: Constraint, known: dict[str, Any]) -> bool:
    """Whether a constraint holds; one on what is derived from the tensors can only be asked when these are there."""
    try:
        return constraint.holds(known)
    except KeyError:
        return True


def _asks(constraint: Constraint, spec: OpSpec) -> bool:
    """Whether a constraint speaks of a tensor, or of a scalar without a default."""
    needed = [s.name for s in spec.scalars if s.default is REQUIRED]
    return any(name in constraint.text for name in (*needed, *(t.name for t in spec.tensors if len(t.name) > 1)))


def _tensor(draw: Draw, item: Tensor, arguments: dict[str, Any], axes: dict[str, Any], notes: list[str]) -> Any:
    if item.optional and draw.boolean():
        return None
    shape = [n for axis in draw.pick(item.forms) for n in lengths(axis, axes)]
    model = getattr(arguments.get(item.like or ""), "dtype", None)
    every = (*odd.DTYPES, *odd.WILD_DTYPES) if draw.wild else odd.DTYPES
    allowed = item.dtypes if not item.like else (model if model in every else torch.float32,)
    dtype = draw.pick(every if draw.rarely(20) else allowed)
    x = values(tuple(shape), dtype, draw.integer(0, 2**16))
    table = (odd.WILD if draw.wild else odd.STRANGE) if draw.rarely(9) else odd.ALIKE
    how = draw.pick(sorted(table))
    try:
        made = table[how](x)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):  # torch has no such form of this dtype or shape
        return x
    if how != "plain":
        notes.append(f"{item.name}: {how}")
    return made


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Numbers of about 0.01 to 10, of one sign for dtypes without one."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=rng, dtype=torch.float64) * 10.0 ** (seed % 4 - 2)
    x = x.clamp(-60000, 60000)
    return (x if dtype.is_signed else x.abs()).to(dtype)


# --- scalars, names, surroundings ---------------------------------------------------------------------------------


def _scalar(draw: Draw, item: Scalar | Axis) -> Any:
    if draw.rarely(10):
        return draw.pick((*odd.SCALARS, odd.Loud(), *(odd.WILD_SCALARS if draw.wild else ())))
    if item.default is not REQUIRED and draw.rarely(3):
        return item.default
    if isinstance(item, Axis):
        return draw.integer(-3, 2)
    if item.length and item.trials and not draw.rarely(5):
        return draw.pick(item.trials)
    if item.length and draw.boolean():
        count = item.length + (draw.integer(-1, 1) if draw.rarely(10) else 0)
        return draw.pick((tuple, list))(_scalar(draw, replace(item, length=None)) for _ in range(count))
    if item.choices:
        return draw.pick(item.choices)
    if item.type is float:
        return draw.pick(item.trials if draw.boolean() and item.trials else odd.FLOATS)
    return draw.boolean() if item.type is bool else draw.integer(-1, 5)


def _backend(draw: Draw, able: tuple[str, ...]) -> Any:
    """`backend=` in every form; mostly of backends that can run here, and None or "auto" where these are the baseline."""
    if draw.rarely(12):
        return draw.pick(odd.BACKENDS)
    automatic = (None, None, "auto") if able == ("torch_ref",) else ()
    return draw.pick((*automatic, *able, f"{able[0]},{able[-1]}", list(able), tuple(able)))


def draft(draw: Draw, ops: tuple[str, ...], able: tuple[str, ...]) -> Draft:
    """A call of one of the operators, made for backends that can run here."""
    spec = catalog.spec(draw.pick(ops))
    arguments: dict[str, Any] = {}
    notes: list[str] = []
    axes = _axes(draw, spec)
    for item in spec.inputs:
        if isinstance(item, Tensor):
            arguments[item.name] = _tensor(draw, item, arguments, axes, notes)
        else:
            arguments[item.name] = _scalar(draw, item)
    if any(isinstance(i, Scalar) and i.fit for i in spec.scalars) and not draw.rarely(8):
        _fit(spec, arguments)
    _make_lawful(spec, arguments, strays=draw.rarely(8))
    around = draw.some(WILD_SURROUNDINGS if draw.wild else SURROUNDINGS, 2, unique=True) if draw.boolean() else []
    spare = draw.pick(KEYWORDS) if draw.wild else KEYWORDS[0]
    missing = draw.evenly((*arguments, spare)) if draw.rarely(30) else ""
    route = draw.pick(ROUTES) if draw.wild else FUNCTION
    backend = _backend(draw, able)
    if route in (OPERATOR, MAPPED_OPERATOR) and isinstance(backend, list | tuple) and backend and not draw.rarely(10):
        backend = ",".join(map(str, backend))  # the operator of torch takes a text alone
    return Draft(spec, arguments, backend, around, notes, missing, route)


def _fit(spec: OpSpec, arguments: dict[str, Any]) -> None:
    """Tensors of the same alternatives have the shape of the first, and scalars that have to go with shapes do."""
    with suppress(Exception):  # what is drawn may be no tensor
        shapes = {t.dims: tuple(arguments[t.name].shape) for t in reversed(spec.tensors)}
        for item in (t for t in spec.tensors if tuple(arguments[t.name].shape) != shapes[t.dims]):
            arguments[item.name] = values(shapes[item.dims], arguments[item.name].dtype, 0)
        for scalar in (i for i in spec.scalars if isinstance(i, Scalar)):
            if scalar.fit:
                named = {t.name: shapes[t.dims] for t in spec.tensors}
                arguments[scalar.name] = scalar.fit(named, arguments)


def _make_lawful(spec: OpSpec, arguments: dict[str, Any], strays: bool) -> None:
    """Computed tensors of a call that the spec allows hold what follows from the others; indices and counts lie inside, or
    not.
    """
    kinds = (Computed,) if strays else (Computed, Count, Index)
    chosen = [t.name for t in spec.tensors if isinstance(t.domain, kinds)]
    if not chosen:
        return
    try:
        call = spec.bind(**arguments)
        with torch.no_grad():
            lawful = value_domains.lawful(spec, call.tensors, call.scalars)
    except Exception:  # a call that is wrong in some other way
        return
    arguments.update({name: lawful[name] for name in chosen})


@contextmanager
def surrounded(made: Draft, able: tuple[str, ...]) -> Iterator[None]:
    """Everything that the draft has around its call; afterwards as before."""
    with ExitStack() as stack:
        for what in made.surroundings:
            if what.startswith("autocast"):
                low = torch.float16 if what.endswith("fp16") else torch.bfloat16
                stack.enter_context(torch.autocast("cpu", dtype=low))
            elif what == "float64":
                stack.callback(torch.set_default_dtype, torch.get_default_dtype())
                torch.set_default_dtype(torch.float64)
            elif what == "default":
                stack.callback(precedence.set_default, made.spec.name, None)
                precedence.set_default(made.spec.name, able[0])
            elif what == "use":
                stack.enter_context(precedence.use(able[-1], ops=made.spec.name))
            elif what == "strict":
                stack.enter_context(precedence.use([*able, "torch_ref"], strict=True))
            else:
                stack.enter_context(MODES[what]())
        yield


MODES: dict[str, Callable[[], Any]] = {
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "fake": FakeTensorMode,
    "meta": lambda: torch.device("meta"),
    "deterministic": determinism.asked_for,
}
