"""cross_entropy: log(sum(exp(x))) of each row in one read, then the loss of each row from its target, in fp32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch.launch import plan
from kernelmux.backends.triton._launch.strides import Ints, contiguous
from kernelmux.backends.triton._losses.targets import losses, reduced
from kernelmux.backends.triton._rows.row_op import PEELED, RowLaunch, RowOp, launch_of
from kernelmux.backends.triton._rows.row_plan import Demand, access_of, hints, row_rule
from kernelmux.backends.triton._rows.row_statistics import EXPONENTIALS, SUMS, Statistic
from kernelmux.backends.triton._rows.rows import walk
from kernelmux.registry.backend import Implementation

_exponential_lanes, _exponential_merge, _exponential_total, VALUES = EXPONENTIALS
_sum_lanes, _sum_merge, _sum_total, _ = SUMS


@triton.jit
def _lanes(terms, valid, n, KEEP: tl.constexpr, WIDTH: tl.constexpr):
    return _exponential_lanes(terms, valid, n, KEEP, WIDTH), _sum_lanes(terms, valid, n, KEEP, WIDTH)


@triton.jit
def _merge(a, b):
    return _exponential_merge(a[0], b[0]), _sum_merge(a[1], b[1])


@triton.jit
def _total(state, n):
    return _exponential_total(state[0], n) + _sum_total(state[1], n)


@triton.jit
def _logit(x):
    return (x,)


@triton.jit
def _log_sum(top, total, n):
    """NaN for a row of nothing but -inf, as for every other row with an infinity."""
    return (tl.where(top == -float("inf"), float("nan"), top + tl.log(total)),)


@triton.jit
def _log_sum_and_mean(top, total, sum_of_row, n):
    return tl.where(top == -float("inf"), float("nan"), top + tl.log(total)), sum_of_row / n


@triton.jit
def _no_output(*values):
    return values


PLAIN = RowOp(_logit, EXPONENTIALS, _log_sum, _no_output)
SMOOTHED = RowOp(_logit, Statistic(_lanes, _merge, _total, VALUES), _log_sum_and_mean, _no_output)


@plan
def _plan(op: RowOp, shape: Ints, strides: Ints, dtype: torch.dtype, saved: int, device: int) -> RowLaunch:
    """One walk over the rows, which saves what it finds; those that start misaligned are peeled."""
    w = walk(-1, shape, contiguous(shape), strides)
    if w.sizes == (1,):  # as one row of many, so that its bits are the same
        w = w._replace(strides=tuple((w.length,) for _ in w.strides))
    size = dtype.itemsize
    access, demand = access_of(w, size), Demand(1, 0, w.length, op.statistic.values, device)
    config = {**hints(w, size, demand, False), **row_rule(w, access, size, demand, False)}
    return launch_of(op, w, (), access, 0, config, saved)


def cross_entropy(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> tuple[torch.Tensor, torch.Tensor]:
    lse = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
    mean = torch.empty_like(lse) if label_smoothing else None
    saved = (lse,) if mean is None else (lse, mean)
    if logits.numel():
        op = PLAIN if mean is None else SMOOTHED
        _plan(op, logits.shape, logits.stride(), logits.dtype, len(saved), logits.get_device())(*saved, logits)
    if reduction != "none":
        return reduced(reduction, target, ignore_index, lse, mean, logits, label_smoothing), lse
    loss = torch.empty_like(lse)
    if loss.numel():
        losses(loss, lse, mean, logits, target, ignore_index, label_smoothing)
    return loss, lse


VARIANTS = {
    "online": Implementation(
        fn=cross_entropy, idea="a running maximum and sum per lane: the logits are read once", exempt=PEELED
    ),
}
