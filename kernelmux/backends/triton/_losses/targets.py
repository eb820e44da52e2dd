"""What rows with a target class add up to: losses, and how many of them count."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch.launch import Launch, cdiv, plan
from kernelmux.backends.triton._launch.strides import Ints

BLOCK = 4096
SHARE = 16384  # rows of a program: below it a second launch would only take longer
MOST = 256  # programs


@triton.jit
def targets_of(target_ptr, rows, mask_rows, V, target_step, ignore_index):
    """The class of each row, whether the row counts, and whether its class is one of V."""
    target = tl.load(target_ptr + rows * target_step, mask=mask_rows, other=ignore_index)
    return target, target != ignore_index, (target >= 0) & (target < V)


@triton.jit
def row_losses(lse_ptr, mean_ptr, logits_ptr, rows, mask_rows, targets, row_step, column_step, smoothing):
    """0 for rows that do not count, NaN where the target is no class."""
    lse = tl.load(lse_ptr + rows, mask=mask_rows)
    mean = lse if mean_ptr is None else tl.load(mean_ptr + rows, mask=mask_rows)
    places = (rows * row_step, column_step)
    return losses_of(lse, mean, logits_ptr, places, mask_rows, targets, smoothing, mean_ptr is not None)


@triton.jit
def losses_of(lse, mean, logits_ptr, places, mask_rows, targets, smoothing, SMOOTHED: tl.constexpr):
    """The same of rows of which lse and the mean are known. places: where the rows begin, and how far classes lie apart."""
    return loss_of(lse, mean, chosen_of(logits_ptr, places, mask_rows, targets), targets, smoothing, SMOOTHED)


@triton.jit
def chosen_of(logits_ptr, places, mask_rows, targets):
    """The logits of the classes, 0 where there is none."""
    target, counts, is_class = targets
    chosen_ptr = logits_ptr + places[0] + target * places[1]
    return tl.load(chosen_ptr, mask=mask_rows & counts & is_class, other=0.0).to(tl.float32)


@triton.jit
def loss_of(lse, mean, chosen, targets, smoothing, SMOOTHED: tl.constexpr):
    _, counts, is_class = targets
    if SMOOTHED:
        loss = lse - (1 - smoothing) * chosen - smoothing * mean
    else:
        loss = lse - chosen
    return tl.where(counts, tl.where(is_class, loss, float("nan")), 0.0)


@triton.jit
def losses_kernel(
    loss_ptr, lse_ptr, logits_ptr, target_ptr, mean_ptr, M, V, row_step, column_step, target_step,
    ignore_index, smoothing, BLOCK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    targets = targets_of(target_ptr, rows, rows < M, V, target_step, ignore_index)
    loss = row_losses(lse_ptr, mean_ptr, logits_ptr, rows, rows < M, targets, row_step, column_step, smoothing)
    tl.store(loss_ptr + rows, loss, mask=rows < M)


@triton.jit
def sums_kernel(
    sums_ptr, target_ptr, lse_ptr, logits_ptr, mean_ptr, M, V, row_step, column_step, target_step,
    ignore_index, smoothing, share, WANTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of a share of rows the sum of the losses and how many count, or what is wanted; without lse how many count alone."""
    first = tl.program_id(0).to(tl.int64) * share
    total = tl.zeros([BLOCK], tl.float32)
    count = tl.zeros([BLOCK], tl.float32)
    for start in range(0, share, BLOCK):
        rows = first + start + tl.arange(0, BLOCK)
        mask = rows < tl.minimum(first + share, M)
        targets = targets_of(target_ptr, rows, mask, V, target_step, ignore_index)
        count += (mask & targets[1]).to(tl.float32)
        if lse_ptr is not None:
            loss = row_losses(lse_ptr, mean_ptr, logits_ptr, rows, mask, targets, row_step, column_step, smoothing)
            total += tl.where(mask, loss, 0.0)
    at = sums_ptr + 2 * tl.program_id(0)
    if WANTED == "both":
        tl.store(at, tl.sum(total, 0))
        tl.store(at + 1, tl.sum(count, 0))
    else:
        tl.store(at, wanted_of(tl.sum(total, 0), tl.sum(count, 0), WANTED))


@triton.jit
def wanted_of(total, count, WANTED: tl.constexpr):
    return count if WANTED == "count" else (total / count if WANTED == "mean" else total)


@triton.jit
def total_kernel(out_ptr, sums_ptr, parts, WANTED: tl.constexpr, BLOCK: tl.constexpr):
    part = tl.arange(0, BLOCK)
    total = tl.sum(tl.load(sums_ptr + 2 * part, mask=part < parts, other=0.0), 0)
    count = tl.sum(tl.load(sums_ptr + 2 * part + 1, mask=part < parts, other=0.0), 0)
    tl.store(out_ptr, wanted_of(total, count, WANTED))


def losses(
    loss: torch.Tensor, lse: torch.Tensor, mean: torch.Tensor | None, logits: torch.Tensor, target: torch.Tensor,
    ignore_index: int, smoothing: float,
) -> None:  # fmt: skip
    """The loss of each row into `loss` [M]. mean: of each row's logits, for smoothing."""
    tensors = (loss, lse, logits, target, *(() if mean is None else (mean,)))
    _losses(logits.shape, logits.stride(), target.stride(0), ignore_index, smoothing, mean is None)(*tensors)


@plan
def _losses(shape: Ints, strides: Ints, step: int, ignore_index: int, smoothing: float, plain: bool) -> Launch:
    absent = (None,) if plain else ()
    return Launch(
        losses_kernel, (cdiv(shape[0], 1024),), *absent, *shape, *strides, step, ignore_index, smoothing,
        BLOCK=1024, num_warps=4,
    )  # fmt: skip


def reduced(
    wanted: str, target: torch.Tensor, ignore_index: int, lse: torch.Tensor | None = None,
    mean: torch.Tensor | None = None, logits: torch.Tensor | None = None, smoothing: float = 0.0,
) -> torch.Tensor:  # fmt: skip
    """ "mean" or "sum" of the losses of all rows, or the "count" of those that count: one fp32 number."""
    given = [x for x in (lse, logits, mean) if x is not None]
    absent = (lse is None) + (logits is None) + (mean is None)
    M = target.shape[0]
    V, strides = (1, (0, 0)) if logits is None else (logits.shape[1], logits.stride())
    parts, first, last = _sums(wanted, M, V, strides, target.stride(0), ignore_index, smoothing, absent)
    out = torch.empty((), dtype=torch.float32, device=target.device)
    if last is None:
        first(out, target, *given)
    else:
        sums = out.new_empty((parts, 2))
        first(sums, target, *given)
        last(out, sums)
    return out


@plan
def _sums(
    wanted: str, M: int, V: int, strides: Ints, step: int, ignore_index: int, smoothing: float, absent: int
) -> tuple[int, Launch, Launch | None]:
    parts = max(1, min(MOST, cdiv(M, SHARE)))
    share = cdiv(cdiv(M, parts), BLOCK) * BLOCK
    first = Launch(
        sums_kernel, (parts,), *(None,) * absent, M, V, *strides, step, ignore_index, smoothing, share,
        WANTED=wanted if parts == 1 else "both", BLOCK=BLOCK, num_warps=16,
    )  # fmt: skip
    if parts == 1:
        return parts, first, None
    return parts, first, Launch(total_kernel, (1,), parts, WANTED=wanted, BLOCK=triton.next_power_of_2(parts))
