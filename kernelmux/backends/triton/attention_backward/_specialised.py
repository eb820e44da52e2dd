"""Gradients of long rows, warps specialised (in Gluon): one loads, two warpgroups own 64 rows each of one gradient.

A sum of 64 rows of 256 numbers takes half the registers of a warpgroup, so each gradient has a kernel of its own, which
computes the scores again: eight products in place of seven, all of them by whole warpgroups. A warpgroup's exponentials
are taken while the other one multiplies.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra import cuda

from kernelmux.backends.triton._launch.hopper import barriers, copy_in, copy_out, copy_out_wait, ring
from kernelmux.backends.triton.attention._online import key_range, located
from kernelmux.backends.triton.attention_backward._problem import query_range, visible

WARPGROUP_REGISTERS = gl.constexpr(240)
LOADER_REGISTERS = gl.constexpr(24)


@gluon.jit
def _copy(
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
        _copy(a_desc, a_rest, own_full.index(0), a_rows, a_tail, half, batch, own_head, own_row + half * OWN, COLUMNS, REST)
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
            _copy(c_desc, c_rest, c_full.index(slot), c_ring, c_tail, slot, batch, first_head + head, row, COLUMNS, REST)
            if KIND != "values":
                if step == 0:
                    mbarrier.expect(own_full.index(1), own_bytes)
                    for half in gl.static_range(2):
                        _copy(b_desc, b_rest, own_full.index(1), b_rows, b_tail, half, batch, own_head, own_row + half * OWN,
                              COLUMNS, REST)  # fmt: skip
            old = step % D_STAGES
            mbarrier.wait(d_empty.index(old), (step // D_STAGES + 1) & 1)
            if KIND == "keys" or KIND == "both":
                mbarrier.expect(d_full.index(old), tile_bytes + TILE * 4)
                copy_in(rows_desc, [line + 1, row], d_full.index(old), delta_ring.index(old))
            else:
                mbarrier.expect(d_full.index(old), tile_bytes)
            _copy(d_desc, d_rest, d_full.index(old), d_ring, d_tail, old, batch, first_head + head, row, COLUMNS, REST)


@gluon.jit
def _partly(row, OWN: gl.constexpr, start, TILE: gl.constexpr, N, shift, window, KIND: gl.constexpr,
            CAUSAL: gl.constexpr, WINDOW: gl.constexpr):  # fmt: skip
    """Some key of a tile, or of a warpgroup's own rows, is not seen by all queries. Sums of keys behind the last are cut."""
    if KIND == "queries":
        partly = start + TILE > N
        if CAUSAL:
            partly = partly | (start + TILE - 1 > row + shift)
        if WINDOW:
            partly = partly | (start <= row + OWN - 1 + shift - window)
    else:
        partly = start < 0
        if CAUSAL:
            partly = partly | (row + OWN - 1 > start + shift)
        if WINDOW:
            partly = partly | (row <= start + TILE - 1 + shift - window)
    return partly


@gluon.jit
def _masked(x, mine, theirs, N, shift, window, KIND: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr):
    """x where the key is seen, else 0."""
    queries = mine[:, None] if KIND == "queries" else theirs[None, :]
    keys = theirs[None, :] if KIND == "queries" else mine[:, None]
    there = keys < N
    if CAUSAL or WINDOW:
        there = there & visible(queries, keys, shift, window, CAUSAL, WINDOW)
    return gl.where(there, x, 0.0)


