"""add_rms_norm_backward: grad_total plus the gradient of rms_norm, and that of its weight, in fp32, rounded once.

As rms_norm_backward, of the total and grad_y; grad_total is added to the gradient of the rows.
"""

from __future__ import annotations

import torch
import triton

from kernelmux.backends.triton._row_gradients import FUSED, GradientOp, gradients_fused, gradients_split
from kernelmux.backends.triton._row_op import RowOp, Tensors
from kernelmux.backends.triton._row_statistics import SUMS
from kernelmux.backends.triton.rms_norm_backward import grad_x, products, rstd_and_mean, share
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost


@triton.jit
def _products(eps, grad_y, grad_total, total, weight):
    return products(eps, grad_y, total, weight)


@triton.jit
def _grad_x(rstd, mean, eps, grad_y, grad_total, total, weight):
    return grad_total + grad_x(rstd, mean, eps, grad_y, total, weight)


@triton.jit
def _share(rstd, grad_y, grad_total, total):
    return share(rstd, grad_y, total)


GRADIENT = GradientOp(RowOp(_products, SUMS, rstd_and_mean, _grad_x), _share, saved=1)


def add_rms_norm_backward_split(
    grad_y: torch.Tensor, grad_total: torch.Tensor, total: torch.Tensor, weight: torch.Tensor, eps: float
) -> Tensors:
    return gradients_split(GRADIENT, (grad_y, grad_total, total), weight, (eps,), 1)


def add_rms_norm_backward_fused(
    grad_y: torch.Tensor, grad_total: torch.Tensor, total: torch.Tensor, weight: torch.Tensor, eps: float
) -> Tensors:
    return gradients_fused(GRADIENT, (grad_y, grad_total, total), weight, (eps,), 1)


CONTIGUOUS = {"grad_y": "contiguous", "grad_total": "contiguous", "total": "contiguous"}

VARIANTS = {
    "split": Implementation(
        fn=add_rms_norm_backward_split, idea="rows for grad_x, then columns for grad_weight", layout=CONTIGUOUS
    ),
    "fused": Implementation(
        fn=add_rms_norm_backward_fused, idea="many rows per program, grad_weight in registers",
        requires=(AtMost("N", FUSED),), layout=CONTIGUOUS,
    ),
}  # fmt: skip
