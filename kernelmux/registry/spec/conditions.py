"""What an implementation can run, as data: the dispatcher, the error texts and the boundary tests all read these.

A condition checks a bound call and answers None (met) or the reason why not, as "observed, needs required". It may have a
method `remedy` too: what would satisfy a call that does not meet it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch

from kernelmux.registry import dtypes
from kernelmux.registry.errors import SpecError, shown
from kernelmux.registry.util import cards

if TYPE_CHECKING:
    from kernelmux.registry.spec.signature import Call


class Condition(Protocol):
    """Something that a call must meet."""

    def check(self, call: Call) -> str | None:
        """None if the call meets it, else the reason."""

    @property
    def text(self) -> str:
        """The condition in a few words, for tables."""


@dataclass(frozen=True)
class Unmet:
    """A condition that a call does not meet.

    observed: what the call has. required: what it would need, empty where `observed` says both. remedy: what would satisfy
    the condition, empty where that is not known. kind: the condition without the values of the call, so that calls which
    differ in their sizes alone count as the same.
    """

    observed: str
    required: str = ""
    remedy: str = ""
    kind: str = ""

    def __str__(self) -> str:
        return f"{self.observed}, needs {self.required}" if self.required else self.observed


def unmet(condition: Condition, call: Call) -> Unmet | None:
    """None if a call meets the condition; otherwise what is missing, from the reason that the condition gives."""
    reason = condition.check(call)
    if not reason:
        return None
    observed, _, required = reason.partition(", needs ")
    remedy = getattr(condition, "remedy", None)
    return Unmet(observed, required, (remedy(call) if remedy else "") or "", condition.text)


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

    def remedy(self, call: Call) -> str:
        """The conversion that would do."""
        return f"pass {self.name} as {' or '.join(dtypes.SHORT[d] for d in self.allowed)}"


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

    def remedy(self, call: Call) -> str | None:
        """The values to pass; None for an axis, whose length the data give."""
        values = " or ".join(f"{self.name}={value!r}" for value in self.allowed)
        return f"pass {values}" if self.name in call.scalars else None


@dataclass(frozen=True)
class AtDefault:
    """The argument `name`, which the implementation does not take, is what it is in a call that leaves it out.

    What a default stands for counts as the default: 1/sqrt(D) for the scale of attention, left out or not.
    """

    name: str

    @property
    def text(self) -> str:
        return f"{self.name} at its default"

    def check(self, call: Call) -> str | None:
        value, default = call.arguments[self.name], call.spec.left_out(call, self.name)
        tensor = isinstance(value, torch.Tensor)
        if value is default or (not tensor and value == default):
            return None
        observed = f"{self.name} is given" if tensor else f"{self.name} = {shown(value)}"
        return f"{observed}, needs the default {shown(default)}: the implementation has no parameter {self.name}"

    def remedy(self, call: Call) -> str:
        """The call that would do."""
        return f"leave out {self.name}"


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

    def remedy(self, call: Call) -> str:
        """The length to pad to."""
        return f"pad {self.name} to {self.minimum}"


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
class MostRows:
    """The input `name`, [..., N], has no more than `most` rows."""

    name: str
    most: int

    @property
    def text(self) -> str:
        return f"at most {self.most} rows"

    def check(self, call: Call) -> str | None:
        rows = call.arguments[self.name].numel() // max(1, call.axes["N"])
        return None if rows <= self.most else f"there are {rows} rows, needs {self.text}"


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
        if value % self.factor == 0:
            return None
        return f"{self.name} = {value}, needs a multiple of {self.factor}"

    def remedy(self, call: Call) -> str:
        """The length to pad to."""
        return f"pad {self.name} to {-(-_value(call, self.name) // self.factor) * self.factor}"


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

    def remedy(self, call: Call) -> str | None:
        """A copy, where a new tensor would do; otherwise the length to pad its last axis to."""
        x = call.arguments[self.name]
        fresh = torch.empty(x.shape, dtype=x.dtype, device="meta")
        if self.check(replace(call, arguments={**call.arguments, self.name: fresh}, hypothetical=True)) is None:
            return f"{self.name}.{'clone' if x.is_contiguous() else 'contiguous'}() would satisfy this"
        factor = self.bytes // x.element_size()
        return f"pad the last axis of {self.name} to {-(-x.shape[-1] // factor) * factor}"


@dataclass(frozen=True)
class UnevenRows:
    """Some rows of tensor `name` do not begin, or end, at multiples of `bytes`."""

    name: str
    bytes: int = 16

    @property
    def text(self) -> str:
        return f"rows of {self.name} that do not begin and end at multiples of {self.bytes} bytes"

    def check(self, call: Call) -> str | None:
        if (x := _tensor(call, self.name)) is None or x.shape[-1] * x.element_size() % self.bytes:
            return None
        if Aligned(self.name, self.bytes).check(call) is not None:
            return None
        return f"rows of {self.name} begin and end at multiples of {self.bytes} bytes"


@dataclass(frozen=True)
class OddLines:
    """The lines of the matrix `name` lie an odd number of elements apart: neighbours never begin alike."""

    name: str

    @property
    def text(self) -> str:
        return f"lines of {self.name} an odd number of elements apart"

    def check(self, call: Call) -> str | None:
        if (x := _tensor(call, self.name)) is None or x.stride(0) % 2:
            return None
        return f"{self.name} has a stride of {x.stride(0)} elements, needs an odd number"


@dataclass(frozen=True)
class Either:
    """One of two conditions holds."""

    first: Condition
    second: Condition

    @property
    def text(self) -> str:
        return f"{self.first.text}, or {self.second.text}"

    def check(self, call: Call) -> str | None:
        first, second = self.first.check(call), self.second.check(call)
        if first is None or second is None:
            return None
        observed = (why.partition(", needs ")[0] for why in (first, second))
        return f"{' and '.join(observed)}, needs {self.text}"


@dataclass(frozen=True)
class Capability:
    """The GPU (or the emulated one) has compute capability `minimum` or more, and less than `below` if given."""

    minimum: tuple[int, int]
    below: tuple[int, int] | None = None

    @property
    def text(self) -> str:
        upper = f", before {sm(self.below)}" if self.below else " or newer"
        return f"{sm(self.minimum)}{upper}"

    def check(self, call: Call) -> str | None:
        have = call.capability
        return None if have is None or self.admits(have) else f"the GPU is {sm(have)}, needs {self.text}"

    def admits(self, capability: tuple[int, int]) -> bool:
        """Whether a GPU of this compute capability will do."""
        return capability >= self.minimum and (self.below is None or capability < self.below)


@dataclass(frozen=True)
class SharedMemory:
    """A block of the GPU may have the shared memory that the least launch of the variant asks for.

    bytes: static and dynamic together; a function of the call where its lengths or dtypes decide.
    """

    bytes: int | Callable[[Call], int]

    @property
    def text(self) -> str:
        told = "enough" if callable(self.bytes) else f"{self.bytes}"
        return f"{told} bytes of shared memory per block"

    def check(self, call: Call) -> str | None:
        card = call.card
        need = self.bytes(call) if callable(self.bytes) else self.bytes
        if card is None or need <= card.shared_per_block:
            return None
        return f"{card} has {card.shared_per_block} bytes of shared memory per block, needs {need}"


@dataclass(frozen=True)
class Multiplies:
    """The tensor cores of the GPU multiply the dtype of tensor `name`; float32 stands for tf32."""

    name: str

    @property
    def text(self) -> str:
        return f"tensor cores for the dtype of {self.name}"

    def check(self, call: Call) -> str | None:
        x = _tensor(call, self.name)
        if call.capability is None or x is None:
            return None
        since = cards.SINCE.get("tf32" if x.dtype == torch.float32 else dtypes.SHORT[x.dtype])
        if since is None or call.capability >= since:
            return None
        card = "" if call.hypothetical else f" ({call.card})"
        return f"the GPU is {sm(call.capability)}{card}, needs {sm(since)} or newer to multiply {dtypes.SHORT[x.dtype]}"


def sm(capability: tuple[int, int]) -> str:
    """sm_90 for (9, 0)."""
    return f"sm_{capability[0]}{capability[1]}"
