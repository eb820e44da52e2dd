"""A row of logits with a target class: what one walk over it finds, and the gradient of its loss that follows.

With h, the gradient of the row's loss: grad = h * (exp(x - m) / sum - (1 - s) * (1 at the target) - s / V). A row that does not
count is 0, and one whose target is no class is NaN.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernelmux.backends.triton._row_statistics import EXPONENTIALS, SUMS, exponential

_exponential_lanes, _exponential_merge, _exponential_total, _ = EXPONENTIALS
_sum_lanes, _sum_merge, _sum_total, _ = SUMS


@triton.jit
def logit_lanes(terms, valid, n, WIDTH: tl.constexpr, SMOOTHED: tl.constexpr):
    """Of some chunks, per lane: maximum, sum of exponentials and, with smoothing, the sum."""
    state = _exponential_lanes(terms, valid, n, False, WIDTH)
    if SMOOTHED:
        state = state + _sum_lanes(terms, valid, n, False, WIDTH)  # noqa: RUF005 a tuple of tiles has no *
    return state


@triton.jit
def logit_merge(a, b):
    state = _exponential_merge(a, b)
    if len(a) == 3:
        state = state + _sum_merge(a[2:], b[2:])  # noqa: RUF005
    return state


@triton.jit
def log_sum_and_mean(state, V):
    """Of each row, [ROWS, 1], and what `slope` needs. The first is NaN for a row of nothing but -inf, as for every infinity."""
    top, total = _exponential_total(state[:2], V)
    lse = tl.where(top == -float("inf"), float("nan"), top + tl.log(total))
    if len(state) == 3:
        return (lse, _sum_total(state[2:], V)[0] / V), (top, total)
    else:
        return (lse,), (top, total)


@triton.jit
def slope(known, targets, h, smoothing, V):
    """What `gradients` needs of each row."""
    top, total = known
    return top, h / total, h * (smoothing / V), h * (1 - smoothing), targets


@triton.jit
def gradients(x, place, row):
    """Of logits of some columns. place: of each column, as the target of the row is counted."""
    top, scale, spread, at_target, targets = row
    target, counts, is_class = targets
    grad = exponential(x.to(tl.float32) - top) * scale - spread
    grad = tl.where(place == target, grad - at_target, grad)
    return tl.where(counts, tl.where(is_class, grad, float("nan")), 0.0)
