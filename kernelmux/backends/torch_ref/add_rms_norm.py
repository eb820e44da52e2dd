"""Sum and RMS norm by torch.add and torch.nn.functional.rms_norm."""

import torch

from kernelmux.registry.backend import Implementation


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    total = torch.add(x, residual).contiguous()
    return torch.nn.functional.rms_norm(total, weight.shape, weight, eps).contiguous(), total


VARIANTS = {"plain": Implementation(fn=add_rms_norm, idea="torch.add, then torch.nn.functional.rms_norm")}
