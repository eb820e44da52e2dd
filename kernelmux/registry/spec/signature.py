"""The parts of a spec's signature, and a call that was checked against it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch

from kernelmux.registry.dtypes import FLOATS
from kernelmux.registry.spec.cost import Cost
from kernelmux.registry.spec.numerics import ErrorModel
from kernelmux.registry.spec.value_domains import REAL, Domain
from kernelmux.registry.util import cards
from kernelmux.registry.util.cards import Card
from kernelmux.registry.util.memory_format import format_of

REQUIRED = inspect.Parameter.empty
Form = tuple[str, ...]
# Numbers, or from the arguments of a call (floating tensors in float64) numbers and tensors that broadcast to the argument.
Breakpoints = tuple[float, ...] | Callable[[Mapping[str, Any]], Sequence[float | torch.Tensor]]


@dataclass(frozen=True)
class Tensor:
    """A tensor argument.

    dims: symbolic axes, e.g. "... N" or "M K"; a letter that stands in two places must have one length, a number is a
    length, "..." is any number of leading axes. Alternatives are separated by "|" ("M E | B M E"), the first that fits
    holds; "" is a single number. dtypes: what is allowed; like: has the dtype of that argument instead.
    optional: None is a value as well, and the default. domain: the values that it has (`value_domains`); a kernel is asked
    about no others. host: the tensor lives in host memory (pinned where there is a GPU). breakpoints: where a piecewise
    formula changes in this argument, as in `breakpoints=(-3.0, 3.0)` or `breakpoints=lambda a: (a["threshold"],)`; the
    suite asks about the values around each. since: the first version of the spec that has it.
    """

    name: str
    dims: str
    dtypes: tuple[torch.dtype, ...] = FLOATS
    like: str | None = None
    optional: bool = False
    domain: Domain = REAL
    host: bool = False
    doc: str = ""
    breakpoints: Breakpoints = ()
    since: int = 1

    @property
    def default(self) -> Any:
        """None for an optional tensor, else REQUIRED."""
        return None if self.optional else REQUIRED

    @cached_property
    def forms(self) -> tuple[Form, ...]:
        """The alternatives of `dims`, each as a tuple of axes."""
        return tuple(tuple(form.split()) for form in self.dims.split("|"))

    @cached_property
    def letters(self) -> frozenset[str]:
        """The named axes in any form."""
        return frozenset(d for form in self.forms for d in form if d != "..." and not d.isdigit())

    @property
    def flat(self) -> bool:
        """Whether it has any number of axes and none of its own: "..."."""
        return self.forms == (("...",),)

    @property
    def any_rank(self) -> bool:
        """Whether it may have any number of axes."""
        return any("..." in form for form in self.forms)

    @property
    def shapes(self) -> str:
        """The alternatives as errors show them: "[M E] or [B M E]"."""
        return " or ".join(f"[{' '.join(form)}]" for form in self.forms)

    def named(self, shape: Sequence[int]) -> Form:
        """A name per axis of that shape: "...0", "...1" for those that "..." stands for; () for a shape of no form."""
        return next((names for form in self.forms if (names := spread(form, shape)) is not None), ())


def spread(form: Form, shape: Sequence[int]) -> Form | None:
    """One name per axis of a shape, None if the form has another number of them, or another length in place of a number."""
    lead = len(shape) - len(form) + 1
    if lead < 0 or ("..." not in form and lead != 1):
        return None
    at = form.index("...") if "..." in form else len(form)
    names = (*form[:at], *(f"...{i}" for i in range(lead) if at < len(form)), *form[at + 1 :])
    return names if all(int(n) == m for n, m in zip(names, shape, strict=True) if n.isdigit()) else None


@dataclass(frozen=True)
class Scalar:
    """A scalar argument: type float, int, bool or str; choices or an inclusive range limit it, `also` are values beside it.

    optional: None is a value as well; the spec's `normalise` says what it stands for. trials: values that the suite
    tries besides the default: zero, negative, large and small ones, and some that are no power of two. length: of a tuple
    or list of such numbers, in place of which a call may give a single one (`stride=2`, `stride=(2, 1)`); range and choices
    hold for each, and reference, `normalise`, `derive`, constraints and implementations see a tuple of that length. Cases
    write stride=2x1, and the operator of torch takes int[2]. fit: from the shapes of a call and its other scalars a value
    that goes with them, where hardly any other does; the suites take it for the calls that they draw. extent: these
    numbers follow from the lengths of images, and a graph of torch.compile takes every value of them, as of a single
    number: the operator of torch has SymInt[2] then, and takes no single number in its place. since: as for `Tensor`.
    """

    name: str
    type: type
    default: Any = REQUIRED
    choices: tuple[Any, ...] = ()
    range: tuple[float, float] | None = None
    also: tuple[Any, ...] = ()
    optional: bool = False
    trials: tuple[Any, ...] = ()
    length: int | None = None
    fit: Callable[[Mapping[str, tuple[int, ...]], Mapping[str, Any]], Any] | None = None
    extent: bool = False
    doc: str = ""
    since: int = 1

    @property
    def varies(self) -> bool:
        """Whether a graph of torch.compile takes every value of it, as of a length."""
        return self.type is int and (self.length is None or self.extent)


@dataclass(frozen=True)
class Axis:
    """A scalar that names one axis of the tensor `of`; negative values count from the end, implementations see none.

    optional: None stands for all axes. since: as for `Tensor`.
    """

    name: str
    of: str
    default: Any = REQUIRED
    optional: bool = False
    doc: str = ""
    since: int = 1


@dataclass(frozen=True)
class Output:
    """A fresh tensor, contiguous or, where the argument `order` is dense and channels-last, channels-last as that one.

    One that is empty, expanded, overlapping, has gaps, or is contiguous as well gives a contiguous output. Each stride
    of an output with an `order` is that of a new tensor, those too of axes of one element and of tensors of none.

    like: the tensor argument whose dtype it has, unless `dtype` is another one or a rule that says which. dims: as for
    inputs, "like" for the shape of that argument, or a rule. A floating output is judged by the bound of its error
    model; an output of another dtype, such as an index, must be equal to the reference. saved: what the backward needs,
    which the public call does not return (`dispatch.outputs` does); it is computed, judged and verified like the others.
    since: as for `Tensor`.
    """

    name: str
    like: str
    dims: str | Callable[[Call], tuple[int, ...]] = "like"
    dtype: torch.dtype | Callable[[Call], torch.dtype] | None = None
    saved: bool = False
    doc: str = ""
    order: str = ""
    since: int = 1

    def memory_format(self, call: Call) -> torch.memory_format:
        """How this output must lie in memory for a call."""
        return format_of(call.arguments[self.order]) if self.order else torch.contiguous_format

    def dtype_of(self, call: Call) -> torch.dtype:
        """The dtype this output must have for a call."""
        if isinstance(self.dtype, torch.dtype):
            return self.dtype
        found: torch.dtype = self.dtype(call) if self.dtype else call.arguments[self.like].dtype
        return found

    def shape(self, call: Call) -> tuple[int, ...]:
        """The shape this output must have for a call."""
        if callable(self.dims):
            return tuple(self.dims(call))
        if self.dims == "like":
            return tuple(call.arguments[self.like].shape)
        return tuple(n for d in self.dims.split() for n in lengths(d, call.axes))

    def size(self, call: Call) -> int:
        """The bytes that this output takes for a call."""
        return math.prod(self.shape(call)) * self.dtype_of(call).itemsize


def lengths(axis: str, axes: Mapping[str, Any]) -> tuple[int, ...]:
    """The lengths that an axis of a form stands for: several for "...", of a number itself."""
    if axis.isdigit():
        return (int(axis),)
    return tuple(axes["..."]) if axis == "..." else (axes[axis],)


@dataclass(frozen=True)
class Constraint:
    """A relation between axes or scalars that every call must meet, with the text that the error shows."""

    text: str
    holds: Callable[[Mapping[str, Any]], bool]


class Spec(Protocol):
    """What the parts of a spec, and its calls, read of it: see `spec.OpSpec`, which it is."""

    @property
    def name(self) -> str: ...
    @property
    def inputs(self) -> tuple[Tensor | Scalar | Axis, ...]: ...
    @property
    def outputs(self) -> tuple[Output, ...]: ...
    @property
    def tensors(self) -> tuple[Tensor, ...]: ...
    @property
    def scalars(self) -> tuple[Scalar | Axis, ...]: ...
    @property
    def leading(self) -> Tensor: ...
    @property
    def constraints(self) -> tuple[Constraint, ...]: ...
    @property
    def formats(self) -> tuple[Mapping[str, torch.dtype], ...]: ...
    @property
    def derive(self) -> Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, int]] | None: ...
    @property
    def normalise(self) -> Callable[[dict[str, Any], Mapping[str, Any]], None] | None: ...
    @property
    def cost(self) -> Callable[[Call], Cost]: ...
    @property
    def gradient(self) -> Any: ...
    @property
    def images(self) -> bool: ...
    @property
    def hosted(self) -> bool: ...
    @property
    def visible(self) -> int: ...
    @property
    def signature(self) -> inspect.Signature: ...
    @property
    def reference(self) -> Callable[..., Any]: ...
    @property
    def errors(self) -> tuple[ErrorModel, ...]: ...
    @property
    def special(self) -> Any: ...
    @property
    def hash(self) -> str: ...
    @property
    def dtypes(self) -> tuple[torch.dtype, ...]: ...
    @property
    def autocast(self) -> str: ...
    def bind(self, *args: Any, **kwargs: Any) -> Call: ...
    def untouched(self, case: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]: ...
    def hypothetical(self, case: Any, dtype: torch.dtype | None = ..., *args: Any, **kwargs: Any) -> Call: ...
    def left_out(self, call: Call, name: str) -> Any: ...
    def evaluate(self, call: Call) -> tuple[torch.Tensor, ...]: ...
    def dtypes_for(self, first: torch.dtype, given: Mapping[str, torch.dtype] = ...) -> dict[str, torch.dtype]: ...


@dataclass(frozen=True)
class Call:
    """A call that passed validation: arguments in spec order, scalars normalised, axes by letter ("..." holds a tuple).

    device: where it runs. capability: of the GPU (or the emulated one), None on a CPU. hypothetical: shapes, no data.
    tensors, scalars: of the arguments the tensors that are given, and the others, by name.
    """

    spec: Spec
    arguments: dict[str, Any]
    axes: dict[str, Any]
    device: torch.device
    capability: tuple[int, int] | None = None
    hypothetical: bool = False
    tensors: dict[str, torch.Tensor] = field(init=False, repr=False, compare=False)
    scalars: dict[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tensors, scalars = {t.name: self.arguments[t.name] for t in self.spec.tensors}, dict(self.arguments)
        for name in tensors:
            del scalars[name]
        given = {name: x for name, x in tensors.items() if x is not None}
        object.__setattr__(self, "tensors", given)
        object.__setattr__(self, "scalars", scalars)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the tensor that leads (`OpSpec.leading`)."""
        dtype: torch.dtype = self.arguments[self.spec.leading.name].dtype
        return dtype

    @property
    def exact(self) -> dict[str, Any]:
        """The arguments by name, floating tensors in float64."""
        return dict(zip(self.arguments, exact_arguments(self), strict=True))

    @property
    def card(self) -> Card | None:
        """The GPU that it runs on (or the emulated one), None on a CPU."""
        return cards.for_call(self.device, self.capability, self.hypothetical)

    @property
    def cost(self) -> Cost:
        return self.spec.cost(self)


