"""Gradients of the sum with a residual and its RMS norm by torch.compile."""

import torch

from kernelmux.perf.peers._libraries import compiled
from kernelmux.perf.peers.rms_norm_backward import with_torch as rms_norm_gradients


def with_torch(
    grad_y: torch.Tensor, grad_total: torch.Tensor, total: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    grad_x, grad_weight = rms_norm_gradients(grad_y, total, weight, eps)
    return grad_total + grad_x, grad_weight


VARIANTS = {"torch_compile": compiled(with_torch)}
