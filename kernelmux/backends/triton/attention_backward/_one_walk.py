"""All gradients in one walk over the weights, warps specialised (in Gluon): five products in place of seven.

A program owns 128 keys, and adds a part to the gradient of each tile of queries that sees them. Programs add in the order
of their keys, so that sums have the same bits each time (Dao, FlashAttention-2, 2023; Shah et al., FlashAttention-3, 2024).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
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

from kernelmux.backends.triton._launch.hopper import barriers, copy_in, copy_out, copy_out_wait, ring
from kernelmux.backends.triton._launch.launch import Config, Launch, Map, cdiv, plan
from kernelmux.backends.triton._launch.strides import contiguous
from kernelmux.backends.triton.attention._online import key_range, located
from kernelmux.backends.triton.attention._problem import POINTER, block_strides
from kernelmux.backends.triton.attention._specialised import pieces
from kernelmux.backends.triton.attention_backward._descriptors import pitch
from kernelmux.backends.triton.attention_backward._problem import AttentionGradientProblem, query_range
from kernelmux.backends.triton.attention_backward._specialised_plans import FLAT, rows_plan
from kernelmux.backends.triton.attention_backward._specialised import copy_pieces, store_pieces
from kernelmux.backends.triton.attention_backward._specialised_walks import _add, _await, _masked, _scores

T = torch.Tensor
OWN, TILE = 64, 64
ADDERS = gl.constexpr(3)  # odd, so that each has parts of both warpgroups in turn
WARPGROUP_REGISTERS = gl.constexpr(240)
LOADER_REGISTERS = gl.constexpr(24)


@builtin
def copy_add(desc, coord, src, _semantic=None):
    """Adds what lies in shared memory, by the copy engine."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, desc.handle, coord, src.handle)


