"""rms_norm_backward: gradients of rms_norm with respect to x and weight, in fp32, rounded once.

With r = rsqrt(mean(x^2) + eps):  grad_x = r * (g*w - x * r^2 * mean(g*w*x)),  grad_weight = sum over rows of g*x*r.

split  the row kernel for grad_x and r, another that walks the columns for grad_weight: any length
fused  each program takes many rows and keeps its share of grad_weight in registers, so x and g are read once
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._row_gradients import FUSED, GradientOp, gradients_fused, gradients_split
from kernelmux.backends.triton._row_op import RowOp, Tensors
from kernelmux.backends.triton._row_statistics import SUMS
from kernelmux.backends.triton._rows import rounded_product
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost


@triton.jit
def products(eps, grad, x, weight):
    return rounded_product(x, x), rounded_product(grad * weight, x)


@triton.jit
def rstd_and_mean(eps, squares, products, n):
    rstd = tl.rsqrt(squares / n + eps)
    return rstd, rstd * products / n


@triton.jit
def grad_x(rstd, mean, eps, grad, x, weight):
    return rstd * (grad * weight - (x * rstd) * mean)


@triton.jit
def share(rstd, grad, x):
    return (grad * (x * rstd),)


GRADIENT = GradientOp(RowOp(products, SUMS, rstd_and_mean, grad_x), share, saved=1)


def rms_norm_backward_split(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Tensors:
    return gradients_split(GRADIENT, (grad_out, x), weight, (eps,), 1)


def rms_norm_backward_fused(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Tensors:
    return gradients_fused(GRADIENT, (grad_out, x), weight, (eps,), 1)


CONTIGUOUS = {"grad_out": "contiguous", "x": "contiguous"}

VARIANTS = {
    "split": Implementation(
        fn=rms_norm_backward_split, idea="rows for grad_x, then columns for grad_weight", layout=CONTIGUOUS
    ),
    "fused": Implementation(
        fn=rms_norm_backward_fused, idea="many rows per program, grad_weight in registers",
        requires=(AtMost("N", FUSED),), layout=CONTIGUOUS,
    ),
}  # fmt: skip
