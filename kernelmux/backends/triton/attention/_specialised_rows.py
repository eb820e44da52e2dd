"""The 64 queries of a warpgroup in `specialised`: products of one block of keys beside the exponentials of another."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernelmux.backends.triton._launch.hopper import copy_out, copy_out_wait
from kernelmux.backends.triton.attention._online import LN2, key_range


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
def _rounded(weights, values):
    """Weights in the type of the values.

    In assembly, as LLVM 22 would move a conversion behind the branch of the loop: ptxas then does not overlap products.
    """
    instruction: gl.constexpr = (
        "cvt.rn.bf16x2.f32 $0, $2, $1;" if values.dtype == gl.bfloat16 else "cvt.rn.f16x2.f32 $0, $2, $1;"
    )
    return gl.inline_asm_elementwise(instruction, "=r,r,r", [weights], dtype=values.dtype, is_pure=True, pack=2)


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
def _add_scores(q, k, pending, START: gl.constexpr, WIDTH: gl.constexpr):
    return warpgroup_mma(q.slice(START, WIDTH, 1), k.slice(START, WIDTH, 0), pending, is_async=True)


@gluon.jit
def _scores(
    q, q_tail, k_ring, k_ring_rest, slot, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, COLUMNS: gl.constexpr,
    REST: gl.constexpr, DEPTH: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """The products of the queries and a block of keys, under way."""
    k = k_ring.index(slot).reshape([BLOCK_N, COLUMNS]).permute((1, 0))
    nothing = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
    if DEPTH == COLUMNS:
        pending = warpgroup_mma(q, k, nothing, use_acc=False, is_async=True)
    else:
        # Rows end before their piece does: only as many columns as there are, in steps of 16, by powers of two.
        half: gl.constexpr = COLUMNS // 2
        pending = warpgroup_mma(q.slice(0, half, 1), k.slice(0, half, 0), nothing, use_acc=False, is_async=True)
        for i in gl.static_range(1, 4):
            if (DEPTH // (half >> i)) % 2 == 1:
                pending = _add_scores(q, k, pending, (DEPTH // (half >> i) - 1) * (half >> i), half >> i)
    if REST:
        tail = k_ring_rest.index(slot).reshape([BLOCK_N, REST]).permute((1, 0))
        pending = warpgroup_mma(q_tail, tail, pending, is_async=True)
    return pending


@gluon.jit
def _await_keys(k_full, count, there, STAGES: gl.constexpr):
    """The keys of block `count` of the program's, if there are any."""
    mbarrier.wait(k_full.index(count % STAGES), (count // STAGES) & 1, pred=there)


@gluon.jit
def _walk_keys(
    acc, rest, p, top, total, q, q_tail, k_ring, v_ring, k_ring_rest, v_ring_rest, k_full, k_empty, v_full, v_empty,
    count, begin, end, steps, blocks, start_row, N, shift, window, scale, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
    MASKED: gl.constexpr, FLIP: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, COLUMNS: gl.constexpr,
    REST: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr, layout: gl.constexpr,
    out_layout: gl.constexpr, rest_layout: gl.constexpr,
):  # fmt: skip
    """Steps [begin, end) of `steps`: the scores of a step, whose keys are here, and the values of the step before it."""
    weights_layout: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    for step in range(begin, end):
        slot = (count + step) % STAGES
        pending_scores = _scores(q, q_tail, k_ring, k_ring_rest, slot, ROWS, BLOCK_N, COLUMNS, REST, DEPTH, layout)

        old = (count + step - 1) % STAGES
        mbarrier.wait(v_full.index(old), ((count + step - 1) // STAGES) & 1)
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
            p = gl.convert_layout(_rounded(weights, v), weights_layout)
            _await_keys(k_full, count + step + 1, step + 1 < steps, STAGES)
        if REST:
            acc, rest = warpgroup_mma_wait(0, deps=[pending_acc, pending_rest])
            rest = rest * gl.convert_layout(fade, gl.SliceLayout(1, rest_layout))[:, None]
        else:
            acc = warpgroup_mma_wait(0, deps=[pending_acc])
        mbarrier.arrive(v_empty.index(old))
        acc = acc * gl.convert_layout(fade, gl.SliceLayout(1, out_layout))[:, None]
        if COLUMNS > 128:
            p = gl.convert_layout(_rounded(weights, v), weights_layout)
            _await_keys(k_full, count + step + 1, step + 1 < steps, STAGES)
    return acc, rest, p, top, total


@gluon.jit
def attend_rows(
    lse_ptr, out_desc, out_rest, q_rows, k_ring, v_ring, q_rows_rest, k_ring_rest, v_ring_rest, o_rows, o_rows_rest,
    q_full, q_empty, k_full, k_empty, v_full, v_empty, turn, count, line, first_row, low, blocks, H, M, N, shift, window,
    scale, HALF: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, FLIP: gl.constexpr, ROWS: gl.constexpr,
    BLOCK_N: gl.constexpr, COLUMNS: gl.constexpr, REST: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr,
    APART: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    rest_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, REST if REST else COLUMNS, 16])
    _, first, last, _ = key_range(first_row, M, N, shift, window, CAUSAL, WINDOW, ROWS, BLOCK_N)
    # At least the first step is masked; after it, as many as reach past what every query may see; with a window also
    # those before what every query sees.
    steps = blocks - low
    masked = gl.minimum(gl.maximum(blocks - last // BLOCK_N, 1), steps)

    q = q_rows.index(HALF).reshape([ROWS, COLUMNS])
    q_tail = q_rows_rest.index(HALF).reshape([ROWS, REST]) if REST else q
    slot = count % STAGES
    mbarrier.wait(k_full.index(slot), (count // STAGES) & 1)
    mbarrier.wait(q_full.index(HALF), turn & 1)
    pending = _scores(q, q_tail, k_ring, k_ring_rest, slot, ROWS, BLOCK_N, COLUMNS, REST, DEPTH, layout)
    scores = warpgroup_mma_wait(0, deps=[pending])
    mbarrier.arrive(k_empty.index(slot))
    if FLIP:
        scores = -scores
    scores = _mask(scores, first_row, (blocks - 1) * BLOCK_N, N, shift, window, CAUSAL, WINDOW, layout)
    top = gl.full([ROWS], -float("inf"), gl.float32, gl.SliceLayout(1, layout))
    total = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, layout))
    weights, top, total, _ = _weights(scores, top, total, scale, True)
    p = gl.convert_layout(_rounded(weights, q), gl.DotOperandLayout(0, out_layout, 2))

    _await_keys(k_full, count + 1, 1 < steps, STAGES)
    # [ROWS, COLUMNS]
    acc = gl.zeros([ROWS, COLUMNS], gl.float32, out_layout)
    rest = gl.zeros([ROWS, REST], gl.float32, rest_layout) if REST else total
    acc, rest, p, top, total = _walk_keys(
        acc, rest, p, top, total, q, q_tail, k_ring, v_ring, k_ring_rest, v_ring_rest, k_full, k_empty, v_full, v_empty,
        count, 1, masked, steps, blocks, first_row, N, shift, window, scale, CAUSAL, WINDOW, True, FLIP, ROWS, BLOCK_N,
        COLUMNS, REST, DEPTH, STAGES, layout, out_layout, rest_layout,
    )  # fmt: skip
    whole = gl.maximum(masked, gl.minimum(blocks - first // BLOCK_N, steps)) if WINDOW else steps
    acc, rest, p, top, total = _walk_keys(
        acc, rest, p, top, total, q, q_tail, k_ring, v_ring, k_ring_rest, v_ring_rest, k_full, k_empty, v_full, v_empty,
        count, masked, whole, steps, blocks, first_row, N, shift, window, scale, CAUSAL, WINDOW, False, FLIP, ROWS,
        BLOCK_N, COLUMNS, REST, DEPTH, STAGES, layout, out_layout, rest_layout,
    )  # fmt: skip
    if WINDOW:
        acc, rest, p, top, total = _walk_keys(
            acc, rest, p, top, total, q, q_tail, k_ring, v_ring, k_ring_rest, v_ring_rest, k_full, k_empty, v_full, v_empty,
            count, whole, steps, steps, blocks, first_row, N, shift, window, scale, CAUSAL, WINDOW, True, FLIP, ROWS,
            BLOCK_N, COLUMNS, REST, DEPTH, STAGES, layout, out_layout, rest_layout,
        )  # fmt: skip
    if APART:
        mbarrier.arrive(q_empty.index(HALF))
    last_slot = (count + steps - 1) % STAGES
    mbarrier.wait(v_full.index(last_slot), ((count + steps - 1) // STAGES) & 1)
    acc = warpgroup_mma(p, v_ring.index(last_slot).reshape([BLOCK_N, COLUMNS]), acc)
    if REST:
        weights_of_rest = gl.convert_layout(p, gl.DotOperandLayout(0, rest_layout, 2))
        rest = warpgroup_mma(weights_of_rest, v_ring_rest.index(last_slot).reshape([BLOCK_N, REST]), rest)
    mbarrier.arrive(v_empty.index(last_slot))

    divisor = gl.where(total == 0.0, 1.0, total)
    out = acc / gl.convert_layout(divisor, gl.SliceLayout(1, out_layout))[:, None]
    if APART:
        copy_out_wait(0)
    o_rows.index(HALF).reshape([ROWS, COLUMNS]).store(out.to(q.dtype))
    if REST:
        o_rows_rest.index(HALF).reshape([ROWS, REST]).store(
            (rest / gl.convert_layout(divisor, gl.SliceLayout(1, rest_layout))[:, None]).to(q.dtype)
        )
    fence_async_shared()
    batch = line // H
    head = line % H
    copy_out(out_desc, [batch, head, first_row, 0], o_rows.index(HALF))
    if REST:
        copy_out(out_rest, [batch, head, first_row, COLUMNS], o_rows_rest.index(HALF))
    rows = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    gl.store(lse_ptr + line.to(gl.int64) * M + rows, (top + gl.log2(total)) * LN2, mask=rows < M)
    if not APART:
        copy_out_wait(0)
        mbarrier.arrive(q_empty.index(HALF))
