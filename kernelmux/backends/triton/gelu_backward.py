"""gelu_backward: grad_out * gelu'(x), of the exact form or of the tanh approximation."""

from __future__ import annotations

import torch
import triton

from kernelmux.backends.triton._families.activations import derivative, gelu_erf_share, gelu_tanh_share
from kernelmux.backends.triton._families.elementwise import elementwise
from kernelmux.registry.backend import Implementation


@triton.jit
def _erf(grad_out, x):
    share, slope = gelu_erf_share(x)
    return grad_out * derivative(x, share, slope)


@triton.jit
def _tanh(grad_out, x):
    share, slope = gelu_tanh_share(x)
    return grad_out * derivative(x, share, slope)


def gelu_backward(grad_out: torch.Tensor, x: torch.Tensor, approximate: str) -> torch.Tensor:
    return elementwise(_tanh if approximate == "tanh" else _erf, grad_out, x)


VARIANTS = {"blocked": Implementation(fn=gelu_backward, idea="one block per program, 16 bytes per thread and access")}
