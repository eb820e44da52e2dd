"""log_softmax_backward: grad_out - exp(y) * sum(grad_out), the sum along one axis, in fp32, rounded once."""

from __future__ import annotations

import torch
import triton

from kernelmux.backends.triton._rows.row_op import PEELED, RowOp, rows
from kernelmux.backends.triton._rows.row_statistics import OF_ONE_SUM, SUMS, exponential
from kernelmux.registry.backend import Implementation


@triton.jit
def _element(grad, y):
    return (grad,)


@triton.jit
def _sum(grads, n):
    return (grads,)


@triton.jit
def _gradient(grads, grad, y):
    return grad - exponential(y) * grads


LOG_SOFTMAX_BACKWARD = RowOp(_element, SUMS, _sum, _gradient, pieces=OF_ONE_SUM)


def log_softmax_backward(grad_out: torch.Tensor, y: torch.Tensor, axis: int) -> torch.Tensor:
    return rows(LOG_SOFTMAX_BACKWARD, axis, (grad_out, y))[0]


VARIANTS = {
    "resident": Implementation(
        fn=log_softmax_backward,
        idea="both rows stay in registers and are read once; what does not fit is read again",
        exempt=PEELED,
    )
}
