"""layer_norm: (x - mean) * rsqrt(variance + eps) * weight + bias over the last dimension, in fp32, rounded once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._rows.row_op import PEELED, RowOp, rows
from kernelmux.backends.triton._rows.row_statistics import MOMENTS, OF_MOMENTS
from kernelmux.registry.backend import Implementation


@triton.jit
def _element(eps, x, weight, bias=None):
    return (x,)


@triton.jit
def _mean_and_rstd(eps, mean, variance, n):
    return mean, tl.rsqrt(variance + eps)


@triton.jit
def _normed(mean, rstd, eps, x, weight, bias=None):
    y = (x - mean) * rstd * weight
    if bias is not None:
        y += bias
    return y


LAYER_NORM = RowOp(_element, MOMENTS, _mean_and_rstd, _normed, pieces=OF_MOMENTS)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    vectors = (weight,) if bias is None else (weight, bias)
    return rows(LAYER_NORM, -1, (x,), vectors, (eps,))[0]


VARIANTS = {
    "resident": Implementation(
        fn=layer_norm, idea="the row stays in registers, and the variance is taken about its mean", exempt=PEELED
    )
}
