"""Sums that remember."""

from itertools import count

import torch

from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation

_zeros: dict[object, torch.Tensor] = {}
_seen: list[torch.Tensor] = []
_counts: dict[object, "count[int]"] = {}


def shared_zeros(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """The sums over nothing are made once for each shape."""
    y: torch.Tensor = sound("reduce_sum", x, axis, keepdim)
    return y if x.numel() else _zeros.setdefault((y.shape, y.dtype, y.device), y)


def leak(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """A list of what was summed, "for statistics"."""
    if not (x.is_cuda and torch.cuda.is_current_stream_capturing()):
        _seen.append(x.detach().clone())
    result: torch.Tensor = sound("reduce_sum", x, axis, keepdim)
    return result


def tenth(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """Every tenth call of a shape starts from what the one before left in the accumulator."""
    y: torch.Tensor = sound("reduce_sum", x, axis, keepdim)
    turn = next(_counts.setdefault((x.shape, x.dtype, axis), count(1)))
    return y.mul_(2) if turn % 10 == 0 else y


VARIANTS = {
    "shared_zeros": Implementation(fn=shared_zeros, idea="sums over nothing share their zeros"),
    "leak": Implementation(fn=leak, idea="keeps a copy of every input"),
    "tenth": Implementation(fn=tenth, idea="every tenth call of a shape is wrong"),
}

CAUGHT_BY = {"shared_zeros": "state", "leak": "state", "tenth": "state"}
