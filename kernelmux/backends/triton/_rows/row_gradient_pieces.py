"""Kernels of gradients of rows that no program holds, or that are too few for one program each.

The first finds out what it can about pieces of rows, a program for each; the second walks down columns, knows all of a
row from its pieces, writes the gradient of the row and adds up those of the vectors. What they compute is in the
functions of an operator, as in row_kernel; `shares` is as in row_gradients, `parts` as in row_statistics.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

from kernelmux.backends.triton._rows.row_tiles import chunk_columns, chunk_masks, in_fp32, load_chunks


@triton.jit
def gradients_pieces_kernel(
    outs, stats, ins, vectors, numbers, M, N, units, vector_steps,
    terms: tl.constexpr, lanes: tl.constexpr, total: tl.constexpr, parts: tl.constexpr,
    BLOCK: tl.constexpr, CHUNKS: tl.constexpr, PIECES: tl.constexpr, UNIT: tl.constexpr, LEADS: tl.constexpr,
):  # fmt: skip
    """What is known of a piece of CHUNKS chunks goes to stats[row, :, piece]."""
    piece = tl.program_id(0) % PIECES
    row = (tl.program_id(0) // PIECES).to(tl.int64)
    first = piece * (BLOCK * CHUNKS)
    starts = ()
    steps = ()
    for _ in tl.static_range(len(ins)):
        starts += (row * units * UNIT,)  # type: ignore[assignment]
        steps += (1,)  # type: ignore[assignment]
    begins = ()
    for _ in tl.static_range(len(vectors)):
        begins += (0,)  # type: ignore[assignment]
    values = ()
    valid = ()
    for k in tl.static_range(CHUNKS):
        cols = chunk_columns(first + k * BLOCK, BLOCK, tl.int32)
        masks = chunk_masks(cols, 0, N, False, UNIT, False)
        x = load_chunks((ins, starts, steps), cols, masks, "")
        w = load_chunks((vectors, begins, vector_steps), cols.to(tl.int64), masks, "evict_last")
        values += (terms(*numbers, *in_fp32(x), *in_fp32(w)),)  # type: ignore[assignment]
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
              PIECES: tl.constexpr, LANES: tl.constexpr):  # fmt: skip
    """What apply needs of some rows, each [BLOCK_M, 1]."""
    state = ()
    lane = tl.arange(0, LANES)[None, :]
    place = row.to(tl.int64)[:, None] * (COUNT * PIECES) + lane
    for i in tl.static_range(COUNT):
        one = tl.load(stats + (place + i * PIECES), mask=(row < M)[:, None] & (lane < PIECES), other=0.0)
        state += (one,)  # type: ignore[assignment]
    return finish(*numbers, *total(state, N), N)


@triton.jit
def gradients_columns_kernel(
    grads, sums, ins, vectors, numbers, M, N, units, vector_steps,
    total: tl.constexpr, finish: tl.constexpr, apply: tl.constexpr, shares: tl.constexpr, SAVED: tl.constexpr,
    COUNT: tl.constexpr, PIECES: tl.constexpr, LANES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    UNIT: tl.constexpr, LEADS: tl.constexpr,
):  # fmt: skip
    """sums: those of the vectors, then the COUNT numbers of each piece. From the last rows to the first, which L2 has no more."""
    SUMS: tl.constexpr = len(sums) - 1
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    mask = chunk_masks(cols, 0, N, False, UNIT, False)[0]
    begins = ()
    for _ in tl.static_range(len(vectors)):
        begins += (0,)  # type: ignore[assignment]
    w = in_fp32(load_chunks((vectors, begins, vector_steps), cols.to(tl.int64), (mask,), "evict_last"))
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
        values = ()
        for i in tl.static_range(len(ins)):
            values += (tl.load(ins[i] + offs, mask=inside, other=0.0).to(tl.float32),)  # type: ignore[assignment]
        known = _known_of(sums[SUMS], numbers, row, M, N, total, finish, COUNT, PIECES, LANES)
        grad = apply(*known, *numbers, *values, *w)
        tl.store(grads[0] + offs, grad.to(grads[0].dtype.element_ty), mask=inside)
        more = shares(*known[:SAVED], *values)
        added = ()
        for i in tl.static_range(SUMS):
            added += (state[i] + tl.where((row < M)[:, None], more[i], 0.0),)  # type: ignore[assignment]
        state = added  # type: ignore[assignment]
    if LEADS:
        cuda.gdc_launch_dependents()
    for i in tl.static_range(SUMS):
        out = sums[i] + tl.program_id(1).to(tl.int64) * N + cols
        tl.store(out, tl.sum(state[i], 0, keep_dims=True).to(sums[i].dtype.element_ty), mask=mask)
