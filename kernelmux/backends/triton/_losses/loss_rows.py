"""A row of logits with a target class: what one walk over it finds, and the gradient of its loss that follows.

With h, the gradient of the row's loss: grad = h * (exp(x - m) / sum - (1 - s) * (1 at the target) - s / V). A row that
does not count is 0, and one whose target is no class is NaN.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernelmux.backends.triton._losses.targets import targets_of
from kernelmux.backends.triton._rows.row_statistics import EXPONENTIALS, SUMS, exponential
from kernelmux.backends.triton._rows.row_tiles import (
    chunk_columns,
    chunk_masks,
    edges,
    load_chunk,
    of_rows,
    spread,
    spread_mask,
    store_chunk,
)

_exponential_lanes, _exponential_merge, _exponential_total, _ = EXPONENTIALS
_sum_lanes, _sum_merge, _sum_total, _ = SUMS


@triton.jit
def logit_lanes(terms, valid, n, WIDTH: tl.constexpr, SMOOTHED: tl.constexpr, KEEP: tl.constexpr = False):
    """Of some chunks, per lane: maximum, sum of exponentials and, with smoothing, the sum. KEEP: they are the row."""
    state = _exponential_lanes(terms, valid, n, KEEP, WIDTH)
    if SMOOTHED:
        state = state + _sum_lanes(terms, valid, n, KEEP, WIDTH)
    return state


@triton.jit
def logit_merge(a, b):
    state = _exponential_merge(a, b)
    if len(a) == 3:
        state = state + _sum_merge(a[2:], b[2:])
    return state


@triton.jit
def log_sum_and_mean(state, V):
    """Of each row, [ROWS, 1], and what `slope` needs. A row of nothing but -inf is NaN, as one with another infinity."""
    top, total = _exponential_total(state[:2], V)
    lse = tl.where(top == -float("inf"), float("nan"), top + tl.log(total))
    if len(state) == 3:
        return (lse, _sum_total(state[2:], V)[0] / V), (top, total)
    else:
        return (lse,), (top, total)


@triton.jit
def slope(known, targets, h, smoothing, V):
    """What `gradients` needs of each row, with a spread of NaN where the target is no class."""
    top, total = known
    return top, h / total, tl.where(targets[2], h * (smoothing / V), float("nan")), h * (1 - smoothing), targets


@triton.jit
def gradients(x, place, row):
    """Of logits of some columns. place: of each column, as the target of the row is counted."""
    top, scale, spread, at_target, targets = row
    target, counts, _ = targets
    grad = exponential(x.to(tl.float32) - top) * scale - spread
    return tl.where(counts, tl.where(place == target, grad - at_target, grad), 0.0)


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
def loss_rows_kernel(
    lse_ptr, grad_ptr, logits_ptr, target_ptr, mean_ptr, count_ptr, M, V, row_step, column_step, target_step,
    ignore_index, smoothing, batches,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, BATCH: tl.constexpr, HELD: tl.constexpr, FULL: tl.constexpr,
    UNIT: tl.constexpr, WIDTH: tl.constexpr, PEELED: tl.constexpr, DENSE: tl.constexpr, SMOOTHED: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    """Chunks of a row: batches of BATCH, which are read twice, and HELD ones, FULL of these without a mask.

    A peeled row begins at its first aligned element; its edges are held as well. row_step is in units of UNIT elements.

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
    before = 0
    if PEELED:  # one row
        before = ((-tl.program_id(0).to(tl.int64) * V) & (PEELED - 1)).to(INDEX)
        ptrs = logits_ptr + ((row_start + (PEELED - 1)) // PEELED * PEELED)[:, None]
        grad_ptrs = grad_ptr + ((rows * V + (PEELED - 1)) // PEELED * PEELED)[:, None]
    end = V - before
    zero = (tl.program_id(0) * 0).to(INDEX)
    place = tl.arange(0, BLOCK)[None, :]
    STRIDE: tl.constexpr = BATCH * BLOCK
    tail = zero + batches * STRIDE if BATCH else zero
    held = ()
    values = ()
    valid = ()
    for k in tl.static_range(HELD):
        first = tail + k * BLOCK
        masks = chunk_masks(chunk_columns(first, BLOCK, INDEX), 0, end, k < FULL, WIDTH, False)
        x = _chunk(ptrs, first, place, column_step, "evict_first", DENSE, of_rows(masks, mask_rows, ROWS > 1))
        held += (x,)  # type: ignore[assignment]
        values += ((x.to(tl.float32),),)  # type: ignore[assignment]
        valid += (masks,)  # type: ignore[assignment]
    if PEELED:
        edge, edge_masks = edges(before, end, BLOCK, WIDTH, INDEX)
        edge_x = load_chunk(ptrs + edge, edge_masks, "evict_first")
        values += (spread((edge_x.to(tl.float32),), WIDTH),)  # type: ignore[assignment]
        valid += ((spread_mask(edge_masks[0], BLOCK, WIDTH),),)  # type: ignore[assignment]
    state = logit_lanes(values, valid, V, WIDTH, SMOOTHED, BATCH == 0)
    if BATCH:
        for batch in tl.range(batches):
            part = _batch(ptrs, zero + batch * STRIDE, place, column_step, mask_rows, V, BATCH, BLOCK, WIDTH, ROWS, DENSE,
                          SMOOTHED)  # fmt: skip
            state = logit_merge(state, part)

    # A target that is no class may become one in fewer bits; its row is 0 or NaN all the same.
    targets = ((target[:, None] - before).to(INDEX), counts[:, None], is_class[:, None])
    found, known = log_sum_and_mean(state, V)
    row = slope(known, targets, h, smoothing, V)
    if BATCH:
        # From the last batch to the first: what was read last is the most likely to be in L2 still.
        for batch in tl.range(batches):
            first = zero + (batches - 1 - batch) * STRIDE
            _rewrite(grad_ptrs, ptrs, first, place, column_step, mask_rows, row, BATCH, BLOCK, ROWS, DENSE)
    for k in tl.static_range(HELD):
        first = tail + k * BLOCK
        masks = of_rows(valid[k], mask_rows, ROWS > 1)
        store_chunk(grad_ptrs + first + place, gradients(held[k], first + place, row), masks)
    if PEELED:
        store_chunk(grad_ptrs + edge, gradients(edge_x, edge, row), edge_masks)
    tl.store(lse_ptr + rows[:, None], found[0], mask=mask_rows[:, None])
    if SMOOTHED:
        tl.store(mean_ptr + rows[:, None], found[1], mask=mask_rows[:, None])
