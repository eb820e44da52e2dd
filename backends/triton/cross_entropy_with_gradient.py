"""cross_entropy_with_gradient: the loss of each row and its gradient in one kernel.

two_pass  a program reads its rows twice, the second time from L2
staying   programs stay and walk down rows, most of which wait in shared memory, the next one on its way meanwhile
"""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._elementwise import ACCESS_BYTES
from kernelmux.backends.triton._launch import Launch, cdiv, like, plan, processors, shared_bytes
from kernelmux.backends.triton._loss_rows import gradients, log_sum_and_mean, logit_lanes, logit_merge, slope
from kernelmux.backends.triton._loss_shared import loss_shared_kernel
from kernelmux.backends.triton._row_plan import SPARE, access_of
from kernelmux.backends.triton._row_tiles import chunk_columns, chunk_masks, load_chunk, of_rows, store_chunk
from kernelmux.backends.triton._rows import next_power, walk
from kernelmux.backends.triton._strides import Ints, contiguous
from kernelmux.backends.triton._targets import losses, reduced, targets_of
from kernelmux.registry.backend import Implementation

ELEMENTS, BATCH = 8192, 2  # of a chunk at most; chunks in flight
RING_WARPS, SHORTEST = 32, 65536  # of a program that stays; bytes of a row


@triton.jit
def _chunk(ptrs, first, place, column_step, POLICY: tl.constexpr, DENSE: tl.constexpr, masks):
    """Within a chunk addresses are counted in 32 bits, where columns are neighbours."""
    step = place if DENSE else place.to(tl.int64) * column_step
    return load_chunk(ptrs + first * column_step + step, masks, POLICY)


@triton.jit
def _batch(
    ptrs, first, place, column_step, mask_rows, V, BATCH: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, DENSE: tl.constexpr, SMOOTHED: tl.constexpr,
):  # fmt: skip
    """What BATCH whole chunks add up to, per lane."""
    values = ()
    full = ()
    for k in tl.static_range(BATCH):
        masks = of_rows((), mask_rows, ROWS > 1)
        x = _chunk(ptrs, first + k * BLOCK, place, column_step, "evict_last", DENSE, masks)
        values += ((x.to(tl.float32),),)  # type: ignore[assignment]
        full += ((),)  # type: ignore[assignment]
    return logit_lanes(values, full, V, WIDTH, SMOOTHED)


@triton.jit
def _rewrite(
    grad_ptrs, ptrs, first, place, column_step, mask_rows, row, BATCH: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, DENSE: tl.constexpr,
):  # fmt: skip
    """Read a batch for the second time, and write its gradients."""
    for k in tl.static_range(BATCH):
        masks = of_rows((), mask_rows, ROWS > 1)
        x = _chunk(ptrs, first + k * BLOCK, place, column_step, "evict_first", DENSE, masks)
        store_chunk(grad_ptrs + (first + k * BLOCK) + place, gradients(x, first + k * BLOCK + place, row), masks)


