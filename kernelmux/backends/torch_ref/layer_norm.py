"""Layer norm by torch.nn.functional.layer_norm."""

import torch

from kernelmux.registry.backend import Implementation
from kernelmux.registry.util import torch_modes


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    dtype = x.dtype
    if torch_modes.transformed() and any(torch_modes.mapped(t) for t in (weight, bias) if t is not None):
        # Under vmap torch rounds the normalised row before it multiplies with a weight for each example.
        x, weight, bias = x.float(), weight.float(), bias if bias is None else bias.float()
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, eps).to(dtype).contiguous()


VARIANTS = {"plain": Implementation(fn=layer_norm, idea="torch.nn.functional.layer_norm")}
