"""The kernel of gradients that programs add up for many rows: rows are read once, and sums down the columns stay.

What it computes of a row is in the functions of an operator, as in row_kernel; `shares` is as in row_gradients.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

from kernelmux.backends.triton._rows.row_kernel import shifted
from kernelmux.backends.triton._rows.row_tiles import (
    chunk_columns,
    chunk_masks,
    edges,
    in_fp32,
    load_chunk,
    load_chunks,
    of_rows,
    spread,
    spread_mask,
    store_chunk,
)


@triton.jit
def _chunk_of(source, k: tl.constexpr, masks, BLOCK: tl.constexpr, POLICY: tl.constexpr):
    """Chunk k, as load_chunks reads it, by addresses that differ in a constant, which takes no registers."""
    values = ()
    place = tl.arange(0, BLOCK)[None, :]
    for i in tl.static_range(len(source[0])):
        first = source[0][i] + (source[1][i] + k * BLOCK * source[2][i])
        values += (load_chunk(first + place * source[2][i], masks, POLICY),)  # type: ignore[assignment]
    return values


@triton.jit
def _weights(source, held, k: tl.constexpr, masks, BLOCK: tl.constexpr, LATE: tl.constexpr):
    """The vectors' elements of chunk k, held or read once more: source as in load_chunks."""
    if LATE:
        return in_fp32(_chunk_of(source, k, masks, BLOCK, "evict_last"))
    else:
        return held[k]