def exact_arguments(call: Call) -> tuple[Any, ...]:
    """The arguments of a call with floating tensors raised to float64, on the device where the call runs."""

    def raised(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        value = value.to(call.device)
        return value.to(torch.float64) if value.is_floating_point() else value

    return tuple(raised(v) for v in call.arguments.values())


_KINDS = {float: "float", int: "int", bool: "bool", str: "str"}


def schema(spec: Spec) -> str:
    """The signature as torch writes it: "softmax(Tensor x, int axis=-1, *, str? backend=None) -> Tensor"."""
    given = ", ".join(_parameter(item) for item in spec.inputs)
    result = "Tensor" if len(spec.outputs) == 1 else f"({', '.join(f'Tensor {o.name}' for o in spec.outputs)})"
    return f"{spec.name}({given}, *, str? backend=None) -> {result}"


def _parameter(item: Tensor | Scalar | Axis) -> str:
    kind = _kind(item)
    if item.default is REQUIRED:
        return f"{kind} {item.name}"
    default = f'"{item.default}"' if isinstance(item.default, str) else item.default
    return f"{kind} {item.name}={list(default) if isinstance(default, tuple) else default}"


def _kind(item: Tensor | Scalar | Axis) -> str:
    """The type as torch writes it: a SymInt may vary within a graph."""
    if isinstance(item, Tensor):
        return "Tensor?" if item.optional else "Tensor"
    base = "SymInt" if isinstance(item, Scalar) and item.varies else _KINDS[getattr(item, "type", int)]
    several = f"[{item.length}]" if isinstance(item, Scalar) and item.length else ""
    return f"{base}{several}{'?' if item.optional else ''}"