@gluon.jit
def _row_of(step, share, end, TILE: gl.constexpr):
    """The last tile of queries first, of all heads before the next: what is shared with later programs comes first."""
    return (gl.cdiv(end, TILE) - 1 - step // share) * TILE


@gluon.jit
def _load_all(
    rows_desc, g_desc, q_desc, k_desc, v_desc, g_rest, q_rest, k_rest, v_rest, k_rows, v_rows, q_ring, g_ring,
    k_tail, v_tail, q_tail, g_tail, lse_ring, delta_ring, own_full, q_full, g_full, q_empty, g_empty, batch, group, share,
    own_row, end, steps, H, OWN: gl.constexpr, TILE: gl.constexpr, COLUMNS: gl.constexpr, REST: gl.constexpr, Q_STAGES: gl.constexpr,
    G_STAGES: gl.constexpr,
):  # fmt: skip
    nbytes: gl.constexpr = TILE * (COLUMNS + REST) * 2 + TILE * 4
    own_bytes: gl.constexpr = 2 * OWN * (COLUMNS + REST) * 2
    mbarrier.expect(own_full.index(0), own_bytes)
    for half in gl.static_range(2):
        copy_pieces(
            k_desc, k_rest, own_full.index(0), k_rows, k_tail, half, batch, group, own_row + half * OWN, COLUMNS, REST
        )
    for step in range(0, steps):
        slot = step % Q_STAGES
        head = group * share + step % share
        row = _row_of(step, share, end, TILE)
        line = 2 * (batch * H + head)
        mbarrier.wait(q_empty.index(slot), (step // Q_STAGES + 1) & 1)
        mbarrier.expect(q_full.index(slot), nbytes)
        copy_pieces(q_desc, q_rest, q_full.index(slot), q_ring, q_tail, slot, batch, head, row, COLUMNS, REST)
        copy_in(rows_desc, [line, row], q_full.index(slot), lse_ring.index(slot))
        if step == 0:
            mbarrier.expect(own_full.index(1), own_bytes)
            for half in gl.static_range(2):
                copy_pieces(v_desc, v_rest, own_full.index(1), v_rows, v_tail, half, batch, group, own_row + half * OWN,
                            COLUMNS, REST)  # fmt: skip
        old = step % G_STAGES
        mbarrier.wait(g_empty.index(old), (step // G_STAGES + 1) & 1)
        mbarrier.expect(g_full.index(old), nbytes)
        copy_pieces(g_desc, g_rest, g_full.index(old), g_ring, g_tail, old, batch, head, row, COLUMNS, REST)
        copy_in(rows_desc, [line + 1, row], g_full.index(old), delta_ring.index(old))


@gluon.jit
def _hand_over(desc, parts, place, column: gl.constexpr, turn):
    """The first part of a tile is stored, others are added."""
    if turn == 0:
        copy_out(desc, [place, 0, column], parts.index(0))
    else:
        copy_add(desc, [place, 0, column], parts.index(0))


@gluon.jit
def _add_parts(
    sums_desc, sums_rest, done_ptr, parts, parts_rest, part_full, part_empty, batch, group, share, block, end, steps, H, M, N, shift, window,
    ADDER: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, OWN: gl.constexpr, TILE: gl.constexpr,
    FIRST: gl.constexpr, EACH: gl.constexpr,
):  # fmt: skip
    """Each part in its turn: that of a step and a warpgroup."""
    tiles = gl.cdiv(M, TILE)
    for item in range(ADDER, steps * (1 if EACH else 2), ADDERS):
        step = item if EACH else item // 2
        half = item % 2
        row = _row_of(step, share, end, TILE)
        line = batch * H + group * share + step % share
        begin, _, _, _ = key_range(row, M, N, shift, window, CAUSAL, WINDOW, TILE, 2 * OWN)
        turn = block - begin // (2 * OWN)
        place = line * tiles + row // TILE
        counter = done_ptr + (place if EACH else place * 2 + half)
        mbarrier.wait(part_full.index(ADDER * 2 + half), item // (ADDERS * 2) & 1)
        seen = gl.atomic_add(counter, 0, sem="acquire", scope="gpu")
        while seen < turn:
            seen = gl.atomic_add(counter, 0, sem="acquire", scope="gpu")
        if half == 0:
            _hand_over(sums_desc, parts, place, 0, turn)
        else:
            _hand_over(sums_rest, parts_rest, place, 0 if EACH else FIRST, turn)
        copy_out_wait(0)
        mbarrier.arrive(part_empty.index(half))
        arrived = gl.inline_asm_elementwise(
            "cp.async.bulk.wait_group 0; mov.b32 $0, $1;", "=r,r", [turn * 0 + 1], dtype=gl.int32, is_pure=False, pack=1
        )  # fmt: skip
        gl.atomic_add(counter, arrived, sem="release", scope="gpu")


@gluon.jit
def _part(k_rows, k_tail, weights, buffer, HALF: gl.constexpr, OWN: gl.constexpr, TILE: gl.constexpr, COLUMNS: gl.constexpr,
          REST: gl.constexpr, WIDTH: gl.constexpr, part_layout: gl.constexpr):  # fmt: skip
    """This warpgroup's columns of the part of grad_q, of both warpgroups' keys: under way."""
    pending = gl.zeros([TILE, WIDTH], gl.float32, part_layout)
    for half in gl.static_range(2):
        if REST and HALF == 1:
            keys = k_tail.index(half).reshape([OWN, REST])
        elif REST or WIDTH == COLUMNS:
            keys = k_rows.index(half).reshape([OWN, COLUMNS])
        else:
            keys = k_rows.index(half).reshape([OWN, COLUMNS]).slice(HALF * WIDTH, WIDTH, dim=1)
        factor = weights.index(buffer * 2 + half).permute((1, 0))
        pending = warpgroup_mma(factor, keys, pending, use_acc=half > 0, is_async=True)
    return pending


@gluon.jit
def _make_part(
    k_rows, k_tail, weights, buffer, step, parts, ds_empty, part_full, part_empty, HALF: gl.constexpr, OWN: gl.constexpr,
    TILE: gl.constexpr, COLUMNS: gl.constexpr, REST: gl.constexpr, WIDTH: gl.constexpr, part_layout: gl.constexpr,
):  # fmt: skip
    """The whole part of a step, which this warpgroup makes alone."""
    part = warpgroup_mma_wait(
        0, deps=[_part(k_rows, k_tail, weights, buffer, HALF, OWN, TILE, COLUMNS, REST, WIDTH, part_layout)]
    )
    mbarrier.arrive(ds_empty.index(buffer))
    mbarrier.wait(part_empty.index(HALF), (step // 2 & 1) ^ 1)
    parts.index(0).reshape([TILE, WIDTH]).store(part)
    fence_async_shared()
    mbarrier.arrive(part_full.index(step % ADDERS * 2 + HALF))


@gluon.jit
def _walk(
    grad_k_desc, grad_v_desc, grad_k_rest, grad_v_rest, k_rows, v_rows, q_ring, g_ring, k_tail, v_tail, q_tail, g_tail,
    weights, parts, parts_rest, lse_ring, delta_ring, own_full, q_full, g_full, q_empty, g_empty, turns, ds_full, ds_empty, done, part_full, part_empty,
    batch, group, share, own_row, end, steps, N, shift, window, scale, scale_log2,
    HALF: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, OWN: gl.constexpr, TILE: gl.constexpr,
    COLUMNS: gl.constexpr, REST: gl.constexpr, Q_STAGES: gl.constexpr,
    G_STAGES: gl.constexpr, TURNS: gl.constexpr, EACH: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    rest_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, REST if REST else COLUMNS, 16])
    groups: gl.constexpr = 2 if REST else 1  # of products that are waited for together
    width: gl.constexpr = (REST if HALF else COLUMNS) if REST else (COLUMNS if EACH else COLUMNS // 2)
    part_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, width, 16])
    mine_of_parts = parts_rest if HALF else parts
    first_row = own_row + HALF * OWN
    mine = first_row + gl.arange(0, OWN, gl.SliceLayout(1, layout))
    grad_k = gl.zeros([OWN, COLUMNS], gl.float32, out_layout)
    grad_v = gl.zeros([OWN, COLUMNS], gl.float32, out_layout)
    grad_k_tail = gl.zeros([OWN, REST], gl.float32, rest_layout) if REST else share
    grad_v_tail = gl.zeros([OWN, REST], gl.float32, rest_layout) if REST else share
    mbarrier.wait(own_full.index(0), 0)
    if steps > 0:
        mbarrier.wait(q_full.index(0), 0)
        pending = _scores(k_rows, k_tail, q_ring, q_tail, 0, HALF, OWN, TILE, COLUMNS, REST, layout)
        mbarrier.wait(own_full.index(1), 0)
        if not EACH:
            # Step 0 is followed by the part of no step: zeros, which nobody takes.
            weights.index(2 + HALF).store(gl.zeros([OWN, TILE], k_rows.dtype, layout))
            fence_async_shared()
            mbarrier.arrive(ds_full.index(1))
        for step in range(0, steps):
            slot = step % Q_STAGES
            old = step % G_STAGES
            start = _row_of(step, share, end, TILE)
            theirs = start + gl.arange(0, TILE, gl.SliceLayout(0, layout))
            moved = start >> 31  # always 0: ptxas would keep the descriptors of a place that does not change
            scores = warpgroup_mma_wait(0, deps=[pending])
            mbarrier.wait(g_full.index(old), step // G_STAGES & 1)
            pending_gradient = _scores(
                v_rows, v_tail, g_ring, g_tail, old, HALF + moved, OWN, TILE, COLUMNS, REST, layout
            )  # fmt: skip
            lse = lse_ring.index(slot).reshape([TILE]).load(gl.SliceLayout(0, layout))[None, :]
            partly = first_row + OWN > N
            if CAUSAL:
                partly = partly | (first_row + OWN - 1 > start + shift)
            if WINDOW:
                partly = partly | (first_row <= start + TILE - 1 + shift - window)
            p = gl.exp2(scores * scale_log2 - lse)
            if partly:
                p = _masked(p, mine, theirs, N, shift, window, "keys", CAUSAL, WINDOW)
            buffer = step & 1
            mbarrier.wait(ds_empty.index(buffer), ((step + (0 if EACH else 1)) // 2 & 1) ^ 1)
            delta = delta_ring.index(old).reshape([TILE]).load(gl.SliceLayout(0, layout))[None, :]
            gradient = warpgroup_mma_wait(0, deps=[pending_gradient])
            ds = p * (gradient - delta)
            if partly:
                ds = gl.where(p == 0.0, 0.0, ds)
            if TURNS:
                mbarrier.wait(turns.index(HALF), (step + 1 - HALF) & 1)
            grad_v, grad_v_tail = _add(
                grad_v, grad_v_tail, p.to(k_rows.dtype), g_ring, g_tail, old, TILE, COLUMNS, REST, out_layout, rest_layout
            )  # fmt: skip
            factor = ds.to(k_rows.dtype)
            grad_k, grad_k_tail = _add(
                grad_k, grad_k_tail, factor, q_ring, q_tail, slot, TILE, COLUMNS, REST, out_layout, rest_layout
            )  # fmt: skip
            weights.index(buffer * 2 + HALF).store(factor)
            fence_async_shared()
            mbarrier.arrive(ds_full.index(buffer))
            before = 1 - buffer
            if EACH:
                behind: gl.constexpr = 1
                _await(q_full, step + 1, steps, Q_STAGES)
                following = gl.where(step + 1 < steps, (step + 1) % Q_STAGES, slot)  # behind the last nobody reads them
                pending = _scores(
                    k_rows, k_tail, q_ring, q_tail, following, HALF + moved, OWN, TILE, COLUMNS, REST, layout
                )  # fmt: skip
                if TURNS:
                    mbarrier.arrive(turns.index(1 - HALF))
            else:
                behind: gl.constexpr = 2
                mbarrier.wait(ds_full.index(before), step // 2 & 1)
                part = _part(k_rows, k_tail, weights, before, HALF, OWN, TILE, COLUMNS, REST, width, part_layout)
            if REST:
                grad_k, grad_k_tail, grad_v, grad_v_tail = warpgroup_mma_wait(
                    behind, deps=[grad_k, grad_k_tail, grad_v, grad_v_tail]
                )  # fmt: skip
            else:
                grad_k, grad_v = warpgroup_mma_wait(behind, deps=[grad_k, grad_v])
            mbarrier.arrive(q_empty.index(slot))
            mbarrier.arrive(g_empty.index(old))
            if EACH:
                if (step > 0) & ((step - 1) % 2 == HALF):
                    mbarrier.wait(ds_full.index(before), (step - 1) // 2 & 1)
                    _make_part(
                        k_rows, k_tail, weights, before, step - 1, mine_of_parts, ds_empty, part_full, part_empty, HALF, OWN,
                        TILE, COLUMNS, REST, width, part_layout,
                    )  # fmt: skip
            else:
                _await(q_full, step + 1, steps, Q_STAGES)
                following = gl.where(step + 1 < steps, (step + 1) % Q_STAGES, slot)  # behind the last nobody reads them
                pending = _scores(
                    k_rows, k_tail, q_ring, q_tail, following, HALF + moved, OWN, TILE, COLUMNS, REST, layout
                )  # fmt: skip
                if TURNS:
                    mbarrier.arrive(turns.index(1 - HALF))
                part = warpgroup_mma_wait(groups, deps=[part])
                mbarrier.arrive(ds_empty.index(before))
                if step > 0:
                    item = (step - 1) * 2 + HALF
                    mbarrier.wait(part_empty.index(HALF), (step - 1 & 1) ^ 1)
                    mine_of_parts.index(0).reshape([TILE, width]).store(part)
                    fence_async_shared()
                    mbarrier.arrive(part_full.index(item % ADDERS * 2 + HALF))
        scores = warpgroup_mma_wait(0, deps=[pending])
        last = (steps - 1) & 1
        if EACH:
            if last == HALF:
                mbarrier.wait(ds_full.index(last), (steps - 1) // 2 & 1)
                _make_part(
                    k_rows, k_tail, weights, last, steps - 1, mine_of_parts, ds_empty, part_full, part_empty, HALF, OWN,
                    TILE, COLUMNS, REST, width, part_layout,
                )  # fmt: skip
        else:
            mbarrier.wait(ds_full.index(last), (steps // 2) & 1)
            part = warpgroup_mma_wait(
                0, deps=[_part(k_rows, k_tail, weights, last, HALF, OWN, TILE, COLUMNS, REST, width, part_layout)]
            )
            item = (steps - 1) * 2 + HALF
            mbarrier.wait(part_empty.index(HALF), (steps - 1 & 1) ^ 1)
            mine_of_parts.index(0).reshape([TILE, width]).store(part)
            fence_async_shared()
            mbarrier.arrive(part_full.index(item % ADDERS * 2 + HALF))
        # Both warpgroups read all keys for their parts: no memory of these is free before both are done.
        mbarrier.arrive(done.index(0))
        mbarrier.wait(done.index(0), 0)
    grad_k = grad_k * scale
    if REST:
        grad_k_tail = grad_k_tail * scale
    store_pieces(
        grad_k, grad_k_tail, grad_k_desc, grad_k_rest, k_rows, k_tail, HALF, batch, group, first_row, OWN, COLUMNS, REST
    )  # fmt: skip
    store_pieces(
        grad_v, grad_v_tail, grad_v_desc, grad_v_rest, v_rows, v_tail, HALF, batch, group, first_row, OWN, COLUMNS, REST
    )  # fmt: skip
    copy_out_wait(0)


@gluon.jit
def attention_gradient_one_walk_kernel(
    done_ptr, rows_desc, sums_desc, sums_rest, grad_k_desc, grad_v_desc, g_desc, q_desc, k_desc, v_desc,
    grad_k_rest, grad_v_rest, g_rest, q_rest, k_rest, v_rest, H, SHARE, M, N, shift, window,
    scale, scale_log2, PITCH, LINES, SECTION, TICKET, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, D: gl.constexpr,
    COLUMNS: gl.constexpr, REST: gl.constexpr, OWN: gl.constexpr, TILE: gl.constexpr, Q_STAGES: gl.constexpr,
    G_STAGES: gl.constexpr, TURNS: gl.constexpr, EACH: gl.constexpr,
):  # fmt: skip
    """done_ptr: of parts of each tile and half of the columns that have been added, then of programs that have begun."""
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
    k_tail = ring(k_rest, 2) if REST else k_rows
    v_tail = ring(v_rest, 2) if REST else v_rows
    q_tail = ring(q_rest, Q_STAGES) if REST else q_ring
    g_tail = ring(g_rest, G_STAGES) if REST else g_ring
    parts = ring(sums_desc, 1)
    parts_rest = ring(sums_rest, 1)
    weights_layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    weights = gl.allocate_shared_memory(k_desc.dtype, [4, OWN, TILE], weights_layout)
    own_full = barriers(2, 1)
    q_full = barriers(Q_STAGES, 1)
    g_full = barriers(G_STAGES, 1)
    q_empty = barriers(Q_STAGES, 2)
    g_empty = barriers(G_STAGES, 2)
    turns = barriers(2, 1)
    ds_full = barriers(2, 2)
    ds_empty = barriers(2, 1 if EACH else 2)
    done = barriers(1, 2)
    part_full = barriers(2 * ADDERS, 1)
    part_empty = barriers(2, 1)
    gl.warp_specialize(
        [
            (_walk, (grad_k_desc, grad_v_desc, grad_k_rest, grad_v_rest, k_rows, v_rows, q_ring, g_ring, k_tail, v_tail, q_tail,
                     g_tail, weights, parts, parts_rest, lse_ring, delta_ring, own_full,
                     q_full, g_full, q_empty, g_empty, turns, ds_full, ds_empty, done, part_full, part_empty, batch, group, SHARE, own_row, end,
                     steps, N, shift, window, scale, scale_log2, 0, CAUSAL, WINDOW, OWN, TILE, COLUMNS, REST, Q_STAGES,
                     G_STAGES, TURNS, EACH)),
            (_walk, (grad_k_desc, grad_v_desc, grad_k_rest, grad_v_rest, k_rows, v_rows, q_ring, g_ring, k_tail, v_tail, q_tail,
                     g_tail, weights, parts, parts_rest, lse_ring, delta_ring, own_full,
                     q_full, g_full, q_empty, g_empty, turns, ds_full, ds_empty, done, part_full, part_empty, batch, group, SHARE, own_row, end,
                     steps, N, shift, window, scale, scale_log2, 1, CAUSAL, WINDOW, OWN, TILE, COLUMNS, REST, Q_STAGES,
                     G_STAGES, TURNS, EACH)),
            (_load_all, (rows_desc, g_desc, q_desc, k_desc, v_desc, g_rest, q_rest, k_rest, v_rest, k_rows, v_rows, q_ring, g_ring,
                         k_tail, v_tail, q_tail, g_tail, lse_ring, delta_ring,
                         own_full, q_full, g_full, q_empty, g_empty, batch, group, SHARE, own_row, end, steps, H, OWN, TILE, COLUMNS,
                         REST, Q_STAGES, G_STAGES)),
            (_add_parts, (sums_desc, sums_rest, done_ptr, parts, parts_rest, part_full, part_empty, batch, group, SHARE, block, end, steps, H, M, N,
                          shift, window, 0, CAUSAL, WINDOW, OWN, TILE, COLUMNS if REST else COLUMNS // 2, EACH)),
            (_add_parts, (sums_desc, sums_rest, done_ptr, parts, parts_rest, part_full, part_empty, batch, group, SHARE, block, end, steps, H, M, N,
                          shift, window, 1, CAUSAL, WINDOW, OWN, TILE, COLUMNS if REST else COLUMNS // 2, EACH)),
            (_add_parts, (sums_desc, sums_rest, done_ptr, parts, parts_rest, part_full, part_empty, batch, group, SHARE, block, end, steps, H, M, N,
                          shift, window, 2, CAUSAL, WINDOW, OWN, TILE, COLUMNS if REST else COLUMNS // 2, EACH)),
        ],
        [4, 1, 1, 1, 1],
        [WARPGROUP_REGISTERS, LOADER_REGISTERS, LOADER_REGISTERS, LOADER_REGISTERS, LOADER_REGISTERS],
    )  # fmt: skip


@triton.jit
def attention_finish_kernel(
    grad_q_ptr, sums_ptr, M, N, shift, window, scale, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, D: tl.constexpr,
    WHOLE: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """grad_q of a tile of queries from its sums, whose rows are WHOLE numbers long."""
    tiles = tl.cdiv(M, TILE)
    place = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(0) % tiles
    columns = tl.arange(0, COLUMNS)[None, :]
    rows = tl.arange(0, TILE)[:, None]
    there = (columns < D) & (tile * TILE + rows < M)
    begin, _, _, end = key_range(tile * TILE, M, N, shift, window, CAUSAL, WINDOW, TILE, BLOCK_N)
    sums = tl.load(sums_ptr + (place * TILE + rows) * WHOLE + columns, mask=there & (end > begin), other=0.0)
    at = (place // tiles * M + tile * TILE + rows) * D + columns
    tl.store(grad_q_ptr + at, (sums * scale).to(grad_q_ptr.dtype.element_ty), mask=there)


def one_walk_rule(p: AttentionGradientProblem) -> Config:
    """Stages of what walks by, and how many heads run together."""
    share = p.H // p.G
    return {"Q_STAGES": 3, "G_STAGES": 2, "TURNS": True, "SECTION": 4 if p.mask.causal and share > 1 else 8}


@plan
def one_walk_plans(p: AttentionGradientProblem, rule: Any) -> tuple[Launch, Launch, Launch, tuple[int, ...]]:
    """Launches for the rows, the walk and the end of grad_q, and the shape of the sums."""
    tiles, config = cdiv(p.M, TILE), dict(rule(p))
    columns, rest = pieces(p.D)
    queries, keys = (p.B, p.H, p.M, p.D), (p.B, p.G, p.N, p.D)
    dtype = gl.float16 if p.dtype == torch.float16 else gl.bfloat16
    places = p.B * p.H * tiles

    def of(shape: tuple[int, ...], strides: tuple[int, ...], width: int) -> Map:
        block = [1, 1, TILE, width]
        return Map(shape, block_strides(shape, strides), block, gl.NVMMASharedLayout.get_default_for(block, dtype))

    def of_sums(width: int) -> Map:
        size, block = (places, TILE, columns + rest), [1, TILE, width]
        return Map(size, contiguous(size), block, gl.NVMMASharedLayout.get_default_for(block, gl.float32))

    def all_of(width: int) -> tuple[Map, ...]:
        given = (queries, p.g_strides), (queries, p.q_strides), (keys, p.k_strides), (keys, p.v_strides)
        return tuple(of(*x, width) for x in ((keys, contiguous(keys)), (keys, contiguous(keys)), *given))

    rows = Map((2 * p.B * p.H, pitch(p)), (pitch(p), 1), [1, TILE], FLAT)
    halves = (of_sums(columns), of_sums(rest)) if rest else (of_sums(columns if p.D <= 64 else columns // 2),) * 2
    lines = p.B * p.G
    constants = p.constants | {"COLUMNS": columns}
    walk = Launch(
        attention_gradient_one_walk_kernel, (cdiv(p.N, 2 * OWN) * lines,), *p.sizes, pitch(p), lines, min(lines, config.pop("SECTION")),
        2 * places, maps=(POINTER, rows, *halves, *all_of(columns), *all_of(rest or columns)), REST=rest, EACH=p.D <= 64, OWN=OWN, TILE=TILE,
        num_warps=4, **constants, **config,
    )  # fmt: skip
    _, _, M, N, shift, window, scale, _ = p.sizes
    finish = Launch(
        attention_finish_kernel, (places,), M, N, shift, window, scale, CAUSAL=p.mask.causal, WINDOW=p.mask.window > 0,
        D=p.D, WHOLE=columns + rest, COLUMNS=p.columns, TILE=TILE, BLOCK_N=2 * OWN, num_warps=4,
    )  # fmt: skip
    return rows_plan(p), walk, finish, (places, TILE, columns + rest)


def one_walk(
    p: AttentionGradientProblem, grads: tuple[T, ...], grad_out: T, q: T, k: T, v: T, y: T, lse: T, rule: Any = one_walk_rule
) -> None:  # fmt: skip
    """Writes grads: of q, k and v."""
    rows = lse.new_empty(p.B * p.H, 2, pitch(p))
    first, walk, finish, size = one_walk_plans(p, rule)
    sums = lse.new_empty(size)
    done = lse.new_zeros(2 * size[0] + 1, dtype=torch.int32)
    own = grads[1], grads[2], grad_out, q, k, v
    first(rows, lse, grad_out, y)
    walk(done, rows, sums, sums, *own, *own)
    finish(grads[0], sums)
