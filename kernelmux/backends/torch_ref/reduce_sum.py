"""Sum by torch.sum."""

import torch

from kernelmux.registry.backend import Implementation


def reduce_sum(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    return torch.sum(x, dim=axis, keepdim=keepdim).contiguous()


VARIANTS = {"plain": Implementation(fn=reduce_sum, idea="torch.sum")}
