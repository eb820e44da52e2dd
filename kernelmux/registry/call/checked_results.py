"""What an implementation returns: looked at until it was right once, so that a wrong number of outputs is an error.

A spec that gains an output cannot be told from the signature of an implementation. The first result shows it: until one
had every output, each is looked at, and a plan of such a call is not remembered. Later calls pay nothing. Implementations
of this package are not looked at: the suite does that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.errors import SpecError
from kernelmux.registry.spec.signature import Spec

OWN = "kernelmux."
_right: dict[int, Callable[..., Any]] = {}  # by the id of the function, which this keeps alive


def looking(spec: Spec, name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function of the variant `name`, which looks at its result; the very same one where that is known to be right."""
    return fn if _known(name, fn) else ResultCheck(spec, name, fn)


def _known(name: str, fn: Callable[..., Any]) -> bool:
    return id(fn) in _right or registered.package(name.partition("/")[0]).startswith(OWN)


class ResultCheck:
    """A function that raises SpecError unless it returns what the spec says."""

    __slots__ = ("_fn", "_name", "_spec")

    def __init__(self, spec: Spec, name: str, fn: Callable[..., Any]) -> None:
        self._spec, self._name, self._fn = spec, name, fn

    def __call__(self, *values: Any) -> Any:
        result = self._fn(*values)
        if problem := malformed(self._spec, result):
            outputs = ", ".join(_name_since(o.name, o.since) for o in self._spec.outputs)
            raise SpecError(f"{self._spec.name}: {self._name} returned something else than {outputs}: {problem}")
        _right[id(self._fn)] = self._fn
        return result


def _name_since(name: str, since: int) -> str:
    return f"{name} (since version {since} of the spec)" if since > 1 else name


def malformed(spec: Spec, result: Any) -> str:
    """What is wrong with the kind and number of the objects that an implementation returned, or ""."""
    want, got = len(spec.outputs), result if isinstance(result, tuple) else (result,)
    if isinstance(result, torch.Tensor | tuple) and len(got) != want:
        return f"expected {want} output{'s' * (want > 1)}, got {len(got)}"
    if want > 1 and not isinstance(result, tuple):
        return f"expected a tuple of {want} tensors, got {_kind(result)}"
    odd = next((i for i, x in enumerate(got) if not isinstance(x, torch.Tensor)), None)
    if odd is None:
        return ""
    place = f"{spec.outputs[odd].name}: " if want > 1 else ""
    return f"{place}expected a torch.Tensor, got {_kind(got[odd])}"


def _kind(value: Any) -> str:
    """What an object is, in words: None, numpy.ndarray, list of 2."""
    if value is None:
        return "None"
    module = type(value).__module__
    name = type(value).__qualname__ if module == "builtins" else f"{module}.{type(value).__qualname__}"
    return f"{name} of {len(value)}" if isinstance(value, list | tuple) else name
