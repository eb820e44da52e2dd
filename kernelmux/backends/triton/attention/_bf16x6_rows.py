"""The 64 queries of a warpgroup in `bf16x6`: numbers of fp32 as three of bf16, a product as six of theirs.

What is left out is below 2^-24 of a product. Tensor cores cut their sums, so the values of a block of keys get sums of
their own, of the small terms first, which plain instructions add to those of the blocks before.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from kernelmux.backends.triton.attention._online import LN2, key_range
from kernelmux.backends.triton.attention._specialised_rows import _mask, _weights


@gluon.jit
def settled(small):
    """Infinities leave NaN in the small terms; the large one has the right value."""
    return gl.where(small == small, small, 0.0)


@gluon.jit
def planes(x, layout: gl.constexpr):
    """Three tensors in bf16 that add up to x, the largest first."""
    large = x.to(gl.bfloat16)
    rest = x - large.to(gl.float32)
    middle = rest.to(gl.bfloat16)
    small = (rest - middle.to(gl.float32)).to(gl.bfloat16)
    return gl.convert_layout(large, layout), gl.convert_layout(middle, layout), gl.convert_layout(small, layout)


@gluon.jit
def row_products(
    acc, a_rows, a_rest, b_rows, b_rest, a_at, b_at, A: gl.constexpr, B: gl.constexpr, NEW: gl.constexpr,
    ROWS: gl.constexpr, BLOCK: gl.constexpr, COLUMNS: gl.constexpr, REST: gl.constexpr,
):  # fmt: skip
    """acc and the products of rows, plane A of one and plane B of the other tensor, under way."""
    a = a_rows.index(a_at + A).reshape([ROWS, COLUMNS])
    b = b_rows.index(b_at + B).reshape([BLOCK, COLUMNS]).permute((1, 0))
    acc = warpgroup_mma(a, b, acc, use_acc=not NEW, is_async=True)
    if REST:
        a_tail = a_rest.index(a_at + A).reshape([ROWS, REST])
        b_tail = b_rest.index(b_at + B).reshape([BLOCK, REST]).permute((1, 0))
        acc = warpgroup_mma(a_tail, b_tail, acc, is_async=True)
    return acc


@gluon.jit
def all_row_products(
    a_rows, a_rest, b_rows, b_rest, a_at, b_at, ROWS: gl.constexpr, BLOCK: gl.constexpr, COLUMNS: gl.constexpr,
    REST: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """The small and the large terms of the products of rows, under way."""
    nothing = gl.zeros([ROWS, BLOCK], gl.float32, layout)
    small = row_products(nothing, a_rows, a_rest, b_rows, b_rest, a_at, b_at, 1, 1, True, ROWS, BLOCK, COLUMNS, REST)
    small = row_products(small, a_rows, a_rest, b_rows, b_rest, a_at, b_at, 2, 0, False, ROWS, BLOCK, COLUMNS, REST)
    small = row_products(small, a_rows, a_rest, b_rows, b_rest, a_at, b_at, 0, 2, False, ROWS, BLOCK, COLUMNS, REST)
    small = row_products(small, a_rows, a_rest, b_rows, b_rest, a_at, b_at, 1, 0, False, ROWS, BLOCK, COLUMNS, REST)
    small = row_products(small, a_rows, a_rest, b_rows, b_rest, a_at, b_at, 0, 1, False, ROWS, BLOCK, COLUMNS, REST)
    large = row_products(nothing, a_rows, a_rest, b_rows, b_rest, a_at, b_at, 0, 0, True, ROWS, BLOCK, COLUMNS, REST)
    return small, large


@gluon.jit
def weighed(p0, p1, p2, rows, at, BLOCK: gl.constexpr, COLUMNS: gl.constexpr, ROWS: gl.constexpr, layout: gl.constexpr):
    """Planes of weights, as operands, times rows [BLOCK, COLUMNS], in sums of their own."""
    v0 = rows.index(at).reshape([BLOCK, COLUMNS])
    v1 = rows.index(at + 1).reshape([BLOCK, COLUMNS])
    v2 = rows.index(at + 2).reshape([BLOCK, COLUMNS])
    nothing = gl.zeros([ROWS, COLUMNS], gl.float32, layout)
    added = warpgroup_mma(p1, v1, nothing, use_acc=False, is_async=True)
    added = warpgroup_mma(p2, v0, added, is_async=True)
    added = warpgroup_mma(p0, v2, added, is_async=True)
    added = warpgroup_mma(p1, v0, added, is_async=True)
    added = warpgroup_mma(p0, v1, added, is_async=True)
    return warpgroup_mma_wait(0, deps=[warpgroup_mma(p0, v0, added, is_async=True)])


@gluon.jit
def _walk_keys(
    acc, rest, top, total, q_rows, q_rest, k_ring, k_rest, v_ring, v_rest, k_full, k_empty, v_full, v_empty, count, begin,
    end, blocks, start_row, N, shift, window, scale, HALF: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
    MASKED: gl.constexpr, FLIP: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, COLUMNS: gl.constexpr,
    REST: gl.constexpr, STAGES: gl.constexpr, layout: gl.constexpr, out_layout: gl.constexpr, rest_layout: gl.constexpr,
):  # fmt: skip
    """Steps [begin, end) of a work, from the last block of keys to the first."""
    for step in range(begin, end):
        slot = (count + step) % STAGES
        turn = ((count + step) // STAGES) & 1
        start_n = (blocks - 1 - step) * BLOCK_N
        # Always 0: ptxas would keep the descriptors of a place that does not change, and spill them.
        moved = start_n >> 31
        at = slot * 3 + moved
        mbarrier.wait(k_full.index(slot), turn)
        small, large = all_row_products(
            q_rows, q_rest, k_ring, k_rest, HALF * 3 + moved, at, ROWS, BLOCK_N, COLUMNS, REST, layout
        )
        small, large = warpgroup_mma_wait(0, deps=[small, large])
        mbarrier.arrive(k_empty.index(slot))
        scores = large + settled(small)
        if FLIP:
            scores = -scores
        if MASKED:
            scores = _mask(scores, start_row, start_n, N, shift, window, CAUSAL, WINDOW, layout)
        weights, top, total, fade = _weights(scores, top, total, scale, MASKED)
        p0, p1, p2 = planes(weights, gl.DotOperandLayout(0, out_layout, 2))
        mbarrier.wait(v_full.index(slot), turn)
        added = weighed(p0, p1, p2, v_ring, at, BLOCK_N, COLUMNS, ROWS, out_layout)
        acc = acc * gl.convert_layout(fade, gl.SliceLayout(1, out_layout))[:, None] + added
        if REST:
            p0 = gl.convert_layout(p0, gl.DotOperandLayout(0, rest_layout, 2))
            p1 = gl.convert_layout(p1, gl.DotOperandLayout(0, rest_layout, 2))
            p2 = gl.convert_layout(p2, gl.DotOperandLayout(0, rest_layout, 2))
            added_rest = weighed(p0, p1, p2, v_rest, at, BLOCK_N, REST, ROWS, rest_layout)
            rest = rest * gl.convert_layout(fade, gl.SliceLayout(1, rest_layout))[:, None] + added_rest
        mbarrier.arrive(v_empty.index(slot))
    return acc, rest, top, total


@gluon.jit
def _put(out_ptr, sums, divisor, first, count, start, D: gl.constexpr, layout: gl.constexpr):
    """Stores rows of the output, from column `start` on."""
    rows = gl.arange(0, sums.shape[0], gl.SliceLayout(1, layout))
    columns = start + gl.arange(0, sums.shape[1], gl.SliceLayout(0, layout))
    out = sums / gl.convert_layout(divisor, gl.SliceLayout(1, layout))[:, None]
    there = (rows < count)[:, None] & (columns < D)[None, :]
    gl.store(out_ptr + (first + rows)[:, None] * D + columns[None, :], out, mask=there)


@gluon.jit
def attend_planes(
    lse_ptr, out_ptr, q_rows, q_rest, k_ring, k_rest, v_ring, v_rest, q_full, q_empty, k_full, k_empty, v_full, v_empty,
    turn, count, line, first_row, low, blocks, M, N, shift, window, scale, HALF: gl.constexpr, CAUSAL: gl.constexpr,
    WINDOW: gl.constexpr, FLIP: gl.constexpr, D: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr,
    COLUMNS: gl.constexpr, REST: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    rest_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, REST if REST else COLUMNS, 16])
    _, first, last, _ = key_range(first_row, M, N, shift, window, CAUSAL, WINDOW, ROWS, BLOCK_N)
    # At least the first step is masked; after it, as many as reach past what every query may see; with a window also
    # those before what every query sees.
    steps = blocks - low
    masked = gl.minimum(gl.maximum(blocks - last // BLOCK_N, 1), steps)
    whole = gl.maximum(masked, gl.minimum(blocks - first // BLOCK_N, steps)) if WINDOW else steps

    top = gl.full([ROWS], -float("inf"), gl.float32, gl.SliceLayout(1, layout))
    total = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, layout))
    # [ROWS, COLUMNS]
    acc = gl.zeros([ROWS, COLUMNS], gl.float32, out_layout)
    rest = gl.zeros([ROWS, REST], gl.float32, rest_layout) if REST else total
    mbarrier.wait(q_full.index(HALF), turn & 1)
    acc, rest, top, total = _walk_keys(
        acc, rest, top, total, q_rows, q_rest, k_ring, k_rest, v_ring, v_rest, k_full, k_empty, v_full, v_empty, count, 0,
        masked, blocks, first_row, N, shift, window, scale, HALF, CAUSAL, WINDOW, True, FLIP, ROWS, BLOCK_N, COLUMNS, REST,
        STAGES, layout, out_layout, rest_layout,
    )  # fmt: skip
    acc, rest, top, total = _walk_keys(
        acc, rest, top, total, q_rows, q_rest, k_ring, k_rest, v_ring, v_rest, k_full, k_empty, v_full, v_empty, count,
        masked, whole, blocks, first_row, N, shift, window, scale, HALF, CAUSAL, WINDOW, False, FLIP, ROWS, BLOCK_N,
        COLUMNS, REST, STAGES, layout, out_layout, rest_layout,
    )  # fmt: skip
    if WINDOW:
        acc, rest, top, total = _walk_keys(
            acc, rest, top, total, q_rows, q_rest, k_ring, k_rest, v_ring, v_rest, k_full, k_empty, v_full, v_empty, count,
            whole, steps, blocks, first_row, N, shift, window, scale, HALF, CAUSAL, WINDOW, True, FLIP, ROWS, BLOCK_N,
            COLUMNS, REST, STAGES, layout, out_layout, rest_layout,
        )  # fmt: skip
    mbarrier.arrive(q_empty.index(HALF))

    divisor = gl.where(total == 0.0, 1.0, total)
    first_line = line.to(gl.int64) * M + first_row
    _put(out_ptr, acc, divisor, first_line, M - first_row, 0, D, out_layout)
    if REST:
        _put(out_ptr, rest, divisor, first_line, M - first_row, COLUMNS, D, rest_layout)
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    gl.store(lse_ptr + first_line + rows, (top + gl.log2(total)) * LN2, mask=first_row + rows < M)
