"""layer_norm_backward: gradients of layer_norm with respect to x, weight and bias, in fp32, rounded once.

With r = rsqrt(variance + eps) and z = (x - mean) * r:
grad_x = r * (g*w - mean(g*w) - z * mean(g*w*z)), grad_weight = sum over rows of g*z, grad_bias = sum over rows of g.

split  pieces of rows, then columns, for all three: any length, and few long rows
fused  each program takes many rows and keeps its share of the sums in registers, so x and g are read once
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._rows.row_beside import held_moments_and_products
from kernelmux.backends.triton._rows.row_gradients import GradientOp, Way, gradient_variants
from kernelmux.backends.triton._rows.row_op import RowOp, Tensors
from kernelmux.backends.triton._rows.row_statistics import MOMENTS_AND_PRODUCTS, OF_MOMENTS_AND_PRODUCTS


@triton.jit
def _terms(eps, grad, x, weight):
    return x, grad * weight


@triton.jit
def _known(eps, mean, variance, grads, products, n):
    rstd = tl.rsqrt(variance + eps)
    return mean, rstd, grads / n, rstd * products / n


@triton.jit
def _grad_x(mean, rstd, mean_grad, mean_product, eps, grad, x, weight):
    return rstd * ((grad * weight - mean_grad) - ((x - mean) * rstd) * mean_product)


@triton.jit
def _shares(mean, rstd, grad, x):
    return grad * ((x - mean) * rstd), grad


GRADIENT = GradientOp(
    RowOp(_terms, MOMENTS_AND_PRODUCTS, _known, _grad_x, pieces=OF_MOMENTS_AND_PRODUCTS),
    _shares,
    saved=2,
    held=held_moments_and_products,
)


def layer_norm_backward(way: Way, grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Tensors:
    return way(GRADIENT, (grad_out, x), weight, (eps,), 2)


VARIANTS = gradient_variants(layer_norm_backward, "grad_out", "x")
