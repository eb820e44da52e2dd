"""Errors that torch raises inside of a call because of what its tensors are: told with the operator and the argument.

Fake tensors beside real ones, classes of tensors that take no operators but their own, tensors of inference mode that a
backward would keep, lengths and values that depend on data. Nothing here runs while calls succeed. Where torch.compile or
torch.export trace, their own errors pass as they are: they look at them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import torch
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor

from kernelmux.registry.errors import ArgumentError, KernelmuxError, UnsupportedError, cut
from kernelmux.registry.spec import binding
from kernelmux.registry.spec.signature import Spec
from kernelmux.registry.util import torch_modes

Tensors = Mapping[str, torch.Tensor]
DATA = {"GuardOnDataDependentSymNode", "DataDependentOutputException", "DynamicOutputShapeException"}  # of torch


class TorchErrorTranslation:
    """Around a part of a call: an error of torch that speaks of its tensors leaves it as one of ours."""

    __slots__ = ("_spec", "_values")

    def __init__(self, spec: Spec, values: tuple[Any, ...]) -> None:
        self._spec, self._values = spec, values

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            tell(error, self._spec, self._values)


def tell(error: BaseException, spec: Spec, values: tuple[Any, ...]) -> None:
    """Raise ArgumentError or UnsupportedError from an error of torch about these arguments; return from any other."""
    if not isinstance(error, KernelmuxError) and (found := _typed(error, spec, values)):
        raise found from error


def check_memory(spec: Spec, values: tuple[Any, ...]) -> None:
    """ArgumentError for a tensor without strides or memory: torch faults where it prints one that was freed.

    A dispatch mode may print it, and so does what torch says of a fake tensor beside one in memory.
    """
    pairs = zip(spec.inputs, values, strict=False)
    if found := _without_memory(spec.name, {i.name: v for i, v in pairs if isinstance(v, torch.Tensor)}):
        raise found


def _typed(error: BaseException, spec: Spec, values: tuple[Any, ...]) -> KernelmuxError | None:
    if torch.compiler.is_compiling() or TracingContext.try_get() is not None:
        return None
    pairs = zip(spec.inputs, values, strict=False)
    given = {i.name: torch_modes.innermost(v) for i, v in pairs if isinstance(v, torch.Tensor)}
    if type(error).__name__ in DATA:
        return _data(error, spec.name, given)
    text = str(error)
    if isinstance(error, TypeError) and OPERANDS.search(text):
        return _refused(spec.name, given)
    return next((of(spec.name, given) for begin, of in CAUSES.items() if text.startswith(begin)), None)


def _fake(op: str, given: Tensors) -> KernelmuxError | None:
    """The error for a tensor in memory where all have to be fake."""
    real = next((name for name, x in given.items() if not isinstance(x, FakeTensor)), None)
    if real is None:
        return ArgumentError(
            f"{op}: {', '.join(given)}: expected a call inside of their FakeTensorMode, as this backend makes tensors of"
            f" its own, got one outside of it"
        )
    fake = next((name for name, x in given.items() if isinstance(x, FakeTensor)), "the mode in force")
    return ArgumentError(
        f"{op}: {real}: expected a fake tensor, as {fake} is fake, got a {type(given[real]).__name__} in memory:"
        f" convert it by FakeTensorMode.from_tensor, or make the mode with allow_non_fake_inputs=True"
    )


def _modes(op: str, given: Tensors) -> KernelmuxError | None:
    """The error for fake tensors of several modes."""
    names = ", ".join(name for name, x in given.items() if isinstance(x, FakeTensor))
    return ArgumentError(
        f"{op}: {names}: expected fake tensors of one FakeTensorMode, which is in force, got several modes"
    )


def _refused(op: str, given: Tensors) -> KernelmuxError | None:
    """The error for a class of tensors whose `__torch_dispatch__` knows none of the operators that would run.

    That of FakeTensor knows none of a subclass in memory.
    """
    fakes = [name for name, x in given.items() if isinstance(x, FakeTensor)]
    if fakes or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
        return _fake(op, given) if len(fakes) < len(given) else None
    odd = {name: x for name, x in given.items() if type(x).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__}
    if not odd:
        return None
    told = ", ".join(f"{name} of {type(x).__module__}.{type(x).__qualname__}" for name, x in odd.items())
    return UnsupportedError(
        f"{op}: {', '.join(odd)}: expected a torch.Tensor, or one of a class that takes this operator, got {told}, whose"
        f" __torch_dispatch__ returns NotImplemented: pass the plain tensor that it holds, or use a backend made of torch's"
        f" operators, such as torch_ref, if it takes those"
    )


def _inference(op: str, given: Tensors) -> KernelmuxError | None:
    """The error for a tensor of inference mode that the backward of the call would have to keep."""
    names = [name for name, x in given.items() if x.is_inference()]
    if not names:
        return None
    wanted = ", ".join(name for name, x in given.items() if x.requires_grad)
    return ArgumentError(
        f"{op}: {', '.join(names)}: expected a tensor that a backward can keep{f' for {wanted}' if wanted else ''}, got one"
        f" made in torch.inference_mode(): pass its clone(), or call the operator under torch.no_grad()"
    )


def _without_memory(op: str, given: Tensors) -> KernelmuxError | None:
    """The error for a tensor that no operator here takes, where torch has met it first."""
    problems = ((name, binding.lacking(x)) for name, x in given.items())
    return next((ArgumentError(f"{op}: {name}: {problem}") for name, problem in problems if problem), None)


def _classes(op: str, given: Tensors) -> KernelmuxError | None:
    """The error for subclasses of which torch makes no result: of several classes, or in inference mode."""
    odd = {name: x for name, x in given.items() if type(x) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)}
    told = ", ".join(f"{name} of {type(x).__module__}.{type(x).__qualname__}" for name, x in odd.items())
    return (
        UnsupportedError(
            f"{op}: {', '.join(odd)}: expected plain tensors, or those of one class outside of inference mode, got {told}"
        )
        if odd
        else None
    )


def _axes(op: str, given: Tensors) -> KernelmuxError | None:
    """The error for more axes than a library takes that torch calls: oneDNN's gelu has 12."""
    name, x = max(given.items(), key=lambda pair: pair[1].dim())
    return UnsupportedError(
        f"{op}: {name}: expected as many axes as torch's own operator takes, got {x.dim()}: flatten some of them, or use a"
        f" backend with kernels"
    )