@triton.jit
def nothing(sums, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Zeros for each of the sums."""
    zeros = ()
    for _ in tl.static_range(len(sums)):
        zeros += (tl.zeros([ROWS, BLOCK], tl.float32),)  # type: ignore[assignment]
    return zeros


@triton.jit
def added(sums, more):
    both = ()
    for i in tl.static_range(len(sums)):
        both += (sums[i] + more[i],)  # type: ignore[assignment]
    return both


@triton.jit
def of_rows_that_exist(values, mask_rows):
    """Zeros for the others."""
    there = ()
    for i in tl.static_range(len(values)):
        there += (tl.where(mask_rows[:, None], values[i], 0.0),)  # type: ignore[assignment]
    return there


@triton.jit
def _row(
    grad_x_ptr, sums, ins, source, weights, edge, numbers, start, mask_rows, N, end,
    terms: tl.constexpr, lanes: tl.constexpr, total: tl.constexpr, finish: tl.constexpr, apply: tl.constexpr,
    shares: tl.constexpr, SAVED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr,
    FULL: tl.constexpr, WIDTH: tl.constexpr, LATE: tl.constexpr,
):  # fmt: skip
    """ROWS rows; the sums with what they add to them, per chunk a tuple with one for each vector.

    edge: of a peeled row columns, masks, values and vectors of its edges.
    """
    starts = ()
    steps = ()
    for _ in tl.static_range(len(ins)):
        starts += (start,)  # type: ignore[assignment]
        steps += (1,)  # type: ignore[assignment]
    values = ()
    held = ()
    valid = ()
    for k in tl.static_range(CHUNKS):
        cols = chunk_columns(k * BLOCK, BLOCK, tl.int32)
        masks = chunk_masks(cols, 0, end, k < FULL, WIDTH, False)
        x = in_fp32(_chunk_of((ins, starts, steps), k, of_rows(masks, mask_rows, ROWS > 1), BLOCK, ""))
        held += (x,)  # type: ignore[assignment]
        valid += (masks,)  # type: ignore[assignment]
        w = _weights(source, weights, k, masks, BLOCK, LATE)
        values += (terms(*numbers, *x, *w),)  # type: ignore[assignment]
    if len(edge) > 0:
        edge_x = in_fp32(edge[2])
        values += (spread(terms(*numbers, *edge_x, *edge[3]), WIDTH),)  # type: ignore[assignment]
        valid += ((spread_mask(edge[1][0], BLOCK, WIDTH),),)  # type: ignore[assignment]
    known = finish(*numbers, *total(lanes(values, valid, N, True, WIDTH), N), N)
    found = ()
    for k in tl.static_range(CHUNKS):
        w = _weights(source, weights, k, valid[k], BLOCK, LATE)
        grad_x = apply(*known, *numbers, *held[k], *w)
        out = grad_x_ptr + (start + k * BLOCK) + tl.arange(0, BLOCK)[None, :]
        store_chunk(out, grad_x, of_rows(valid[k], mask_rows, ROWS > 1))
        more = shares(*known[:SAVED], *held[k])
        if ROWS > 1:
            more = of_rows_that_exist(more, mask_rows)
        found += (added(sums[k], more),)  # type: ignore[assignment]
    if len(edge) > 0:
        store_chunk(grad_x_ptr + (start + edge[0]), apply(*known, *numbers, *edge_x, *edge[3]), edge[1])
        found += (added(sums[CHUNKS], shares(*known[:SAVED], *edge_x)),)  # type: ignore[assignment]
    return found


@triton.jit
def _at(tensors, row, N, UNIT: tl.constexpr, PEELED: tl.constexpr):
    """Contiguous rows of `tensors`, from column 0, as load_chunks takes them."""
    starts = ()
    steps = ()
    for _ in tl.static_range(len(tensors)):
        starts += (_start(row, N, UNIT, PEELED),)  # type: ignore[assignment]
        steps += (1,)  # type: ignore[assignment]
    return tensors, starts, steps


@triton.jit
def _start(row, units, UNIT: tl.constexpr, PEELED: tl.constexpr):
    """Of a row of so many units: column 0, which is the first aligned one if rows are peeled."""
    start = row.to(tl.int64) * units * UNIT
    return (start + (PEELED - 1)) // PEELED * PEELED if PEELED else start


@triton.jit
def gradients_fused_kernel(
    grads, sums, ins, vectors, numbers, M, N, units, vector_steps,
    terms: tl.constexpr, lanes: tl.constexpr, total: tl.constexpr, finish: tl.constexpr, apply: tl.constexpr,
    shares: tl.constexpr, SAVED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr,
    FULL: tl.constexpr, UNIT: tl.constexpr, WIDTH: tl.constexpr, PEELED: tl.constexpr, STAGES: tl.constexpr,
    LEADS: tl.constexpr, LATE: tl.constexpr,
):  # fmt: skip
    """ROWS rows at a time. LATE: vectors are not held in registers but read again for each row, twice.

    PEELED: all rows of a program begin equally far from an aligned address, and columns are counted from there.
    """
    program = tl.program_id(0)
    before = ((-program.to(tl.int64) * N) & (PEELED - 1)).to(tl.int32) if PEELED else 0
    end = N - before
    source = (vectors, shifted(vector_steps, -before), vector_steps)
    weights = ()
    state = ()
    for k in tl.static_range(CHUNKS):
        cols = chunk_columns(k * BLOCK, BLOCK, tl.int32)
        masks = chunk_masks(cols, 0, end, k < FULL, WIDTH, False)
        wide = cols.to(tl.int64)
        if not LATE:
            weights += (in_fp32(load_chunks(source, wide, masks, "evict_last")),)  # type: ignore[assignment]
        state += (nothing(sums, ROWS, BLOCK),)  # type: ignore[assignment]
    if PEELED:
        edge_cols, edge_masks = edges(before, end, BLOCK, WIDTH, tl.int32)
        edge_w = in_fp32(load_chunks(source, edge_cols.to(tl.int64), edge_masks, "evict_last"))
        edge_x = load_chunks(_at(ins, program, units, UNIT, PEELED), edge_cols, edge_masks, "")
        state += (nothing(sums, 1, BLOCK // WIDTH),)  # type: ignore[assignment]

    # The rows to come are on their way to shared memory while this one waits for its sums, their edges to registers.
    for step in tl.range(program, tl.cdiv(M, ROWS), tl.num_programs(0), num_stages=STAGES):
        if ROWS > 1:
            row = step * ROWS + tl.arange(0, ROWS)
            start = _start(row, units, UNIT, PEELED)[:, None]
        else:
            row = step
            start = _start(row, units, UNIT, PEELED)
        if PEELED:
            edge = (edge_cols, edge_masks, edge_x, edge_w)
            following = step + tl.num_programs(0)
            there = (edge_masks[0] & (following < M),)
            edge_x = load_chunks(_at(ins, following, units, UNIT, PEELED), edge_cols, there, "")
        else:
            edge = ()  # type: ignore[assignment]
        state = _row(grads[0], state, ins, source, weights, edge, numbers, start, row < M, N, end, terms, lanes, total,
                     finish, apply, shares, SAVED, ROWS, BLOCK, CHUNKS, FULL, WIDTH, LATE)  # fmt: skip

    if LEADS:
        cuda.gdc_launch_dependents()
    out = _start(program, units, UNIT, PEELED)
    for k in tl.static_range(CHUNKS):
        cols = chunk_columns(k * BLOCK, BLOCK, tl.int32)
        masks = chunk_masks(cols, 0, end, k < FULL, WIDTH, False)
        for i in tl.static_range(len(sums)):
            part = tl.sum(state[k][i], 0, keep_dims=True) if ROWS > 1 else state[k][i]
            store_chunk(sums[i] + (out + cols), part, masks)
    if PEELED:
        for i in tl.static_range(len(sums)):
            store_chunk(sums[i] + (out + edge_cols), state[CHUNKS][i], edge_masks)
