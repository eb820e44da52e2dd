"""softmax_backward: scale * y * (grad_out - sum(grad_out * y)), the sum along one axis, in fp32, rounded once."""

from __future__ import annotations

import torch
import triton

from kernelmux.backends.triton._rows.row_op import PEELED, RowOp, rows
from kernelmux.backends.triton._rows.row_statistics import OF_ONE_SUM, SUMS
from kernelmux.backends.triton._rows.rows import rounded_product
from kernelmux.registry.backend import Implementation


@triton.jit
def _product(scale, grad, y):
    return (rounded_product(grad, y),)


@triton.jit
def _sum(scale, products, n):
    return (products,)


@triton.jit
def _gradient(products, scale, grad, y):
    return scale * y * (grad - products)


SOFTMAX_BACKWARD = RowOp(_product, SUMS, _sum, _gradient, pieces=OF_ONE_SUM)


def softmax_backward(grad_out: torch.Tensor, y: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return rows(SOFTMAX_BACKWARD, axis, (grad_out, y), numbers=(scale,))[0]


VARIANTS = {
    "resident": Implementation(
        fn=softmax_backward,
        idea="both rows stay in registers and are read once; what does not fit is read again",
        exempt=PEELED,
    )
}