@triton.jit
def cross_entropy_with_gradient_kernel(
    lse_ptr, grad_ptr, logits_ptr, target_ptr, mean_ptr, count_ptr, M, V, row_step, column_step, target_step,
    ignore_index, smoothing, batches,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, BATCH: tl.constexpr, TAIL: tl.constexpr, UNIT: tl.constexpr,
    WIDTH: tl.constexpr, PEELED: tl.constexpr, SPLIT: tl.constexpr, DENSE: tl.constexpr, SMOOTHED: tl.constexpr,
):  # fmt: skip
    """Chunks of a row: the first one if it is peeled, batches of BATCH, TAIL ones. row_step is in units of UNIT elements.

    mean_ptr: the mean of each row's logits, for SMOOTHED; count_ptr: how many rows count, if the loss is their mean.
    """
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)  # [ROWS]
    mask_rows = rows < M
    target, counts, is_class = targets_of(target_ptr, rows, mask_rows, V, target_step, ignore_index)
    row_start = rows * row_step * UNIT
    h = 1.0
    if count_ptr is not None:
        h = 1.0 / tl.load(count_ptr)

    ptrs = logits_ptr + row_start[:, None]
    grad_ptrs = grad_ptr + (rows * (V // UNIT) * UNIT)[:, None]
    begin = 0
    if PEELED:  # one row, from the last aligned address before it on
        begin = tl.sum(rows * V % PEELED, 0)
        ptrs = logits_ptr + (row_start // PEELED * PEELED)[:, None]
        grad_ptrs = grad_ptr + (rows * V // PEELED * PEELED)[:, None]
    HEAD: tl.constexpr = 1 if PEELED else 0
    zero = tl.program_id(0).to(tl.int64) * 0  # columns are counted in 64 bits
    place = tl.arange(0, BLOCK)[None, :]
    STRIDE: tl.constexpr = BATCH * BLOCK
    held = ()
    values = ()
    valid = ()
    for k in tl.static_range(HEAD + TAIL):
        first = zero + k * BLOCK + (0 if k < HEAD else batches * STRIDE)
        masks = chunk_masks(chunk_columns(first, BLOCK, tl.int64), begin, begin + V, False, WIDTH, SPLIT)
        x = _chunk(ptrs, first, place, column_step, "evict_first", DENSE, of_rows(masks, mask_rows, ROWS > 1))
        held += (x,)  # type: ignore[assignment]
        values += ((x.to(tl.float32),),)  # type: ignore[assignment]
        valid += (masks,)  # type: ignore[assignment]
    state = logit_lanes(values, valid, V, WIDTH, SMOOTHED)
    for batch in tl.range(batches):
        first = zero + HEAD * BLOCK + batch * STRIDE
        part = _batch(ptrs, first, place, column_step, mask_rows, V, BATCH, BLOCK, WIDTH, ROWS, DENSE, SMOOTHED)
        state = logit_merge(state, part)

    targets = (target[:, None] + begin, counts[:, None], is_class[:, None])
    found, known = log_sum_and_mean(state, V)
    row = slope(known, targets, h, smoothing, V)
    # From the last batch to the first: what was read last is the most likely to be in L2 still.
    for batch in tl.range(batches):
        first = zero + HEAD * BLOCK + (batches - 1 - batch) * STRIDE
        _rewrite(grad_ptrs, ptrs, first, place, column_step, mask_rows, row, BATCH, BLOCK, ROWS, DENSE)
    for k in tl.static_range(HEAD + TAIL):
        first = zero + k * BLOCK + (0 if k < HEAD else batches * STRIDE)
        masks = of_rows(valid[k], mask_rows, ROWS > 1)
        store_chunk(grad_ptrs + first + place, gradients(held[k], first + place, row), masks)
    tl.store(lse_ptr + rows[:, None], found[0], mask=mask_rows[:, None])
    if SMOOTHED:
        tl.store(mean_ptr + rows[:, None], found[1], mask=mask_rows[:, None])


def cross_entropy_with_gradient(
    way: str, logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float,
    reduction: str,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    grad = like(logits)
    lse = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
    mean = torch.empty_like(lse) if label_smoothing else None
    if grad.numel():
        count = (reduced("count", target, ignore_index),) if reduction == "mean" else ()
        work = (logits.shape, logits.stride(), logits.dtype, target.stride(0), ignore_index, label_smoothing)
        launcher = _staying if way == "staying" and _may_stay(logits) else _two_pass
        launcher(*work, not count, _room(logits.get_device()))(
            lse, grad, logits, target, lse if mean is None else mean, *count
        )
    if reduction != "none":
        return reduced(reduction, target, ignore_index, lse, mean, logits, label_smoothing), grad
    loss = torch.empty_like(lse)
    if loss.numel():
        losses(loss, lse, mean, logits, target, ignore_index, label_smoothing)
    return loss, grad


def _may_stay(logits: torch.Tensor) -> bool:
    """Rows of whole vectors, all of which start aligned, and long enough for a ring."""
    unit = ACCESS_BYTES // logits.dtype.itemsize
    (_, V), (step, along) = logits.shape, logits.stride()
    aligned = along == 1 and V % unit == 0 and step % unit == 0 and logits.data_ptr() % ACCESS_BYTES == 0
    return aligned and V * logits.dtype.itemsize >= SHORTEST


def _room(device: int) -> Ints:
    """Multiprocessors, and the bytes of shared memory that a program may have."""
    return processors(device), shared_bytes(device)


@plan
def _two_pass(
    shape: Ints, strides: Ints, dtype: torch.dtype, target_step: int, ignore_index: int, smoothing: float, plain: bool,
    room: Ints,
) -> Launch:  # fmt: skip
    M, V = shape
    access = access_of(walk(-1, shape, contiguous(shape), strides), dtype.itemsize)
    block = min(ELEMENTS, max(16, next_power(V)))
    rows = 1 if access.peeled else min(ELEMENTS // 4 // block, next_power(M)) or 1
    head, slack = (1, access.width - 1) if access.peeled else (0, 0)
    chunks = max(1, cdiv(V + slack, block) - head)  # behind the first one of a peeled row
    batches = min(chunks - 1, max(0, V - head * block) // block) // BATCH  # of chunks that lie inside every row
    absent = (None,) if plain else ()
    return Launch(
        cross_entropy_with_gradient_kernel, (cdiv(M, rows),), *absent, M, V, strides[0] // access.unit, strides[1],
        target_step, ignore_index, smoothing, batches,
        ROWS=rows, BLOCK=block, BATCH=BATCH, TAIL=chunks - batches * BATCH, UNIT=access.unit, WIDTH=access.width,
        PEELED=access.width if access.peeled else 0, SPLIT=access.width > 1 and (access.peeled or V % access.width != 0),
        DENSE=strides[1] == 1, SMOOTHED=smoothing != 0, num_warps=min(32, max(1, rows * block // 256)), maxnreg=64,
    )  # fmt: skip


@plan
def _staying(
    shape: Ints, strides: Ints, dtype: torch.dtype, target_step: int, ignore_index: int, smoothing: float, plain: bool,
    room: Ints,
) -> Launch:  # fmt: skip
    (M, V), width = shape, ACCESS_BYTES // dtype.itemsize
    block = 32 * RING_WARPS * width
    chunks = cdiv(V, block)
    ring = min((room[1] - SPARE) // (block * dtype.itemsize), chunks - 1) // BATCH
    batches = max(0, V // block - ring * BATCH - 1) // BATCH
    absent = (None,) if plain else ()
    return Launch(
        loss_shared_kernel, (min(M, room[0]),), *absent, M, V, strides[0] // width, target_step, ignore_index, smoothing,
        batches, BLOCK=block, BATCH=BATCH, BATCHES=ring, TAIL=chunks - (ring + batches) * BATCH, WIDTH=width,
        SPLIT=V % width != 0, SMOOTHED=smoothing != 0, num_warps=RING_WARPS,
    )  # fmt: skip


VARIANTS = {
    "two_pass": Implementation(
        fn=partial(cross_entropy_with_gradient, "two_pass"), idea="the second read of a row comes from L2"
    ),
    "staying": Implementation(
        fn=partial(cross_entropy_with_gradient, "staying"),
        idea="of long aligned rows all but the end waits in shared memory, and the next row takes its place meanwhile",
    ),
}
