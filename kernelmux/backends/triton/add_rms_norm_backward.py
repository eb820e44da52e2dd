"""add_rms_norm_backward: grad_total plus the gradient of rms_norm, and that of its weight, in fp32, rounded once.

As rms_norm_backward, of the total and grad_y; grad_total is added to the gradient of the rows.
"""

from __future__ import annotations

import torch
import triton

from kernelmux.backends.triton._rows.row_beside import held_sums
from kernelmux.backends.triton._rows.row_gradients import GradientOp, Way, gradient_variants
from kernelmux.backends.triton._rows.row_op import RowOp, Tensors
from kernelmux.backends.triton._rows.row_statistics import OF_TWO_SUMS, SUMS
from kernelmux.backends.triton.rms_norm_backward import grad_x, products, rstd_and_mean, share


@triton.jit
def _products(eps, grad_y, grad_total, total, weight):
    return products(eps, grad_y, total, weight)


@triton.jit
def _grad_x(rstd, mean, eps, grad_y, grad_total, total, weight):
    return grad_total + grad_x(rstd, mean, eps, grad_y, total, weight)


@triton.jit
def _share(rstd, grad_y, grad_total, total):
    return share(rstd, grad_y, total)


GRADIENT = GradientOp(
    RowOp(_products, SUMS, rstd_and_mean, _grad_x, pieces=OF_TWO_SUMS), _share, saved=1, held=held_sums
)


def add_rms_norm_backward(
    way: Way, grad_y: torch.Tensor, grad_total: torch.Tensor, total: torch.Tensor, weight: torch.Tensor, eps: float
) -> Tensors:
    return way(GRADIENT, (grad_y, grad_total, total), weight, (eps,), 1)


VARIANTS = gradient_variants(add_rms_norm_backward, "grad_y", "grad_total", "total")
