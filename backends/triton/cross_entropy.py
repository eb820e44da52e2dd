"""cross_entropy: log(sum(exp(x))) of each row in one read, then the loss of each row from its target, in fp32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._row_op import RowOp, rows
from kernelmux.backends.triton._row_statistics import EXPONENTIALS, SUMS, Statistic
from kernelmux.backends.triton._targets import losses, reduced
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


def cross_entropy(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> tuple[torch.Tensor, torch.Tensor]:
    lse = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
    mean = torch.empty_like(lse) if label_smoothing else None
    saved = (lse,) if mean is None else (lse, mean)
    rows(PLAIN if mean is None else SMOOTHED, -1, (logits,), outputs=0, saved=saved, resident=False)
    if reduction != "none":
        return reduced(reduction, target, ignore_index, lse, mean, logits, label_smoothing), lse
    loss = torch.empty_like(lse)
    if loss.numel():
        losses(loss, lse, mean, logits, target, ignore_index, label_smoothing)
    return loss, lse


VARIANTS = {
    "online": Implementation(fn=cross_entropy, idea="a running maximum and sum per lane: the logits are read once"),
}
