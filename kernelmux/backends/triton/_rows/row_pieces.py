"""Kernels of rows that no program holds, or of long rows that are too few for one program each.

The first finds out what it can about pieces of rows, a program for each; the second walks down columns, knows all of a
row from its pieces and writes what is made of it. Of gradients it also adds up those of the vectors. What they compute is
in the functions of an operator, as in row_kernel; `shares` is as in row_gradients, `parts` as in Pieces of row_statistics.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

from kernelmux.backends.triton._rows.row_tiles import chunk_columns, chunk_masks, in_fp32, load_chunks


@triton.jit
def _at_zero(tensors):
    """Where column 0 of vectors stands."""
    starts = ()
    for _ in tl.static_range(len(tensors)):
        starts += (0,)  # type: ignore[assignment]
    return starts


@triton.jit
def _rows_at(ins, offs, masks, prepare: tl.constexpr):
    """What is read of inputs whose rows lie alike, in fp32."""
    starts = ()
    steps = ()
    for _ in tl.static_range(len(ins)):
        starts += (0,)  # type: ignore[assignment]
        steps += (1,)  # type: ignore[assignment]
    x = load_chunks((ins, starts, steps), offs, masks, "")
    if prepare is not None:
        x = prepare(*x)
    return in_fp32(x)


@triton.jit
def pieces_kernel(
    outs, stats, ins, vectors, numbers, M, N, units, vector_steps,
    prepare: tl.constexpr, terms: tl.constexpr, lanes: tl.constexpr, total: tl.constexpr, parts: tl.constexpr,
    BLOCK: tl.constexpr, CHUNKS: tl.constexpr, PIECES: tl.constexpr, UNIT: tl.constexpr, LEADS: tl.constexpr,
):  # fmt: skip
    """What is known of a piece of CHUNKS chunks goes to stats[row, :, piece]."""
    piece = tl.program_id(0) % PIECES
    row = (tl.program_id(0) // PIECES).to(tl.int64)
    first = piece * (BLOCK * CHUNKS)
    values = ()
    valid = ()
    for k in tl.static_range(CHUNKS):
        cols = chunk_columns(first + k * BLOCK, BLOCK, tl.int32)
        masks = chunk_masks(cols, 0, N, False, UNIT, False)
        x = _rows_at(ins, row * units * UNIT + cols, masks, prepare)
        w = load_chunks((vectors, _at_zero(vectors), vector_steps), cols.to(tl.int64), masks, "evict_last")
        values += (terms(*numbers, *x, *in_fp32(w)),)  # type: ignore[assignment]
        valid += (masks,)  # type: ignore[assignment]
    if LEADS:
        cuda.gdc_launch_dependents()
    count = tl.minimum(N - first, BLOCK * CHUNKS)
    found = parts(total(lanes(values, valid, count, True, UNIT), count), count)
    one = tl.zeros([1, 1], tl.int32)
    for i in tl.static_range(len(found)):
        at = stats[0] + ((row * len(found) + i) * PIECES + piece) + one
        tl.store(at, tl.zeros([1, 1], tl.float32) + found[i])


@triton.jit
def _known_of(stats, numbers, row, M, N, total: tl.constexpr, finish: tl.constexpr, COUNT: tl.constexpr,
              PIECES: tl.constexpr, LANES: tl.constexpr, EMPTY: tl.constexpr, BLOCK_M: tl.constexpr):  # fmt: skip
    """What apply needs of some rows, each [BLOCK_M, 1], of one row scalars. EMPTY: the first number of an empty piece."""
    state = ()
    lane = tl.arange(0, LANES)[None, :]
    place = row.to(tl.int64)[:, None] * (COUNT * PIECES) + lane
    inside = (row < M)[:, None] & (lane < PIECES)
    for i in tl.static_range(COUNT):
        one = tl.load(stats + (place + i * PIECES), mask=inside, other=EMPTY if i == 0 else 0.0)
        state += (one,)  # type: ignore[assignment]
    known = finish(*numbers, *total(state, N), N)
    if BLOCK_M == 1:
        # Tiles of one number Triton 3.6 spreads over all columns and moves through shared memory, 2,048 stores for
        # layer_norm. H200, bf16, us so and by scalars: 16 x 50256 41.9 and 7.2, 3 x 65440 24.1 and 7.0.
        scalars = ()
        for i in tl.static_range(len(known)):
            scalars += (tl.sum(tl.sum(known[i], 1), 0),)  # type: ignore[assignment]
        return scalars
    else:
        return known


@triton.jit
def columns_kernel(
    outs, sums, ins, vectors, numbers, M, N, units, vector_steps,
    prepare: tl.constexpr, total: tl.constexpr, finish: tl.constexpr, apply: tl.constexpr, shares: tl.constexpr,
    SAVED: tl.constexpr, COUNT: tl.constexpr, PIECES: tl.constexpr, LANES: tl.constexpr, EMPTY: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, UNIT: tl.constexpr, LEADS: tl.constexpr,
):  # fmt: skip
    """sums: those of the vectors, then the COUNT numbers of each piece.

    From the last rows, which L2 may still have, to the first.
    """
    SUMS: tl.constexpr = len(sums) - 1
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    mask = chunk_masks(cols, 0, N, False, UNIT, False)[0]
    w = in_fp32(load_chunks((vectors, _at_zero(vectors), vector_steps), cols.to(tl.int64), (mask,), "evict_last"))
    state = ()
    for _ in tl.static_range(SUMS):
        state += (tl.zeros([BLOCK_M, BLOCK_N], tl.float32),)  # type: ignore[assignment]
    if LEADS:
        cuda.gdc_wait()
    steps = tl.cdiv(M, BLOCK_M)
    for step in range(tl.program_id(1), steps, tl.num_programs(1)):
        row = (steps - 1 - step) * BLOCK_M + tl.arange(0, BLOCK_M)
        offs = (row.to(tl.int64) * units * UNIT)[:, None] + cols
        inside = (row < M)[:, None] & mask
        x = _rows_at(ins, offs, (inside,), prepare)
        known = _known_of(sums[SUMS], numbers, row, M, N, total, finish, COUNT, PIECES, LANES, EMPTY, BLOCK_M)
        results = apply(*known, *numbers, *x, *w)
        if len(outs) == 1:
            tl.store(outs[0] + offs, results.to(outs[0].dtype.element_ty), mask=inside)
        else:
            for i in tl.static_range(len(outs)):
                tl.store(outs[i] + offs, results[i].to(outs[i].dtype.element_ty), mask=inside)
        if SUMS > 0:
            more = shares(*known[:SAVED], *x)
            added = ()
            for i in tl.static_range(SUMS):
                added += (state[i] + tl.where((row < M)[:, None], more[i], 0.0),)  # type: ignore[assignment]
            state = added
    if LEADS:
        cuda.gdc_launch_dependents()
    for i in tl.static_range(SUMS):
        out = sums[i] + tl.program_id(1).to(tl.int64) * N + cols
        tl.store(out, tl.sum(state[i], 0, keep_dims=True).to(sums[i].dtype.element_ty), mask=mask)
