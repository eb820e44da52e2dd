"""The kernel of gradients of short rows, many of them side by side, which may begin between two aligned addresses.

A tile has so many rows that the next one begins as it did: what lies where in it is found out once, for all tiles of a
program. Columns are counted from the first aligned address of each row; those beside its whole vectors are `edges`, one
to a thread. Rows that begin alike have their sums down the columns together. The functions are those of an operator, as in
row_kernel, whose terms of zeros are zeros; `shares` is as in row_gradients, zeros of zeros; `held` is as in row_beside.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

from kernelmux.backends.triton._rows.row_gradient_kernel import added, nothing, of_rows_that_exist
from kernelmux.backends.triton._rows.row_kernel import shifted
from kernelmux.backends.triton._rows.row_tiles import (
    chunk_columns,
    chunk_masks,
    edges,
    in_fp32,
    load_chunk,
    load_chunks,
    of_rows,
    store_chunk,
)


@triton.jit
def _whole(
    ins, first, offs, end, here, BLOCK: tl.constexpr, CHUNKS: tl.constexpr, FULL: tl.constexpr, WIDTH: tl.constexpr
):
    """The whole vectors of a tile: per chunk a tile of each input. offs: of chunk 0, which the others follow."""
    values = ()
    for k in tl.static_range(CHUNKS):
        masks = of_rows(
            chunk_masks(chunk_columns(k * BLOCK, BLOCK, tl.int32), 0, end, k < FULL, WIDTH, False), here, True
        )
        chunk = ()
        for i in tl.static_range(len(ins)):
            chunk += (load_chunk((ins[i] + first) + offs + k * BLOCK, masks, ""),)  # type: ignore[assignment]
        values += (chunk,)  # type: ignore[assignment]
    return values


@triton.jit
def _beside(ins, first, offs, mask):
    """offs: 1 too large, so that Triton sees addresses that are neighbours but not aligned, and gives each to a thread."""
    values = ()
    for i in tl.static_range(len(ins)):
        values += (tl.load((ins[i] + (first - 1)) + offs, mask=mask, other=0.0),)  # type: ignore[assignment]
    return values


@triton.jit
def _alike(tile, PERIOD: tl.constexpr):
    """The sum of the rows of a tile that begin alike, [PERIOD, ...]: every PERIOD-th."""
    return tl.sum(tl.reshape(tile, [tile.shape[0] // PERIOD, PERIOD, tile.shape[1]]), 0)


@triton.jit
def short_gradients_kernel(
    grads, sums, ins, vectors, numbers, M, N, units, vector_steps,
    terms: tl.constexpr, held: tl.constexpr, finish: tl.constexpr, apply: tl.constexpr, shares: tl.constexpr,
    SAVED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr, FULL: tl.constexpr,
    UNIT: tl.constexpr, WIDTH: tl.constexpr, PERIOD: tl.constexpr, STAGES: tl.constexpr, LEADS: tl.constexpr,
):  # fmt: skip
    """The tiles to come are on their way to shared memory while this one waits for its sums, their edges to registers."""
    program = tl.program_id(0)
    row = tl.arange(0, ROWS)
    start = (row * units * UNIT)[:, None]  # in the tile
    before = (row * 0)[:, None]
    if PERIOD > 1:
        aligned = (start + (WIDTH - 1)) // WIDTH * WIDTH
        before = aligned - start
        start = aligned
    end = N - before
    offs = start + tl.arange(0, BLOCK)[None, :]
    source = (vectors, shifted(vector_steps, -before), vector_steps)
    weights = ()
    valid = ()
    state = ()
    for k in tl.static_range(CHUNKS):
        cols = chunk_columns(k * BLOCK, BLOCK, tl.int32)
        masks = chunk_masks(cols, 0, end, k < FULL, WIDTH, False)
        weights += (in_fp32(load_chunks(source, cols.to(tl.int64), masks, "evict_last")),)  # type: ignore[assignment]
        valid += (masks,)  # type: ignore[assignment]
        state += (nothing(sums, ROWS, BLOCK),)  # type: ignore[assignment]
    tile = ROWS * units * UNIT
    first = program.to(tl.int64) * tile
    here = row < M - program * ROWS
    edge_masks = ()
    if PERIOD > 1:
        edge_cols, edge_masks = edges(before, end, BLOCK, WIDTH, tl.int32)
        edge_offs = start + edge_cols + 1
        edge_w = in_fp32(load_chunks(source, edge_cols.to(tl.int64), edge_masks, "evict_last"))
        edge_state = nothing(sums, ROWS, BLOCK // WIDTH)
        edge_next = _beside(ins, first, edge_offs, edge_masks[0] & here[:, None])

    for step in tl.range(program, tl.cdiv(M, ROWS), tl.num_programs(0), num_stages=STAGES):
        first = step.to(tl.int64) * tile
        here = row < M - step * ROWS
        if PERIOD > 1:
            following = step + tl.num_programs(0)
            there = edge_masks[0] & (row < M - following * ROWS)[:, None]  # type: ignore[misc]
            edge_x = in_fp32(edge_next)
            edge_next = _beside(ins, following.to(tl.int64) * tile, edge_offs, there)
            edge = terms(*numbers, *edge_x, *edge_w)
        else:
            edge = ()
        x = _whole(ins, first, offs, end, here, BLOCK, CHUNKS, FULL, WIDTH)

        values = ()
        for k in tl.static_range(CHUNKS):
            values += (terms(*numbers, *in_fp32(x[k]), *weights[k]),)  # type: ignore[assignment]
        found = held(values, valid, edge, edge_masks, N, WIDTH)
        known = of_rows_that_exist(finish(*numbers, *found, N), here)

        more = ()
        for k in tl.static_range(CHUNKS):
            wide = in_fp32(x[k])
            out = (grads[0] + first) + offs + k * BLOCK
            store_chunk(out, apply(*known, *numbers, *wide, *weights[k]), of_rows(valid[k], here, True))
            more += (added(state[k], shares(*known[:SAVED], *wide)),)  # type: ignore[assignment]
        state = more
        if PERIOD > 1:
            edge_grad = apply(*known, *numbers, *edge_x, *edge_w)
            store_chunk((grads[0] + (first - 1)) + edge_offs, edge_grad, of_rows(edge_masks, here, True))
            edge_state = added(edge_state, shares(*known[:SAVED], *edge_x))

    if LEADS:
        cuda.gdc_launch_dependents()
    kind = tl.arange(0, PERIOD)[:, None]
    skipped = -kind * N & (WIDTH - 1) if PERIOD > 1 else 0
    out = (program.to(tl.int64) * PERIOD + kind) * N + skipped
    for k in tl.static_range(CHUNKS):
        cols = chunk_columns(k * BLOCK, BLOCK, tl.int32)
        masks = chunk_masks(cols, 0, N - skipped, k < FULL, WIDTH, False)
        for i in tl.static_range(len(sums)):
            store_chunk(sums[i] + (out + cols), _alike(state[k][i], PERIOD), masks)
    if PERIOD > 1:
        cols, masks = edges(skipped, N - skipped, BLOCK, WIDTH, tl.int32)
        for i in tl.static_range(len(sums)):
            store_chunk(sums[i] + (out + cols), _alike(edge_state[i], PERIOD), masks)
