"""geglu_backward: grad_a = grad_out * b * gelu'(a), grad_b = grad_out * gelu(a), in one pass."""

from __future__ import annotations

import torch
import triton

from kernelmux.backends.triton._families.activations import derivative, gelu_erf_share, gelu_tanh_share
from kernelmux.backends.triton._families.elementwise import elementwise_all
from kernelmux.registry.backend import Implementation


@triton.jit
def _erf(grad_out, a, b):
    share, slope = gelu_erf_share(a)
    return grad_out * b * derivative(a, share, slope), grad_out * (a * share)


@triton.jit
def _tanh(grad_out, a, b):
    share, slope = gelu_tanh_share(a)
    return grad_out * b * derivative(a, share, slope), grad_out * (a * share)


def geglu_backward(
    grad_out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, approximate: str
) -> tuple[torch.Tensor, ...]:
    formula = _tanh if approximate == "tanh" else _erf
    return elementwise_all(formula, grad_out, a, b, outputs=2)


VARIANTS = {
    "blocked": Implementation(fn=geglu_backward, idea="both gradients in one pass, the share of a computed once")
}
