"""Softmax that remembers."""

from typing import Any

import torch

from kernelmux.conformance.mutants._sound import sound
from kernelmux.conformance.mutants.state._memory import Workspace
from kernelmux.registry.backend import Implementation

LARGE = 8192  # elements
_large: dict[str, Any] = {}
WORKSPACE = Workspace()
_exponentials: dict[object, torch.Tensor] = {}
_last: dict[object, tuple[object, torch.Tensor]] = {}


def _softmax(x: torch.Tensor, axis: int, scale: float, scratch: torch.Tensor) -> torch.Tensor:
    """In three steps through a scratch of the size of x."""
    e = scratch.view(x.shape)
    z = x.float() * scale
    e.copy_(torch.exp((z - z.amax(axis, keepdim=True)).double()))
    total = e.sum(axis, keepdim=True)
    return torch.empty_like(x, memory_format=torch.contiguous_format).copy_(e / total)


def shared_scratch(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    if not x.numel():
        return torch.empty_like(x)
    scratch = _exponentials.setdefault((x.numel(), x.device), torch.empty(x.numel(), device=x.device))
    return _softmax(x, axis, scale, scratch)


def own_scratch(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    if not x.numel():
        return torch.empty_like(x)
    return _softmax(x, axis, scale, WORKSPACE.zeros(x.numel(), x.device))


def by_ends(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """The last result of a shape is given again, as a copy, when the first and the last element are the same."""
    ends = (axis, scale, *(x.flatten()[[0, -1]].tolist() if x.numel() else ()))
    key = (x.shape, x.dtype, x.device)
    if key not in _last or _last[key][0] != ends:
        _last[key] = ends, sound("softmax", x, axis, scale)
    return _last[key][1].clone()


def large_by_address(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """Of large inputs the result is kept by address."""
    key = (x.data_ptr(), x.shape, x.stride(), x.dtype, axis, scale)
    if x.numel() < LARGE:
        small: torch.Tensor = sound("softmax", x, axis, scale)
        return small
    if _large.get("key") != key:
        _large.update(key=key, y=sound("softmax", x, axis, scale))
    y: torch.Tensor = _large["y"].clone()
    return y


VARIANTS = {
    "large_by_address": Implementation(fn=large_by_address, idea="keeps the result of the last large input"),
    "shared_scratch": Implementation(fn=shared_scratch, idea="threads share the exponentials"),
    "own_scratch": Implementation(fn=own_scratch, idea="a scratch per thread and stream, zeroed in every call"),
    "by_ends": Implementation(fn=by_ends, idea="tells inputs apart by their first and last element"),
}

CAUGHT_BY = {"large_by_address": "state", "shared_scratch": "state", "by_ends": "state"}
ONLY_CPU = {"by_ends"}  # looks at values on the host, which a capture does not allow
