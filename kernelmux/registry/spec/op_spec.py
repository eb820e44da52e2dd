"""The vocabulary of a spec: what an operator takes, what it gives, and what is right.

    SPEC = OpSpec(
        name="softmax", version=1, summary="...", math="...", sources=("...",),
        inputs=(Tensor("x", "..."), Axis("axis", of="x", default=-1), Scalar("scale", float, 1.0)),
        outputs=(Output("y", like="x"),),
        reference=reference, error=ErrorModel(...), exact=exact, special=SpecialValues(),
        cases=(...), workloads=(...), cost=cost,
    )

Specs live in `kernelmux/registry/ops/<op>.py`, one per file, found by file name.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch

from kernelmux.registry.errors import ArgumentError, SpecError
from kernelmux.registry.spec import gradient as gradients
from kernelmux.registry.spec.binding import bind, left_out
from kernelmux.registry.spec.cases import INPUTS, Case, draw
from kernelmux.registry.spec.cost import Cost
from kernelmux.registry.spec.gradient import Differentiable
from kernelmux.registry.spec.metamorphic import Property
from kernelmux.registry.spec.numerics import ErrorModel
from kernelmux.registry.spec.signature import REQUIRED, Axis, Call, Constraint, Output, Scalar, Tensor, exact_arguments
from kernelmux.registry.spec.value_domains import (
    Index,
    Positive,
    Real,
    lawful,
)
from kernelmux.registry.util import keywords
from kernelmux.registry.util.fingerprint import digest

CPU = torch.device("cpu")
SILENT = re.compile(r',\s*since=\d+|^\s*family="[^"]*",$', re.MULTILINE)  # say nothing of what a call gives


# lower: the dtype of autocast; fp32: that on a GPU; norm: fp32 on a GPU, on a CPU the dtype of the first tensor;
# widest: the widest dtype of several tensors; keep: as they are.
AUTOCAST = ("lower", "fp32", "norm", "widest", "keep")
SPECIAL = ("nan", "inf", "-inf", "-0", "subnormal", "largest")


@dataclass(frozen=True)
class SpecialValues:
    """Every value of `SPECIAL` must give what the reference gives, except those in `undefined`: name -> why not.

    A name may be narrowed to one dtype: "largest fp32". `on` says from the arguments of a call whether they are
    defined there at all.
    """

    undefined: Mapping[str, str] = field(default_factory=dict)
    on: Callable[[Mapping[str, Any]], bool] = lambda arguments: True

    def __post_init__(self) -> None:
        if wrong := {name for name in self.undefined if name.split()[0] not in SPECIAL}:
            raise SpecError(f"special values: expected names of {', '.join(SPECIAL)}, got {', '.join(sorted(wrong))}")


@dataclass(frozen=True)
class NoExact:
    """Why an operator has no inputs that make every order of evaluation give the same bits."""

    reason: str


ExactMaker = Callable[[Case, torch.dtype, torch.Generator], "dict[str, torch.Tensor] | None"]


@dataclass(frozen=True)
class OpSpec:
    """Everything that is true of an operator in every backend; see the module for the form.

    error: per output; `EQUAL` for one that is not floating. arithmetics: how an implementation may accumulate
    (`numerics.ARITHMETICS`); one that declares another is refused, since it decides how far off a result may be.
    formats: dtypes of several tensors that go together, where not all of those that each may have do.
    normalise: changes checked arguments, such as None to what it stands for; those that it has changed it leaves as they
    are. derive: further axes, from the arguments after that and the axes of the tensors: the lengths of an output that
    scalars decide. family: under which the index of operators lists it, such as "Rows".
    """

    name: str
    version: int
    summary: str
    math: str
    inputs: tuple[Tensor | Scalar | Axis, ...]
    outputs: tuple[Output, ...]
    reference: Callable[..., Any]
    error: ErrorModel | tuple[ErrorModel, ...]
    exact: ExactMaker | NoExact
    cases: tuple[Case, ...]
    workloads: tuple[Case, ...]
    cost: Callable[[Call], Cost]
    sources: tuple[str, ...] = ()
    arithmetics: tuple[str, ...] = ("fp32",)
    special: SpecialValues = SpecialValues()
    constraints: tuple[Constraint, ...] = ()
    derive: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, int]] | None = None
    normalise: Callable[[dict[str, Any], Mapping[str, Any]], None] | None = None
    gradient: Differentiable | None = None
    properties: tuple[Property, ...] = ()
    formats: tuple[Mapping[str, torch.dtype], ...] = ()
    autocast: str = ""
    family: str = "Others"

    def __post_init__(self) -> None:
        names = [i.name for i in self.inputs]
        if len(set(names)) != len(names) or not self.tensors:
            raise SpecError(f"{self.name}: inputs need distinct names and at least one tensor, got {names}")
        if len(self.errors) != len(self.outputs):
            raise SpecError(f"{self.name}: {len(self.outputs)} outputs, but {len(self.errors)} error models")
        self._check_vocabulary()
        if not self.cases or not self.workloads:
            raise SpecError(f"{self.name}: a spec needs cases (what must be right) and workloads (what must be fast)")
        for name in ("cases", "workloads"):
            object.__setattr__(self, name, tuple(replace(case, spec=self) for case in getattr(self, name)))

    def _check_vocabulary(self) -> None:
        """Names that tensors and outputs give are those of other arguments, and saved outputs come last."""
        required = {t.name for t in self.tensors if not t.optional}
        for name, like in [(t.name, t.like) for t in self.tensors] + [(o.name, o.like) for o in self.outputs]:
            if like and like not in required:
                raise SpecError(f"{self.name}: {name}: expected like= a tensor that is not optional, got {like}")
        for tensor in self.tensors:
            if isinstance(domain := tensor.domain, Index):
                _check_index(self, tensor.name, domain)
            _check_breakpoints(self.name, tensor)
        for name in {name for together in self.formats for name in together} - {t.name for t in self.tensors}:
            raise SpecError(f"{self.name}: formats: expected dtypes of tensors, got {name}")
        self._check_since()
        saved = [output.saved for output in self.outputs]
        if all(saved) or saved != sorted(saved):
            raise SpecError(f"{self.name}: expected an output that is returned, and saved ones after it, got {saved}")
        if self.autocast not in ("", *AUTOCAST):
            raise SpecError(f"{self.name}: autocast: expected one of {', '.join(AUTOCAST)}, got {self.autocast!r}")
        gradients.check(self)
        kinds = [type(p).__name__ for p in self.properties]
        if len(set(kinds)) != len(kinds):
            raise SpecError(f"{self.name}: properties: expected each kind once, got {', '.join(kinds)}")

    def _check_since(self) -> None:
        """What came later is of a version that there is, and has a default: implementations from before it lack it."""
        for item in (*self.inputs, *self.outputs):
            if not 1 <= item.since <= self.version:
                legal = f"1 <= since <= {self.version}, the version of the spec"
                raise SpecError(f"{self.name}: {item.name}: expected {legal}, got since={item.since}")
        if late := [i.name for i in self.inputs if i.since > 1 and i.default is REQUIRED]:
            raise SpecError(
                f"{self.name}: {late[0]}: expected a default, as it came after version 1: calls and implementations from"
                " before it do without"
            )

    def case(self, text: str, **options: Any) -> Case:
        """A case of this operator that it does not list, from text such as "x=37x1000 axis=0"; see `Case`."""
        return Case(text, spec=self, **options)

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(i for i in self.inputs if isinstance(i, Tensor))

    @cached_property
    def scalars(self) -> tuple[Scalar | Axis, ...]:
        return tuple(i for i in self.inputs if not isinstance(i, Tensor))

    @cached_property
    def hosted(self) -> bool:
        """Whether a tensor lives in host memory, so that pinning decides the device."""
        return any(t.host for t in self.tensors)

    @cached_property
    def errors(self) -> tuple[ErrorModel, ...]:
        return self.error if isinstance(self.error, tuple) else (self.error,)

    @cached_property
    def leading(self) -> Tensor:
        """The tensor whose dtype stands for that of a call: the first of those that may have the most."""
        return max((t for t in self.tensors if not (t.like or t.optional)), key=lambda t: len(t.dtypes))

    @cached_property
    def images(self) -> bool:
        """Whether it takes images, which may lie channels-last: an output lies as one of them does."""
        return any(output.order for output in self.outputs)

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The dtypes of the tensor that leads."""
        return self.leading.dtypes

    @cached_property
    def visible(self) -> int:
        """How many outputs the public call returns; saved ones come after them."""
        return sum(not output.saved for output in self.outputs)

    def dtypes_for(
        self, first: torch.dtype, given: Mapping[str, torch.dtype] = MappingProxyType({})
    ) -> dict[str, torch.dtype]:
        """The dtype of each tensor in a call whose leading tensor has dtype `first`, but for those that are given.

        A tensor that may not have it has the first one that it may have.
        """
        wanted = {self.leading.name: first, **given}
        fitting = (f for f in self.formats if all(f.get(name, dtype) == dtype for name, dtype in wanted.items()))
        together = {**next(fitting, {}), **given}
        found: dict[str, torch.dtype] = {}
        for tensor in sorted(self.tensors, key=lambda t: t.like is not None):
            usual = found[tensor.like] if tensor.like else first if first in tensor.dtypes else tensor.dtypes[0]
            found[tensor.name] = together.get(tensor.name, usual)
        return found

    def untouched(self, case: Case, dtype: torch.dtype, device: torch.device = CPU) -> dict[str, torch.Tensor]:
        """Tensors of a case whose values are not set: large ones take no memory on a CPU until they are written."""
        kinds = self.dtypes_for(dtype, case.parsed[2])
        return {name: case.empty(name, kinds[name], device) for name in case.shapes}

    def drawn(self, case: Case, dtype: torch.dtype, rng: torch.Generator) -> dict[str, torch.Tensor]:
        """Random tensors of a case in its distribution, each with values that it may have; optional ones if it has them."""
        kinds, how = self.dtypes_for(dtype, case.parsed[2]), case.scalars.get(INPUTS, case.inputs)
        if missing := [t.name for t in self.tensors if not t.optional and t.name not in case.shapes]:
            raise SpecError(f"{self.name}: case {case.name} gives no shape for {', '.join(missing)}")
        given = (t.name for t in self.tensors if t.name in case.shapes)
        found = {name: case.laid(name, draw(case.shapes[name], kinds[name], rng, how)) for name in given}
        return lawful(self, found, case.scalars)

    def hypothetical(
        self,
        case: Case,
        dtype: torch.dtype | None = None,
        device: torch.device = CPU,
        capability: tuple[int, int] | None = None,
    ) -> Call:
        """The call of a case on tensors without data, as if they were on `device`.

        dtype: of the leading tensor; without it what the case says, or the first that is allowed. ArgumentError if the case
        leaves out an argument that has no default, or if the spec does not allow the call.
        """
        shapes, scalars, formats = case.parsed
        needed = [i.name for i in self.inputs if i.default is REQUIRED]
        if missing := [name for name in needed if name not in shapes and name not in scalars]:
            raise ArgumentError(
                f"{self.name}: expected all of {', '.join(needed)} in {case.text!r}, got none for {', '.join(missing)};"
                f" the signature is {self.signature}"
            )
        first = dtype or formats.get(self.leading.name) or next(iter(formats.values()), self.dtypes[0])
        values = {n: v for n, v in scalars.items() if n != INPUTS} | self.untouched(case, first, torch.device("meta"))
        return self.bind(**values, device=device, capability=capability)

    @cached_property
    def signature(self) -> inspect.Signature:
        """The public signature, without `backend`."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature([inspect.Parameter(i.name, kind, default=i.default) for i in self.inputs])

    def given(self, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Every argument of a call in order, defaults filled in; TypeError where they do not fit the signature."""
        if others := [name for name in kwargs if name not in self.signature.parameters]:
            raise keywords.unexpected(self.name, others, self.signature.parameters)
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from None
        bound.apply_defaults()
        return tuple(bound.arguments.values())

    @cached_property
    def hash(self) -> str:
        """Twelve hex digits over the source but for comments and `SILENT`: changes when the meaning may have."""
        return digest([SILENT.sub("", inspect.getsource(inspect.getmodule(self.reference) or type(self)))])

    def bind(
        self, *args: Any, capability: tuple[int, int] | None = None, device: torch.device | None = None, **kwargs: Any
    ) -> Call:
        """Check a call against the spec; ArgumentError names op, argument, expected and got."""
        values = self.given(*args, **kwargs)
        return bind(self, dict(zip(self.signature.parameters, values, strict=True)), capability, device)

    def left_out(self, call: Call, name: str) -> Any:
        """The value that the argument `name`, which has a default, has in such a call if the caller leaves it out."""
        return left_out(call, name)

    def evaluate(self, call: Call) -> tuple[torch.Tensor, ...]:
        """The reference of a call in float64 (integers and bools stay), one tensor per output."""
        result = self.reference(*exact_arguments(call))
        return result if isinstance(result, tuple) else (result,)


