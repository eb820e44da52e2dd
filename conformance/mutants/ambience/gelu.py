"""GELU that draws from torch's generator."""

import math

import torch

from kernelmux.registry.backend import Implementation


def probed(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """Times itself on random numbers before it runs; they come out of the generator of the whole process."""
    z = x.double()
    _ = torch.special.erfc(torch.randn(16, dtype=torch.float64, device="cpu"))
    if approximate == "tanh":
        y = 0.5 * z * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    else:
        y = 0.5 * z * torch.special.erfc(-z / math.sqrt(2))
    return y.to(x.dtype).contiguous()


VARIANTS = {"probed": Implementation(fn=probed, idea="tries itself on random numbers at every call")}

CAUGHT_BY = {"probed": "ambience"}
