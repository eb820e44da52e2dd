"""The kernel of the row family: what its functions find out about a row, and what they make of each element with it.

A row is walked twice. Some of its chunks are held in registers between the walks, all of a row that is short enough;
the others are read again, batch by batch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernelmux.backends.triton._launch.dependent import follow_previous
from kernelmux.backends.triton._rows.row_tiles import (
    chunk_columns,
    chunk_masks,
    edges,
    in_fp32,
    load_chunks,
    of_rows,
    spread,
    spread_mask,
    store_chunk,
)
from kernelmux.backends.triton._rows.rows import row_offsets


@triton.jit
def _starts(block, sizes, strides, UNIT: tl.constexpr, PEELED: tl.constexpr, ROWS: tl.constexpr):
    """Per tensor the offset of each row's column 0, [ROWS, 1]; strides are in units of UNIT elements.

    PEELED: the column that is the first aligned one.
    """
    starts = ()
    for i in tl.static_range(len(strides)):
        start, _ = row_offsets(block, sizes, strides[i], ROWS)
        start = start * UNIT
        if PEELED:  # written so that the compiler knows it to be a multiple
            start = (start + (PEELED - 1)) // PEELED * PEELED
        starts += (start[:, None],)  # type: ignore[assignment]
    return starts


@triton.jit
def _before(block, out_strides, UNIT: tl.constexpr, PEELED: tl.constexpr, ROWS: tl.constexpr, INDEX: tl.constexpr):
    """Of a peeled row the elements before its first aligned one, from which columns are counted; of several [ROWS, 1].

    Whole units, so that vectors are read by units.
    """
    if PEELED == 0:
        return 0
    elif ROWS == 1:
        return ((-block.to(tl.int64) * out_strides[0]) & (PEELED // UNIT - 1)).to(INDEX) * UNIT
    else:
        row = block * ROWS + tl.arange(0, ROWS)
        return ((-row.to(tl.int64) * out_strides[0]) & (PEELED // UNIT - 1)).to(INDEX)[:, None] * UNIT


@triton.jit
def shifted(steps, begin):
    """Offsets of column 0 in tensors that have one row, whose first element stands in column `begin`."""
    starts = ()
    for i in tl.static_range(len(steps)):
        starts += (-begin * steps[i],)  # type: ignore[assignment]
    return starts


@triton.jit
def _read(source, cols, masks, mask_rows, prepare: tl.constexpr, MASK_ROWS: tl.constexpr, POLICY: tl.constexpr):
    """What is held of a chunk of rows."""
    x = load_chunks(source, cols, of_rows(masks, mask_rows, MASK_ROWS), POLICY)
    if prepare is not None:
        x = prepare(*x)
    return x


@triton.jit
def _store(pointers, value, masks, POLICY: tl.constexpr):
    value = value.to(pointers.dtype.element_ty)
    if len(masks) == 0:
        tl.store(pointers, value, eviction_policy=POLICY)
    for i in tl.static_range(len(masks)):
        tl.store(pointers, value, mask=masks[i], eviction_policy=POLICY)


@triton.jit
def write(
    outs, known, numbers, chunk, out_starts, cols, out_step, masks, apply: tl.constexpr, POLICY: tl.constexpr,
):  # fmt: skip
    results = apply(*known, *numbers, *in_fp32(chunk[0]), *in_fp32(chunk[1]))
    if len(outs) == 1:
        _store(outs[0] + (out_starts + cols * out_step), results, masks, POLICY)
    else:
        for i in tl.static_range(len(outs)):
            _store(outs[i] + (out_starts + cols * out_step), results[i], masks, POLICY)


@triton.jit
def save(saved, known, offs, masks):
    """The first numbers of each row, one tensor for each."""
    for i in tl.static_range(len(saved)):
        store_chunk(saved[i] + offs, known[i], masks)


@triton.jit
def _batch(
    source, columns, numbers, first, N, mask_rows, prepare: tl.constexpr, terms: tl.constexpr, lanes: tl.constexpr,
    BATCH: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, MASK_ROWS: tl.constexpr, INDEX: tl.constexpr,
    FIRST: tl.constexpr,
):  # fmt: skip
    """The statistic, per lane, of BATCH whole chunks."""
    values = ()
    masks = ()
    for k in tl.static_range(BATCH):
        cols = chunk_columns(first + k * BLOCK, BLOCK, INDEX)
        x = _read(source, cols, (), mask_rows, prepare, MASK_ROWS, FIRST)
        w = load_chunks(columns, cols, (), "evict_last")
        values += (terms(*numbers, *in_fp32(x), *in_fp32(w)),)  # type: ignore[assignment]
        masks += ((),)  # type: ignore[assignment]
    return lanes(values, masks, N, False, WIDTH)


@triton.jit
def _rewrite(
    outs, known, source, columns, numbers, out_starts, out_step, first, mask_rows, prepare: tl.constexpr,
    apply: tl.constexpr, BATCH: tl.constexpr, BLOCK: tl.constexpr, MASK_ROWS: tl.constexpr, INDEX: tl.constexpr,
    SECOND: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """Read a batch for the second time, and write it."""
    for k in tl.static_range(BATCH):
        cols = chunk_columns(first + k * BLOCK, BLOCK, INDEX)
        x = _read(source, cols, (), mask_rows, prepare, MASK_ROWS, SECOND)
        chunk = (x, load_chunks(columns, cols, (), "evict_last"))
        masks = of_rows((), mask_rows, MASK_ROWS)
        write(outs, known, numbers, chunk, out_starts, cols, out_step, masks, apply, STORE)


@triton.jit
def rows_kernel(
    outs, saved, ins, vectors, numbers, sizes, out_strides, saved_strides, in_strides,
    N, out_step, in_steps, vector_steps, batches,
    prepare: tl.constexpr, terms: tl.constexpr, lanes: tl.constexpr, merge: tl.constexpr, total: tl.constexpr,
    finish: tl.constexpr, apply: tl.constexpr, KEEP: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, HELD: tl.constexpr, FULL: tl.constexpr, BATCH: tl.constexpr,
    UNIT: tl.constexpr, WIDTH: tl.constexpr, PEELED: tl.constexpr, MASK_ROWS: tl.constexpr,
    INDEX: tl.constexpr, LATE: tl.constexpr, ONCE: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr,
    STORE: tl.constexpr, FOLLOWS: tl.constexpr = False,
):  # fmt: skip
    """ROWS rows. LATE: vectors are not held but read when the row is written. ONCE to STORE: see _row_plan.HINTS.

    Held are HELD chunks at the end of a row, FULL of them without a mask, and its edges if rows are peeled.
    """
    follow_previous(FOLLOWS)
    block = tl.program_id(0)
    before = _before(block, out_strides, UNIT, PEELED, ROWS, INDEX)
    end = N - before
    _, mask_rows = row_offsets(block, sizes, out_strides, ROWS)
    out_starts = _starts(block, sizes, (out_strides,), UNIT, PEELED, ROWS)[0]
    source = (ins, _starts(block, sizes, in_strides, UNIT, PEELED, ROWS), in_steps)
    columns = (vectors, shifted(vector_steps, -before), vector_steps)
    STRIDE: tl.constexpr = BATCH * BLOCK
    tail = batches * STRIDE if BATCH else 0

    held = ()
    values = ()
    valid = ()
    for k in tl.static_range(HELD):
        cols = chunk_columns(tail + k * BLOCK, BLOCK, INDEX)
        masks = chunk_masks(cols, 0, end, k < FULL, WIDTH, False)
        x = _read(source, cols, masks, mask_rows, prepare, MASK_ROWS, ONCE)
        w = load_chunks(columns, cols, masks, "evict_last")
        held += ((x, () if LATE else w),)  # type: ignore[assignment]
        values += (terms(*numbers, *in_fp32(x), *in_fp32(w)),)  # type: ignore[assignment]
        valid += (masks,)  # type: ignore[assignment]
    if PEELED:
        edge, edge_masks = edges(before, end, BLOCK, WIDTH, INDEX)
        edge_x = _read(source, edge, edge_masks, mask_rows, prepare, MASK_ROWS, ONCE)
        edge_w = load_chunks(columns, edge, edge_masks, "evict_last")
        edge_terms = terms(*numbers, *in_fp32(edge_x), *in_fp32(edge_w))
        values += (spread(edge_terms, WIDTH),)  # type: ignore[assignment]
        valid += ((spread_mask(edge_masks[0], BLOCK, WIDTH),),)  # type: ignore[assignment]
    state = lanes(values, valid, N, KEEP, WIDTH)
    if BATCH:
        for batch in tl.range(batches):
            part = _batch(source, columns, numbers, batch * STRIDE, N, mask_rows, prepare, terms, lanes,
                          BATCH, BLOCK, WIDTH, MASK_ROWS, INDEX, FIRST)  # fmt: skip
            state = merge(state, part)
    known = finish(*numbers, *total(state, N), N)

    AGAIN: tl.constexpr = HELD if len(outs) > 0 else 0
    for k in tl.static_range(AGAIN):
        cols = chunk_columns(tail + k * BLOCK, BLOCK, INDEX)
        masks = valid[k]
        chunk = (held[k][0], load_chunks(columns, cols, masks, "evict_last")) if LATE else held[k]
        masks = of_rows(masks, mask_rows, MASK_ROWS)
        write(outs, known, numbers, chunk, out_starts, cols, out_step, masks, apply, STORE)
    if PEELED and AGAIN:
        masks = of_rows(edge_masks, mask_rows, MASK_ROWS)
        write(outs, known, numbers, (edge_x, edge_w), out_starts, edge, out_step, masks, apply, STORE)
    if BATCH and AGAIN:
        # From the last batch to the first: what was read last is the most likely to be in L2 still.
        for batch in tl.range(batches):
            _rewrite(
                outs, known, source, columns, numbers, out_starts, out_step, (batches - 1 - batch) * STRIDE,
                mask_rows, prepare, apply, BATCH, BLOCK, MASK_ROWS, INDEX, SECOND, STORE,
            )  # fmt: skip

    # Last of all: Triton 3.6 may use what it has converted for a store before that store, and then refuses the kernel.
    saved_rows, _ = row_offsets(block, sizes, saved_strides, ROWS)
    save(saved, known, saved_rows[:, None], of_rows((), mask_rows, MASK_ROWS))
