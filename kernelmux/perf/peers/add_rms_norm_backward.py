"""Gradients of the sum with a residual and its RMS norm in other libraries; see `rms_norm_backward`."""

import torch

from kernelmux.perf.peers._libraries import compiled, function, library
from kernelmux.perf.peers.rms_norm import fla_rows, matrix
from kernelmux.perf.peers.rms_norm_backward import reciprocals
from kernelmux.perf.peers.rms_norm_backward import with_torch as rms_norm_gradients

_fla = function("fla.modules.norm.layernorm.layer_norm_bwd")


def with_torch(
    grad_y: torch.Tensor, grad_total: torch.Tensor, total: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    grad_x, grad_weight = rms_norm_gradients(grad_y, total, weight, eps)
    return grad_total + grad_x, grad_weight


def with_fla(
    grad_y: torch.Tensor, grad_total: torch.Tensor, total: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    r, dres = reciprocals(eps)(total), matrix(grad_total)
    grad_x, grad_weight, *_ = _fla(matrix(grad_y), matrix(total), weight, None, None, r, dres=dres, is_rms_norm=True)
    return grad_x.view(total.shape), grad_weight


VARIANTS = {"torch_compile": compiled(with_torch), "fla": library("fla", with_fla, *fla_rows("total"))}
