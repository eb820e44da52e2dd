"""hardswish_backward: grad_out * hardswish'(x)."""

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._elementwise import elementwise
from kernelmux.registry.backend import Implementation


@triton.jit
def _gradient(grad_out, x):
    return grad_out * tl.where(x < -3, 0.0, tl.where(x > 3, 1.0, x / 3 + 0.5))


def hardswish_backward(grad_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return elementwise(_gradient, grad_out, x)


VARIANTS = {"blocked": Implementation(fn=hardswish_backward, idea="one block per program, 16 bytes per access")}