OPERANDS = re.compile(
    "^(Multiple dispatch failed|unsupported operand type|no implementation found for)|not supported between instances of"
)
CAUSES: Mapping[str, Callable[[str, Tensors], KernelmuxError | None]] = {
    "Please convert all Tensors to FakeTensors": _fake,
    "Mixing fake modes": _modes,
    "Could not run '": _without_memory,
    "dimensions are invalid": _axes,
    "setStorage: sizes": _without_memory,
    "kernelmux.": _without_memory,
    "Creating a new Tensor subclass": _classes,
    "Cannot set version_counter for inference tensor": lambda op, given: (
        _classes(op, given) or _without_memory(op, given)
    ),
    "Inference tensors cannot be saved for backward": _inference,
}


def _data(error: BaseException, op: str, given: Tensors) -> KernelmuxError:
    """The error for lengths, or values, that are not known before the call runs."""
    lengths = {name: x.shape for name, x in given.items() if any(isinstance(n, torch.SymInt) for n in x.shape)}
    first = cut(str(error).partition("\n")[0])
    if not lengths:
        return UnsupportedError(
            f"{op}: {', '.join(given)}: expected tensors with values, which this backend reads, got fake ones ({first}):"
            f" call torch.ops.kernelmux.{op}, or a backend with kernels, whose results have their shapes without"
        )
    told = ", ".join(f"{name} {list(shape)}" for name, shape in lengths.items())
    return UnsupportedError(
        f"{op}: {', '.join(lengths)}: expected lengths that are known, or known to be equal, got {cut(told)}, which depend"
        f" on data ({first}): say what holds of them by torch._check before the call"
    )
