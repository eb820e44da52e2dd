"""Gradients in fp32 on Hopper's tensor cores (in Gluon): one warp loads, two warpgroups share 64 rows of a gradient.

All operands are split into three numbers of bf16 each (`attention/_planes.py`), of which two blocks of 64 rows fill the
shared memory. So the warpgroups have one block of keys, or of queries, together: the first has the weights, and the
gradients of values, the second what the weights change by, and the gradients of keys or queries.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from kernelmux.backends.triton._launch.hopper import barriers, copy_in, ring
from kernelmux.backends.triton.attention._bf16x6 import bring_planes
from kernelmux.backends.triton.attention._online import key_range, located
from kernelmux.backends.triton.attention_backward._bf16x6_walks import change_tiles, weigh_tiles
from kernelmux.backends.triton.attention_backward._problem import query_range

T = torch.Tensor

WARPGROUP_REGISTERS = gl.constexpr(240)
LOADER_REGISTERS = gl.constexpr(24)
# Of the weights that pass from one warpgroup to the other.
WEIGHTS = gl.constexpr(gl.SwizzledSharedLayout(4, 1, 8, [1, 0]))


@gluon.jit
def _load_own(
    desc, rest_desc, rows, tail, full, line, row, OWN: gl.constexpr, COLUMNS: gl.constexpr, REST: gl.constexpr
):
    mbarrier.expect(full, 3 * OWN * (COLUMNS + REST) * 2)
    for plane in gl.static_range(3):
        copy_in(desc, [plane, line, row, 0], full, rows.index(plane))
        if REST:
            copy_in(rest_desc, [plane, line, row, COLUMNS], full, tail.index(plane))


@gluon.jit
def _load(
    a_desc, b_desc, c_desc, d_desc, a_rest, b_rest, c_rest, d_rest, a_rows, b_rows, c_ring, d_ring, a_tail, b_tail, c_tail,
    d_tail, own_full, c_full, c_empty, d_full, d_empty, own_line, line, share, own_row, begin, tiles, OWN: gl.constexpr,
    TILE: gl.constexpr, COLUMNS: gl.constexpr, REST: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The program's own rows of a and b, then tiles of c and d of all heads."""
    _load_own(a_desc, a_rest, a_rows, a_tail, own_full.index(0), own_line, own_row, OWN, COLUMNS, REST)
    _load_own(b_desc, b_rest, b_rows, b_tail, own_full.index(1), own_line, own_row, OWN, COLUMNS, REST)
    for head in range(0, share):
        for tile in range(0, tiles):
            step = head * tiles + tile
            row = begin + tile * TILE
            bring_planes(
                c_desc, c_rest, c_ring, c_tail, c_full, c_empty, line + head, row, step, TILE, COLUMNS, REST, STAGES
            )
            bring_planes(
                d_desc, d_rest, d_ring, d_tail, d_full, d_empty, line + head, row, step, TILE, COLUMNS, REST, STAGES
            )


@gluon.jit
def _put(out_ptr, sums, first, count, start, D: gl.constexpr, layout: gl.constexpr):
    """Stores rows of a gradient, from column `start` on."""
    rows = gl.arange(0, sums.shape[0], gl.SliceLayout(1, layout))
    columns = start + gl.arange(0, sums.shape[1], gl.SliceLayout(0, layout))
    there = (rows < count)[:, None] & (columns < D)[None, :]
    gl.store(out_ptr + (first + rows)[:, None] * D + columns[None, :], sums, mask=there)


@gluon.jit
def _differentiate(
    out_ptr, rows_ptr, own_rows, own_tail, c_ring, c_tail, d_ring, d_tail, p_rows, own_full, c_full, c_empty, d_full,
    d_empty, p_full, p_empty, own_line, line, place, own_row, count, begin, tiles, steps, N, shift, window, scale,
    scale_log2, PITCH, WEIGHS: gl.constexpr, KIND: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
    D: gl.constexpr, OWN: gl.constexpr, TILE: gl.constexpr, COLUMNS: gl.constexpr, REST: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    rest_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, REST if REST else COLUMNS, 16])
    acc = gl.zeros([OWN, COLUMNS], gl.float32, out_layout)
    rest = gl.zeros([OWN, REST], gl.float32, rest_layout) if REST else steps
    lines = own_line if KIND == "queries" else line
    if WEIGHS:
        acc, rest = weigh_tiles(
            acc, rest, rows_ptr, own_rows, own_tail, c_ring, c_tail, d_ring, d_tail, p_rows, own_full, c_full, c_empty,
            d_full, d_empty, p_full, p_empty, lines, own_row, begin, tiles, steps, N, shift, window, scale_log2, PITCH,
            KIND, CAUSAL, WINDOW, OWN, TILE, COLUMNS, REST, STAGES, layout, out_layout, rest_layout,
        )  # fmt: skip
    else:
        acc, rest = change_tiles(
            acc, rest, rows_ptr, own_rows, own_tail, c_ring, c_tail, d_ring, d_tail, p_rows, own_full, c_full, c_empty,
            d_full, d_empty, p_full, p_empty, lines, own_row, begin, tiles, steps, PITCH, KIND, OWN, TILE, COLUMNS, REST,
            STAGES, layout, out_layout, rest_layout,
        )  # fmt: skip
        acc = acc * scale
        if REST:
            rest = rest * scale
    if not WEIGHS or KIND == "keys":
        _put(out_ptr, acc, place, count, 0, D, out_layout)
        if REST:
            _put(out_ptr, rest, place, count, COLUMNS, D, rest_layout)


