"""KERNELMUX_CHECK=1: values that no call may have, such as a target that is no class, are errors in every backend.

Without it nothing is added to any call, and what such a value gives is said in the spec: NaN, as a kernel on a GPU cannot
raise. With it each call of an operator that takes indices (`value_domains.Index`, `value_domains.Count`) looks at them
first, which waits for a GPU. Not looked at: what torch traces, and what is captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.spec.signature import Call
from kernelmux.registry.spec.value_domains import Count, Index
from kernelmux.registry.util import torch_modes

VARIABLE = "KERNELMUX_CHECK"
PLACES = ("row", "column")
_C: Any = torch._C


def looking(bound: Call, fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which looks at its indices first; the very same one where a call has none."""
    return ValueCheck(bound, fn) if _domains(bound) else fn


def _domains(bound: Call) -> dict[str, Index | Count]:
    given = ((t.name, t.domain) for t in bound.spec.tensors if bound.arguments[t.name] is not None)
    return {name: domain for name, domain in given if isinstance(domain, Index | Count)}


class ValueCheck:
    """A function that raises ArgumentError for an index that points nowhere; no tensor of the call is kept."""

    __slots__ = ("_axes", "_domains", "_fn", "_names", "_op")

    def __init__(self, bound: Call, fn: Callable[..., Any]) -> None:
        self._op, self._fn, self._axes = bound.spec.name, fn, bound.axes
        self._names, self._domains = tuple(bound.arguments), _domains(bound)

    def __call__(self, *values: Any) -> Any:
        if not (_C._len_torch_dispatch_stack() or _C._get_tracing_state() is not None):
            arguments = dict(zip(self._names, values, strict=True))
            for name, domain in self._domains.items():
                if seen(arguments[name]):
                    look(self._op, name, domain, self._axes, arguments)
        return self._fn(*values)


def seen(x: torch.Tensor) -> bool:
    """Whether the values of x can be read now."""
    inner = torch_modes.innermost(x)
    readable = torch_modes.has_memory(inner) and not inner.is_meta
    return readable and not (inner.is_cuda and torch.cuda.is_current_stream_capturing())


def look(op: str, name: str, domain: Index | Count, axes: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Raise ArgumentError for the first value outside of its domain, with its place."""
    values = arguments[name]
    if found := first_wrong(domain.wrong(values, axes, arguments), values):
        place = ", ".join(f"{of} {i}" for of, i in zip(PLACES, found[1], strict=False))
        legal = domain.expected(name, axes, arguments)
        raise ArgumentError(f"{op}: {name}: expected {legal}, got {found[0]}{f' in {place}' if place else ''}")


def first_wrong(wrong: torch.Tensor, values: torch.Tensor) -> tuple[int, list[int]] | None:
    """The first wrong one among integers and its index; wrong: which of them are.

    Under vmap all examples are looked at, and there is no index.
    """
    if not bool(torch_modes.innermost(wrong).any()):
        return None
    if not torch_modes.mapped(wrong):
        index = wrong.nonzero()[0].tolist()
        return int(values[tuple(index)]), index
    values = values.long()
    among = torch_modes.innermost(torch.where(wrong, 1, values * 0))  # as the line below, so that both lie alike
    found = torch_modes.innermost(torch.where(wrong, values, 0))
    return int(found[among.bool()][0]), []
