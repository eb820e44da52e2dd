"""Gradients of SwiGLU by what torch's autograd calls, in fp32."""

import torch

from kernelmux.backends.torch_ref._activations import silu_gradient
from kernelmux.registry.backend import Implementation


def swiglu_backward(grad_out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    g, x = grad_out.float(), a.float()
    grad_a = silu_gradient(g * b.float(), x)
    grad_b = g * torch.nn.functional.silu(x)
    return grad_a.to(a.dtype).contiguous(), grad_b.to(a.dtype).contiguous()


VARIANTS = {"eager": Implementation(fn=swiglu_backward, idea="torch.ops.aten.silu_backward and products, in fp32")}
