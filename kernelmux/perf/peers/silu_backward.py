"""The gradient of SiLU in other libraries."""

import torch

from kernelmux.perf.peers._libraries import compiled, function, library

_fla = function("fla.modules.activations.ops.swish_bwd")


def with_torch(grad_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.silu_backward(grad_out, x)  # type: ignore[no-any-return]


def with_fla(grad_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    grad: torch.Tensor = _fla(x, grad_out)
    return grad


VARIANTS = {"torch_compile": compiled(with_torch), "fla": library("fla", with_fla)}
