"""silu_backward: grad_out * silu'(x)."""

from __future__ import annotations

import torch
import triton

from kernelmux.backends.triton._families.activations import derivative, silu_share
from kernelmux.backends.triton._families.elementwise import elementwise
from kernelmux.registry.backend import Implementation


@triton.jit
def _gradient(grad_out, x):
    share, slope = silu_share(x)
    return grad_out * derivative(x, share, slope)


def silu_backward(grad_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return elementwise(_gradient, grad_out, x)


VARIANTS = {"blocked": Implementation(fn=silu_backward, idea="one block per program, 16 bytes per thread and access")}
