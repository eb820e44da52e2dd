"""Gradients of layer norm in other libraries.

fla takes the mean of each row, and what else its forward call found. A training step would hold them, so that they are
computed once.
"""

from collections.abc import Callable
from functools import cache

import torch

from kernelmux.perf.peers._cudnn_norms import gradients
from kernelmux.perf.peers._libraries import compiled, function, library, once
from kernelmux.perf.peers.rms_norm import fla_rows, matrix

_fla_forward = function("fla.modules.norm.layernorm.layer_norm_fwd")
_fla = function("fla.modules.norm.layernorm.layer_norm_bwd")

Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@cache
def statistics(eps: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Gives the means of the rows of x, and 1 / sqrt(variance + eps) of these: [2 M]."""

    @once
    def of_rows(x: torch.Tensor) -> torch.Tensor:
        return torch.stack(_fla_forward(matrix(x), None, None, eps)[1:3])

    return of_rows


def with_torch(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Triple:
    _, mean, spread = torch.ops.aten.native_layer_norm(x, weight.shape, weight, None, eps)
    found: Triple = torch.ops.aten.native_layer_norm_backward(
        grad_out, x, weight.shape, mean, spread, weight, torch.zeros_like(weight), [True, True, True]
    )
    return found


def with_fla(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Triple:
    bias = weight  # only its shape and its dtype count
    mean, spread = statistics(eps)(x)
    grad_x, grad_weight, grad_bias, *_ = _fla(matrix(grad_out), matrix(x), weight, bias, mean, spread)
    return grad_x.view(x.shape), grad_weight, grad_bias


def with_cudnn_frontend(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Triple:
    grad_x, grad_weight, grad_bias = gradients("layernorm", grad_out, x, weight, eps)
    return grad_x, grad_weight, grad_bias


VARIANTS = {
    "torch_compile": compiled(with_torch),
    "fla": library("fla", with_fla, *fla_rows()),
    "cudnn_frontend": library("cudnn", with_cudnn_frontend, deterministic=False),
}