@gluon.jit
def _await(full, step, steps, STAGES: gl.constexpr):
    """What arrives for a step, if there is such a step."""
    mbarrier.wait(full.index(step % STAGES), (step // STAGES) & 1, pred=step < steps)


@gluon.jit
def _scores(own, own_tail, ring_of, tail_ring, slot, half, OWN: gl.constexpr, TILE: gl.constexpr, COLUMNS: gl.constexpr,
            REST: gl.constexpr, layout: gl.constexpr):  # fmt: skip
    """The products of a warpgroup's own rows and those of a tile, under way."""
    nothing = gl.zeros([OWN, TILE], gl.float32, layout)
    theirs = ring_of.index(slot).reshape([TILE, COLUMNS]).permute((1, 0))
    pending = warpgroup_mma(own.index(half).reshape([OWN, COLUMNS]), theirs, nothing, use_acc=False, is_async=True)
    if REST:
        tail = tail_ring.index(slot).reshape([TILE, REST]).permute((1, 0))
        pending = warpgroup_mma(own_tail.index(half).reshape([OWN, REST]), tail, pending, is_async=True)
    return pending


@gluon.jit
def _add(acc, rest, weights, ring_of, tail_ring, slot, TILE: gl.constexpr, COLUMNS: gl.constexpr, REST: gl.constexpr,
         out_layout: gl.constexpr, rest_layout: gl.constexpr):  # fmt: skip
    """acc and rest, and the products of weights and the rows of a tile, under way."""
    rows = ring_of.index(slot).reshape([TILE, COLUMNS])
    factor = weights.to(rows.dtype)
    acc = warpgroup_mma(gl.convert_layout(factor, gl.DotOperandLayout(0, out_layout, 2)), rows, acc, is_async=True)
    if REST:
        tail = tail_ring.index(slot).reshape([TILE, REST])
        rest = warpgroup_mma(gl.convert_layout(factor, gl.DotOperandLayout(0, rest_layout, 2)), tail, rest, is_async=True)
    return acc, rest


@gluon.jit
def _store(acc, rest, desc, desc_rest, rows, tail, half, batch, head, row, OWN: gl.constexpr, COLUMNS: gl.constexpr,
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
def _weigh(scores, lse, partly, mine, theirs, N, shift, window, scale_log2, KIND: gl.constexpr, CAUSAL: gl.constexpr,
           WINDOW: gl.constexpr):  # fmt: skip
    """exp(scale * scores - lse) where a key is seen, else 0."""
    p = gl.exp2(scores * scale_log2 - lse)
    if partly:
        p = _masked(p, mine, theirs, N, shift, window, KIND, CAUSAL, WINDOW)
    return p


@gluon.jit
def _one_gradient(
    acc, rest, lse, delta, a_rows, b_rows, c_ring, d_ring, a_tail, b_tail, c_tail, d_tail, lse_ring, delta_ring,
    own_full, c_full, c_empty, d_full, d_empty, turns, first_row, mine, begin, tiles, steps, N, shift, window, scale_log2,
    HALF: gl.constexpr, KIND: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, OWN: gl.constexpr,
    TILE: gl.constexpr, COLUMNS: gl.constexpr, REST: gl.constexpr, C_STAGES: gl.constexpr, D_STAGES: gl.constexpr,
    TURNS: gl.constexpr, layout: gl.constexpr, out_layout: gl.constexpr, rest_layout: gl.constexpr,
):  # fmt: skip
    """The scores of a step beside what the step before it adds to the gradient."""
    groups: gl.constexpr = 2 if REST else 1  # of products that are waited for together
    mbarrier.wait(own_full.index(0), 0)
    _await(c_full, 0, steps, C_STAGES)
    if KIND != "values":
        mbarrier.wait(own_full.index(1), 0)
    factor = gl.zeros([OWN, TILE], a_rows.dtype, layout)
    tile = 0
    for step in gl.static_range(1):
        theirs = begin + gl.arange(0, TILE, gl.SliceLayout(0, layout))
        if TURNS:
            mbarrier.wait(turns.index(HALF), (step + 1 - HALF) & 1)
        pending = _scores(a_rows, a_tail, c_ring, c_tail, 0, HALF, OWN, TILE, COLUMNS, REST, layout)
        if KIND == "queries":
            log = lse
        else:
            log = lse_ring.index(0).reshape([TILE]).load(gl.SliceLayout(0, layout))[None, :]
        partly = _partly(first_row, OWN, begin, TILE, N, shift, window, KIND, CAUSAL, WINDOW)
        if KIND == "values":
            if TURNS:
                mbarrier.arrive(turns.index(1 - HALF))
            scores = warpgroup_mma_wait(0, deps=[pending])
            mbarrier.arrive(c_empty.index(0))
            p = _weigh(scores, log, partly, mine, theirs, N, shift, window, scale_log2, KIND, CAUSAL, WINDOW)
            factor = p.to(a_rows.dtype)
        else:
            mbarrier.wait(d_full.index(0), 0)
            pending_gradient = _scores(b_rows, b_tail, d_ring, d_tail, 0, HALF, OWN, TILE, COLUMNS, REST, layout)
            if TURNS:
                mbarrier.arrive(turns.index(1 - HALF))
            scores = warpgroup_mma_wait(groups, deps=[pending])
            p = _weigh(scores, log, partly, mine, theirs, N, shift, window, scale_log2, KIND, CAUSAL, WINDOW)
            if KIND == "queries":
                of_row = delta
            else:
                of_row = delta_ring.index(0).reshape([TILE]).load(gl.SliceLayout(0, layout))[None, :]
            gradient = warpgroup_mma_wait(0, deps=[pending_gradient])
            mbarrier.arrive(d_empty.index(0))
            ds = p * (gradient - of_row)
            if partly:  # what is not seen has no part, whatever stands there
                ds = gl.where(p == 0.0, 0.0, ds)
            factor = ds.to(a_rows.dtype)
        _await(c_full, 1, steps, C_STAGES)
    for step in range(1, steps):
        slot = step % C_STAGES
        old = step % D_STAGES
        last = (step - 1) % C_STAGES
        last_old = (step - 1) % D_STAGES
        tile += 1
        tile = gl.where(tile == tiles, 0, tile)  # on to the next head
        start = begin + tile * TILE
        theirs = start + gl.arange(0, TILE, gl.SliceLayout(0, layout))
        # Always 0: ptxas would keep the 16 descriptors of a place that does not change, and spill them.
        moved = start >> 31
        if TURNS:
            mbarrier.wait(turns.index(HALF), (step + 1 - HALF) & 1)
        pending = _scores(a_rows, a_tail, c_ring, c_tail, slot, HALF + moved, OWN, TILE, COLUMNS, REST, layout)
        if KIND == "queries":
            log = lse
        else:
            log = lse_ring.index(slot).reshape([TILE]).load(gl.SliceLayout(0, layout))[None, :]
        partly = _partly(first_row, OWN, start, TILE, N, shift, window, KIND, CAUSAL, WINDOW)
        if KIND == "values":
            mbarrier.wait(d_full.index(last_old), ((step - 1) // D_STAGES) & 1)
            acc, rest = _add(acc, rest, factor, d_ring, d_tail, last_old, TILE, COLUMNS, REST, out_layout, rest_layout)
            if TURNS:
                mbarrier.arrive(turns.index(1 - HALF))
            scores = warpgroup_mma_wait(groups, deps=[pending])
            mbarrier.arrive(c_empty.index(slot))
            p = _weigh(scores, log, partly, mine, theirs, N, shift, window, scale_log2, KIND, CAUSAL, WINDOW)
            _await(c_full, step + 1, steps, C_STAGES)
            factor = p.to(a_rows.dtype)
        else:
            mbarrier.wait(d_full.index(old), (step // D_STAGES) & 1)
            pending_gradient = _scores(
                b_rows, b_tail, d_ring, d_tail, old, HALF + moved, OWN, TILE, COLUMNS, REST, layout
            )  # fmt: skip
            acc, rest = _add(acc, rest, factor, c_ring, c_tail, last, TILE, COLUMNS, REST, out_layout, rest_layout)
            if TURNS:
                mbarrier.arrive(turns.index(1 - HALF))
            scores = warpgroup_mma_wait(2 * groups, deps=[pending])
            p = _weigh(scores, log, partly, mine, theirs, N, shift, window, scale_log2, KIND, CAUSAL, WINDOW)
            # ptxas moves a wait for products up to the last branch: this one, behind the exponentials, lets them run
            # while the products do.
            if C_STAGES > 2:
                _await(c_full, step + 1, steps, C_STAGES)
            if KIND == "queries":
                of_row = delta
            else:
                of_row = delta_ring.index(old).reshape([TILE]).load(gl.SliceLayout(0, layout))[None, :]
            gradient = warpgroup_mma_wait(groups, deps=[pending_gradient])
            mbarrier.arrive(d_empty.index(old))
            ds = p * (gradient - of_row)
            if partly:
                ds = gl.where(p == 0.0, 0.0, ds)
            factor = ds.to(a_rows.dtype)
        if REST:
            acc, rest = warpgroup_mma_wait(0, deps=[acc, rest])
        else:
            acc = warpgroup_mma_wait(0, deps=[acc])
        if KIND == "values":
            mbarrier.arrive(d_empty.index(last_old))
        else:
            mbarrier.arrive(c_empty.index(last))
            if C_STAGES == 2:
                _await(c_full, step + 1, steps, C_STAGES)
    if KIND == "values":
        last_old = (steps - 1) % D_STAGES
        mbarrier.wait(d_full.index(last_old), ((steps - 1) // D_STAGES) & 1)
        acc, rest = _add(acc, rest, factor, d_ring, d_tail, last_old, TILE, COLUMNS, REST, out_layout, rest_layout)
    else:
        last = (steps - 1) % C_STAGES
        acc, rest = _add(acc, rest, factor, c_ring, c_tail, last, TILE, COLUMNS, REST, out_layout, rest_layout)
    if REST:
        acc, rest = warpgroup_mma_wait(0, deps=[acc, rest])
    else:
        acc = warpgroup_mma_wait(0, deps=[acc])
    return acc, rest


@gluon.jit
def _both_gradients(
    grad_k, grad_v, k_tail, v_tail, a_rows, b_rows, c_ring, d_ring, a_tail, b_tail, c_tail, d_tail, lse_ring, delta_ring,
    own_full, c_full, c_empty, d_full, d_empty, turns, first_row, mine, begin, tiles, steps, N, shift, window, scale_log2,
    HALF: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, OWN: gl.constexpr,
    TILE: gl.constexpr, COLUMNS: gl.constexpr, REST: gl.constexpr, C_STAGES: gl.constexpr, D_STAGES: gl.constexpr,
    TURNS: gl.constexpr, layout: gl.constexpr, out_layout: gl.constexpr, rest_layout: gl.constexpr,
):  # fmt: skip
    """Of keys and values, whose sums leave no registers for what another step computes."""
    groups: gl.constexpr = 2 if REST else 1  # of products that are waited for together
    mbarrier.wait(own_full.index(0), 0)
    _await(c_full, 0, steps, C_STAGES)
    tile = 0
    for step in range(0, steps):
        slot = step % C_STAGES
        old = step % D_STAGES
        start = begin + tile * TILE
        theirs = start + gl.arange(0, TILE, gl.SliceLayout(0, layout))
        # Always 0: ptxas would keep the 16 descriptors of a place that does not change, and spill them.
        moved = start >> 31
        if TURNS:
            mbarrier.wait(turns.index(HALF), (step + 1 - HALF) & 1)
        pending = _scores(a_rows, a_tail, c_ring, c_tail, slot, HALF + moved, OWN, TILE, COLUMNS, REST, layout)
        lse = lse_ring.index(slot).reshape([TILE]).load(gl.SliceLayout(0, layout))[None, :]
        if step == 0:
            mbarrier.wait(own_full.index(1), 0)
        mbarrier.wait(d_full.index(old), (step // D_STAGES) & 1)
        pending_gradient = _scores(b_rows, b_tail, d_ring, d_tail, old, HALF + moved, OWN, TILE, COLUMNS, REST, layout)
        if TURNS:
            mbarrier.arrive(turns.index(1 - HALF))
        scores = warpgroup_mma_wait(groups, deps=[pending])
        partly = _partly(first_row, OWN, start, TILE, N, shift, window, "keys", CAUSAL, WINDOW)
        p = _weigh(scores, lse, partly, mine, theirs, N, shift, window, scale_log2, "keys", CAUSAL, WINDOW)
        # ptxas moves a wait for products up to the last branch: this one, behind the exponentials, lets them run while
        # the products do.
        _await(c_full, step + 1, steps, C_STAGES)
        weights = p.to(a_rows.dtype)
        grad_v, v_tail = _add(grad_v, v_tail, weights, d_ring, d_tail, old, TILE, COLUMNS, REST, out_layout, rest_layout)
        gradient = warpgroup_mma_wait(groups, deps=[pending_gradient])
        delta = delta_ring.index(old).reshape([TILE]).load(gl.SliceLayout(0, layout))[None, :]
        ds = p * (gradient - delta)
        if CAUSAL or WINDOW:
            if partly:  # what is not seen has no part, whatever stands there
                ds = gl.where(p == 0.0, 0.0, ds)
        factor = ds.to(a_rows.dtype)
        grad_k, k_tail = _add(grad_k, k_tail, factor, c_ring, c_tail, slot, TILE, COLUMNS, REST, out_layout, rest_layout)
        if REST:
            grad_k, k_tail, grad_v, v_tail = warpgroup_mma_wait(0, deps=[grad_k, k_tail, grad_v, v_tail])
        else:
            grad_k, grad_v = warpgroup_mma_wait(0, deps=[grad_k, grad_v])
        mbarrier.arrive(d_empty.index(old))
        mbarrier.arrive(c_empty.index(slot))
        tile += 1
        tile = gl.where(tile == tiles, 0, tile)  # on to the next head
    return grad_k, k_tail, grad_v, v_tail


@gluon.jit
def _differentiate(
    rows_ptr, out_desc, out_rest, more_desc, more_rest, a_rows, b_rows, c_ring, d_ring, a_tail, b_tail, c_tail, d_tail,
    lse_ring, delta_ring, own_full, c_full, c_empty, d_full, d_empty, turns,
    batch, own_head, first_head, share, own_row, begin, tiles, H, N, shift, window, scale, scale_log2, PITCH,
    HALF: gl.constexpr, KIND: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, OWN: gl.constexpr,
    TILE: gl.constexpr, COLUMNS: gl.constexpr, REST: gl.constexpr, C_STAGES: gl.constexpr, D_STAGES: gl.constexpr,
    TURNS: gl.constexpr,
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
        acc, rest, more, more_tail = _both_gradients(
            acc, more, rest, more_tail, a_rows, b_rows, c_ring, d_ring, a_tail, b_tail, c_tail, d_tail, lse_ring, delta_ring,
            own_full, c_full, c_empty, d_full, d_empty, turns, first_row, mine, begin, tiles, steps, N, shift, window,
            scale_log2, HALF, CAUSAL, WINDOW, OWN, TILE, COLUMNS, REST, C_STAGES, D_STAGES, TURNS, layout, out_layout,
            rest_layout,
        )  # fmt: skip
    else:
        lse = share
        delta = share
        if KIND == "queries":
            line = rows_ptr + (batch * H + own_head).to(gl.int64) * 2 * PITCH
            lse = gl.load(line + mine, mask=mine < PITCH, other=float("inf"))[:, None]
            delta = gl.load(line + PITCH + mine, mask=mine < PITCH, other=0.0)[:, None]
        if steps > 0:
            acc, rest = _one_gradient(
                acc, rest, lse, delta, a_rows, b_rows, c_ring, d_ring, a_tail, b_tail, c_tail, d_tail, lse_ring, delta_ring,
                own_full, c_full, c_empty, d_full, d_empty, turns, first_row, mine, begin, tiles, steps, N, shift, window,
                scale_log2, HALF, KIND, CAUSAL, WINDOW, OWN, TILE, COLUMNS, REST, C_STAGES, D_STAGES, TURNS, layout, out_layout,
                rest_layout,
            )  # fmt: skip
        else:  # the memory of the own rows takes the gradient
            mbarrier.wait(own_full.index(0), 0)
    if KIND != "values":
        acc = acc * scale
        if REST:
            rest = rest * scale
    _store(acc, rest, out_desc, out_rest, a_rows, a_tail, HALF, batch, own_head, first_row, OWN, COLUMNS, REST)
    if KIND == "both":
        _store(more, more_tail, more_desc, more_rest, b_rows, b_tail, HALF, batch, own_head, first_row, OWN, COLUMNS, REST)
    copy_out_wait(0)


@gluon.jit
def attention_gradient_specialised_kernel(
    rows_ptr, rows_desc, out_desc, more_desc, a_desc, b_desc, c_desc, d_desc,
    out_rest, more_rest, a_rest, b_rest, c_rest, d_rest, H, SHARE, M, N, shift, window, scale, scale_log2, PITCH,
    LINES, SECTION, KIND: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, D: gl.constexpr, COLUMNS: gl.constexpr,
    REST: gl.constexpr, OWN: gl.constexpr, TILE: gl.constexpr, C_STAGES: gl.constexpr, D_STAGES: gl.constexpr,
    TURNS: gl.constexpr, OVERLAPS: gl.constexpr,
):  # fmt: skip
    """KIND: whose gradient; a (and b, but for values) are the program's own rows, c and d walk by.

    "both": of keys, and in `more` of values. Descriptors of `rest` are of the second pieces of rows, from COLUMNS on.
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
        line, block = located(gl.program_id(0), LINES, blocks, SECTION)  # the first keys are seen by the most queries
        own_row = block * 2 * OWN
        batch = line // (H // SHARE)
        own_head = line % (H // SHARE)
        first_head = own_head * SHARE
        share = SHARE
        begin, _, _, end = query_range(own_row, M, N, shift, window, CAUSAL, WINDOW, TILE, 2 * OWN)
    tiles = gl.maximum(gl.cdiv(end - begin, TILE), 0)

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
    if OVERLAPS:
        # The gradients need nothing of one another: the next kernel begins where this one leaves multiprocessors free.
        # Queries come first and wait for the rows; the others wait at their end, so that the last ends last.
        if KIND == "queries":
            cuda.gdc_wait()
        cuda.gdc_launch_dependents()
    gl.warp_specialize(
        [
            (_differentiate, (rows_ptr, out_desc, out_rest, more_desc, more_rest, a_rows, b_rows, c_ring, d_ring, a_tail,
                              b_tail, c_tail, d_tail, lse_ring, delta_ring, own_full, c_full, c_empty, d_full, d_empty, turns,
                              batch, own_head, first_head, share, own_row, begin, tiles, H, N, shift, window, scale,
                              scale_log2, PITCH, 0, KIND, CAUSAL, WINDOW, OWN, TILE, COLUMNS, REST, C_STAGES,
                              D_STAGES, TURNS)),
            (_differentiate, (rows_ptr, out_desc, out_rest, more_desc, more_rest, a_rows, b_rows, c_ring, d_ring, a_tail,
                              b_tail, c_tail, d_tail, lse_ring, delta_ring, own_full, c_full, c_empty, d_full, d_empty, turns,
                              batch, own_head, first_head, share, own_row, begin, tiles, H, N, shift, window, scale,
                              scale_log2, PITCH, 1, KIND, CAUSAL, WINDOW, OWN, TILE, COLUMNS, REST, C_STAGES,
                              D_STAGES, TURNS)),
            (_load, (rows_desc, a_desc, b_desc, c_desc, d_desc, a_rest, b_rest, c_rest, d_rest, a_rows, b_rows, c_ring,
                     d_ring, a_tail, b_tail, c_tail, d_tail, lse_ring, delta_ring, own_full, c_full, c_empty, d_full,
                     d_empty, batch, own_head, first_head, share, own_row, begin, tiles, H, KIND, OWN, TILE, COLUMNS,
                     REST, C_STAGES, D_STAGES)),
        ],
        [4, 1],
        [WARPGROUP_REGISTERS, LOADER_REGISTERS],
    )  # fmt: skip
    if OVERLAPS:
        if KIND != "queries":
            cuda.gdc_wait()
