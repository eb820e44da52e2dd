"""cross_entropy_backward: exp(x - lse) less the target, times the gradient of the row's loss: one read, one write."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch.launch import Launch, cdiv, like, plan
from kernelmux.backends.triton._launch.strides import Ints, contiguous
from kernelmux.backends.triton._losses.targets import reduced, targets_of
from kernelmux.backends.triton._rows.row_plan import access_of
from kernelmux.backends.triton._rows.row_statistics import exponential
from kernelmux.backends.triton._rows.row_tiles import chunk_columns, chunk_masks, load_chunk, of_rows, store_chunk
from kernelmux.backends.triton._rows.rows import next_power, walk
from kernelmux.registry.backend import Implementation

# Of a program, at most. H200, 8192 x 128256 in bf16, one run: 2048 elements of 4 warps 1007 us, of 8 1133, and 1138 with
# loads that are evicted first; 1024 of 2 warps 1004, of 4 1121; 4096 of 8 warps 1019, of 16 1172; 8192 of 16 warps 1119.
ELEMENTS, WARPS = 2048, 4
COUNTED = 128  # rows that each program counts for their mean, which takes less than kernels for it


@triton.jit
def _chunk(grad_ptrs, logits_ptrs, place, row, masks, smoothing, V):
    """place: of a class in the chunk, [1, BLOCK]; row: lse, place of the target, gradient of the loss, masks, [ROWS, 1]."""
    lse, target, g, counts, is_class = row
    x = load_chunk(logits_ptrs, masks, "").to(tl.float32)
    share = exponential(x - lse) - smoothing / V
    grad = g * tl.where(place == target, share - (1 - smoothing), share)
    grad = tl.where(counts, tl.where(is_class, grad, float("nan")), 0.0)
    store_chunk(grad_ptrs, grad, masks)


@triton.jit
def cross_entropy_backward_kernel(
    grad_ptr, grad_loss_ptr, logits_ptr, target_ptr, lse_ptr, count_ptr, M, V, row_step, column_step, target_step,
    lse_step, grad_loss_step, ignore_index, smoothing, chunks,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, UNIT: tl.constexpr, WIDTH: tl.constexpr, PEELED: tl.constexpr,
    SPLIT: tl.constexpr, DENSE: tl.constexpr, COUNTED: tl.constexpr,
):  # fmt: skip
    """row_step in units of UNIT elements; chunks: of a row; COUNTED: if the mean of so many rows or fewer is taken."""
    rows = (tl.program_id(0) // chunks).to(tl.int64) * ROWS + tl.arange(0, ROWS)  # [ROWS]
    mask_rows = rows < M
    targets = targets_of(target_ptr, rows, mask_rows, V, target_step, ignore_index)
    g = tl.load(grad_loss_ptr + rows * grad_loss_step, mask=mask_rows)
    if count_ptr is not None:
        g = g / tl.load(count_ptr)
    if COUNTED:
        every = tl.arange(0, COUNTED)
        all_targets = tl.load(target_ptr + every.to(tl.int64) * target_step, mask=every < M, other=ignore_index)
        g = g / tl.sum((all_targets != ignore_index).to(tl.float32), 0)
    lse = tl.load(lse_ptr + rows * lse_step, mask=mask_rows)

    start = (rows * row_step * UNIT)[:, None]
    out_start = (rows * (V // UNIT) * UNIT)[:, None]
    begin = 0
    if PEELED:  # one row, from the last aligned address before it on
        begin = tl.sum(rows * V % PEELED, 0)
        start = start // PEELED * PEELED
        out_start = (rows * V // PEELED * PEELED)[:, None]
    first = (tl.program_id(0) % chunks).to(tl.int64) * BLOCK
    place = tl.arange(0, BLOCK)[None, :]
    target = targets[0] - (first - begin)
    target = tl.where((target >= 0) & (target < BLOCK), target, -1).to(tl.int32)  # compared in 32 bits
    row = (lse[:, None], target[:, None], g[:, None], targets[1][:, None], targets[2][:, None])
    # Within a chunk addresses are counted in 32 bits, where columns are neighbours.
    step = place if DENSE else place.to(tl.int64) * column_step
    grad_ptrs = grad_ptr + (out_start + first) + place
    logits_ptrs = logits_ptr + (start + first * column_step) + step
    if (ROWS == 1) & (first >= begin) & (first + BLOCK <= begin + V):
        _chunk(grad_ptrs, logits_ptrs, place, row, (), smoothing, V)
    else:
        cols = chunk_columns(first, BLOCK, tl.int64)
        masks = of_rows(chunk_masks(cols, begin, begin + V, False, WIDTH, SPLIT), mask_rows, ROWS > 1)
        _chunk(grad_ptrs, logits_ptrs, place, row, masks, smoothing, V)


def cross_entropy_backward(
    grad_loss: torch.Tensor, logits: torch.Tensor, target: torch.Tensor, lse: torch.Tensor,
    ignore_index: int, label_smoothing: float, reduction: str,
) -> torch.Tensor:  # fmt: skip
    grad = like(logits)
    if grad.numel():
        mean = reduction == "mean"
        counted = COUNTED if mean and logits.shape[0] <= COUNTED else 0
        counts = (reduced("count", target, ignore_index),) if mean and not counted else ()
        steps = (target.stride(0), lse.stride(0), grad_loss.stride(0) if reduction == "none" else 0)
        launch = _plan(
            logits.shape, logits.stride(), logits.dtype, steps, ignore_index, label_smoothing, not counts, counted
        )  # fmt: skip
        launch(grad, grad_loss, logits, target, lse, *counts)
    return grad


@plan
def _plan(
    shape: Ints, strides: Ints, dtype: torch.dtype, steps: Ints, ignore_index: int, smoothing: float, plain: bool,
    counted: int,
) -> Launch:  # fmt: skip
    M, V = shape
    w = walk(-1, shape, contiguous(shape), strides)
    access = access_of(w, dtype.itemsize)
    block = min(ELEMENTS, next_power(V))
    rows = 1 if access.peeled else min(ELEMENTS // block, next_power(M))
    chunks = cdiv(V + (access.width - 1 if access.peeled else 0), block)
    absent = (None,) if plain else ()
    return Launch(
        cross_entropy_backward_kernel, (cdiv(M, rows) * chunks,), *absent, M, V, strides[0] // access.unit, strides[1],
        *steps, ignore_index, smoothing, chunks,
        ROWS=rows, BLOCK=block, UNIT=access.unit, WIDTH=access.width, PEELED=access.width if access.peeled else 0,
        SPLIT=access.width > 1 and (access.peeled or V % access.width != 0), DENSE=strides[1] == 1,
        COUNTED=counted, num_warps=WARPS,
    )  # fmt: skip


VARIANTS = {
    "blocked": Implementation(fn=cross_entropy_backward, idea="a chunk of a row per program: one read, one write"),
}
