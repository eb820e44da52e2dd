"""What an implementation can run, as data: the dispatcher, the error texts and the boundary tests all read these.

A condition checks a bound call and answers None (met) or the reason why not, with what would satisfy it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from kernelmux.registry import dtypes
from kernelmux.registry.errors import SpecError

if TYPE_CHECKING:
    from kernelmux.registry.spec import Call


class Condition(Protocol):
    """Something that a call must meet."""

    def check(self, call: Call) -> str | None:
        """None if the call meets it, else the reason."""

    @property
    def text(self) -> str:
        """The condition in a few words, for tables."""


def _value(call: Call, name: str) -> Any:
    """An axis or a scalar of the call, by name; SpecError for a condition on one that the operator does not have."""
    if name in call.axes:
        return call.axes[name]
    if name in call.scalars:
        return call.scalars[name]
    known = ", ".join([*call.axes, *call.scalars])
    raise SpecError(f'{call.spec.name}: a condition names "{name}", expected an axis or a scalar: {known}')


def _tensor(call: Call, name: str) -> torch.Tensor | None:
    """A tensor of the call, by name, None for one that is left out; SpecError for one that the operator does not have."""
    names = [t.name for t in call.spec.tensors]
    if name not in names:
        raise SpecError(f'{call.spec.name}: a condition names "{name}", expected a tensor: {", ".join(names)}')
    found: torch.Tensor | None = call.arguments[name]
    return found


@dataclass(frozen=True, init=False)
class Dtypes:
    """The tensor `name` has one of these dtypes."""

    name: str
    allowed: tuple[torch.dtype, ...]

    def __init__(self, name: str, *allowed: torch.dtype) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "allowed", allowed)

    @property
    def text(self) -> str:
        return f"{self.name} in {'/'.join(dtypes.SHORT[d] for d in self.allowed)}"

    def check(self, call: Call) -> str | None:
        x = _tensor(call, self.name)
        if x is None or x.dtype in self.allowed:
            return None
        return f"{self.name} is {dtypes.SHORT[x.dtype]}, needs {self.text}"


@dataclass(frozen=True, init=False)
class OneOf:
    """The axis or scalar `name` has one of these values."""

    name: str
    allowed: tuple[Any, ...]

    def __init__(self, name: str, *allowed: Any) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "allowed", allowed)

    @property
    def text(self) -> str:
        return f"{self.name} in {{{', '.join(map(str, self.allowed))}}}"

    def check(self, call: Call) -> str | None:
        value = _value(call, self.name)
        return None if value in self.allowed else f"{self.name} = {value}, needs {self.text}"


@dataclass(frozen=True)
class AtLeast:
    """The axis `name` is not shorter than `minimum`."""

    name: str
    minimum: int

    @property
    def text(self) -> str:
        return f"{self.name} >= {self.minimum}"

    def check(self, call: Call) -> str | None:
        value = _value(call, self.name)
        return None if value >= self.minimum else f"{self.name} = {value}, needs {self.text}"


@dataclass(frozen=True)
class AtMost:
    """The axis `name` is not longer than `maximum`."""

    name: str
    maximum: int

    @property
    def text(self) -> str:
        return f"{self.name} <= {self.maximum}"

    def check(self, call: Call) -> str | None:
        value = _value(call, self.name)
        return None if value <= self.maximum else f"{self.name} = {value}, needs {self.text}"


@dataclass(frozen=True)
class Multiple:
    """The axis `name` is a multiple of `factor`."""

    name: str
    factor: int

    @property
    def text(self) -> str:
        return f"{self.name} a multiple of {self.factor}"

    def check(self, call: Call) -> str | None:
        value = _value(call, self.name)
        padded = -(-value // self.factor) * self.factor
        if value == padded:
            return None
        return f"{self.name} = {value}, needs a multiple of {self.factor} (padding to {padded} would do)"


@dataclass(frozen=True)
class Aligned:
    """The rows of tensor `name` can be read `bytes` at a time: address and strides are multiples of it."""

    name: str
    bytes: int = 16

    @property
    def text(self) -> str:
        return f"{self.name} aligned to {self.bytes} bytes"

    def check(self, call: Call) -> str | None:
        if (x := _tensor(call, self.name)) is None:
            return None
        strides = [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1]
        if 1 in strides:
            strides.remove(1)  # the elements of a row; a second unit stride means rows that overlap
        if odd := [s for s in strides if s * x.element_size() % self.bytes]:
            factor = self.bytes // x.element_size()
            return f"{self.name} has a stride of {odd[0]} elements, needs a multiple of {factor}"
        if not call.hypothetical and x.data_ptr() % self.bytes:
            return f"{self.name} starts at an address that is {x.data_ptr() % self.bytes} modulo {self.bytes}, needs 0"
        return None


@dataclass(frozen=True)
class Capability:
    """The GPU (or the emulated one) has compute capability `minimum` or more, and less than `below` if given."""

    minimum: tuple[int, int]
    below: tuple[int, int] | None = None

    @property
    def text(self) -> str:
        upper = f", before {_sm(self.below)}" if self.below else " or newer"
        return f"{_sm(self.minimum)}{upper}"

    def check(self, call: Call) -> str | None:
        have = call.capability
        if have is None or (have >= self.minimum and (self.below is None or have < self.below)):
            return None
        return f"the GPU is {_sm(have)}, needs {self.text}"


def _sm(capability: tuple[int, int]) -> str:
    return f"sm_{capability[0]}{capability[1]}"
