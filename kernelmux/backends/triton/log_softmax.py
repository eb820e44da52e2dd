"""log_softmax: (x - max) - log(sum(exp(x - max))) along one axis, in fp32, rounded once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._rows.row_op import PEELED, RowOp, rows
from kernelmux.backends.triton._rows.row_statistics import EXPONENTIALS, OF_EXPONENTIALS
from kernelmux.registry.backend import Implementation


@triton.jit
def _element(x):
    return (x,)


@triton.jit
def _logarithm(top, total, n):
    return top, tl.log(total)


@triton.jit
def _log_weight(top, logarithm, x):
    return (x - top) - logarithm


LOG_SOFTMAX = RowOp(_element, EXPONENTIALS, _logarithm, _log_weight, pieces=OF_EXPONENTIALS)


def log_softmax(x: torch.Tensor, axis: int) -> torch.Tensor:
    return rows(LOG_SOFTMAX, axis, (x,))[0]


VARIANTS = {
    "resident": Implementation(
        fn=log_softmax,
        idea="the row stays in registers and is read once; what does not fit is read again",
        exempt=PEELED,
    )
}
