"""GELU that returns something else than a tensor."""

import math
from typing import Any

import torch

from kernelmux.registry.backend import Implementation


def _gelu(x: torch.Tensor, approximate: str) -> torch.Tensor:
    z = x.double()
    if approximate == "tanh":
        y = 0.5 * z * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    else:
        y = 0.5 * z * torch.special.erfc(-z / math.sqrt(2))
    return y.to(x.dtype).contiguous()


def as_array(x: torch.Tensor, approximate: str) -> Any:
    return _gelu(x.float(), approximate).cpu().numpy()


def nothing_when_empty(x: torch.Tensor, approximate: str) -> Any:
    return _gelu(x, approximate) if x.numel() else None


VARIANTS = {
    "as_array": Implementation(fn=as_array, idea="returns an array of numpy"),
    "nothing_when_empty": Implementation(fn=nothing_when_empty, idea="returns None where there is nothing to do"),
}

CAUGHT_BY = {"as_array": "accuracy", "nothing_when_empty": "accuracy"}
