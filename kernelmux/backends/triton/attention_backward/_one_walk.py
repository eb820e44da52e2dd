"""All gradients in one walk over the weights, warps specialised (in Gluon): five products in place of seven or eight.

A program owns 128 keys and walks over the queries that see them; two warpgroups have the gradients of 64 keys each. Those
of the scores pass through shared memory once, to both warpgroups, for the program's part of grad_q, which warps beside them
add to fp32 sums in global memory. Programs add in the order of their keys, so that sums have the same bits each time (Dao,
FlashAttention-2, 2023; Shah et al., FlashAttention-3, 2024). A program begins with the last queries: what it shares with
the programs behind it comes first, what it has alone last.
"""

from __future__ import annotations

from typing import Any

from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra import cuda

from kernelmux.backends.triton._launch.hopper import barriers, copy_in, copy_out, copy_out_wait, ring
from kernelmux.backends.triton.attention._online import key_range, located
from kernelmux.backends.triton.attention_backward._problem import query_range
from kernelmux.backends.triton.attention_backward._specialised import store_pieces
from kernelmux.backends.triton.attention_backward._specialised_walks import (
    add_products,
    await_tile,
    masked,
    row_products,
)

# Odd, so that each sees parts of both warpgroups in turn: while one waits until its part is added, the others' may leave.
ADDERS = gl.constexpr(3)
WARPGROUP_REGISTERS = gl.constexpr(240)
ASIDE_REGISTERS = gl.constexpr(24)


@builtin
def copy_add(desc: Any, coord: Any, src: Any, _semantic: Any = None) -> None:
    """Adds what lies in shared memory to a block of a tensor, by the copy engine; Triton 3.6 has no name for it."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, desc.handle, coord, src.handle)


@gluon.jit
def _row_of(step, share, end, TILE: gl.constexpr):
    """The first query of a step: from the last tile to the first, of all heads before the next."""
    return (gl.cdiv(end, TILE) - 1 - step // share) * TILE


@gluon.jit
def _load(
    rows_desc, g_desc, q_desc, k_desc, v_desc, k_rows, v_rows, q_ring, g_ring, lse_ring, delta_ring, own_full, q_full,
    g_full, q_empty, g_empty, batch, group, share, own_row, end, steps, H, OWN: gl.constexpr, TILE: gl.constexpr,
    COLUMNS: gl.constexpr, Q_STAGES: gl.constexpr, G_STAGES: gl.constexpr,
):  # fmt: skip
    tile_bytes: gl.constexpr = TILE * COLUMNS * 2 + TILE * 4
    own_bytes: gl.constexpr = 2 * OWN * COLUMNS * 2
    mbarrier.expect(own_full.index(0), own_bytes)
    for half in gl.static_range(2):
        copy_in(k_desc, [batch, group, own_row + half * OWN, 0], own_full.index(0), k_rows.index(half))
    for step in range(0, steps):
        slot = step % Q_STAGES
        head = group * share + step % share
        row = _row_of(step, share, end, TILE)
        line = 2 * (batch * H + head)
        mbarrier.wait(q_empty.index(slot), (step // Q_STAGES + 1) & 1)
        mbarrier.expect(q_full.index(slot), tile_bytes)
        copy_in(q_desc, [batch, head, row, 0], q_full.index(slot), q_ring.index(slot))
        copy_in(rows_desc, [line, row], q_full.index(slot), lse_ring.index(slot))
        if step == 0:  # scores need none of it
            mbarrier.expect(own_full.index(1), own_bytes)
            for half in gl.static_range(2):
                copy_in(v_desc, [batch, group, own_row + half * OWN, 0], own_full.index(1), v_rows.index(half))
        old = step % G_STAGES
        mbarrier.wait(g_empty.index(old), (step // G_STAGES + 1) & 1)
        mbarrier.expect(g_full.index(old), tile_bytes)
        copy_in(g_desc, [batch, head, row, 0], g_full.index(old), g_ring.index(old))
        copy_in(rows_desc, [line + 1, row], g_full.index(old), delta_ring.index(old))


@gluon.jit
def _add_parts(
    sums_desc, done_ptr, parts, part_full, part_empty, batch, group, share, block, end, steps, H, M, N, shift, window,
    ADDER: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, OWN: gl.constexpr, TILE: gl.constexpr,
    COLUMNS: gl.constexpr,
):  # fmt: skip
    """Every third part, each when the programs of the keys before have added theirs."""
    tiles = gl.cdiv(M, TILE)
    for item in range(ADDER, 2 * steps, ADDERS):
        step = item // 2
        half = item % 2
        row = _row_of(step, share, end, TILE)
        place = (batch * H + group * share + step % share) * tiles + row // TILE
        begin, _, _, _ = key_range(row, M, N, shift, window, CAUSAL, WINDOW, TILE, 2 * OWN)
        turn = block - begin // (2 * OWN)
        counter = done_ptr + place * 2 + half
        mbarrier.wait(part_full.index(ADDER * 2 + half), item // (ADDERS * 2) & 1)
        added = gl.atomic_add(counter, 0, sem="acquire", scope="gpu")
        while added < turn:
            added = gl.atomic_add(counter, 0, sem="acquire", scope="gpu")
        # A half of the queries, or of the columns.
        first = half * (TILE // 2) if COLUMNS == 64 else 0
        column = 0 if COLUMNS == 64 else half * (COLUMNS // 2)
        if turn == 0:
            copy_out(sums_desc, [place, first, column], parts.index(half))
        else:
            copy_add(sums_desc, [place, first, column], parts.index(half))
        copy_out_wait(0)  # until it is read
        mbarrier.arrive(part_empty.index(half))
        # Until it is written; Triton 3.6 has no name for this either.
        one = gl.inline_asm_elementwise(
            "cp.async.bulk.wait_group 0; mov.b32 $0, $1;", "=r,r", [turn * 0 + 1], dtype=gl.int32, is_pure=False, pack=1
        )  # fmt: skip
        gl.atomic_add(counter, one, sem="release", scope="gpu")


@gluon.jit
def _part(k_rows, weights, buffer, HALF: gl.constexpr, OWN: gl.constexpr, TILE: gl.constexpr, COLUMNS: gl.constexpr,
          part_layout: gl.constexpr):  # fmt: skip
    """This warpgroup's half of a part of grad_q, of 64 queries and 64 columns, by both warpgroups' keys: under way."""
    pending = gl.zeros([64, 64], gl.float32, part_layout)
    for half in gl.static_range(2):
        keys = k_rows.index(half).reshape([OWN, COLUMNS])
        factor = weights.index(buffer * 2 + half)
        if COLUMNS == 64:
            factor = factor.slice(HALF * 64, 64, dim=1)
        else:
            keys = keys.slice(HALF * 64, 64, dim=1)
        factor = factor.permute((1, 0))
        pending = warpgroup_mma(factor, keys, pending, use_acc=half > 0, is_async=True)
    return pending


@gluon.jit
def _hand_over(part, parts, step, part_full, part_empty, HALF: gl.constexpr):
    """A finished part to the warp whose turn it is, once that of this warpgroup's step before has been read."""
    mbarrier.wait(part_empty.index(HALF), (step & 1) ^ 1)
    parts.index(HALF).reshape([64, 64]).store(part)
    fence_async_shared()
    mbarrier.arrive(part_full.index((step * 2 + HALF) % ADDERS * 2 + HALF))


