"""Gradients of SwiGLU in other libraries."""

import torch

from kernelmux.perf.peers._libraries import compiled, function, library

_fla = function("fla.modules.activations.ops.swiglu_fwdbwd")


def with_torch(grad_out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ops.aten.silu_backward(grad_out * b, a), grad_out * torch.nn.functional.silu(a)


def with_fla(grad_out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    grad_a, grad_b = _fla(a, b, grad_out)
    return grad_a, grad_b


VARIANTS = {"torch_compile": compiled(with_torch), "fla": library("fla", with_fla)}
