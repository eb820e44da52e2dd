"""What a warpgroup of `specialised` does: its own rows by tiles that walk by, and sums of what they weigh."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from kernelmux.backends.triton.attention_backward._problem import visible


@gluon.jit
def _partly(row, OWN: gl.constexpr, start, TILE: gl.constexpr, N, shift, window, KIND: gl.constexpr,
            CAUSAL: gl.constexpr, WINDOW: gl.constexpr):  # fmt: skip
    """Some key of a tile, or of a warpgroup's own rows, is not seen by all queries; gradients are cut at the last key."""
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
def masked(x, mine, theirs, N, shift, window, KIND: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr):
    """x where the key is seen, else 0."""
    queries = mine[:, None] if KIND == "queries" else theirs[None, :]
    keys = theirs[None, :] if KIND == "queries" else mine[:, None]
    there = keys < N
    if CAUSAL or WINDOW:
        there = there & visible(queries, keys, shift, window, CAUSAL, WINDOW)
    return gl.where(there, x, 0.0)


@gluon.jit
def await_tile(full, step, steps, STAGES: gl.constexpr):
    """What arrives for a step, if there is such a step."""
    mbarrier.wait(full.index(step % STAGES), (step // STAGES) & 1, pred=step < steps)


@gluon.jit
def row_products(own, own_tail, ring_of, tail_ring, slot, half, OWN: gl.constexpr, TILE: gl.constexpr,
                 COLUMNS: gl.constexpr, REST: gl.constexpr, layout: gl.constexpr):  # fmt: skip
    """The products of a warpgroup's own rows and those of a tile, under way."""
    nothing = gl.zeros([OWN, TILE], gl.float32, layout)
    theirs = ring_of.index(slot).reshape([TILE, COLUMNS]).permute((1, 0))
    pending = warpgroup_mma(own.index(half).reshape([OWN, COLUMNS]), theirs, nothing, use_acc=False, is_async=True)
    if REST:
        tail = tail_ring.index(slot).reshape([TILE, REST]).permute((1, 0))
        pending = warpgroup_mma(own_tail.index(half).reshape([OWN, REST]), tail, pending, is_async=True)
    return pending


@gluon.jit
def add_products(acc, rest, weights, ring_of, tail_ring, slot, TILE: gl.constexpr, COLUMNS: gl.constexpr,
                 REST: gl.constexpr, out_layout: gl.constexpr, rest_layout: gl.constexpr):  # fmt: skip
    """acc and rest, and the products of weights and the rows of a tile, under way."""
    rows = ring_of.index(slot).reshape([TILE, COLUMNS])
    factor = weights.to(rows.dtype)
    acc = warpgroup_mma(gl.convert_layout(factor, gl.DotOperandLayout(0, out_layout, 2)), rows, acc, is_async=True)
    if REST:
        tail = tail_ring.index(slot).reshape([TILE, REST])
        rest = warpgroup_mma(
            gl.convert_layout(factor, gl.DotOperandLayout(0, rest_layout, 2)), tail, rest, is_async=True
        )
    return acc, rest


@gluon.jit
def _weigh(scores, lse, partly, mine, theirs, N, shift, window, scale_log2, KIND: gl.constexpr, CAUSAL: gl.constexpr,
           WINDOW: gl.constexpr):  # fmt: skip
    """exp(scale * scores - lse) where a key is seen, else 0."""
    p = gl.exp2(scores * scale_log2 - lse)
    if partly:
        p = masked(p, mine, theirs, N, shift, window, KIND, CAUSAL, WINDOW)
    return p


@gluon.jit
def _step(
    acc, rest, factor, lse, delta, step, tile, a_rows, b_rows, c_ring, d_ring, a_tail, b_tail, c_tail, d_tail, lse_ring,
    delta_ring, c_full, c_empty, d_full, d_empty, turns, first_row, mine, begin, steps, N, shift, window, scale_log2,
    ADDS: gl.constexpr, HALF: gl.constexpr, KIND: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
    OWN: gl.constexpr, TILE: gl.constexpr, COLUMNS: gl.constexpr, REST: gl.constexpr, C_STAGES: gl.constexpr,
    D_STAGES: gl.constexpr, layout: gl.constexpr, out_layout: gl.constexpr, rest_layout: gl.constexpr,
):  # fmt: skip
    """The factor that a tile adds to the sums with; ADDS: beside it what the tile before adds, with its own factor."""
    groups: gl.constexpr = 2 if REST else 1  # of products that are waited for together
    behind: gl.constexpr = groups if ADDS else 0
    slot = step % C_STAGES
    old = step % D_STAGES
    last = (step - 1) % (D_STAGES if KIND == "values" else C_STAGES)
    start = begin + tile * TILE
    theirs = start + gl.arange(0, TILE, gl.SliceLayout(0, layout))
    # Always 0: ptxas would keep the 16 descriptors of a place that does not change, and spill them.
    moved = start >> 31
    mbarrier.wait(turns.index(HALF), (step + 1 - HALF) & 1)
    pending = row_products(a_rows, a_tail, c_ring, c_tail, slot, HALF + moved, OWN, TILE, COLUMNS, REST, layout)
    if KIND == "queries":
        offset = lse
    else:
        offset = lse_ring.index(slot).reshape([TILE]).load(gl.SliceLayout(0, layout))[None, :]
    if KIND == "values":
        if ADDS:
            mbarrier.wait(d_full.index(last), ((step - 1) // D_STAGES) & 1)
            acc, rest = add_products(
                acc, rest, factor, d_ring, d_tail, last, TILE, COLUMNS, REST, out_layout, rest_layout
            )
    else:
        mbarrier.wait(d_full.index(old), (step // D_STAGES) & 1)
        pending_gradient = row_products(
            b_rows, b_tail, d_ring, d_tail, old, HALF + moved, OWN, TILE, COLUMNS, REST, layout
        )
        if ADDS:
            acc, rest = add_products(
                acc, rest, factor, c_ring, c_tail, last, TILE, COLUMNS, REST, out_layout, rest_layout
            )
    mbarrier.arrive(turns.index(1 - HALF))
    partly = _partly(first_row, OWN, start, TILE, N, shift, window, KIND, CAUSAL, WINDOW)
    if KIND == "values":
        scores = warpgroup_mma_wait(behind, deps=[pending])
        mbarrier.arrive(c_empty.index(slot))
    else:
        scores = warpgroup_mma_wait(groups + behind, deps=[pending])
    p = _weigh(scores, offset, partly, mine, theirs, N, shift, window, scale_log2, KIND, CAUSAL, WINDOW)
    # ptxas moves a wait for products up to the last branch: this one, behind the exponentials, lets them run while the
    # products do. Of two places for what walks by, the other one is free only once the sums have been added to.
    if C_STAGES > 2 or KIND == "values" or not ADDS:
        await_tile(c_full, step + 1, steps, C_STAGES)
    if KIND == "values":
        new_factor = p.to(a_rows.dtype)
    else:
        if KIND == "keys":
            of_row = delta_ring.index(old).reshape([TILE]).load(gl.SliceLayout(0, layout))[None, :]
        else:
            of_row = delta
        gradient = warpgroup_mma_wait(behind, deps=[pending_gradient])
        mbarrier.arrive(d_empty.index(old))
        ds = p * (gradient - of_row)
        if partly:  # what is not seen has no part, whatever stands there
            ds = gl.where(p == 0.0, 0.0, ds)
        new_factor = ds.to(a_rows.dtype)
    if ADDS:
        acc, rest = _ended(acc, rest, REST)
        if KIND == "values":
            mbarrier.arrive(d_empty.index(last))
        else:
            mbarrier.arrive(c_empty.index(last))
        if C_STAGES == 2 and KIND != "values":
            await_tile(c_full, step + 1, steps, C_STAGES)
    return acc, rest, new_factor


@gluon.jit
def _ended(acc, rest, REST: gl.constexpr):
    if REST:
        acc, rest = warpgroup_mma_wait(0, deps=[acc, rest])
    else:
        acc = warpgroup_mma_wait(0, deps=[acc])
    return acc, rest


@gluon.jit
def one_gradient(
    acc, rest, lse, delta,
    a_rows, b_rows, c_ring, d_ring, a_tail, b_tail, c_tail, d_tail, lse_ring, delta_ring,
    own_full, c_full, c_empty, d_full, d_empty, turns, first_row, mine, begin, tiles, steps, N, shift, window, scale_log2,
    HALF: gl.constexpr, KIND: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, OWN: gl.constexpr,
    TILE: gl.constexpr, COLUMNS: gl.constexpr, REST: gl.constexpr, C_STAGES: gl.constexpr, D_STAGES: gl.constexpr,
    layout: gl.constexpr, out_layout: gl.constexpr, rest_layout: gl.constexpr,
):  # fmt: skip
    """The sums of the gradient of queries, keys or values. What a tile adds is multiplied beside the scores of the next."""
    mbarrier.wait(own_full.index(0), 0)
    await_tile(c_full, 0, steps, C_STAGES)
    if KIND != "values":
        mbarrier.wait(own_full.index(1), 0)
    factor = gl.zeros([OWN, TILE], a_rows.dtype, layout)
    acc, rest, factor = _step(
        acc, rest, factor, lse, delta, 0, 0, a_rows, b_rows, c_ring, d_ring, a_tail, b_tail, c_tail, d_tail, lse_ring,
        delta_ring, c_full, c_empty, d_full, d_empty, turns, first_row, mine, begin, steps, N, shift, window,
        scale_log2, False, HALF, KIND, CAUSAL, WINDOW, OWN, TILE, COLUMNS, REST, C_STAGES, D_STAGES, layout, out_layout,
        rest_layout,
    )  # fmt: skip
    tile = 0
    for step in range(1, steps):
        tile = gl.where(tile + 1 == tiles, 0, tile + 1)  # on to the next head
        acc, rest, factor = _step(
            acc, rest, factor, lse, delta, step, tile, a_rows, b_rows, c_ring, d_ring, a_tail, b_tail, c_tail, d_tail,
            lse_ring, delta_ring, c_full, c_empty, d_full, d_empty, turns, first_row, mine, begin, steps, N, shift, window,
            scale_log2, True, HALF, KIND, CAUSAL, WINDOW, OWN, TILE, COLUMNS, REST, C_STAGES, D_STAGES, layout, out_layout,
            rest_layout,
        )  # fmt: skip
    if KIND == "values":
        last = (steps - 1) % D_STAGES
        mbarrier.wait(d_full.index(last), ((steps - 1) // D_STAGES) & 1)
        acc, rest = add_products(acc, rest, factor, d_ring, d_tail, last, TILE, COLUMNS, REST, out_layout, rest_layout)
    else:
        last = (steps - 1) % C_STAGES
        acc, rest = add_products(acc, rest, factor, c_ring, c_tail, last, TILE, COLUMNS, REST, out_layout, rest_layout)
    return _ended(acc, rest, REST)


@gluon.jit
def both_gradients(
    grad_k, grad_v, k_tail, v_tail, a_rows, b_rows, c_ring, d_ring, a_tail, b_tail, c_tail, d_tail, lse_ring, delta_ring,
    own_full, c_full, c_empty, d_full, d_empty, turns, first_row, mine, begin, tiles, steps, N, shift, window, scale_log2,
    HALF: gl.constexpr, KIND: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, OWN: gl.constexpr,
    TILE: gl.constexpr, COLUMNS: gl.constexpr, REST: gl.constexpr, C_STAGES: gl.constexpr, D_STAGES: gl.constexpr,
    layout: gl.constexpr, out_layout: gl.constexpr, rest_layout: gl.constexpr,
):  # fmt: skip
    """Of keys and values, whose sums leave no registers for what another step computes."""
    groups: gl.constexpr = 2 if REST else 1  # of products that are waited for together
    mbarrier.wait(own_full.index(0), 0)
    await_tile(c_full, 0, steps, C_STAGES)
    tile = 0
    for step in range(0, steps):
        slot = step % C_STAGES
        old = step % D_STAGES
        start = begin + tile * TILE
        theirs = start + gl.arange(0, TILE, gl.SliceLayout(0, layout))
        # Always 0: ptxas would keep the 16 descriptors of a place that does not change, and spill them.
        moved = start >> 31
        mbarrier.wait(turns.index(HALF), (step + 1 - HALF) & 1)
        pending = row_products(a_rows, a_tail, c_ring, c_tail, slot, HALF + moved, OWN, TILE, COLUMNS, REST, layout)
        lse = lse_ring.index(slot).reshape([TILE]).load(gl.SliceLayout(0, layout))[None, :]
        if step == 0:
            mbarrier.wait(own_full.index(1), 0)
        mbarrier.wait(d_full.index(old), (step // D_STAGES) & 1)
        pending_gradient = row_products(
            b_rows, b_tail, d_ring, d_tail, old, HALF + moved, OWN, TILE, COLUMNS, REST, layout
        )
        mbarrier.arrive(turns.index(1 - HALF))
        scores = warpgroup_mma_wait(groups, deps=[pending])
        partly = _partly(first_row, OWN, start, TILE, N, shift, window, KIND, CAUSAL, WINDOW)
        p = _weigh(scores, lse, partly, mine, theirs, N, shift, window, scale_log2, KIND, CAUSAL, WINDOW)
        # ptxas moves a wait for products up to the last branch: this one, behind the exponentials, lets them run while
        # the products do.
        await_tile(c_full, step + 1, steps, C_STAGES)
        weights = p.to(a_rows.dtype)
        grad_v, v_tail = add_products(
            grad_v, v_tail, weights, d_ring, d_tail, old, TILE, COLUMNS, REST, out_layout, rest_layout
        )
        gradient = warpgroup_mma_wait(groups, deps=[pending_gradient])
        delta = delta_ring.index(old).reshape([TILE]).load(gl.SliceLayout(0, layout))[None, :]
        ds = p * (gradient - delta)
        if CAUSAL or WINDOW:
            if partly:  # what is not seen has no part, whatever stands there
                ds = gl.where(p == 0.0, 0.0, ds)
        factor = ds.to(a_rows.dtype)
        grad_k, k_tail = add_products(
            grad_k, k_tail, factor, c_ring, c_tail, slot, TILE, COLUMNS, REST, out_layout, rest_layout
        )
        if REST:
            grad_k, k_tail, grad_v, v_tail = warpgroup_mma_wait(0, deps=[grad_k, k_tail, grad_v, v_tail])
        else:
            grad_k, grad_v = warpgroup_mma_wait(0, deps=[grad_k, grad_v])
        mbarrier.arrive(d_empty.index(old))
        mbarrier.arrive(c_empty.index(slot))
        tile = gl.where(tile + 1 == tiles, 0, tile + 1)  # on to the next head
    return grad_k, k_tail, grad_v, v_tail
