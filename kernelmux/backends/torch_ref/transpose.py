"""Transpose as torch users write it; the copy makes the work comparable."""

import torch

from kernelmux.registry.backend import Implementation


def transpose(x: torch.Tensor) -> torch.Tensor:
    return x.t().clone(memory_format=torch.contiguous_format)


VARIANTS = {"plain": Implementation(fn=transpose, idea="t() and a contiguous copy")}
