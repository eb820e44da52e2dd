"""swiglu_backward: grad_a = grad_out * b * silu'(a), grad_b = grad_out * silu(a), in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._families.activations import FAR, derivative, silu_share
from kernelmux.backends.triton._families.elementwise import elementwise_all
from kernelmux.registry.backend import Implementation


@triton.jit
def _gradients(grad_out, a, b):
    share, slope = silu_share(a)
    return grad_out * b * derivative(a, share, slope), grad_out * (tl.maximum(a, -FAR) * share)


def swiglu_backward(grad_out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return elementwise_all(_gradients, grad_out, a, b, outputs=2)


VARIANTS = {
    "blocked": Implementation(fn=swiglu_backward, idea="both gradients in one pass, the share of a computed once")
}
