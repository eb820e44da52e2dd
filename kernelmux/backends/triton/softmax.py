"""softmax: exp(scale * x - max) / sum along one axis, in fp32, rounded once.

online    a running maximum and sum per lane over blocks of the row, then a second walk that writes: any length
resident  the row stays in registers, so it is read once; of rows too long for that as much as fits
"""

from __future__ import annotations

import torch
import triton

from kernelmux.backends.triton._rows.row_op import ACROSS, PEELED, RowOp, rows
from kernelmux.backends.triton._rows.row_statistics import EXPONENTIALS, OF_EXPONENTIALS, exponential
from kernelmux.backends.triton._rows.rows import rounded_product
from kernelmux.registry.backend import Implementation


@triton.jit
def _scaled(scale, x):
    # Rounded: fused into the subtraction of the maximum, the product would not cancel against it.
    return (rounded_product(x, scale),)


@triton.jit
def _finish(scale, top, total, n):
    return top, 1 / total


@triton.jit
def _weight(top, inverse, scale, x):
    return exponential(rounded_product(x, scale) - top) * inverse


SOFTMAX = RowOp(_scaled, EXPONENTIALS, _finish, _weight, pieces=OF_EXPONENTIALS)


def softmax_online(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return rows(SOFTMAX, axis, (x,), numbers=(scale,), resident=False)[0]


def softmax_resident(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return rows(SOFTMAX, axis, (x,), numbers=(scale,))[0]


VARIANTS = {
    "online": Implementation(
        fn=softmax_online, idea="running maximum and sum per lane, then a second walk", arithmetic="fp32", exempt=ACROSS
    ),
    "resident": Implementation(
        fn=softmax_resident,
        idea="the row stays on the multiprocessor and is read once",
        arithmetic="fp32",
        exempt=PEELED,
    ),
}
