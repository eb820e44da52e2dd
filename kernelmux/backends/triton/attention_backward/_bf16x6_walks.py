"""What the two warpgroups of `bf16x6` do: one weighs the keys, the other has what the weights change by."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma_wait

from kernelmux.backends.triton.attention._bf16x6_rows import all_row_products, planes, settled, weighed
from kernelmux.backends.triton.attention_backward._specialised_walks import _partly, masked


@gluon.jit
def _add_weighed(
    acc, rest, factor, rows, tail, at, OWN: gl.constexpr, TILE: gl.constexpr, COLUMNS: gl.constexpr, REST: gl.constexpr,
    out_layout: gl.constexpr, rest_layout: gl.constexpr,
):  # fmt: skip
    """acc and rest, and the products of a factor and the rows of a tile."""
    f0, f1, f2 = planes(factor, gl.DotOperandLayout(0, out_layout, 2))
    acc += weighed(f0, f1, f2, rows, at, TILE, COLUMNS, OWN, out_layout)
    if REST:
        f0 = gl.convert_layout(f0, gl.DotOperandLayout(0, rest_layout, 2))
        f1 = gl.convert_layout(f1, gl.DotOperandLayout(0, rest_layout, 2))
        f2 = gl.convert_layout(f2, gl.DotOperandLayout(0, rest_layout, 2))
        rest += weighed(f0, f1, f2, tail, at, TILE, REST, OWN, rest_layout)
    return acc, rest


@gluon.jit
def weigh_tiles(
    acc, rest, rows_ptr, a_rows, a_tail, c_ring, c_tail, d_ring, d_tail, p_rows, own_full, c_full, c_empty, d_full, d_empty,
    p_full, p_empty, line, own_row, begin, tiles, steps, N, shift, window, scale_log2, PITCH, KIND: gl.constexpr,
    CAUSAL: gl.constexpr, WINDOW: gl.constexpr, OWN: gl.constexpr, TILE: gl.constexpr, COLUMNS: gl.constexpr,
    REST: gl.constexpr, STAGES: gl.constexpr, layout: gl.constexpr, out_layout: gl.constexpr, rest_layout: gl.constexpr,
):  # fmt: skip
    """The weights of each tile, for the other warpgroup; for "keys" also the sums of the gradients of values."""
    mine = own_row + gl.arange(0, OWN, gl.SliceLayout(1, layout))
    own_lse = own_row
    if KIND == "queries":
        own_lse = gl.load(rows_ptr + line.to(gl.int64) * 2 * PITCH + mine)[:, None]
    mbarrier.wait(own_full.index(0), 0)
    tile = 0
    head = 0
    for step in range(0, steps):
        slot = step % STAGES
        start = begin + tile * TILE
        # Always 0: ptxas would keep the descriptors of a place that does not change, and spill them.
        moved = start >> 31
        at = slot * 3 + moved
        theirs = start + gl.arange(0, TILE, gl.SliceLayout(0, layout))
        if KIND == "queries":
            lse = own_lse
        else:
            lse = gl.load(rows_ptr + (line + head).to(gl.int64) * 2 * PITCH + theirs)[None, :]
        mbarrier.wait(c_full.index(slot), (step // STAGES) & 1)
        small, large = all_row_products(
            a_rows, a_tail, c_ring, c_tail, moved, at, OWN, TILE, COLUMNS, REST, layout
        )  # fmt: skip
        small, large = warpgroup_mma_wait(0, deps=[small, large])
        mbarrier.arrive(c_empty.index(slot))
        p = gl.exp2((large + settled(small)) * scale_log2 - lse)
        if _partly(own_row, OWN, start, TILE, N, shift, window, KIND, CAUSAL, WINDOW):
            p = masked(p, mine, theirs, N, shift, window, KIND, CAUSAL, WINDOW)
        mbarrier.wait(p_empty.index(0), (step + 1) & 1)
        p_rows.store(p)
        mbarrier.arrive(p_full.index(0))
        if KIND == "keys":
            mbarrier.wait(d_full.index(slot), (step // STAGES) & 1)
            acc, rest = _add_weighed(
                acc, rest, p, d_ring, d_tail, at, OWN, TILE, COLUMNS, REST, out_layout, rest_layout
            )  # fmt: skip
            mbarrier.arrive(d_empty.index(slot))
        ended = tile + 1 == tiles
        tile = gl.where(ended, 0, tile + 1)
        head = gl.where(ended, head + 1, head)
    return acc, rest


@gluon.jit
def change_tiles(
    acc, rest, rows_ptr, b_rows, b_tail, c_ring, c_tail, d_ring, d_tail, p_rows, own_full, c_full, c_empty, d_full, d_empty,
    p_full, p_empty, line, own_row, begin, tiles, steps, PITCH, KIND: gl.constexpr, OWN: gl.constexpr, TILE: gl.constexpr,
    COLUMNS: gl.constexpr, REST: gl.constexpr, STAGES: gl.constexpr, layout: gl.constexpr, out_layout: gl.constexpr,
    rest_layout: gl.constexpr,
):  # fmt: skip
    """The sums of the gradient of keys, or of queries."""
    mine = own_row + gl.arange(0, OWN, gl.SliceLayout(1, layout))
    own_delta = own_row
    if KIND == "queries":
        own_delta = gl.load(rows_ptr + line.to(gl.int64) * 2 * PITCH + PITCH + mine)[:, None]
    mbarrier.wait(own_full.index(1), 0)
    tile = 0
    head = 0
    for step in range(0, steps):
        slot = step % STAGES
        start = begin + tile * TILE
        moved = start >> 31
        at = slot * 3 + moved
        theirs = start + gl.arange(0, TILE, gl.SliceLayout(0, layout))
        if KIND == "queries":
            delta = own_delta
        else:
            delta = gl.load(rows_ptr + (line + head).to(gl.int64) * 2 * PITCH + PITCH + theirs)[None, :]
        mbarrier.wait(d_full.index(slot), (step // STAGES) & 1)
        small, large = all_row_products(
            b_rows, b_tail, d_ring, d_tail, moved, at, OWN, TILE, COLUMNS, REST, layout
        )  # fmt: skip
        small, large = warpgroup_mma_wait(0, deps=[small, large])
        mbarrier.arrive(d_empty.index(slot))
        gradient = large + settled(small)
        mbarrier.wait(p_full.index(0), step & 1)
        p = p_rows.load(layout)
        mbarrier.arrive(p_empty.index(0))
        # What is not seen has no part, whatever stands there.
        ds = gl.where(p == 0.0, 0.0, p * (gradient - delta))
        mbarrier.wait(c_full.index(slot), (step // STAGES) & 1)
        acc, rest = _add_weighed(acc, rest, ds, c_ring, c_tail, at, OWN, TILE, COLUMNS, REST, out_layout, rest_layout)
        mbarrier.arrive(c_empty.index(slot))
        ended = tile + 1 == tiles
        tile = gl.where(ended, 0, tile + 1)
        head = gl.where(ended, head + 1, head)
    return acc, rest
