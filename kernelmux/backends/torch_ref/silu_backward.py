"""Gradient of SiLU by the function that torch's autograd calls."""

import torch

from kernelmux.backends.torch_ref._activations import silu_gradient
from kernelmux.registry.backend import Implementation


def silu_backward(grad_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return silu_gradient(grad_out, x).contiguous()


VARIANTS = {"plain": Implementation(fn=silu_backward, idea="torch.ops.aten.silu_backward")}
