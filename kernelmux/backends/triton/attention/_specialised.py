"""Attention with the work divided among warps (in Gluon): one loads, two warpgroups each own 64 queries.

While the tensor cores compute the scores of a block, the weights of the block before are applied to its values and the
next maximum and exponentials are taken: 64 x 128 exponentials cost as many cycles as the two products (Shah et al.,
FlashAttention-3, 2024). Blocks are walked from the last key to the first, so the masked ones come first.
"""

from __future__ import annotations

import torch
import triton
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
from kernelmux.backends.triton.attention._online import LN2, Rule, key_range, located
from kernelmux.backends.triton.attention._problem import (
    POINTER,
    AttentionProblem,
    block_strides,
    outputs,
    problem,
    section,
)
from kernelmux.registry.spec.sliding_windows import Limit

T = torch.Tensor

# Queries of one warpgroup: the rows of one wgmma instruction.
QUERIES = 64
WARPGROUP_REGISTERS = gl.constexpr(240)
LOADER_REGISTERS = gl.constexpr(24)


@gluon.jit
def _load(
    q_desc, k_desc, v_desc, q_rest, k_rest, v_rest, q_rows, k_ring, v_ring, q_rows_rest, k_ring_rest, v_ring_rest,
    q_full, k_full, k_empty, v_full, v_empty, batch, head, group, start_m, first, blocks,
    ROWS: gl.constexpr, BLOCK_N: gl.constexpr, COLUMNS: gl.constexpr, REST: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    mbarrier.expect(q_full.index(0), 2 * ROWS * (COLUMNS + REST) * 2)
    for half in gl.static_range(2):
        copy_in(q_desc, [batch, head, start_m + half * ROWS, 0], q_full.index(0), q_rows.index(half))
        if REST:
            copy_in(q_rest, [batch, head, start_m + half * ROWS, COLUMNS], q_full.index(0), q_rows_rest.index(half))
    for step in range(0, blocks - first):
        slot = step % STAGES
        free = (step // STAGES + 1) & 1
        start_n = (blocks - 1 - step) * BLOCK_N
        mbarrier.wait(k_empty.index(slot), free)
        mbarrier.expect(k_full.index(slot), BLOCK_N * (COLUMNS + REST) * 2)
        copy_in(k_desc, [batch, group, start_n, 0], k_full.index(slot), k_ring.index(slot))
        if REST:
            copy_in(k_rest, [batch, group, start_n, COLUMNS], k_full.index(slot), k_ring_rest.index(slot))
        mbarrier.wait(v_empty.index(slot), free)
        mbarrier.expect(v_full.index(slot), BLOCK_N * (COLUMNS + REST) * 2)
        copy_in(v_desc, [batch, group, start_n, 0], v_full.index(slot), v_ring.index(slot))
        if REST:
            copy_in(v_rest, [batch, group, start_n, COLUMNS], v_full.index(slot), v_ring_rest.index(slot))


@gluon.jit
def _weights(scores, top, total, scale, MASKED: gl.constexpr):
    """exp2(scale * scores - maximum), the new running maximum and sum, and the factor by which the old ones fade."""
    new_top = gl.maximum(top, gl.max(scores, 1) * scale)
    # A row may see no key of a masked block; the difference of two infinities would poison it.
    base = gl.where(new_top == -float("inf"), 0.0, new_top) if MASKED else new_top
    p = gl.exp2(scores * scale - base[:, None])
    fade = gl.exp2(top - base)
    return p, new_top, total * fade + gl.sum(p, 1), fade


@gluon.jit
def _mask(
    scores, start_row, start_n, N, shift, window, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, layout: gl.constexpr
):
    keys = start_n + gl.arange(0, scores.shape[1], gl.SliceLayout(0, layout))
    rows = start_row + gl.arange(0, scores.shape[0], gl.SliceLayout(1, layout))
    limit = gl.full([scores.shape[0]], N, gl.int32, gl.SliceLayout(1, layout))
    if CAUSAL:
        limit = gl.minimum(limit, rows + (shift + 1))
    if WINDOW:
        scores = gl.where(keys[None, :] > (rows + (shift - window))[:, None], scores, -float("inf"))
    return gl.where(keys[None, :] < limit[:, None], scores, -float("inf"))


@gluon.jit
def _scores(
    q, q_tail, k_ring, k_ring_rest, slot, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, COLUMNS: gl.constexpr,
    REST: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """The products of the queries and a block of keys, under way."""
    k = k_ring.index(slot).reshape([BLOCK_N, COLUMNS]).permute((1, 0))
    nothing = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
    pending = warpgroup_mma(q, k, nothing, use_acc=False, is_async=True)
    if REST:
        tail = k_ring_rest.index(slot).reshape([BLOCK_N, REST]).permute((1, 0))
        pending = warpgroup_mma(q_tail, tail, pending, is_async=True)
    return pending


@gluon.jit
def _await_keys(k_full, step, steps, STAGES: gl.constexpr):
    """The keys of a step, if there is such a step."""
    mbarrier.wait(k_full.index(step % STAGES), (step // STAGES) & 1, pred=step < steps)


@gluon.jit
def _walk_keys(
    acc, rest, p, top, total, q, q_tail, k_ring, v_ring, k_ring_rest, v_ring_rest, k_full, k_empty, v_full, v_empty,
    begin, end, steps, blocks, start_row, N, shift, window, scale, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
    MASKED: gl.constexpr, FLIP: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, COLUMNS: gl.constexpr,
    REST: gl.constexpr, STAGES: gl.constexpr, layout: gl.constexpr, out_layout: gl.constexpr, rest_layout: gl.constexpr,
):  # fmt: skip
    """Steps [begin, end) of `steps`: the scores of a step, whose keys are here, and the values of the step before it."""
    weights_layout: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    for step in range(begin, end):
        slot = step % STAGES
        pending_scores = _scores(q, q_tail, k_ring, k_ring_rest, slot, ROWS, BLOCK_N, COLUMNS, REST, layout)

        old = (step - 1) % STAGES
        mbarrier.wait(v_full.index(old), ((step - 1) // STAGES) & 1)
        v = v_ring.index(old).reshape([BLOCK_N, COLUMNS])
        pending_acc = warpgroup_mma(p, v, acc, is_async=True)
        if REST:
            tail = v_ring_rest.index(old).reshape([BLOCK_N, REST])
            pending_rest = warpgroup_mma(
                gl.convert_layout(p, gl.DotOperandLayout(0, rest_layout, 2)), tail, rest, is_async=True
            )

        scores = warpgroup_mma_wait(2 if REST else 1, deps=[pending_scores])
        mbarrier.arrive(k_empty.index(slot))
        if FLIP:
            scores = -scores
        if MASKED:
            scores = _mask(scores, start_row, (blocks - 1 - step) * BLOCK_N, N, shift, window, CAUSAL, WINDOW, layout)
        weights, top, total, fade = _weights(scores, top, total, scale, MASKED)

        # ptxas moves a wait for products up to the last branch, here in front of the exponentials. The wait for the next
        # keys is such a branch; behind the exponentials it lets them run while the products do. H200, 4 x 32 x 4096: at
        # D = 128 1629 us, 1672 otherwise, causal 931 and 959; at D = 256 it is the other way round, 1526 and 1488.
        if COLUMNS <= 128:
            p = gl.convert_layout(weights.to(v.dtype), weights_layout)
            _await_keys(k_full, step + 1, steps, STAGES)
        if REST:
            acc, rest = warpgroup_mma_wait(0, deps=[pending_acc, pending_rest])
            rest = rest * gl.convert_layout(fade, gl.SliceLayout(1, rest_layout))[:, None]
        else:
            acc = warpgroup_mma_wait(0, deps=[pending_acc])
        mbarrier.arrive(v_empty.index(old))
        acc = acc * gl.convert_layout(fade, gl.SliceLayout(1, out_layout))[:, None]
        if COLUMNS > 128:
            p = gl.convert_layout(weights.to(v.dtype), weights_layout)
            _await_keys(k_full, step + 1, steps, STAGES)
    return acc, rest, p, top, total


@gluon.jit
def _attend(
    lse_ptr, out_desc, out_rest, q_rows, k_ring, v_ring, q_rows_rest, k_ring_rest, v_ring_rest,
    q_full, k_full, k_empty, v_full, v_empty,
    batch, head, line, start_row, low, blocks, M, N, shift, window, scale, HALF: gl.constexpr, CAUSAL: gl.constexpr,
    WINDOW: gl.constexpr, FLIP: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, COLUMNS: gl.constexpr,
    REST: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    rest_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, REST if REST else COLUMNS, 16])
    first_row = start_row + HALF * ROWS
    _, first, last, _ = key_range(first_row, M, N, shift, window, CAUSAL, WINDOW, ROWS, BLOCK_N)
    # At least the first step is masked; after it, as many as reach past what every query may see; with a window also
    # those before what every query sees.
    steps = blocks - low
    masked = gl.minimum(gl.maximum(blocks - last // BLOCK_N, 1), steps)

    mbarrier.wait(q_full.index(0), 0)
    q = q_rows.index(HALF).reshape([ROWS, COLUMNS])
    q_tail = q_rows_rest.index(HALF).reshape([ROWS, REST]) if REST else q
    mbarrier.wait(k_full.index(0), 0)
    pending = _scores(q, q_tail, k_ring, k_ring_rest, 0, ROWS, BLOCK_N, COLUMNS, REST, layout)
    scores = warpgroup_mma_wait(0, deps=[pending])
    mbarrier.arrive(k_empty.index(0))
    if FLIP:
        scores = -scores
    scores = _mask(scores, first_row, (blocks - 1) * BLOCK_N, N, shift, window, CAUSAL, WINDOW, layout)
    top = gl.full([ROWS], -float("inf"), gl.float32, gl.SliceLayout(1, layout))
    total = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, layout))
    weights, top, total, _ = _weights(scores, top, total, scale, True)
    p = gl.convert_layout(weights.to(q.dtype), gl.DotOperandLayout(0, out_layout, 2))

    _await_keys(k_full, 1, steps, STAGES)
    # [ROWS, COLUMNS]
    acc = gl.zeros([ROWS, COLUMNS], gl.float32, out_layout)
    rest = gl.zeros([ROWS, REST], gl.float32, rest_layout) if REST else total
    acc, rest, p, top, total = _walk_keys(
        acc, rest, p, top, total, q, q_tail, k_ring, v_ring, k_ring_rest, v_ring_rest, k_full, k_empty, v_full, v_empty,
        1, masked, steps, blocks, first_row, N, shift, window, scale, CAUSAL, WINDOW, True, FLIP, ROWS, BLOCK_N,
        COLUMNS, REST, STAGES, layout, out_layout, rest_layout,
    )  # fmt: skip
    whole = gl.maximum(masked, gl.minimum(blocks - first // BLOCK_N, steps)) if WINDOW else steps
    acc, rest, p, top, total = _walk_keys(
        acc, rest, p, top, total, q, q_tail, k_ring, v_ring, k_ring_rest, v_ring_rest, k_full, k_empty, v_full, v_empty,
        masked, whole, steps, blocks, first_row, N, shift, window, scale, CAUSAL, WINDOW, False, FLIP, ROWS, BLOCK_N,
        COLUMNS, REST, STAGES, layout, out_layout, rest_layout,
    )  # fmt: skip
    if WINDOW:
        acc, rest, p, top, total = _walk_keys(
            acc, rest, p, top, total, q, q_tail, k_ring, v_ring, k_ring_rest, v_ring_rest, k_full, k_empty, v_full, v_empty,
            whole, steps, steps, blocks, first_row, N, shift, window, scale, CAUSAL, WINDOW, True, FLIP, ROWS,
            BLOCK_N, COLUMNS, REST, STAGES, layout, out_layout, rest_layout,
        )  # fmt: skip
    last_slot = (steps - 1) % STAGES
    mbarrier.wait(v_full.index(last_slot), ((steps - 1) // STAGES) & 1)
    acc = warpgroup_mma(p, v_ring.index(last_slot).reshape([BLOCK_N, COLUMNS]), acc)
    if REST:
        weights_of_rest = gl.convert_layout(p, gl.DotOperandLayout(0, rest_layout, 2))
        rest = warpgroup_mma(weights_of_rest, v_ring_rest.index(last_slot).reshape([BLOCK_N, REST]), rest)

    # The queries are used up: their memory takes the output, which the copy engine cuts at row M.
    divisor = gl.where(total == 0.0, 1.0, total)
    out = acc / gl.convert_layout(divisor, gl.SliceLayout(1, out_layout))[:, None]
    q.store(out.to(q.dtype))
    if REST:
        q_tail.store((rest / gl.convert_layout(divisor, gl.SliceLayout(1, rest_layout))[:, None]).to(q.dtype))
    fence_async_shared()
    copy_out(out_desc, [batch, head, first_row, 0], q_rows.index(HALF))
    if REST:
        copy_out(out_rest, [batch, head, first_row, COLUMNS], q_rows_rest.index(HALF))
    rows = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    gl.store(lse_ptr + line.to(gl.int64) * M + rows, (top + gl.log2(total)) * LN2, mask=rows < M)
    copy_out_wait(0)


@gluon.jit
def attention_specialised_kernel(
    lse_ptr, out_desc, q_desc, k_desc, v_desc, out_rest, q_rest, k_rest, v_rest, H, SHARE, M, N, shift, window, scale,
    LINES, SECTION, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, FLIP: gl.constexpr, D: gl.constexpr,
    ROWS: gl.constexpr, BLOCK_N: gl.constexpr, COLUMNS: gl.constexpr, REST: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    blocks_m = gl.cdiv(M, 2 * ROWS)
    # The last queries see the most keys, so their programs start first.
    line, block = located(gl.program_id(0), LINES, blocks_m, SECTION)
    start_m = (blocks_m - 1 - block) * 2 * ROWS
    batch = line // H
    head = line % H
    begin, _, _, end = key_range(start_m, M, N, shift, window, CAUSAL, WINDOW, 2 * ROWS, BLOCK_N)
    blocks = gl.maximum(gl.cdiv(end, BLOCK_N), 1)  # queries that see no key walk a block that is masked
    low = gl.minimum(begin // BLOCK_N, blocks - 1)

    q_rows = ring(q_desc, 2)
    k_ring = ring(k_desc, STAGES)
    v_ring = ring(v_desc, STAGES)
    q_rows_rest = ring(q_rest, 2) if REST else q_rows
    k_ring_rest = ring(k_rest, STAGES) if REST else k_ring
    v_ring_rest = ring(v_rest, STAGES) if REST else v_ring
    q_full = barriers(1, 1)
    k_full = barriers(STAGES, 1)
    k_empty = barriers(STAGES, 2)
    v_full = barriers(STAGES, 1)
    v_empty = barriers(STAGES, 2)
    gl.warp_specialize(
        [
            (_attend, (lse_ptr, out_desc, out_rest, q_rows, k_ring, v_ring, q_rows_rest, k_ring_rest, v_ring_rest, q_full,
                       k_full, k_empty, v_full, v_empty, batch, head, line, start_m, low, blocks, M, N, shift, window,
                       scale, 0, CAUSAL, WINDOW, FLIP, ROWS, BLOCK_N, COLUMNS, REST, STAGES)),
            (_attend, (lse_ptr, out_desc, out_rest, q_rows, k_ring, v_ring, q_rows_rest, k_ring_rest, v_ring_rest, q_full,
                       k_full, k_empty, v_full, v_empty, batch, head, line, start_m, low, blocks, M, N, shift, window,
                       scale, 1, CAUSAL, WINDOW, FLIP, ROWS, BLOCK_N, COLUMNS, REST, STAGES)),
            (_load, (q_desc, k_desc, v_desc, q_rest, k_rest, v_rest, q_rows, k_ring, v_ring, q_rows_rest, k_ring_rest,
                     v_ring_rest, q_full, k_full, k_empty, v_full, v_empty, batch, head, head // SHARE, start_m, low,
                     blocks, ROWS, BLOCK_N, COLUMNS, REST, STAGES)),
        ],
        [4, 1],
        [WARPGROUP_REGISTERS, LOADER_REGISTERS],
    )  # fmt: skip


def pieces(D: int) -> tuple[int, int]:
    """Widths of the two pieces that rows are cut into, of a power of two each; 0 where one is no wider than both."""
    whole = max(16, int(triton.next_power_of_2(D)))
    rest = max(16, int(triton.next_power_of_2(max(1, D - whole // 2))))
    return (whole // 2, rest) if whole > 16 and whole // 2 + rest < whole else (whole, 0)


@plan
def _plan(p: AttentionProblem, rule: Rule) -> Launch:
    config = rule(p)
    columns, rest = pieces(p.D)
    dtype = gl.float16 if p.dtype == torch.float16 else gl.bfloat16

    def maps(width: int) -> tuple[Map, ...]:
        queries, keys = [1, 1, QUERIES, width], [1, 1, config["BLOCK_N"], width]
        kinds = zip(p.shapes, p.strides, (queries, queries, keys, keys), strict=True)
        return tuple(
            Map(shape, block_strides(shape, strides), block, gl.NVMMASharedLayout.get_default_for(block, dtype))
            for shape, strides, block in kinds
        )

    # Under a mask programs are of many lengths: those of as many heads as have their keys in L2 start longest first.
    # H200, causal, us: 16 x 8192, D = 256, 739, head after head 806; 2 x 28/4 x 3000, D = 128, 250 and 264.
    lines = p.B * p.H
    of_lines = section(p.B * p.G, 4 * p.N * p.D) * (p.H // p.G) if p.mask.causal else 1
    grid = (cdiv(p.M, 2 * QUERIES) * lines,)
    return Launch(
        attention_specialised_kernel, grid, *p.sizes, lines, of_lines,
        maps=(POINTER, *maps(columns), *maps(rest or columns)), ROWS=QUERIES, COLUMNS=columns, REST=rest, num_warps=4,
        **p.constants, **config,
    )  # fmt: skip


def specialised(
    q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit, rule: Rule
) -> tuple[T, T]:  # fmt: skip
    """Attention with 128 queries per program, its warps specialised."""
    out, lse, some = outputs(q, k)
    if some:
        launch = _plan(problem(q, k, v, causal, scale, window, precision, ahead), rule)
        launch(lse, out, q, k, v, out, q, k, v)
    return out, lse
