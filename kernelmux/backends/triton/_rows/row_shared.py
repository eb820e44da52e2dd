"""The row family's kernel for long rows, in Gluon: what registers do not hold waits in shared memory for the second walk.

All of a row is on its way before the first chunk is looked at, and it is read from global memory once.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from kernelmux.backends.triton._rows.row_kernel import save, shifted, write
from kernelmux.backends.triton._rows.row_tiles import chunk_masks, in_fp32, load_chunks

# The copy's name changed between Triton 3.6 and 3.9.
copy_in = async_copy.async_load if hasattr(async_copy, "async_load") else async_copy.async_copy_global_to_shared


@gluon.jit
def _columns(first, BLOCK: gl.constexpr, LAYOUT: gl.constexpr):
    """[1, BLOCK]"""
    return first + gl.arange(0, BLOCK, gl.SliceLayout(0, LAYOUT))[None, :]


@gluon.jit
def _from_shared(rings, k, LAYOUT: gl.constexpr):
    values = ()
    for i in gl.static_range(len(rings)):
        values += (rings[i].index(k).load(LAYOUT),)  # type: ignore[assignment]
    return values


@gluon.jit
def rows_shared_kernel(
    outs, saved, ins, vectors, numbers, out_strides, in_strides, N, vector_steps,
    prepare: gl.constexpr, terms: gl.constexpr, lanes: gl.constexpr, merge: gl.constexpr, total: gl.constexpr,
    finish: gl.constexpr, apply: gl.constexpr, BLOCK: gl.constexpr, HELD: gl.constexpr, FULL: gl.constexpr,
    BATCH: gl.constexpr, BATCHES: gl.constexpr, UNIT: gl.constexpr, WIDTH: gl.constexpr, PEELED: gl.constexpr,
    SPLIT: gl.constexpr,
):  # fmt: skip
    """One row. Its first chunk, if it is peeled, and its last HELD chunks are in registers, the others in memory."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, WIDTH], [1, 32], [1, gl.num_warps()], [1, 0])
    SHARED: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    HEAD: gl.constexpr = 1 if PEELED else 0
    CHUNKS: gl.constexpr = BATCH * BATCHES
    row = gl.program_id(0).to(gl.int64)
    begin = ((row * out_strides[0]) % PEELED).to(gl.int32) if PEELED else 0
    out_start = row * out_strides[0] * UNIT
    starts = ()
    steps = ()
    rings = ()
    for i in gl.static_range(len(ins)):
        start = row * in_strides[i][0] * UNIT
        if PEELED:
            start = start // PEELED * PEELED
        starts += (start,)  # type: ignore[assignment]
        steps += (1,)  # type: ignore[assignment]
        ring = gl.allocate_shared_memory(ins[i].dtype.element_ty, [CHUNKS, 1, BLOCK], SHARED)
        rings += (ring,)  # type: ignore[assignment]
    if PEELED:
        out_start = out_start // PEELED * PEELED
    source = (ins, starts, steps)
    columns = (vectors, shifted(vector_steps, begin), vector_steps)

    for b in gl.static_range(BATCHES):
        for k in gl.static_range(BATCH):
            cols = _columns((HEAD + b * BATCH + k) * BLOCK, BLOCK, LAYOUT)
            for i in gl.static_range(len(ins)):
                copy_in(rings[i].index(b * BATCH + k), ins[i] + (starts[i] + cols))
        async_copy.commit_group()
    held = ()
    values = ()
    valid = ()
    for k in gl.static_range(HEAD + HELD):
        cols = _columns((k if k < HEAD else CHUNKS + k) * BLOCK, BLOCK, LAYOUT)
        masks = chunk_masks(cols, begin, begin + N, k >= HEAD and k < HEAD + FULL, WIDTH, SPLIT)
        x = load_chunks(source, cols, masks, "evict_first")
        if prepare is not None:
            x = prepare(*x)
        w = load_chunks(columns, cols, masks, "evict_last")
        held += (x,)  # type: ignore[assignment]
        values += (terms(*numbers, *in_fp32(x), *in_fp32(w)),)  # type: ignore[assignment]
        valid += (masks,)  # type: ignore[assignment]
    state = lanes(values, valid, N, False, WIDTH)

    for b in gl.static_range(BATCHES):
        async_copy.wait_group(BATCHES - 1 - b)
        values = ()
        full = ()
        for k in gl.static_range(BATCH):
            cols = _columns((HEAD + b * BATCH + k) * BLOCK, BLOCK, LAYOUT)
            x = _from_shared(rings, b * BATCH + k, LAYOUT)
            if prepare is not None:
                x = prepare(*x)
            w = load_chunks(columns, cols, (), "evict_last")
            values += (terms(*numbers, *in_fp32(x), *in_fp32(w)),)  # type: ignore[assignment]
            full += ((),)  # type: ignore[assignment]
        state = merge(state, lanes(values, full, N, False, WIDTH))
    known = ()
    found = finish(*numbers, *total(state, N), N)
    for i in gl.static_range(len(found)):
        known += (gl.convert_layout(found[i], LAYOUT),)  # type: ignore[assignment]
    save(saved, known, row + _columns(0, 1, LAYOUT), ())

    AGAIN: gl.constexpr = len(outs) > 0
    for k in gl.static_range((HEAD + HELD) * AGAIN):
        cols = _columns((k if k < HEAD else CHUNKS + k) * BLOCK, BLOCK, LAYOUT)
        chunk = (held[k], load_chunks(columns, cols, valid[k], "evict_last"))
        write(outs, known, numbers, chunk, out_start, cols, 1, valid[k], apply, "")
    for k in gl.static_range(CHUNKS * AGAIN):
        cols = _columns((HEAD + k) * BLOCK, BLOCK, LAYOUT)
        x = _from_shared(rings, k, LAYOUT)
        if prepare is not None:
            x = prepare(*x)
        chunk = (x, load_chunks(columns, cols, (), "evict_last"))
        write(outs, known, numbers, chunk, out_start, cols, 1, (), apply, "")
