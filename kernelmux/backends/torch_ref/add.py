"""Elementwise sum by torch.add."""

import torch

from kernelmux.registry.backend import Implementation


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.add(x, y).contiguous()  # torch keeps the strides of its inputs


VARIANTS = {"plain": Implementation(fn=add, idea="torch.add")}
