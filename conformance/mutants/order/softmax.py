"""Softmax whose long sums begin at a place that changes."""

from itertools import count

import torch

from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation

LONG = 1000  # elements along the axis
_turn = count(1)


def rotating(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """Rows in parts of 256 columns; which part comes first changes from call to call."""
    if x.shape[axis] < LONG:
        result: torch.Tensor = sound("softmax", x, axis, scale)
        return result
    z = (x.double() * scale).movedim(axis, -1)
    e = torch.exp(z - z.amax(-1, keepdim=True)).float()
    parts = list(e.split(256, -1))
    first = next(_turn) % len(parts)
    total = torch.zeros(e.shape[:-1], device=x.device, dtype=torch.float32)
    for part in parts[first:] + parts[:first]:
        total += part.sum(-1)
    y = (e / total.unsqueeze(-1)).movedim(-1, axis)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(y)


VARIANTS = {"rotating": Implementation(fn=rotating, idea="sums of long rows begin elsewhere in every call")}

CAUGHT_BY = {"rotating": "repeatability"}
