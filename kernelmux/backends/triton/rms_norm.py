"""rms_norm: x * rsqrt(mean(x^2) + eps) * weight over the last dimension, in fp32, rounded once.

looped    squares are summed batch by batch, then a second walk, of which L2 has most, writes: any length
resident  the row stays in registers, so it is read once; of rows too long for that as much as fits
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._rows.row_op import PEELED, RowOp, rows
from kernelmux.backends.triton._rows.row_statistics import OF_ONE_SUM, SUMS
from kernelmux.backends.triton._rows.rows import rounded_product
from kernelmux.registry.backend import Implementation


@triton.jit
def square(eps, x, weight):
    return (rounded_product(x, x),)


@triton.jit
def root(eps, squares, n):
    return (tl.rsqrt(squares / n + eps),)


@triton.jit
def _normed(rstd, eps, x, weight):
    return x * rstd * weight


RMS_NORM = RowOp(square, SUMS, root, _normed, follows=True, pieces=OF_ONE_SUM)


def rms_norm_looped(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return rows(RMS_NORM, -1, (x,), (weight,), (eps,), resident=False)[0]


def rms_norm_resident(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return rows(RMS_NORM, -1, (x,), (weight,), (eps,))[0]


VARIANTS = {
    "looped": Implementation(
        fn=rms_norm_looped, idea="squares summed batch by batch, then a second walk", arithmetic="fp32"
    ),
    "resident": Implementation(
        fn=rms_norm_resident,
        idea="the row stays on the multiprocessor and is read once",
        arithmetic="fp32",
        exempt=PEELED,
    ),
}
