"""The row family's kernel for long rows, in Gluon: what registers do not hold waits in shared memory for the second walk.

All of a row is on its way before the first chunk is looked at, and it is read from global memory once.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from kernelmux.backends.triton._rows.row_kernel import save, shifted, write
from kernelmux.backends.triton._rows.row_tiles import chunk_masks, edges_at, in_fp32, load_chunks, of_vectors

# The copy's name changed between Triton 3.6 and 3.9.
copy_in = async_copy.async_load if hasattr(async_copy, "async_load") else async_copy.async_copy_global_to_shared


@gluon.jit
def _columns(first, BLOCK: gl.constexpr, LAYOUT: gl.constexpr):
    """[1, BLOCK]"""
    return first + gl.arange(0, BLOCK, gl.SliceLayout(0, LAYOUT))[None, :]


@gluon.jit
def _start(offset, PEELED: gl.constexpr):
    """PEELED: of the first aligned element, written so that the compiler knows it to be a multiple."""
    return (offset + (PEELED - 1)) // PEELED * PEELED if PEELED else offset


@gluon.jit
def _in_layout(values, LAYOUT: gl.constexpr):
    there = ()
    for i in gl.static_range(len(values)):
        there += (gl.convert_layout(values[i], LAYOUT),)  # type: ignore[assignment]
    return there


@gluon.jit
def _spread(values, WIDTH: gl.constexpr, LAYOUT: gl.constexpr):
    """Tiles of edges as tiles of a chunk, where they stand at the first element of each vector."""
    wide = ()
    for i in gl.static_range(len(values)):
        wide += (gl.convert_layout(of_vectors(values[i], WIDTH), LAYOUT),)  # type: ignore[assignment]
    return wide


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
):  # fmt: skip
    """One row. Its last HELD chunks, FULL of them without a mask, and its edges if it is peeled are in registers."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, WIDTH], [1, 32], [1, gl.num_warps()], [1, 0])
    # Of each vector its first element.
    VECTORS: gl.constexpr = gl.SliceLayout(
        2, gl.BlockedLayout([1, 1, WIDTH], [1, 32, 1], [1, gl.num_warps(), 1], [2, 1, 0])
    )
    SHARED: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    CHUNKS: gl.constexpr = BATCH * BATCHES
    row = gl.program_id(0).to(gl.int64)
    # Of a peeled row the elements before its first aligned one, from which columns are counted.
    before = ((-row * out_strides[0]) & (PEELED // UNIT - 1)).to(gl.int32) * UNIT if PEELED else 0
    end = N - before
    out_start = _start(row * out_strides[0] * UNIT, PEELED)
    starts = ()
    steps = ()
    rings = ()
    for i in gl.static_range(len(ins)):
        starts += (_start(row * in_strides[i][0] * UNIT, PEELED),)  # type: ignore[assignment]
        steps += (1,)  # type: ignore[assignment]
        ring = gl.allocate_shared_memory(ins[i].dtype.element_ty, [CHUNKS, 1, BLOCK], SHARED)
        rings += (ring,)  # type: ignore[assignment]
    source = (ins, starts, steps)
    columns = (vectors, shifted(vector_steps, -before), vector_steps)

    for b in gl.static_range(BATCHES):
        for k in gl.static_range(BATCH):
            cols = _columns((b * BATCH + k) * BLOCK, BLOCK, LAYOUT)
            for i in gl.static_range(len(ins)):
                copy_in(rings[i].index(b * BATCH + k), ins[i] + (starts[i] + cols))
        async_copy.commit_group()
    held = ()
    values = ()
    valid = ()
    for k in gl.static_range(HELD):
        cols = _columns((CHUNKS + k) * BLOCK, BLOCK, LAYOUT)
        masks = chunk_masks(cols, 0, end, k < FULL, WIDTH, False)
        x = load_chunks(source, cols, masks, "evict_first")
        if prepare is not None:
            x = prepare(*x)
        w = load_chunks(columns, cols, masks, "evict_last")
        held += (x,)  # type: ignore[assignment]
        values += (terms(*numbers, *in_fp32(x), *in_fp32(w)),)  # type: ignore[assignment]
        valid += (masks,)  # type: ignore[assignment]
    if PEELED:
        edge, edge_masks = edges_at(_columns(0, BLOCK // WIDTH, VECTORS), before, end, WIDTH)
        edge_x = load_chunks(source, edge, edge_masks, "evict_first")
        if prepare is not None:
            edge_x = prepare(*edge_x)
        edge_w = load_chunks(columns, edge, edge_masks, "evict_last")
        edge_terms = terms(*numbers, *in_fp32(edge_x), *in_fp32(edge_w))
        values += (_spread(edge_terms, WIDTH, LAYOUT),)  # type: ignore[assignment]
        first_ones = _columns(0, BLOCK, LAYOUT) % WIDTH == 0
        valid += ((_spread(edge_masks, WIDTH, LAYOUT)[0] & first_ones,),)  # type: ignore[assignment]
    state = lanes(values, valid, N, False, WIDTH)

    for b in gl.static_range(BATCHES):
        async_copy.wait_group(BATCHES - 1 - b)
        values = ()
        full = ()
        for k in gl.static_range(BATCH):
            cols = _columns((b * BATCH + k) * BLOCK, BLOCK, LAYOUT)
            x = _from_shared(rings, b * BATCH + k, LAYOUT)
            if prepare is not None:
                x = prepare(*x)
            w = load_chunks(columns, cols, (), "evict_last")
            values += (terms(*numbers, *in_fp32(x), *in_fp32(w)),)  # type: ignore[assignment]
            full += ((),)  # type: ignore[assignment]
        state = merge(state, lanes(values, full, N, False, WIDTH))
    found = finish(*numbers, *total(state, N), N)
    known = _in_layout(found, LAYOUT)
    save(saved, known, row + _columns(0, 1, LAYOUT), ())

    AGAIN: gl.constexpr = len(outs) > 0
    if PEELED and AGAIN:
        of_edges = _in_layout(found, VECTORS)
        write(outs, of_edges, numbers, (edge_x, edge_w), out_start, edge, 1, edge_masks, apply, "")
    for k in gl.static_range(HELD * AGAIN):
        cols = _columns((CHUNKS + k) * BLOCK, BLOCK, LAYOUT)
        chunk = (held[k], load_chunks(columns, cols, valid[k], "evict_last"))
        write(outs, known, numbers, chunk, out_start, cols, 1, valid[k], apply, "")
    for k in gl.static_range(CHUNKS * AGAIN):
        cols = _columns(k * BLOCK, BLOCK, LAYOUT)
        x = _from_shared(rings, k, LAYOUT)
        if prepare is not None:
            x = prepare(*x)
        chunk = (x, load_chunks(columns, cols, (), "evict_last"))
        write(outs, known, numbers, chunk, out_start, cols, 1, (), apply, "")
