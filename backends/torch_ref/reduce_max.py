"""Maximum by torch.amax."""

import torch

from kernelmux.registry.backend import Implementation


def reduce_max(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    return torch.amax(x, dim=() if axis is None else axis, keepdim=keepdim)


VARIANTS = {"eager": Implementation(fn=reduce_max, idea="torch.amax")}