@gluon.jit
def attention_gradient_bf16x6_kernel(
    out_ptr, more_ptr, rows_ptr, a_desc, b_desc, c_desc, d_desc, a_rest, b_rest, c_rest, d_rest, H, SHARE, M, N, shift,
    window, scale, scale_log2, PITCH, LINES, SECTION, KIND: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
    D: gl.constexpr, COLUMNS: gl.constexpr, REST: gl.constexpr, SHARES: gl.constexpr, OWN: gl.constexpr,
    TILE: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """KIND: "queries", or "keys", where `more` is of values; a and b are the program's own rows, c and d walk by.

    Descriptors of `rest` are of the second pieces of rows, from COLUMNS on. So many SHARES of the tiles are programs of
    their own; out and more are then parts, [SHARES B G N D] each, and not scaled.
    """
    part = gl.program_id(0) % SHARES
    if KIND == "queries":
        blocks = gl.cdiv(M, OWN)
        # The last queries see the most keys, so their programs start first.
        own_line, block = located(gl.program_id(0), LINES, blocks, SECTION)
        own_row = (blocks - 1 - block) * OWN
        line = own_line // SHARE
        share = 1
        count = M
        begin, _, _, end = key_range(own_row, M, N, shift, window, CAUSAL, WINDOW, OWN, TILE)
    else:
        blocks = gl.cdiv(N, OWN)
        own_line, block = located(gl.program_id(0) // SHARES, LINES, blocks, SECTION)
        own_row = block * OWN
        line = own_line * SHARE
        share = SHARE
        count = N
        begin, _, _, end = query_range(own_row, M, N, shift, window, CAUSAL, WINDOW, TILE, OWN)
    tiles = gl.maximum(gl.cdiv(end - begin, TILE), 0)
    if SHARES > 1:
        most = gl.cdiv(tiles, SHARES)
        begin += part * most * TILE
        tiles = gl.maximum(gl.minimum(tiles - part * most, most), 0)
    steps = tiles * share
    place = ((part * LINES).to(gl.int64) + own_line) * count + own_row
    left = count - own_row
    factor = 1.0 if SHARES > 1 else scale

    a_rows = ring(a_desc, 3)
    b_rows = ring(b_desc, 3)
    c_ring = ring(c_desc, 3 * STAGES)
    d_ring = ring(d_desc, 3 * STAGES)
    a_tail = ring(a_rest, 3) if REST else a_rows
    b_tail = ring(b_rest, 3) if REST else b_rows
    c_tail = ring(c_rest, 3 * STAGES) if REST else c_ring
    d_tail = ring(d_rest, 3 * STAGES) if REST else d_ring
    p_rows = gl.allocate_shared_memory(gl.float32, [OWN, TILE], WEIGHTS)
    own_full = barriers(2, 1)
    c_full = barriers(STAGES, 1)
    c_empty = barriers(STAGES, 2)
    d_full = barriers(STAGES, 1)
    d_empty = barriers(STAGES, 2 if KIND == "keys" else 1)
    p_full = barriers(1, 1)
    p_empty = barriers(1, 1)
    gl.warp_specialize(
        [
            (_differentiate, (more_ptr, rows_ptr, a_rows, a_tail, c_ring, c_tail, d_ring, d_tail, p_rows, own_full, c_full,
                              c_empty, d_full, d_empty, p_full, p_empty, own_line, line, place, own_row, left, begin, tiles,
                              steps, N, shift, window, factor, scale_log2, PITCH, True, KIND, CAUSAL, WINDOW, D, OWN, TILE,
                              COLUMNS, REST, STAGES)),
            (_differentiate, (out_ptr, rows_ptr, b_rows, b_tail, c_ring, c_tail, d_ring, d_tail, p_rows, own_full, c_full,
                              c_empty, d_full, d_empty, p_full, p_empty, own_line, line, place, own_row, left, begin, tiles,
                              steps, N, shift, window, factor, scale_log2, PITCH, False, KIND, CAUSAL, WINDOW, D, OWN, TILE,
                              COLUMNS, REST, STAGES)),
            (_load, (a_desc, b_desc, c_desc, d_desc, a_rest, b_rest, c_rest, d_rest, a_rows, b_rows, c_ring, d_ring, a_tail,
                     b_tail, c_tail, d_tail, own_full, c_full, c_empty, d_full, d_empty, own_line, line, share, own_row,
                     begin, tiles, OWN, TILE, COLUMNS, REST, STAGES)),
        ],
        [4, 1],
        [WARPGROUP_REGISTERS, LOADER_REGISTERS],
    )  # fmt: skip
