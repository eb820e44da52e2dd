"""Gradients of SwiGLU by torch.compile."""

import torch

from kernelmux.perf.peers._libraries import compiled


def with_torch(grad_out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ops.aten.silu_backward(grad_out * b, a), grad_out * torch.nn.functional.silu(a)


VARIANTS = {"torch_compile": compiled(with_torch)}
