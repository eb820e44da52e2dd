"""Gradients by warps with different work (in Gluon): one loads, two warpgroups own 64 rows each of a gradient.

Up to D = 128 one kernel has the gradients of keys and values, and one that of queries. Beyond, a sum of 64 rows takes half
the registers of a warpgroup, so each gradient has a kernel of its own: eight products in place of seven. A warpgroup's
exponentials are taken while the other one multiplies; the two issue their products in turn. Rows of 72 to 96 and of 136 to
192 columns are two pieces, each a power of two.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
)
from triton.language.extra import cuda

from kernelmux.backends.triton._launch.hopper import barriers, copy_in, copy_out, copy_out_wait, ring
from kernelmux.backends.triton.attention._online import key_range, located
from kernelmux.backends.triton.attention_backward._problem import query_range
from kernelmux.backends.triton.attention_backward._specialised_walks import both_gradients, one_gradient

WARPGROUP_REGISTERS = gl.constexpr(240)
LOADER_REGISTERS = gl.constexpr(24)


@gluon.jit
def copy_pieces(
    desc, desc_rest, full, ring_of, rest_ring, slot, batch, head, row, COLUMNS: gl.constexpr, REST: gl.constexpr
):  # fmt: skip
    """Both pieces of some rows."""
    copy_in(desc, [batch, head, row, 0], full, ring_of.index(slot))
    if REST:
        copy_in(desc_rest, [batch, head, row, COLUMNS], full, rest_ring.index(slot))


@gluon.jit
def _load(
    rows_desc, a_desc, b_desc, c_desc, d_desc, a_rest, b_rest, c_rest, d_rest,
    a_rows, b_rows, c_ring, d_ring, a_tail, b_tail, c_tail, d_tail, lse_ring, delta_ring,
    own_full, c_full, c_empty, d_full, d_empty, batch, own_head, first_head, share, own_row, begin, tiles, H,
    KIND: gl.constexpr, OWN: gl.constexpr, TILE: gl.constexpr, COLUMNS: gl.constexpr, REST: gl.constexpr,
    C_STAGES: gl.constexpr, D_STAGES: gl.constexpr,
):  # fmt: skip
    """The program's own rows of a and b, then tiles of c and d of all heads."""
    own_bytes: gl.constexpr = 2 * OWN * (COLUMNS + REST) * 2
    tile_bytes: gl.constexpr = TILE * (COLUMNS + REST) * 2
    mbarrier.expect(own_full.index(0), own_bytes)
    for half in gl.static_range(2):
        copy_pieces(
            a_desc,
            a_rest,
            own_full.index(0),
            a_rows,
            a_tail,
            half,
            batch,
            own_head,
            own_row + half * OWN,
            COLUMNS,
            REST,
        )
    for head in range(0, share):
        for tile in range(0, tiles):
            step = head * tiles + tile
            row = begin + tile * TILE
            slot = step % C_STAGES
            mbarrier.wait(c_empty.index(slot), (step // C_STAGES + 1) & 1)
            line = 2 * (batch * H + first_head + head)
            if KIND == "queries":
                mbarrier.expect(c_full.index(slot), tile_bytes)
            else:
                mbarrier.expect(c_full.index(slot), tile_bytes + TILE * 4)
                copy_in(rows_desc, [line, row], c_full.index(slot), lse_ring.index(slot))
            copy_pieces(
                c_desc, c_rest, c_full.index(slot), c_ring, c_tail, slot, batch, first_head + head, row, COLUMNS, REST
            )
            if KIND != "values":
                if step == 0:
                    mbarrier.expect(own_full.index(1), own_bytes)
                    for half in gl.static_range(2):
                        first = own_row + half * OWN
                        copy_pieces(
                            b_desc, b_rest, own_full.index(1), b_rows, b_tail, half, batch, own_head, first, COLUMNS, REST
                        )  # fmt: skip
            old = step % D_STAGES
            mbarrier.wait(d_empty.index(old), (step // D_STAGES + 1) & 1)
            if KIND == "keys" or KIND == "both":
                mbarrier.expect(d_full.index(old), tile_bytes + TILE * 4)
                copy_in(rows_desc, [line + 1, row], d_full.index(old), delta_ring.index(old))
            else:
                mbarrier.expect(d_full.index(old), tile_bytes)
            copy_pieces(
                d_desc, d_rest, d_full.index(old), d_ring, d_tail, old, batch, first_head + head, row, COLUMNS, REST
            )


@gluon.jit
def store_pieces(acc, rest, desc, desc_rest, rows, tail, half, batch, head, row, OWN: gl.constexpr, COLUMNS: gl.constexpr,
           REST: gl.constexpr):  # fmt: skip
    """By way of the memory of the own rows, which are used up; the copy engine cuts at the last row."""
    rows.index(half).reshape([OWN, COLUMNS]).store(acc.to(rows.dtype))
    if REST:
        tail.index(half).reshape([OWN, REST]).store(rest.to(rows.dtype))
    fence_async_shared()
    copy_out(desc, [batch, head, row, 0], rows.index(half))
    if REST:
        copy_out(desc_rest, [batch, head, row, COLUMNS], tail.index(half))


@gluon.jit
def _store_part(acc, rest, parts_ptr, place, first_row, rows, layout: gl.constexpr, rest_layout: gl.constexpr,
                D: gl.constexpr, OWN: gl.constexpr, COLUMNS: gl.constexpr, REST: gl.constexpr):  # fmt: skip
    """A share of a sum, in fp32; place: its first row of all."""
    mine = first_row + gl.arange(0, OWN, gl.SliceLayout(1, layout))
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))[None, :]
    there = (mine < rows)[:, None] & (columns < D)
    gl.store(parts_ptr + (place + mine).to(gl.int64)[:, None] * D + columns, acc, mask=there)
    if REST:
        tail = first_row + gl.arange(0, OWN, gl.SliceLayout(1, rest_layout))
        columns = COLUMNS + gl.arange(0, REST, gl.SliceLayout(0, rest_layout))[None, :]
        there = (tail < rows)[:, None] & (columns < D)
        gl.store(parts_ptr + (place + tail).to(gl.int64)[:, None] * D + columns, rest, mask=there)


@gluon.jit
def _differentiate(
    rows_ptr, parts_ptr, place, further, out_desc, out_rest, more_desc, more_rest, a_rows, b_rows, c_ring, d_ring,
    a_tail, b_tail, c_tail, d_tail, lse_ring, delta_ring, own_full, c_full, c_empty, d_full, d_empty, turns,
    batch, own_head, first_head, share, own_row, begin, tiles, H, N, shift, window, scale, scale_log2, PITCH,
    HALF: gl.constexpr, KIND: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, D: gl.constexpr,
    SHARES: gl.constexpr, OWN: gl.constexpr, TILE: gl.constexpr, COLUMNS: gl.constexpr, REST: gl.constexpr,
    C_STAGES: gl.constexpr, D_STAGES: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    rest_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, REST if REST else COLUMNS, 16])
    first_row = own_row + HALF * OWN
    mine = first_row + gl.arange(0, OWN, gl.SliceLayout(1, layout))
    acc = gl.zeros([OWN, COLUMNS], gl.float32, out_layout)
    rest = gl.zeros([OWN, REST], gl.float32, rest_layout) if REST else share
    steps = tiles * share
    if KIND == "both":
        more = gl.zeros([OWN, COLUMNS], gl.float32, out_layout)
        more_tail = gl.zeros([OWN, REST], gl.float32, rest_layout) if REST else share
        acc, rest, more, more_tail = both_gradients(
            acc, more, rest, more_tail, a_rows, b_rows, c_ring, d_ring, a_tail, b_tail, c_tail, d_tail, lse_ring,
            delta_ring, own_full, c_full, c_empty, d_full, d_empty, turns, first_row, mine, begin, tiles, steps, N,
            shift, window, scale_log2, HALF, KIND, CAUSAL, WINDOW, OWN, TILE, COLUMNS, REST, C_STAGES, D_STAGES, layout,
            out_layout, rest_layout,
        )  # fmt: skip
    else:
        lse = share
        delta = share
        if KIND == "queries":
            line = rows_ptr + (batch * H + own_head).to(gl.int64) * 2 * PITCH
            lse = gl.load(line + mine, mask=mine < PITCH, other=float("inf"))[:, None]
            delta = gl.load(line + PITCH + mine, mask=mine < PITCH, other=0.0)[:, None]
        if steps > 0:
            acc, rest = one_gradient(
                acc, rest, lse, delta, a_rows, b_rows, c_ring, d_ring, a_tail, b_tail, c_tail, d_tail, lse_ring, delta_ring,
                own_full, c_full, c_empty, d_full, d_empty, turns, first_row, mine, begin, tiles, steps, N, shift, window,
                scale_log2, HALF, KIND, CAUSAL, WINDOW, OWN, TILE, COLUMNS, REST, C_STAGES, D_STAGES, layout,
                out_layout, rest_layout,
            )  # fmt: skip
        else:  # the memory of the own rows takes the gradient
            mbarrier.wait(own_full.index(0), 0)
    if SHARES > 1:
        _store_part(acc, rest, parts_ptr, place, first_row, N, out_layout, rest_layout, D, OWN, COLUMNS, REST)
        if KIND == "both":
            _store_part(
                more, more_tail, parts_ptr, place + further, first_row, N, out_layout, rest_layout, D, OWN, COLUMNS, REST
            )  # fmt: skip
        return
    if KIND != "values":
        acc = acc * scale
        if REST:
            rest = rest * scale
    store_pieces(acc, rest, out_desc, out_rest, a_rows, a_tail, HALF, batch, own_head, first_row, OWN, COLUMNS, REST)
    if KIND == "both":
        store_pieces(
            more, more_tail, more_desc, more_rest, b_rows, b_tail, HALF, batch, own_head, first_row, OWN, COLUMNS, REST
        )
    copy_out_wait(0)


@gluon.jit
def attention_gradient_specialised_kernel(
    rows_ptr, parts_ptr, rows_desc, out_desc, more_desc, a_desc, b_desc, c_desc, d_desc,
    out_rest, more_rest, a_rest, b_rest, c_rest, d_rest, H, SHARE, M, N, shift, window, scale, scale_log2, PITCH,
    LINES, SECTION, KIND: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, D: gl.constexpr, COLUMNS: gl.constexpr,
    REST: gl.constexpr, SHARES: gl.constexpr, OWN: gl.constexpr, TILE: gl.constexpr, C_STAGES: gl.constexpr,
    D_STAGES: gl.constexpr,
):  # fmt: skip
    """KIND: whose gradient; a (and b, but for values) are the program's own rows, c and d walk by.

    "both": of keys, and in `more` of values. Descriptors of `rest` are of the second pieces of rows, from COLUMNS on.
    So many SHARES of the tiles are programs of their own; their sums go to `parts`, [keys or values, SHARES, B G N D].
    """
    if KIND == "queries":
        blocks = gl.cdiv(M, 2 * OWN)
        # The last queries see the most keys, so their programs start first.
        line, block = located(gl.program_id(0), LINES, blocks, SECTION)
        own_row = (blocks - 1 - block) * 2 * OWN
        batch = line // H
        own_head = line % H
        first_head = own_head // SHARE
        share = 1
        begin, _, _, end = key_range(own_row, M, N, shift, window, CAUSAL, WINDOW, 2 * OWN, TILE)
    else:
        blocks = gl.cdiv(N, 2 * OWN)
        line, block = located(
            gl.program_id(0) // SHARES, LINES, blocks, SECTION
        )  # the first keys are seen by the most queries
        own_row = block * 2 * OWN
        batch = line // (H // SHARE)
        own_head = line % (H // SHARE)
        first_head = own_head * SHARE
        share = SHARE
        begin, _, _, end = query_range(own_row, M, N, shift, window, CAUSAL, WINDOW, TILE, 2 * OWN)
    tiles = gl.maximum(gl.cdiv(end - begin, TILE), 0)
    part = gl.program_id(0) % SHARES
    if SHARES > 1:
        most = gl.cdiv(tiles, SHARES)
        begin += part * most * TILE
        tiles = gl.maximum(gl.minimum(tiles - part * most, most), 0)
    further = SHARES * LINES * N  # rows of the parts of one gradient
    place = (part * LINES + line) * N + (further if KIND == "values" else 0)

    a_rows = ring(a_desc, 2)
    b_rows = ring(b_desc, 2) if KIND != "values" else a_rows
    c_ring = ring(c_desc, C_STAGES)
    d_ring = ring(d_desc, D_STAGES)
    a_tail = ring(a_rest, 2) if REST else a_rows
    b_tail = ring(b_rest, 2) if REST and KIND != "values" else a_tail
    c_tail = ring(c_rest, C_STAGES) if REST else c_ring
    d_tail = ring(d_rest, D_STAGES) if REST else d_ring
    lse_ring = ring(rows_desc, C_STAGES)
    delta_ring = ring(rows_desc, D_STAGES)
    own_full = barriers(2, 1)
    c_full = barriers(C_STAGES, 1)
    c_empty = barriers(C_STAGES, 2)
    d_full = barriers(D_STAGES, 1)
    d_empty = barriers(D_STAGES, 2)
    turns = barriers(2, 1)
    # The gradients need nothing of one another: the next kernel begins where this one leaves multiprocessors free.
    # Queries come first and wait for the rows; the others wait at their end, so that the last ends last.
    if KIND == "queries":
        cuda.gdc_wait()
    cuda.gdc_launch_dependents()
    gl.warp_specialize(
        [
            (_differentiate, (rows_ptr, parts_ptr, place, further, out_desc, out_rest, more_desc, more_rest, a_rows,
                              b_rows, c_ring, d_ring, a_tail, b_tail, c_tail, d_tail, lse_ring, delta_ring, own_full,
                              c_full, c_empty, d_full, d_empty, turns, batch, own_head, first_head, share, own_row,
                              begin, tiles, H, N, shift, window, scale, scale_log2, PITCH, 0, KIND, CAUSAL, WINDOW, D,
                              SHARES, OWN, TILE, COLUMNS, REST, C_STAGES, D_STAGES)),
            (_differentiate, (rows_ptr, parts_ptr, place, further, out_desc, out_rest, more_desc, more_rest, a_rows,
                              b_rows, c_ring, d_ring, a_tail, b_tail, c_tail, d_tail, lse_ring, delta_ring, own_full,
                              c_full, c_empty, d_full, d_empty, turns, batch, own_head, first_head, share, own_row,
                              begin, tiles, H, N, shift, window, scale, scale_log2, PITCH, 1, KIND, CAUSAL, WINDOW, D,
                              SHARES, OWN, TILE, COLUMNS, REST, C_STAGES, D_STAGES)),
            (_load, (rows_desc, a_desc, b_desc, c_desc, d_desc, a_rest, b_rest, c_rest, d_rest, a_rows, b_rows, c_ring,
                     d_ring, a_tail, b_tail, c_tail, d_tail, lse_ring, delta_ring, own_full, c_full, c_empty, d_full,
                     d_empty, batch, own_head, first_head, share, own_row, begin, tiles, H, KIND, OWN, TILE, COLUMNS,
                     REST, C_STAGES, D_STAGES)),
        ],
        [4, 1],
        [WARPGROUP_REGISTERS, LOADER_REGISTERS],
    )  # fmt: skip
    if KIND != "queries":
        cuda.gdc_wait()
