"""Calls of swapped modules that ran before and that the operators do not take: they run as before, and are counted.

Whether the operator takes a call is decided before it, by dtypes and numbers of axes: a compiler sees constants there, and
its graph has one of the two. A module of `kernelmux.nn` that a user makes has nothing of this, and raises.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Proxy

from kernelmux.registry.choice import warn_once
from kernelmux.registry.dtypes import FLOATS, SHORT  # FLOATS: those of every operator that modules are swapped for
from kernelmux.registry.observe import counters


def unsuited(x: torch.Tensor | Proxy, *others: torch.Tensor | None) -> str | None:
    """What no operator takes about the dtypes, layout and device of tensors that need one dtype, or None."""
    if isinstance(x, Proxy):
        return "torch.fx.symbolic_trace shows no dtypes"
    if x.dtype not in FLOATS:
        return f"its input is {SHORT.get(x.dtype, x.dtype)}"
    for other in others:
        if other is not None and other.dtype != x.dtype and not _cast(x, other):
            return f"its tensors are {SHORT[x.dtype]} and {SHORT.get(other.dtype, other.dtype)}"
    if x.is_nested or x.layout != torch.strided:
        return "its input is nested or sparse"
    if x.is_cpu or x.is_cuda or (x.is_meta and all(other is None or other.is_meta for other in others)):
        return None
    return f"its input is on {x.device.type}"


def misfit(x: torch.Tensor, weight: torch.Tensor) -> str | None:
    """The same for a norm of rows, whose weight has an element for each column."""
    same = x.dim() and x.shape[-1] == weight.shape[0]
    return unsuited(x, weight) or (None if same else "its input has not as many columns as its weight")


def _cast(x: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether autocast gives both one dtype."""
    return other.dtype in FLOATS and (x.is_cpu or x.is_cuda) and torch.is_autocast_enabled(x.device.type)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def tell(op: str, reason: str) -> None:
    """Count a call that runs as before, and warn of the first; of a compiled model when it is compiled."""
    counters.counter(counters.Ran(op, "torch", "patch()", reason)).tick()
    warn_once.warn_left(op, reason)


def guarded(ours: Any, cls: Any) -> Callable[..., Any]:
    """The forward of ours for a module that had `cls`: that of `cls` where ours declines the call."""

    def forward(self: Any, *inputs: Any, **named: Any) -> Any:
        if reason := ours.declined(self, *inputs, **named):
            tell(ours.op, reason)
            return cls.forward(self, *inputs, **named)
        return ours.forward(self, *inputs, **named)

    # Code of its own: torch.compile keeps graphs by code, and a few of them for each.
    own = types.FunctionType(forward.__code__.replace(), forward.__globals__, "forward", None, forward.__closure__)
    return functools.update_wrapper(own, ours.forward)
