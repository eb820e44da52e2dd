"""Gradients of GEGLU by what torch's autograd calls, in fp32."""

import torch

from kernelmux.registry.backend import Implementation


def geglu_backward(
    grad_out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, approximate: str
) -> tuple[torch.Tensor, torch.Tensor]:
    g, x = grad_out.float(), a.float()
    grad_a = torch.ops.aten.gelu_backward(g * b.float(), x, approximate=approximate)
    grad_b = g * torch.nn.functional.gelu(x, approximate=approximate)
    return grad_a.to(a.dtype).contiguous(), grad_b.to(a.dtype).contiguous()


VARIANTS = {"eager": Implementation(fn=geglu_backward, idea="torch.ops.aten.gelu_backward and products, in fp32")}
