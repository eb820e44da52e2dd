"""cross_entropy: log(sum(exp(x))) of each row in one read, then the loss of each row from its target, in fp32.

Few long rows are read in pieces, a program for each, which one more puts together.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

from kernelmux.backends.triton._launch.launch import Config, Launch, overlaps, plan
from kernelmux.backends.triton._launch.strides import Ints, contiguous
from kernelmux.backends.triton._losses.targets import losses, losses_of, reduced, targets_of, wanted_of
from kernelmux.backends.triton._rows.row_op import PEELED, RowLaunch, RowOp, launch_of, launch_of_pieces
from kernelmux.backends.triton._rows.row_pieces_plan import in_pieces, pieces_rule
from kernelmux.backends.triton._rows.row_plan import Demand, access_of, hints, row_rule
from kernelmux.backends.triton._rows.row_statistics import EXPONENTIALS, OF_EXPONENTIALS, SUMS, Pieces, Statistic
from kernelmux.backends.triton._rows.rows import next_power, walk
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


PLAIN = RowOp(_logit, EXPONENTIALS, _log_sum, _no_output, pieces=OF_EXPONENTIALS)
SMOOTHED = RowOp(
    _logit, Statistic(_lanes, _merge, _total, VALUES), _log_sum_and_mean, _no_output,
    pieces=Pieces(OF_EXPONENTIALS.parts, 3, -math.inf),
)  # fmt: skip


@triton.jit
def cross_entropy_join_kernel(
    out_ptr, lse_ptr, known_ptr, logits_ptr, target_ptr, M, V, row_step, target_step, ignore_index, smoothing,
    WANTED: tl.constexpr, SMOOTHED: tl.constexpr, PIECES: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr,
    LEADS: tl.constexpr,
):  # fmt: skip
    """What is wanted of all rows, which have what known [M, numbers, PIECES] says of their pieces."""
    NUMBERS: tl.constexpr = 3 if SMOOTHED else 2
    row = tl.arange(0, ROWS)[:, None].to(tl.int64)
    lane = tl.arange(0, LANES)[None, :]
    mask = row < M
    targets = targets_of(target_ptr, row, mask, V, target_step, ignore_index)
    if LEADS:
        cuda.gdc_wait()
    place = known_ptr + (row * (NUMBERS * PIECES) + lane)
    inside = mask & (lane < PIECES)
    top = tl.load(place, mask=inside, other=-float("inf"))
    total = tl.load(place + PIECES, mask=inside, other=0.0)
    lse = _log_sum(*_exponential_total((top, total), V), V)[0]
    mean = lse
    if SMOOTHED:
        mean = tl.sum(tl.load(place + 2 * PIECES, mask=inside, other=0.0), 1, keep_dims=True) / V
    loss = losses_of(lse, mean, logits_ptr, (row * row_step, 1), mask, targets, smoothing, SMOOTHED)
    tl.store(lse_ptr + row, lse, mask=mask)
    if WANTED == "none":
        tl.store(out_ptr + row, loss, mask=mask)
    else:
        count = tl.sum((mask & targets[1]).to(tl.float32))
        tl.store(out_ptr, wanted_of(tl.sum(tl.where(mask, loss, 0.0)), count, WANTED))


class Joined(NamedTuple):
    """Launches for pieces of rows and for all of them, and the shape of what is known of pieces."""

    pieces: RowLaunch
    join: Launch
    known: Ints

    def __call__(self, out: torch.Tensor, lse: torch.Tensor, logits: torch.Tensor, target: torch.Tensor) -> None:
        known = torch.empty(self.known, dtype=torch.float32, device=logits.device)
        self.pieces(known, logits)
        self.join(out, lse, known, logits, target)


@plan
def _plan(
    op: RowOp, shape: Ints, strides: Ints, dtype: torch.dtype, target_step: int, ignore_index: int, smoothing: float,
    reduction: str, device: int,
) -> RowLaunch | Joined:  # fmt: skip
    """One walk over the rows, which saves what it finds; those that start misaligned are peeled."""
    w = walk(-1, shape, contiguous(shape), strides)
    if w.sizes == (1,):  # as one row of many, so that its bits are the same
        w = w._replace(strides=tuple((w.length,) for _ in w.strides))
    size = dtype.itemsize
    access, demand = access_of(w, size), Demand(1, 0, w.length, op.statistic.values, device)
    config = {**hints(w, size, demand, False), **row_rule(w, access, size, demand, False)}
    if not in_pieces(w, config, demand, 1):
        return launch_of(op, w, (), access, 0, config, 2 if smoothing else 1)
    M, V = shape
    first, pieces = launch_of_pieces(op, device, M, V, size, 1, (), pieces_rule(V, size, 1))
    lanes, rows, leads = next_power(pieces), next_power(M), overlaps(device)
    early: Config = {"launch_pdl": True} if leads else {}
    join = Launch(
        cross_entropy_join_kernel, (1,), M, V, V, target_step, ignore_index, smoothing, WANTED=reduction,
        SMOOTHED=smoothing != 0, PIECES=pieces, LANES=lanes, ROWS=rows, LEADS=leads,
        num_warps=min(16, max(1, rows * lanes // 128)), **early,
    )  # fmt: skip
    return Joined(first, join, (M, 3 if smoothing else 2, pieces))


def cross_entropy(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> tuple[torch.Tensor, torch.Tensor]:
    lse = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
    mean = None
    if logits.numel():
        op, work = SMOOTHED if label_smoothing else PLAIN, (logits.shape, logits.stride(), logits.dtype)
        wanted = (target.stride(0), ignore_index, label_smoothing, reduction)
        launch = _plan(op, *work, *wanted, logits.get_device())
        if isinstance(launch, Joined):
            out = torch.empty(lse.shape if reduction == "none" else (), dtype=torch.float32, device=logits.device)
            launch(out, lse, logits, target)
            return out, lse
        mean = torch.empty_like(lse) if label_smoothing else None
        launch(lse, *(() if mean is None else (mean,)), logits)
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
