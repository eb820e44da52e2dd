"""Which values a tensor argument has: the inputs that the suites generate keep to them.

Tensor("x", "M N")                                                             any number
Tensor("scale", "", domain=Positive())                                         a number above 0
Tensor("target", "M", dtypes=(torch.int64,), domain=Index("V", ("ignore_index",)))   0 to V - 1, or ignore_index
Tensor("lengths", "B", dtypes=(torch.int32,), domain=Count("L", "S"))          0 to L * S
Tensor("y", "...", domain=LogProbabilities("axis"))                            logarithms of probabilities
Tensor("lse", "M", domain=Computed(lambda a: a["logits"].logsumexp(-1)))       what follows from other arguments
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.util.memory_format import format_of

NEAR_ONE = 0.05  # how far the logarithm of a sum of rounded probabilities may lie from 0
OFTEN = 8  # of so many integers that lie anywhere one becomes a value of `Index.extra`


class _Spec(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def tensors(self) -> Sequence[Any]: ...
    @property
    def signature(self) -> inspect.Signature: ...
    def bind(self, *args: Any, **kwargs: Any) -> Any: ...


class Given(Protocol):
    """What a domain reads of a call: see `signature.Call`, which it is."""

    @property
    def spec(self) -> _Spec: ...
    @property
    def axes(self) -> Mapping[str, Any]: ...
    @property
    def scalars(self) -> Mapping[str, Any]: ...
    @property
    def exact(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Real:
    """Any value of the dtype."""

    def lawful(self, x: torch.Tensor, call: Given) -> torch.Tensor:
        return x


@dataclass(frozen=True)
class Positive:
    """Numbers above 0; NaN and infinity as they are."""

    def lawful(self, x: torch.Tensor, call: Given) -> torch.Tensor:
        least = torch.finfo(x.dtype).smallest_normal
        return torch.where(x > 0, x, x.abs().clamp(min=least))


@dataclass(frozen=True)
class Index:
    """Integers that point into an axis, from 0 to its length - 1, or one of the values of the scalars `extra`.

    used: from the arguments of a call which of them it looks at, where not at all: in the others anything may stand.
    """

    axis: str
    extra: tuple[str, ...] = ()
    used: Callable[[Mapping[str, Any]], torch.Tensor] | None = None

    def lawful(self, x: torch.Tensor, call: Given) -> torch.Tensor:
        length, others = call.axes[self.axis], [call.scalars[name] for name in self.extra]
        if not length and not others and x.numel():
            raise ArgumentError(f"{call.spec.name}: an index needs an axis {self.axis} longer than 0")
        turn = x.div(max(length, 1), rounding_mode="floor")
        found = x - turn * length if length else torch.full_like(x, others[0] if others else 0)
        for i, value in enumerate(others):
            found = torch.where(turn % (OFTEN * len(others)) == OFTEN * (i + 1) - 1, value, found)
        every: torch.Tensor = replace(self, used=None).wrong(x, call.axes, call.scalars)
        return torch.where(every, found, x)

    def wrong(self, x: torch.Tensor, axes: Mapping[str, Any], arguments: Mapping[str, Any]) -> torch.Tensor:
        """Which of them point nowhere."""
        outside: torch.Tensor = (x < 0) | (x >= axes[self.axis])
        for name in self.extra:
            outside = outside & (x != arguments[name])
        return outside & self.used(arguments) if self.used else outside

    def expected(self, name: str, axes: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
        """What each may be, for an error."""
        return " or ".join([f"0 <= {name} < {axes[self.axis]}", *(f"{n} = {arguments[n]}" for n in self.extra)])


@dataclass(frozen=True, init=False)
class Count:
    """Whole numbers from 0 to the product of axes: how many elements of them are in use."""

    axes: tuple[str, ...]

    def __init__(self, *axes: str) -> None:
        object.__setattr__(self, "axes", axes)

    def lawful(self, x: torch.Tensor, call: Given) -> torch.Tensor:
        found = torch.remainder(x.long(), self._most(call.axes) + 1).to(x.dtype)
        return torch.where(self.wrong(x, call.axes, call.scalars), found, x)

    def wrong(self, x: torch.Tensor, axes: Mapping[str, Any], arguments: Mapping[str, Any]) -> torch.Tensor:
        """Which of them are no such number."""
        return (x < 0) | (x > self._most(axes))

    def expected(self, name: str, axes: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
        """What each may be, for an error."""
        return f"0 <= {name} <= {self._most(axes)}"

    def _most(self, axes: Mapping[str, Any]) -> int:
        return math.prod(axes[axis] for axis in self.axes)


@dataclass(frozen=True)
class LogProbabilities:
    """Logarithms of numbers that add up to 1 along the axis that a scalar names; NaN and infinity as they are."""

    axis: str

    def lawful(self, x: torch.Tensor, call: Given) -> torch.Tensor:
        if not x.numel():
            return x
        along = call.scalars[self.axis]
        kept = torch.isfinite(x)
        total = torch.logsumexp(torch.where(kept, x, -torch.inf).double(), along, keepdim=True)
        done = total.abs() <= NEAR_ONE
        return torch.where(kept & ~done & torch.isfinite(total), (x.double() - total).to(x.dtype), x)


@dataclass(frozen=True)
class Computed:
    """What a function makes of the other arguments, such as what a forward call has saved.

    The function takes the arguments of the call by name, floating tensors in float64, and returns a tensor in float64,
    which is rounded to the dtype of this one and lies as this one does: contiguous, or channels-last.
    """

    function: Callable[[Mapping[str, Any]], torch.Tensor]

    def lawful(self, x: torch.Tensor, call: Given) -> torch.Tensor:
        made = self.function(call.exact)
        if made.shape != x.shape:
            raise ArgumentError(
                f"{call.spec.name}: a computed tensor has shape {list(made.shape)}, not {list(x.shape)}"
            )
        return made.to(x.dtype).to(x.device).contiguous(memory_format=format_of(x))


Domain = Real | Positive | Index | Count | LogProbabilities | Computed
REAL = Real()


def lawful(spec: _Spec, tensors: Mapping[str, torch.Tensor], scalars: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of a call, each with values of its domain; those that have them already stay as they are.

    Computed tensors come last, from the others; only their shape and dtype are looked at. ArgumentError if the spec does
    not allow such a call.
    """
    found: dict[str, Any] = dict(tensors)
    for computed in (False, True):
        for item in spec.tensors:
            if item.name in found and item.domain != REAL and isinstance(item.domain, Computed) == computed:
                call = spec.bind(**found, **{k: v for k, v in scalars.items() if k in spec.signature.parameters})
                found[item.name] = item.domain.lawful(found[item.name], call)
    return found
