"""The loss of long rows and its gradient, in Gluon: programs stay and walk down rows, the next one on its way meanwhile.

Shared memory holds the first chunks of a row, the ring. Step by step their gradients are written, the same chunks of the
next row are asked for in their place, and those of it that have come LAG steps later are looked at: between rows only the
last steps are left, and what is not in the ring.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.language.extra import cuda

from kernelmux.backends.triton._losses.loss_rows import (
    gradient_at_target,
    log_sum_and_mean,
    logits_after,
    slope,
    store_at_target,
    unseen,
)
from kernelmux.backends.triton._losses.targets import chosen_of, loss_of, targets_of
from kernelmux.backends.triton._rows.row_shared import copy_in
from kernelmux.backends.triton._rows.row_statistics import exponential
from kernelmux.backends.triton._rows.row_tiles import chunk_masks, edges_at, load_chunk


@gluon.jit
def _wide(x):
    """In fp32, as if it were another tile each time: the compiler would keep that, in twice as many registers. Two
    instructions for two elements in bf16, where the compiler would take them apart first."""
    if x.dtype == gl.bfloat16:
        return gl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=r,=r,r", [x], dtype=gl.float32, is_pure=False, pack=2
        )
    else:
        return unseen(x).to(gl.float32)


@gluon.jit
def _all_wide(x):
    wide = ()
    for k in gl.static_range(len(x)):
        wide += (_wide(x[k]),)  # type: ignore[assignment]
    return wide


@gluon.jit
def _gradients(x, row):
    """Of a chunk, as if the target were elsewhere. In 16 bits a mask on two of them makes 0 of a row that does
    not count: the compiler would select each by itself, between two more instructions."""
    top, scale, spread, _, targets = row
    grad = exponential(_wide(x) - top) * scale - spread
    if x.dtype.primitive_bitwidth == 16:
        PAIR: gl.constexpr = "bf16x2" if x.dtype == gl.bfloat16 else "f16x2"
        keep = gl.where(targets[1], -1, 0)
        return gl.inline_asm_elementwise(
            "cvt.rn." + PAIR + ".f32 $0, $2, $1; and.b32 $0, $0, $3;", "=r,r,r,r,r", [grad, keep], dtype=x.dtype,
            is_pure=True, pack=2,
        )  # fmt: skip
    else:
        return gl.where(targets[1], grad, 0.0)


@gluon.jit
def _start(index, row_step, UNIT: gl.constexpr, PEELED: gl.constexpr):
    """Of a row: its first element, or its first aligned one, so that the compiler knows it to be aligned."""
    start = index.to(gl.int64) * row_step * UNIT
    return (start + (PEELED - 1)) // PEELED * PEELED if PEELED else start


@gluon.jit
def _before(index, V, PEELED: gl.constexpr):
    """Elements of a peeled row before its first aligned one, from which columns are counted."""
    return ((-index.to(gl.int64) * V) & (PEELED - 1)).to(gl.int32) if PEELED else 0


@gluon.jit
def _masks(k: gl.constexpr, cols, end, FULL: gl.constexpr, WIDTH: gl.constexpr):
    """Of the k-th chunk."""
    return chunk_masks(k * cols.shape[1] + cols, 0, end, k < FULL, WIDTH, False)


@gluon.jit
def _store(ptrs, grad, masks, POLICY: gl.constexpr):
    if len(masks) == 0:
        gl.store(ptrs, grad, eviction_policy=POLICY)
    else:
        gl.store(ptrs, grad, mask=masks[0], eviction_policy=POLICY)


@gluon.jit
def _ask(ring, s: gl.constexpr, x, cols, end, BATCH: gl.constexpr, FULL: gl.constexpr, WIDTH: gl.constexpr):
    """For the chunks of a step. x: pointers to the first chunk of the row."""
    for k in gl.static_range(s * BATCH, s * BATCH + BATCH):
        if k < len(ring):
            if k < FULL:
                copy_in(ring[k], x + k * cols.shape[1])
            else:
                copy_in(ring[k], x + k * cols.shape[1], mask=_masks(k, cols, end, FULL, WIDTH)[0])


@gluon.jit
def _look(
    state, ring, s: gl.constexpr, cols, end, LAYOUT: gl.constexpr, BATCH: gl.constexpr, FULL: gl.constexpr,
    WIDTH: gl.constexpr,
):  # fmt: skip
    """At the chunks of a step, which have come. state: of those before."""
    values = ()
    masks = ()
    for k in gl.static_range(s * BATCH, s * BATCH + BATCH):
        if k < len(ring):
            values += (_wide(ring[k].load(LAYOUT)),)  # type: ignore[assignment]
            masks += (_masks(k, cols, end, FULL, WIDTH),)  # type: ignore[assignment]
    return logits_after(state, values, masks, WIDTH)


@gluon.jit
def _look_at_steps(
    state, ring, FROM: gl.constexpr, TO: gl.constexpr, cols, end, LAYOUT: gl.constexpr, BATCH: gl.constexpr,
    FULL: gl.constexpr, WIDTH: gl.constexpr,
):  # fmt: skip
    """Once each has come. All have been asked for."""
    STEPS: gl.constexpr = (len(ring) + BATCH - 1) // BATCH
    for s in gl.static_range(FROM, TO):
        async_copy.wait_group(STEPS - 1 - s)
        state = _look(state, ring, s, cols, end, LAYOUT, BATCH, FULL, WIDTH)
    return state


@gluon.jit
def _weight(count_ptr, COUNTS: gl.constexpr, FOLLOWS: gl.constexpr):
    """As weight_of_rows."""
    if COUNTS:
        if FOLLOWS:
            cuda.gdc_wait()
        count = gl.load(count_ptr)
        for i in gl.static_range(1, COUNTS):
            count += gl.load(count_ptr + i)
        return 1.0 / count
    else:
        return 1.0


@gluon.jit
def _step(
    state, ring, s: gl.constexpr, out, row, cols, end, after, after_end, more, LAYOUT: gl.constexpr, BATCH: gl.constexpr,
    LAG: gl.constexpr, FULL: gl.constexpr, WIDTH: gl.constexpr, STORE: gl.constexpr,
):  # fmt: skip
    """Ask for the chunks of the step before, which all threads have read, write the gradients of these chunks, and look
    at those of the next row that were asked for LAG - 1 steps ago. One barrier, behind the wait, does for all."""
    if s >= LAG:
        async_copy.wait_group(LAG - 2)
    if s >= 1:
        if more:
            _ask(ring, s - 1, after, cols, after_end, BATCH, FULL, WIDTH)
            async_copy.commit_group()
    for k in gl.static_range(s * BATCH, s * BATCH + BATCH):
        if k < len(ring):
            grad = _gradients(ring[k].load(LAYOUT), row)
            _store(out + k * cols.shape[1], grad, _masks(k, cols, end, FULL, WIDTH), STORE)
    if s >= LAG:
        state = _look(state, ring, s - LAG, cols, after_end, LAYOUT, BATCH, FULL, WIDTH)
    return state


@gluon.jit
def _in_layout(values, LAYOUT: gl.constexpr):
    there = ()
    for i in gl.static_range(len(values)):
        there += (gl.convert_layout(values[i], LAYOUT),)  # type: ignore[assignment]
    return there


@gluon.jit
def _row_in(row, LAYOUT: gl.constexpr):
    """What `_gradients` needs of a row, in another layout."""
    return _in_layout(row[:3], LAYOUT) + (row[3], _in_layout(row[4], LAYOUT))  # noqa: RUF005 a tuple of tiles has no *


@gluon.jit
def _batch(x, BATCH: gl.constexpr, POLICY: gl.constexpr):
    """Whole chunks, side by side."""
    values = ()
    for k in gl.static_range(BATCH):
        values += (load_chunk(x + k * x.shape[1], (), POLICY),)  # type: ignore[assignment]
    return values


@gluon.jit
def _look_at_batches(state, x, batches, BATCH: gl.constexpr, WIDTH: gl.constexpr):
    """The state behind them, and the last one. Each is asked for before the one ahead is looked at."""
    STRIDE: gl.constexpr = BATCH * x.shape[1]
    whole = ()
    for _ in gl.static_range(BATCH):
        whole += ((),)  # type: ignore[assignment]
    values = _batch(x, BATCH, "evict_last")
    for b in range(1, batches):
        after = _batch(x + b * STRIDE, BATCH, "evict_last")
        state = logits_after(state, _all_wide(values), whole, WIDTH)
        values = after
    return logits_after(state, _all_wide(values), whole, WIDTH), values


@gluon.jit
def _write_batches(out, x, values, batches, row, BATCH: gl.constexpr, STORE: gl.constexpr):
    """From the last one, which is there, to the first: what was read last is the most likely to be in L2 still."""
    BLOCK: gl.constexpr = x.shape[1]
    STRIDE: gl.constexpr = BATCH * BLOCK
    for i in range(1, batches):
        at = (batches - i) * STRIDE
        after = _batch(x + (at - STRIDE), BATCH, "evict_first")
        for k in gl.static_range(BATCH):
            _store(out + (at + k * BLOCK), _gradients(values[k], row), (), STORE)
        values = after
    for k in gl.static_range(BATCH):
        _store(out + k * BLOCK, _gradients(values[k], row), (), STORE)


@gluon.jit
def _rest(x, cols, end, TAIL: gl.constexpr, FULL: gl.constexpr, WIDTH: gl.constexpr):
    """The last chunks of a row. x, end: counted from the first of these."""
    values = ()
    for k in gl.static_range(TAIL):
        masks = _masks(k, cols, end, FULL, WIDTH)
        values += (load_chunk(x + k * cols.shape[1], masks, "evict_first"),)  # type: ignore[assignment]
    return values


@gluon.jit
def _look_at_rest(state, values, cols, end, FULL: gl.constexpr, WIDTH: gl.constexpr):
    masks = ()
    for k in gl.static_range(len(values)):
        masks += (_masks(k, cols, end, FULL, WIDTH),)  # type: ignore[assignment]
    return logits_after(state, _all_wide(values), masks, WIDTH)


@gluon.jit
def _write_rest(out, values, row, cols, end, FULL: gl.constexpr, WIDTH: gl.constexpr, STORE: gl.constexpr):
    for k in gl.static_range(len(values)):
        _store(out + k * cols.shape[1], _gradients(values[k], row), _masks(k, cols, end, FULL, WIDTH), STORE)


@gluon.jit
def _look_at_edges(state, x, mask):
    """One element of each thread, if at all."""
    LAYOUT: gl.constexpr = state[0].type.layout
    x, mask = _in_layout((x.to(gl.float32), mask), LAYOUT)
    return logits_after(state, (x,), ((mask,),), 1)


@gluon.jit
def loss_shared_kernel(
    loss_ptr, grad_ptr, logits_ptr, target_ptr, count_ptr, M, V, row_step, target_step, ignore_index,
    smoothing, batches,
    BLOCK: gl.constexpr, BATCH: gl.constexpr, RING: gl.constexpr, LAG: gl.constexpr, AGAIN: gl.constexpr,
    TAIL: gl.constexpr, FULL: gl.constexpr, FULL_TAIL: gl.constexpr, UNIT: gl.constexpr, WIDTH: gl.constexpr,
    PEELED: gl.constexpr, STORE: gl.constexpr, SMOOTHED: gl.constexpr,
    COUNTS: gl.constexpr, FOLLOWS: gl.constexpr,
):  # fmt: skip
    """Chunks of a row: RING in shared memory, BATCH of them in a step, `batches` (AGAIN: some) that are read twice, TAIL.

    Those of TAIL and what lies beside the whole vectors of a peeled row are in registers. FULL and FULL_TAIL chunks have no
    mask. row_step is in units of UNIT elements.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, WIDTH], [1, 32], [1, gl.num_warps()], [1, 0])
    VECTORS: gl.constexpr = gl.SliceLayout(
        2, gl.BlockedLayout([1, 1, WIDTH], [1, 32, 1], [1, gl.num_warps(), 1], [2, 1, 0])
    )
    SHARED: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    STEPS: gl.constexpr = (RING + BATCH - 1) // BATCH
    SEEN: gl.constexpr = STEPS + 1 - LAG  # of a row, while the gradient of the one ahead is written
    ring = ()
    for _ in gl.static_range(RING):  # one by one: the compiler puts no barrier between chunks that it can tell apart
        ring += (gl.allocate_shared_memory(logits_ptr.dtype.element_ty, [1, BLOCK], SHARED),)  # type: ignore[assignment]
    cols = gl.arange(0, BLOCK, gl.SliceLayout(0, LAYOUT))[None, :]
    lanes = gl.arange(0, BLOCK // WIDTH, gl.SliceLayout(0, VECTORS))[None, :]
    one = gl.arange(0, 1, gl.SliceLayout(0, LAYOUT))[None, :]
    AHEAD: gl.constexpr = RING * BLOCK
    behind = AHEAD + batches * (BATCH * BLOCK) if AGAIN else AHEAD
    after = logits_ptr + _start(gl.program_id(0), row_step, UNIT, PEELED) + cols
    after_end = V - _before(gl.program_id(0), V, PEELED)
    for s in gl.static_range(STEPS):
        _ask(ring, s, after, cols, after_end, BATCH, FULL, WIDTH)
        async_copy.commit_group()
    h = _weight(count_ptr, COUNTS, FOLLOWS)
    state = _look_at_steps((), ring, 0, SEEN, cols, after_end, LAYOUT, BATCH, FULL, WIDTH)
    for index in range(gl.program_id(0), M, gl.num_programs(0)):
        row = index + one.to(gl.int64)  # [1, 1]
        x = logits_ptr + _start(index, row_step, UNIT, PEELED)
        out = grad_ptr + _start(index, V // UNIT, UNIT, PEELED)
        before = _before(index, V, PEELED)
        end = V - before
        rest = _rest(x + behind + cols, cols, end - behind, TAIL, FULL_TAIL, WIDTH)
        if PEELED:
            edge, edge_masks = edges_at(lanes, before, end, WIDTH)
            edge_x = load_chunk(x + edge, edge_masks, "evict_first")
        targets = targets_of(target_ptr, row, row < M, V, target_step, ignore_index)
        chosen = chosen_of(logits_ptr, (row * row_step * UNIT, 1), row < M, targets)
        state = _look_at_steps(state, ring, SEEN, STEPS, cols, end, LAYOUT, BATCH, FULL, WIDTH)
        if AGAIN:
            state, last = _look_at_batches(state, x + AHEAD + cols, batches, BATCH, WIDTH)
        if TAIL:
            state = _look_at_rest(state, rest, cols, end - behind, FULL_TAIL, WIDTH)
        if PEELED:
            state = _look_at_edges(state, edge_x, edge_masks[0])
        found, known = log_sum_and_mean(state if SMOOTHED else state[:2], V)
        found = _in_layout(found, LAYOUT)
        grads = slope(_in_layout(known, LAYOUT), targets, h, smoothing, V)
        gl.store(loss_ptr + row, loss_of(found[0], found[len(found) - 1], chosen, targets, smoothing, SMOOTHED))
        chosen = gradient_at_target(chosen, grads)
        if PEELED:
            _store(out + edge, _gradients(edge_x, _row_in(grads, VECTORS)), edge_masks, STORE)
        if AGAIN:
            _write_batches(out + AHEAD + cols, x + AHEAD + cols, last, batches, grads, BATCH, STORE)
        _write_rest(out + behind + cols, rest, grads, cols, end - behind, FULL_TAIL, WIDTH, STORE)
        following = index + gl.num_programs(0)
        after = logits_ptr + _start(following, row_step, UNIT, PEELED) + cols
        after_end = V - _before(following, V, PEELED)
        state = ()
        for s in gl.static_range(STEPS + 1):
            state = _step(state, ring, s, out + cols, grads, cols, end, after, after_end, following < M, LAYOUT, BATCH, LAG,
                          FULL, WIDTH, STORE)  # fmt: skip
        store_at_target(grad_ptr + row * V + targets[0], chosen, targets)
