"""The loss of long rows and its gradient, in Gluon: programs stay and walk down rows, the next one on its way meanwhile.

Shared memory holds the first chunks of a row, behind the one that is peeled; once they are looked at for the second time,
those of the next row take their places. What does not fit is read again from L2.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.language.extra import cuda

from kernelmux.backends.triton._losses.loss_rows import gradients, log_sum_and_mean, logit_lanes, logit_merge, slope
from kernelmux.backends.triton._losses.targets import chosen_of, loss_of, targets_of
from kernelmux.backends.triton._rows.row_shared import copy_in
from kernelmux.backends.triton._rows.row_tiles import chunk_masks, load_chunk, store_chunk


@gluon.jit
def _start(index, row_step, UNIT: gl.constexpr, PEELED: gl.constexpr):
    """Of a row: its first element, or the last aligned one before it, so that the compiler knows it to be aligned."""
    start = index.to(gl.int64) * row_step * UNIT
    return start // PEELED * PEELED if PEELED else start


@gluon.jit
def _ask(ring, ptr, cols, BATCHES: gl.constexpr, BATCH: gl.constexpr, BLOCK: gl.constexpr):
    """The first chunks of a row, a group of copies for each batch."""
    for b in gl.static_range(BATCHES):
        for k in gl.static_range(BATCH):
            copy_in(ring.index(b * BATCH + k), ptr + (b * BATCH + k) * BLOCK + cols)
        async_copy.commit_group()


@gluon.jit
def _batch(ptr, cols, V, WIDTH: gl.constexpr, BATCH: gl.constexpr, BLOCK: gl.constexpr, SMOOTHED: gl.constexpr):
    """What BATCH whole chunks add up to, per lane."""
    values = ()
    full = ()
    for k in gl.static_range(BATCH):
        x = load_chunk(ptr + k * BLOCK + cols, (), "evict_last")
        values += ((x.to(gl.float32),),)  # type: ignore[assignment]
        full += ((),)  # type: ignore[assignment]
    return logit_lanes(values, full, V, WIDTH, SMOOTHED)


@gluon.jit
def _from_ring(
    ring, first: gl.constexpr, V, LAYOUT: gl.constexpr, WIDTH: gl.constexpr, BATCH: gl.constexpr, SMOOTHED: gl.constexpr
):
    values = ()
    full = ()
    for k in gl.static_range(BATCH):
        values += ((ring.index(first + k).load(LAYOUT).to(gl.float32),),)  # type: ignore[assignment]
        full += ((),)  # type: ignore[assignment]
    return logit_lanes(values, full, V, WIDTH, SMOOTHED)


@gluon.jit
def _in_layout(values, LAYOUT: gl.constexpr):
    made = ()
    for i in gl.static_range(len(values)):
        made += (gl.convert_layout(values[i], LAYOUT),)  # type: ignore[assignment]
    return made


@gluon.jit
def loss_shared_kernel(
    loss_ptr, grad_ptr, logits_ptr, target_ptr, count_ptr, M, V, row_step, target_step, ignore_index,
    smoothing, batches,
    BLOCK: gl.constexpr, BATCH: gl.constexpr, BATCHES: gl.constexpr, TAIL: gl.constexpr, FULL: gl.constexpr,
    UNIT: gl.constexpr, WIDTH: gl.constexpr, PEELED: gl.constexpr, SPLIT: gl.constexpr, SMOOTHED: gl.constexpr,
    COUNTS: gl.constexpr, FOLLOWS: gl.constexpr,
):  # fmt: skip
    """Chunks of a row: the first one if it is peeled, BATCHES batches in the ring, `batches` that are read twice, TAIL.

    The first one and those of TAIL, FULL of them without a mask, are in registers. row_step is in units of UNIT elements.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, WIDTH], [1, 32], [1, gl.num_warps()], [1, 0])
    SHARED: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    STRIDE: gl.constexpr = BATCH * BLOCK
    HEAD: gl.constexpr = 1 if PEELED else 0
    RING: gl.constexpr = HEAD * BLOCK
    AGAIN: gl.constexpr = RING + BATCHES * STRIDE
    ring = gl.allocate_shared_memory(logits_ptr.dtype.element_ty, [BATCHES * BATCH, 1, BLOCK], SHARED)
    cols = gl.arange(0, BLOCK, gl.SliceLayout(0, LAYOUT))[None, :]
    one = gl.arange(0, 1, gl.SliceLayout(0, LAYOUT))[None, :]
    tail = AGAIN + batches * STRIDE
    _ask(ring, logits_ptr + _start(gl.program_id(0), row_step, UNIT, PEELED) + RING, cols, BATCHES, BATCH, BLOCK)
    h = 1.0
    if COUNTS:  # as in weight_of_rows
        if FOLLOWS:
            cuda.gdc_wait()
        count = gl.load(count_ptr)
        for i in gl.static_range(1, COUNTS):
            count += gl.load(count_ptr + i)
        h = 1.0 / count
    for index in range(gl.program_id(0), M, gl.num_programs(0)):
        row = index + one.to(gl.int64)  # [1, 1]
        target, counts, is_class = targets_of(target_ptr, row, row < M, V, target_step, ignore_index)
        chosen = chosen_of(logits_ptr, (row * row_step * UNIT, 1), row < M, (target, counts, is_class))
        ptr = logits_ptr + _start(index, row_step, UNIT, PEELED)
        out = grad_ptr + _start(index, V // UNIT, UNIT, PEELED)
        begin = (index.to(gl.int64) * V % PEELED).to(gl.int32) if PEELED else 0  # type: ignore[attr-defined]
        held = ()
        values = ()
        valid = ()
        for k in gl.static_range(HEAD + TAIL):
            first = k * BLOCK if k < HEAD else tail + (k - HEAD) * BLOCK
            masks = chunk_masks(first + cols, begin, begin + V, k >= HEAD and k < HEAD + FULL, WIDTH, SPLIT)
            x = load_chunk(ptr + first + cols, masks, "evict_first")
            held += (x,)  # type: ignore[assignment]
            values += ((x.to(gl.float32),),)  # type: ignore[assignment]
            valid += (masks,)  # type: ignore[assignment]
        state = logit_lanes(values, valid, V, WIDTH, SMOOTHED)
        for b in range(batches):
            part = _batch(ptr + AGAIN + b * STRIDE, cols, V, WIDTH, BATCH, BLOCK, SMOOTHED)
            state = logit_merge(state, part)
        for b in gl.static_range(BATCHES):
            async_copy.wait_group(BATCHES - 1 - b)
            state = logit_merge(state, _from_ring(ring, b * BATCH, V, LAYOUT, WIDTH, BATCH, SMOOTHED))
        found, known = log_sum_and_mean(state, V)
        found = _in_layout(found, LAYOUT)
        grads = slope(_in_layout(known, LAYOUT), (target + begin, counts, is_class), h, smoothing, V)
        following = index + gl.num_programs(0)
        after = logits_ptr + _start(following, row_step, UNIT, PEELED) + RING
        for k in gl.static_range(BATCHES * BATCH):
            x = ring.index(k).load(LAYOUT)
            if following < M:
                copy_in(ring.index(k), after + k * BLOCK + cols)
            if (k + 1) % BATCH == 0:
                async_copy.commit_group()
            store_chunk(out + RING + k * BLOCK + cols, gradients(x, RING + k * BLOCK + cols, grads), ())
        for b in range(batches):
            for k in gl.static_range(BATCH):
                first = AGAIN + b * STRIDE + k * BLOCK
                x = load_chunk(ptr + first + cols, (), "evict_first")
                store_chunk(out + first + cols, gradients(x, first + cols, grads), ())
        for k in gl.static_range(HEAD + TAIL):
            first = k * BLOCK if k < HEAD else tail + (k - HEAD) * BLOCK
            store_chunk(out + first + cols, gradients(held[k], first + cols, grads), valid[k])
        targets = (target, counts, is_class)
        gl.store(loss_ptr + row, loss_of(found[0], found[len(found) - 1], chosen, targets, smoothing, SMOOTHED))
