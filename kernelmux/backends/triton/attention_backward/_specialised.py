"""Gradients of long rows, warps specialised (in Gluon): one loads, two warpgroups own 64 rows each of one gradient.

A sum of 64 rows of 256 numbers takes half the registers of a warpgroup, so each gradient has a kernel of its own, which
computes the scores again: eight products in place of seven, all of them by whole warpgroups. A warpgroup's exponentials
are taken while the other one multiplies.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernelmux.backends.triton._launch.hopper import barriers, copy_in, copy_out, copy_out_wait, ring
from kernelmux.backends.triton._launch.launch import Launch, Map, cdiv, plan
from kernelmux.backends.triton._launch.strides import contiguous
from kernelmux.backends.triton.attention._online import key_range, located
from kernelmux.backends.triton.attention._problem import POINTER, block_strides, section
from kernelmux.backends.triton.attention_backward._descriptors import pitch
from kernelmux.backends.triton.attention_backward._problem import (
    AttentionGradientProblem,
    load_lse,
    load_queries,
    query_range,
    row_terms,
    visible,
)

T = torch.Tensor

OWN = 64  # rows of one warpgroup
TILE = 64  # rows of a step
ROWS = 32  # of a program that sums grad_out * y
FLAT = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
WARPGROUP_REGISTERS = gl.constexpr(240)
LOADER_REGISTERS = gl.constexpr(24)


@triton.jit
def attention_rows_kernel(
    rows_ptr, lse_ptr, g_ptr, y_ptr, H, M, PITCH, g_strides, y_strides, D: tl.constexpr, COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """lse of each query in units of log(2) and, PITCH further, sum(grad_out * y); behind the last query inf and 0."""
    blocks = PITCH // ROWS
    line = (tl.program_id(0) // blocks).to(tl.int64)
    batch = line // H
    head = line % H
    offs_m = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    g = load_queries(g_ptr + batch * g_strides[0] + head * g_strides[1], offs_m, M, g_strides[2], D, COLUMNS)
    y = load_queries(y_ptr + batch * y_strides[0] + head * y_strides[1], offs_m, M, y_strides[2], D, COLUMNS)
    rows = rows_ptr + line * 2 * PITCH + offs_m
    tl.store(rows, load_lse(lse_ptr + line * M, offs_m, M))
    tl.store(rows + PITCH, row_terms(g, y))


@gluon.jit
def _load(
    rows_desc, a_desc, b_desc, c_desc, d_desc, a_rows, b_rows, c_ring, d_ring, lse_ring, delta_ring,
    own_full, c_full, c_empty, d_full, d_empty, batch, own_head, first_head, share, own_row, begin, tiles, H,
    KIND: gl.constexpr, OWN: gl.constexpr, TILE: gl.constexpr, COLUMNS: gl.constexpr,
    C_STAGES: gl.constexpr, D_STAGES: gl.constexpr,
):  # fmt: skip
    """The program's own rows of a and b, then tiles of c and d of all heads."""
    mbarrier.expect(own_full.index(0), 2 * OWN * COLUMNS * 2)
    copy_in(a_desc, [batch, own_head, own_row, 0], own_full.index(0), a_rows.index(0))
    copy_in(a_desc, [batch, own_head, own_row + OWN, 0], own_full.index(0), a_rows.index(1))
    for head in range(0, share):
        for tile in range(0, tiles):
            step = head * tiles + tile
            row = begin + tile * TILE
            slot = step % C_STAGES
            mbarrier.wait(c_empty.index(slot), (step // C_STAGES + 1) & 1)
            line = 2 * (batch * H + first_head + head)
            if KIND == "queries":
                mbarrier.expect(c_full.index(slot), TILE * COLUMNS * 2)
            else:
                mbarrier.expect(c_full.index(slot), TILE * COLUMNS * 2 + TILE * 4)
                copy_in(rows_desc, [line, row], c_full.index(slot), lse_ring.index(slot))
            copy_in(c_desc, [batch, first_head + head, row, 0], c_full.index(slot), c_ring.index(slot))
            if KIND != "values":
                if step == 0:
                    mbarrier.expect(own_full.index(1), 2 * OWN * COLUMNS * 2)
                    copy_in(b_desc, [batch, own_head, own_row, 0], own_full.index(1), b_rows.index(0))
                    copy_in(b_desc, [batch, own_head, own_row + OWN, 0], own_full.index(1), b_rows.index(1))
            old = step % D_STAGES
            mbarrier.wait(d_empty.index(old), (step // D_STAGES + 1) & 1)
            if KIND == "keys":
                mbarrier.expect(d_full.index(old), TILE * COLUMNS * 2 + TILE * 4)
                copy_in(rows_desc, [line + 1, row], d_full.index(old), delta_ring.index(old))
            else:
                mbarrier.expect(d_full.index(old), TILE * COLUMNS * 2)
            copy_in(d_desc, [batch, first_head + head, row, 0], d_full.index(old), d_ring.index(old))


@gluon.jit
def _seen(rows, keys, N, shift, window, CAUSAL: gl.constexpr, WINDOW: gl.constexpr):
    there = keys < N
    if CAUSAL or WINDOW:
        there = there & visible(rows, keys, shift, window, CAUSAL, WINDOW)
    return there


@gluon.jit
def _await(full, step, steps, STAGES: gl.constexpr):
    """What arrives for a step, if there is such a step."""
    mbarrier.wait(full.index(step % STAGES), (step // STAGES) & 1, pred=step < steps)


@gluon.jit
def _differentiate(
    rows_ptr, out_desc, a_rows, b_rows, c_ring, d_ring, lse_ring, delta_ring, own_full, c_full, c_empty, d_full, d_empty,
    batch, own_head, first_head, share, own_row, begin, tiles, H, N, shift, window, scale, scale_log2, PITCH,
    HALF: gl.constexpr, KIND: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, OWN: gl.constexpr,
    TILE: gl.constexpr, COLUMNS: gl.constexpr, C_STAGES: gl.constexpr, D_STAGES: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    first_row = own_row + HALF * OWN
    mine = first_row + gl.arange(0, OWN, gl.SliceLayout(1, layout))
    if KIND == "queries":
        line = rows_ptr + (batch * H + own_head).to(gl.int64) * 2 * PITCH
        lse = gl.load(line + mine, mask=mine < PITCH, other=float("inf"))[:, None]
        delta = gl.load(line + PITCH + mine, mask=mine < PITCH, other=0.0)[:, None]
    acc = gl.zeros([OWN, COLUMNS], gl.float32, out_layout)
    nothing = gl.zeros([OWN, TILE], gl.float32, layout)
    mbarrier.wait(own_full.index(0), 0)
    _await(c_full, 0, tiles * share, C_STAGES)
    tile = 0
    for step in range(0, tiles * share):
        slot = step % C_STAGES
        old = step % D_STAGES
        theirs = begin + tile * TILE + gl.arange(0, TILE, gl.SliceLayout(0, layout))
        c = c_ring.index(slot).reshape([TILE, COLUMNS])
        d = d_ring.index(old).reshape([TILE, COLUMNS])
        # Always 0: ptxas would keep the 16 descriptors of a place that does not change, and spill them.
        moved = (begin + tile * TILE) >> 31
        a = a_rows.index(HALF + moved).reshape([OWN, COLUMNS])
        pending = warpgroup_mma(a, c.permute((1, 0)), nothing, use_acc=False, is_async=True)
        if KIND != "queries":
            lse = lse_ring.index(slot).reshape([TILE]).load(gl.SliceLayout(0, layout))[None, :]
        if KIND != "values":
            if step == 0:
                mbarrier.wait(own_full.index(1), 0)
        mbarrier.wait(d_full.index(old), (step // D_STAGES) & 1)
        if KIND == "values":
            scores = warpgroup_mma_wait(0, deps=[pending])
            mbarrier.arrive(c_empty.index(slot))
        else:
            b = b_rows.index(HALF + moved).reshape([OWN, COLUMNS])
            pending_gradient = warpgroup_mma(b, d.permute((1, 0)), nothing, use_acc=False, is_async=True)
            scores = warpgroup_mma_wait(1, deps=[pending])
        if KIND == "queries":
            seen = _seen(mine[:, None], theirs[None, :], N, shift, window, CAUSAL, WINDOW)
        else:
            seen = _seen(theirs[None, :], mine[:, None], N, shift, window, CAUSAL, WINDOW)
        p = gl.where(seen, gl.exp2(scores * scale_log2 - lse), 0.0)
        # ptxas moves a wait for products up to the last branch: this one, behind the exponentials, lets them run while
        # the products do.
        _await(c_full, step + 1, tiles * share, C_STAGES)
        if KIND == "values":
            weights = gl.convert_layout(p.to(d.dtype), gl.DotOperandLayout(0, out_layout, 2))
            acc = warpgroup_mma_wait(0, deps=[warpgroup_mma(weights, d, acc, is_async=True)])
            mbarrier.arrive(d_empty.index(old))
        else:
            gradient = warpgroup_mma_wait(0, deps=[pending_gradient])
            if KIND == "keys":
                delta = delta_ring.index(old).reshape([TILE]).load(gl.SliceLayout(0, layout))[None, :]
            mbarrier.arrive(d_empty.index(old))
            ds = gl.where(p == 0.0, 0.0, p * (gradient - delta))
            weights = gl.convert_layout(ds.to(c.dtype), gl.DotOperandLayout(0, out_layout, 2))
            acc = warpgroup_mma_wait(0, deps=[warpgroup_mma(weights, c, acc, is_async=True)])
            mbarrier.arrive(c_empty.index(slot))
        tile += 1
        tile = gl.where(tile == tiles, 0, tile)  # on to the next head
    if KIND != "values":
        acc = acc * scale
    # The own rows are used up: their memory takes the gradient, which the copy engine cuts at the last row.
    a_rows.index(HALF).reshape([OWN, COLUMNS]).store(acc.to(a_rows.dtype))
    fence_async_shared()
    copy_out(out_desc, [batch, own_head, first_row, 0], a_rows.index(HALF))
    copy_out_wait(0)


@gluon.jit
def attention_gradient_specialised_kernel(
    rows_ptr, rows_desc, out_desc, a_desc, b_desc, c_desc, d_desc, H, SHARE, M, N, shift, window, scale, scale_log2, PITCH,
    LINES, SECTION, KIND: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, D: gl.constexpr, COLUMNS: gl.constexpr,
    OWN: gl.constexpr, TILE: gl.constexpr, C_STAGES: gl.constexpr, D_STAGES: gl.constexpr,
):  # fmt: skip
    """KIND: whose gradient; a (and b, but for values) are the program's own rows, c and d walk by."""
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
    lse_ring = ring(rows_desc, C_STAGES)
    delta_ring = ring(rows_desc, D_STAGES)
    own_full = barriers(2, 1)
    c_full = barriers(C_STAGES, 1)
    c_empty = barriers(C_STAGES, 2)
    d_full = barriers(D_STAGES, 1)
    d_empty = barriers(D_STAGES, 2)
    gl.warp_specialize(
        [
            (_differentiate, (rows_ptr, out_desc, a_rows, b_rows, c_ring, d_ring, lse_ring, delta_ring, own_full,
                              c_full, c_empty, d_full, d_empty, batch, own_head, first_head, share, own_row, begin,
                              tiles, H, N, shift, window, scale, scale_log2, PITCH, 0, KIND, CAUSAL, WINDOW, OWN, TILE,
                              COLUMNS, C_STAGES, D_STAGES)),
            (_differentiate, (rows_ptr, out_desc, a_rows, b_rows, c_ring, d_ring, lse_ring, delta_ring, own_full,
                              c_full, c_empty, d_full, d_empty, batch, own_head, first_head, share, own_row, begin,
                              tiles, H, N, shift, window, scale, scale_log2, PITCH, 1, KIND, CAUSAL, WINDOW, OWN, TILE,
                              COLUMNS, C_STAGES, D_STAGES)),
            (_load, (rows_desc, a_desc, b_desc, c_desc, d_desc, a_rows, b_rows, c_ring, d_ring, lse_ring, delta_ring,
                     own_full, c_full, c_empty, d_full, d_empty, batch, own_head, first_head, share, own_row, begin,
                     tiles, H, KIND, OWN, TILE, COLUMNS, C_STAGES, D_STAGES)),
        ],
        [4, 1],
        [WARPGROUP_REGISTERS, LOADER_REGISTERS],
    )  # fmt: skip


def _maps(p: AttentionGradientProblem, names: str) -> tuple[Map, ...]:
    """Of the offsets of queries, and by a letter each of the output, a, b, c and d."""
    queries, keys = (p.B, p.H, p.M, p.D), (p.B, p.G, p.N, p.D)
    dtype = gl.float16 if p.dtype == torch.float16 else gl.bfloat16
    kinds = {
        "g": (queries, p.g_strides), "q": (queries, p.q_strides), "Q": (queries, contiguous(queries)),
        "k": (keys, p.k_strides), "v": (keys, p.v_strides), "K": (keys, contiguous(keys)),
    }  # fmt: skip

    def of(name: str) -> Map:
        shape, strides = kinds[name]
        block = [1, 1, TILE, p.columns]  # as many rows as a warpgroup owns
        return Map(shape, block_strides(shape, strides), block, gl.NVMMASharedLayout.get_default_for(block, dtype))

    rows = Map((2 * p.B * p.H, pitch(p)), (pitch(p), 1), [1, TILE], FLAT)
    return (POINTER, rows, *(of(name) for name in names))


@plan
def specialised_plans(p: AttentionGradientProblem) -> tuple[Launch, ...]:
    """Launches for the rows, and for the gradients of queries, keys and values."""
    lines, share = p.B * p.H, p.H // p.G
    # Under a mask programs are of many lengths: those of as many heads as share L2 start longest first.
    of_queries = section(p.B * p.G, 4 * p.N * p.D) * share if p.mask.causal else 1
    of_keys = section(p.B * p.G, 4 * p.M * p.D * share) if p.mask.causal else 1

    def gradient(kind: str, names: str, stages: int) -> Launch:
        """Of what walks by second, one block in shared memory at a time, where its own rows leave no place for more."""
        heads, rows, of_lines = (lines, p.M, of_queries) if kind == "queries" else (p.B * p.G, p.N, of_keys)
        return Launch(
            attention_gradient_specialised_kernel, (cdiv(rows, 2 * OWN) * heads,), *p.sizes, pitch(p), heads, of_lines,
            maps=_maps(p, names), KIND=kind, OWN=OWN, TILE=TILE, C_STAGES=2, D_STAGES=stages, num_warps=4, **p.constants,
        )  # fmt: skip

    return (
        Launch(
            attention_rows_kernel, (cdiv(pitch(p), ROWS) * lines,), p.H, p.M, pitch(p), p.g_strides[:3], p.y_strides[:3],
            D=p.D, COLUMNS=p.columns, ROWS=ROWS, num_warps=4,
        ),
        gradient("queries", "Qqgkv", 1),
        gradient("keys", "Kkvqg", 1),
        gradient("values", "Kkvqg", 2),
    )  # fmt: skip


def specialised(
    p: AttentionGradientProblem, grads: tuple[T, ...], grad_out: T, q: T, k: T, v: T, y: T, lse: T
) -> None:  # fmt: skip
    """Writes grads: of q, k and v."""
    rows = lse.new_empty(p.B * p.H, 2, pitch(p))
    first, for_queries, for_keys, for_values = specialised_plans(p)
    first(rows, lse, grad_out, y)
    for_queries(rows, rows, grads[0], q, grad_out, k, v)
    for_keys(rows, rows, grads[1], k, v, q, grad_out)
    for_values(rows, rows, grads[2], k, v, q, grad_out)
