"""add_rms_norm: total = x + residual, rounded to the dtype; y = rms_norm(total, weight, eps), in fp32, rounded once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._rows.row_op import PEELED, RowOp, rows
from kernelmux.backends.triton._rows.row_statistics import OF_ONE_SUM, SUMS
from kernelmux.backends.triton.rms_norm import root, square
from kernelmux.registry.backend import Implementation


@triton.jit
def _total(x, residual):
    return ((x.to(tl.float32) + residual.to(tl.float32)).to(x.dtype),)


@triton.jit
def _normed(rstd, eps, total, weight):
    return total * rstd * weight, total


ADD_RMS_NORM = RowOp(square, SUMS, root, _normed, prepare=_total, follows=True, pieces=OF_ONE_SUM)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, ...]:
    return rows(ADD_RMS_NORM, -1, (x, residual), (weight,), (eps,), outputs=2)


VARIANTS = {
    "resident": Implementation(
        fn=add_rms_norm, idea="the total stays in registers, so that both inputs are read once", exempt=PEELED
    )
}
