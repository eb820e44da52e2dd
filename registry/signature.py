"""The parts of a spec's signature, and a call that was checked against it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kernelmux.registry.cost import Cost
from kernelmux.registry.dtypes import FLOATS

if TYPE_CHECKING:
    from kernelmux.registry.spec import OpSpec

REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Tensor:
    """A tensor argument.

    dims: symbolic axes, e.g. "... N" or "M K"; a letter that stands in two places must have one length, "..." is any
    number of leading axes. dtypes: what is allowed; like: has the dtype of that earlier argument instead.
    host: the tensor lives in host memory (pinned where there is a GPU).
    """

    name: str
    dims: str
    dtypes: tuple[torch.dtype, ...] = FLOATS
    like: str | None = None
    host: bool = False
    doc: str = ""


@dataclass(frozen=True)
class Scalar:
    """A scalar argument: type float, int, bool or str; choices or an inclusive range limit it.

    optional: None is a value as well; the spec's `normalise` says what it stands for. trials: values that the suite
    tries besides the default: zero, negative, large and small ones, and some that are no power of two.
    """

    name: str
    type: type
    default: Any = REQUIRED
    choices: tuple[Any, ...] = ()
    range: tuple[float, float] | None = None
    optional: bool = False
    trials: tuple[Any, ...] = ()
    doc: str = ""


@dataclass(frozen=True)
class Axis:
    """A scalar that names one axis of the tensor `of`; negative values count from the end, implementations see none.

    optional: None stands for all axes.
    """

    name: str
    of: str
    default: Any = REQUIRED
    optional: bool = False
    doc: str = ""


@dataclass(frozen=True)
class Output:
    """A fresh contiguous tensor.

    like: the tensor argument whose dtype it has, unless `dtype` is another one or a rule that says which. dims: as for
    inputs, "like" for the shape of that argument, or a rule. A floating output is judged by the bound of its error
    model; an output of another dtype, such as an index, must be equal to the reference.
    """

    name: str
    like: str
    dims: str | Callable[[Call], tuple[int, ...]] = "like"
    dtype: torch.dtype | Callable[[Call], torch.dtype] | None = None
    doc: str = ""

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
        return tuple(n for d in self.dims.split() for n in (call.axes["..."] if d == "..." else (call.axes[d],)))


@dataclass(frozen=True)
class Constraint:
    """A relation between axes or scalars that every call must meet, with the text that the error shows."""

    text: str
    holds: Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True)
class Call:
    """A call that passed validation: arguments in spec order, scalars normalised, axes by letter ("..." holds a tuple).

    device: where it runs. capability: of the GPU (or the emulated one), None on a CPU. hypothetical: shapes, no data.
    """

    spec: OpSpec
    arguments: dict[str, Any]
    axes: dict[str, Any]
    device: torch.device
    capability: tuple[int, int] | None = None
    hypothetical: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the first tensor."""
        dtype: torch.dtype = self.arguments[self.spec.tensors[0].name].dtype
        return dtype

    @property
    def scalars(self) -> dict[str, Any]:
        names = {t.name for t in self.spec.tensors}
        return {k: v for k, v in self.arguments.items() if k not in names}

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
