"""Gradients of GEGLU by torch.compile."""

import torch

from kernelmux.perf.peers._libraries import compiled


def with_torch(
    grad_out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, approximate: str
) -> tuple[torch.Tensor, torch.Tensor]:
    grad_a = torch.ops.aten.gelu_backward(grad_out * b, a, approximate=approximate)
    return grad_a, grad_out * torch.nn.functional.gelu(a, approximate=approximate)


VARIANTS = {"torch_compile": compiled(with_torch)}