@gluon.jit
def _walk(
    grad_k_desc, grad_v_desc, k_rows, v_rows, q_ring, g_ring, weights, parts, lse_ring, delta_ring, own_full, q_full,
    g_full, q_empty, g_empty, turns, ds_full, ds_empty, ended, part_full, part_empty, batch, group, share, own_row, end,
    steps, N, shift, window, scale, scale_log2, HALF: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
    OWN: gl.constexpr, TILE: gl.constexpr, COLUMNS: gl.constexpr, Q_STAGES: gl.constexpr, G_STAGES: gl.constexpr,
):  # fmt: skip
    """One warpgroup's 64 keys. A part of grad_q is multiplied a step later; warpgroups issue their products in turn."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    part_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    first_row = own_row + HALF * OWN
    mine = first_row + gl.arange(0, OWN, gl.SliceLayout(1, layout))
    grad_k = gl.zeros([OWN, COLUMNS], gl.float32, out_layout)
    grad_v = gl.zeros([OWN, COLUMNS], gl.float32, out_layout)
    mbarrier.wait(own_full.index(0), 0)
    if steps > 0:
        mbarrier.wait(q_full.index(0), 0)
        pending = row_products(k_rows, k_rows, q_ring, q_ring, 0, HALF, OWN, TILE, COLUMNS, 0, layout)
        mbarrier.wait(own_full.index(1), 0)
        # Step 0 is followed by the part of no step: zeros, which are not added.
        weights.index(2 + HALF).store(gl.zeros([OWN, TILE], k_rows.dtype, layout))
        fence_async_shared()
        mbarrier.arrive(ds_full.index(1))
        for step in range(0, steps):
            slot = step % Q_STAGES
            old = step % G_STAGES
            buffer = step & 1
            before = 1 - buffer
            start = _row_of(step, share, end, TILE)
            theirs = start + gl.arange(0, TILE, gl.SliceLayout(0, layout))
            # Always 0: ptxas would keep the 16 descriptors of a place that does not change, and spill them.
            moved = start >> 31
            scores = warpgroup_mma_wait(0, deps=[pending])
            mbarrier.wait(g_full.index(old), step // G_STAGES & 1)
            pending_gradient = row_products(
                v_rows, v_rows, g_ring, g_ring, old, HALF + moved, OWN, TILE, COLUMNS, 0, layout
            )  # fmt: skip
            lse = lse_ring.index(slot).reshape([TILE]).load(gl.SliceLayout(0, layout))[None, :]
            partly = first_row + OWN > N
            if CAUSAL:
                partly = partly | (first_row + OWN - 1 > start + shift)
            if WINDOW:
                partly = partly | (first_row <= start + TILE - 1 + shift - window)
            p = gl.exp2(scores * scale_log2 - lse)
            if partly:
                p = masked(p, mine, theirs, N, shift, window, "keys", CAUSAL, WINDOW)
            # ptxas moves a wait for products up to the last branch: this one, behind the exponentials, lets them run
            # while the products do.
            mbarrier.wait(ds_empty.index(buffer), ((step + 1) // 2 & 1) ^ 1)
            delta = delta_ring.index(old).reshape([TILE]).load(gl.SliceLayout(0, layout))[None, :]
            gradient = warpgroup_mma_wait(0, deps=[pending_gradient])
            ds = p * (gradient - delta)
            if partly:  # what is not seen has no part, whatever stands there
                ds = gl.where(p == 0.0, 0.0, ds)
            mbarrier.wait(turns.index(HALF), (step + 1 - HALF) & 1)
            weight = p.to(k_rows.dtype)
            grad_v, _ = add_products(grad_v, 0, weight, g_ring, g_ring, old, TILE, COLUMNS, 0, out_layout, out_layout)
            factor = ds.to(k_rows.dtype)
            grad_k, _ = add_products(grad_k, 0, factor, q_ring, q_ring, slot, TILE, COLUMNS, 0, out_layout, out_layout)
            weights.index(buffer * 2 + HALF).store(factor)
            fence_async_shared()
            mbarrier.arrive(ds_full.index(buffer))
            mbarrier.wait(ds_full.index(before), step // 2 & 1)
            part = _part(k_rows, weights, before, HALF, OWN, TILE, COLUMNS, part_layout)
            grad_k, grad_v = warpgroup_mma_wait(2, deps=[grad_k, grad_v])  # parts are two products
            mbarrier.arrive(q_empty.index(slot))
            mbarrier.arrive(g_empty.index(old))
            await_tile(q_full, step + 1, steps, Q_STAGES)
            # The scores behind those of the last step are not read.
            following = gl.where(step + 1 < steps, (step + 1) % Q_STAGES, slot)
            pending = row_products(
                k_rows, k_rows, q_ring, q_ring, following, HALF + moved, OWN, TILE, COLUMNS, 0, layout
            )  # fmt: skip
            mbarrier.arrive(turns.index(1 - HALF))
            part = warpgroup_mma_wait(1, deps=[part])
            mbarrier.arrive(ds_empty.index(before))
            if step > 0:
                _hand_over(part, parts, step - 1, part_full, part_empty, HALF)
        scores = warpgroup_mma_wait(0, deps=[pending])
        last = (steps - 1) & 1
        mbarrier.wait(ds_full.index(last), steps // 2 & 1)
        part = _part(k_rows, weights, last, HALF, OWN, TILE, COLUMNS, part_layout)
        part = warpgroup_mma_wait(0, deps=[part])
        _hand_over(part, parts, steps - 1, part_full, part_empty, HALF)
        # Both warpgroups read all keys for their parts: no memory of these is free before both are done.
        mbarrier.arrive(ended.index(0))
        mbarrier.wait(ended.index(0), 0)
    grad_k = grad_k * scale
    at = first_row
    store_pieces(grad_k, 0, grad_k_desc, grad_k_desc, k_rows, k_rows, HALF, batch, group, at, OWN, COLUMNS, 0)
    store_pieces(grad_v, 0, grad_v_desc, grad_v_desc, v_rows, v_rows, HALF, batch, group, at, OWN, COLUMNS, 0)
    copy_out_wait(0)


@gluon.jit
def attention_gradient_one_walk_kernel(
    done_ptr, rows_desc, sums_desc, grad_k_desc, grad_v_desc, g_desc, q_desc, k_desc, v_desc, H, SHARE, M, N, shift, window,
    scale, scale_log2, PITCH, LINES, SECTION, TICKET, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, D: gl.constexpr,
    COLUMNS: gl.constexpr, OWN: gl.constexpr, TILE: gl.constexpr, Q_STAGES: gl.constexpr, G_STAGES: gl.constexpr,
):  # fmt: skip
    """done_ptr: how many parts of a tile, by halves of columns, were added; at TICKET, how many programs have begun."""
    cuda.gdc_wait()
    cuda.gdc_launch_dependents()
    # Programs take their work in the order in which they start: each waits only for some that run already.
    ticket = gl.atomic_add(done_ptr + TICKET, 1, sem="relaxed", scope="gpu")
    line, block = located(ticket, LINES, gl.cdiv(N, 2 * OWN), SECTION)
    own_row = block * 2 * OWN
    batch = line // (H // SHARE)
    group = line % (H // SHARE)
    begin, _, _, end = query_range(own_row, M, N, shift, window, CAUSAL, WINDOW, TILE, 2 * OWN)
    steps = gl.maximum(gl.cdiv(end, TILE) - begin // TILE, 0) * SHARE
    k_rows = ring(k_desc, 2)
    v_rows = ring(v_desc, 2)
    q_ring = ring(q_desc, Q_STAGES)
    g_ring = ring(g_desc, G_STAGES)
    lse_ring = ring(rows_desc, Q_STAGES)
    delta_ring = ring(rows_desc, G_STAGES)
    parts = ring(sums_desc, 2)
    weights_layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    weights = gl.allocate_shared_memory(k_desc.dtype, [4, OWN, TILE], weights_layout)
    own_full = barriers(2, 1)
    q_full = barriers(Q_STAGES, 1)
    g_full = barriers(G_STAGES, 1)
    q_empty = barriers(Q_STAGES, 2)
    g_empty = barriers(G_STAGES, 2)
    turns = barriers(2, 1)
    ds_full = barriers(2, 2)
    ds_empty = barriers(2, 2)
    ended = barriers(1, 2)
    part_full = barriers(2 * ADDERS, 1)
    part_empty = barriers(2, 1)
    gl.warp_specialize(
        [
            (_walk, (grad_k_desc, grad_v_desc, k_rows, v_rows, q_ring, g_ring, weights, parts, lse_ring, delta_ring,
                     own_full, q_full, g_full, q_empty, g_empty, turns, ds_full, ds_empty, ended, part_full, part_empty,
                     batch, group, SHARE, own_row, end, steps, N, shift, window, scale, scale_log2, 0, CAUSAL, WINDOW, OWN,
                     TILE, COLUMNS, Q_STAGES, G_STAGES)),
            (_walk, (grad_k_desc, grad_v_desc, k_rows, v_rows, q_ring, g_ring, weights, parts, lse_ring, delta_ring,
                     own_full, q_full, g_full, q_empty, g_empty, turns, ds_full, ds_empty, ended, part_full, part_empty,
                     batch, group, SHARE, own_row, end, steps, N, shift, window, scale, scale_log2, 1, CAUSAL, WINDOW, OWN,
                     TILE, COLUMNS, Q_STAGES, G_STAGES)),
            (_load, (rows_desc, g_desc, q_desc, k_desc, v_desc, k_rows, v_rows, q_ring, g_ring, lse_ring, delta_ring,
                     own_full, q_full, g_full, q_empty, g_empty, batch, group, SHARE, own_row, end, steps, H, OWN, TILE,
                     COLUMNS, Q_STAGES, G_STAGES)),
            (_add_parts, (sums_desc, done_ptr, parts, part_full, part_empty, batch, group, SHARE, block, end, steps, H, M,
                          N, shift, window, 0, CAUSAL, WINDOW, OWN, TILE, COLUMNS)),
            (_add_parts, (sums_desc, done_ptr, parts, part_full, part_empty, batch, group, SHARE, block, end, steps, H, M,
                          N, shift, window, 1, CAUSAL, WINDOW, OWN, TILE, COLUMNS)),
            (_add_parts, (sums_desc, done_ptr, parts, part_full, part_empty, batch, group, SHARE, block, end, steps, H, M,
                          N, shift, window, 2, CAUSAL, WINDOW, OWN, TILE, COLUMNS)),
        ],
        [4, 1, 1, 1, 1],
        [WARPGROUP_REGISTERS, ASIDE_REGISTERS, ASIDE_REGISTERS, ASIDE_REGISTERS, ASIDE_REGISTERS],
    )  # fmt: skip
