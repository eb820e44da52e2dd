"""rms_norm_backward: gradients of rms_norm with respect to x and weight, in fp32, rounded once.

With r = rsqrt(mean(x^2) + eps):  grad_x = r * (g*w - x * r^2 * mean(g*w*x)),  grad_weight = sum over rows of g*x*r.

split  pieces of rows, then columns, for grad_x and grad_weight: any length, and few long rows
fused  each program takes many rows and keeps its share of grad_weight in registers, so x and g are read once
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._rows.row_beside import held_sums
from kernelmux.backends.triton._rows.row_gradients import GradientOp, Way, gradient_variants
from kernelmux.backends.triton._rows.row_op import RowOp, Tensors
from kernelmux.backends.triton._rows.row_statistics import OF_TWO_SUMS, SUMS
from kernelmux.backends.triton._rows.rows import rounded_product


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


GRADIENT = GradientOp(RowOp(products, SUMS, rstd_and_mean, grad_x, pieces=OF_TWO_SUMS), share, saved=1, held=held_sums)


def rms_norm_backward(way: Way, grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Tensors:
    return way(GRADIENT, (grad_out, x), weight, (eps,), 1)


VARIANTS = gradient_variants(rms_norm_backward, "grad_out", "x")