def _check_index(spec: OpSpec, name: str, domain: Index) -> None:
    """SpecError for an index into an axis, or one of the values of a scalar, that the operator does not have."""
    if not any(domain.axis in tensor.letters for tensor in spec.tensors):
        raise SpecError(f"{spec.name}: {name}: expected an index into an axis of a tensor, got {domain.axis}")
    if unknown := [extra for extra in domain.extra if extra not in {s.name for s in spec.scalars}]:
        raise SpecError(f"{spec.name}: {name}: expected values of scalars beside the index, got {', '.join(unknown)}")


def _check_breakpoints(op: str, tensor: Tensor) -> None:
    """SpecError for breakpoints that are no numbers, or of a tensor that cannot have the values around them."""
    given, head = tensor.breakpoints, f"{op}: {tensor.name}: breakpoints: expected"
    numbers = isinstance(given, tuple) and all(isinstance(b, int | float) and math.isfinite(b) for b in given)
    if not (numbers or callable(given)):
        raise SpecError(f"{head} a tuple of finite numbers, or a function of the arguments, got {given!r}")
    if given and not (isinstance(tensor.domain, Real | Positive) and any(d.is_floating_point for d in tensor.dtypes)):
        raise SpecError(f"{head} a floating tensor that may have the numbers around them (domain Real or Positive)")
