"""GELU by torch.nn.functional.gelu."""

import torch

from kernelmux.registry.backend import Implementation


def gelu(x: torch.Tensor, approximate: str) -> torch.Tensor:
    return torch.nn.functional.gelu(x, approximate=approximate)


VARIANTS = {"eager": Implementation(fn=gelu, idea="torch.nn.functional.gelu")}
