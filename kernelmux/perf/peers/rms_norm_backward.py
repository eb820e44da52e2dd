"""Gradients of RMS norm in other libraries.

fla takes what its forward call found of each row. A training step would hold it, so that it is computed once.
"""

from collections.abc import Callable
from functools import cache

import torch

from kernelmux.perf.peers._cudnn_norms import gradients
from kernelmux.perf.peers._libraries import compiled, function, library, once
from kernelmux.perf.peers.rms_norm import fla_rows, matrix

_fla_forward = function("fla.modules.norm.layernorm.layer_norm_fwd")
_fla = function("fla.modules.norm.layernorm.layer_norm_bwd")


@cache
def reciprocals(eps: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Gives 1 / sqrt(mean(x^2) + eps) of each row of x."""

    @once
    def of_rows(x: torch.Tensor) -> torch.Tensor:
        r: torch.Tensor = _fla_forward(matrix(x), None, None, eps, is_rms_norm=True)[2]
        return r

    return of_rows


def with_torch(
    grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    g, z = grad_out.float(), x.float()
    r = torch.rsqrt(z.square().mean(-1, keepdim=True) + eps)
    weighted = g * weight.float()
    grad_x = r * (weighted - z * r.square() * (weighted * z).mean(-1, keepdim=True))
    return grad_x.to(x.dtype), (g * z * r).reshape(-1, len(weight)).sum(0).to(weight.dtype)


def with_fla(
    grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    r = reciprocals(eps)(x)
    grad_x, grad_weight, *_ = _fla(matrix(grad_out), matrix(x), weight, None, None, r, is_rms_norm=True)
    return grad_x.view(x.shape), grad_weight


def with_cudnn_frontend(
    grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    grad_x, grad_weight = gradients("rmsnorm", grad_out, x, weight, eps)
    return grad_x, grad_weight


VARIANTS = {
    "torch_compile": compiled(with_torch),
    "fla": library("fla", with_fla, *fla_rows()),
    "cudnn_frontend": library("cudnn", with_cudnn_frontend, deterministic=False),
}
