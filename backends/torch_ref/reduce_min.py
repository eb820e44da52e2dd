"""Minimum by torch.amin."""

import torch

from kernelmux.registry.backend import Implementation


def reduce_min(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    return torch.amin(x, dim=() if axis is None else axis, keepdim=keepdim)


VARIANTS = {"eager": Implementation(fn=reduce_min, idea="torch.amin")}
