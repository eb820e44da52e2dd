"""Chunks of rows: where they lie, how they are masked, how wide their accesses are.

A chunk is a tile [ROWS, BLOCK]. A row is as many chunks as its length takes, so that a length that is no power of two
does not pay for the next one. Columns are counted from an aligned address at or before the start of the row: a row
that starts between two of those begins at column `begin` (it is peeled). A chunk that crosses the begin or the end of
the row is read and written as whole vectors of WIDTH elements, and what is left beside them element by element.

Where columns are counted from the first aligned address at or after the start instead, chunks are of whole vectors alone,
and the elements beside them are `edges`: one to a thread, where a chunk at either end had 8 more accesses of each. H200,
bf16: log_softmax_backward of 11186 x 5812 97 us (130), rms_norm of 8192 x 5001 59 (108).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def chunk_columns(first, BLOCK: tl.constexpr, INDEX: tl.constexpr):
    """[1, BLOCK]"""
    return first + tl.arange(0, BLOCK).to(INDEX)[None, :]


@triton.jit
def chunk_masks(cols, begin, end, FULL: tl.constexpr, WIDTH: tl.constexpr, SPLIT: tl.constexpr):
    """Masks [1, BLOCK] of the whole vectors in [begin, end), and of the elements beside them; () where it has all."""
    if FULL:
        return ()
    else:
        first = cols // WIDTH * WIDTH
        whole = tl.max_constancy((first >= begin) & (first + WIDTH <= end), [1, WIDTH])
        if SPLIT:
            return whole, (cols >= begin) & (cols < end) & ~whole
        else:
            return (whole,)


@triton.jit
def of_rows(masks, mask_rows, MASK_ROWS: tl.constexpr):
    """The same for the rows that exist: [ROWS, BLOCK], or [ROWS, 1] where there was no mask."""
    if not MASK_ROWS:
        return masks
    elif len(masks) == 0:
        return (mask_rows[:, None],)
    elif len(masks) == 1:
        return (mask_rows[:, None] & masks[0],)
    else:
        return mask_rows[:, None] & masks[0], mask_rows[:, None] & masks[1]


@triton.jit
def load_chunk(pointers, masks, POLICY: tl.constexpr):
    if len(masks) == 0:
        return tl.load(pointers, eviction_policy=POLICY)
    else:
        x = tl.load(pointers, mask=masks[0], other=0.0, eviction_policy=POLICY)
        if len(masks) == 1:
            return x
        else:
            return tl.where(masks[0], x, tl.load(pointers, mask=masks[1], other=0.0, eviction_policy=POLICY))


@triton.jit
def store_chunk(pointers, value, masks):
    value = value.to(pointers.dtype.element_ty)
    if len(masks) == 0:
        tl.store(pointers, value)
    for i in tl.static_range(len(masks)):
        tl.store(pointers, value, mask=masks[i])


@triton.jit
def load_chunks(source, cols, masks, POLICY: tl.constexpr):
    """The chunk at these columns of each tensor, in its own dtype. source: tensors, offsets of their column 0, steps."""
    values = ()
    for i in tl.static_range(len(source[0])):
        pointers = source[0][i] + (source[1][i] + cols * source[2][i])
        values += (load_chunk(pointers, masks, POLICY),)  # type: ignore[assignment]
    return values


@triton.jit
def in_fp32(values):
    wide = ()
    for i in tl.static_range(len(values)):
        wide += (values[i].to(tl.float32),)  # type: ignore[assignment]
    return wide


@triton.jit
def fill(x, masks, value):
    """x where it is part of the row, value elsewhere."""
    if len(masks) == 0:
        return x
    elif len(masks) == 1:
        return tl.where(masks[0], x, value)
    else:
        return tl.where(masks[0] | masks[1], x, value)


@triton.jit
def edges(before, end, BLOCK: tl.constexpr, WIDTH: tl.constexpr, INDEX: tl.constexpr):
    """Columns of a peeled row beside its whole vectors, one to a thread, [1, BLOCK / WIDTH], and their masks.

    `before` of them come before column 0, and the others after the last whole vector before `end`. Of several rows both are
    [ROWS, 1], and so many rows of columns and masks come of them.
    """
    return edges_at(tl.arange(0, BLOCK // WIDTH).to(INDEX)[None, :], before, end, WIDTH)


@triton.jit
def edges_at(lane, before, end, WIDTH: tl.constexpr):
    """The same of these lanes, [1, LANES]."""
    cols = tl.where(lane < WIDTH, lane, lane + end // WIDTH * WIDTH) - WIDTH
    return cols, ((lane < 2 * WIDTH) & (cols >= -before) & (cols < end),)


@triton.jit
def by_vector(x, WIDTH: tl.constexpr):
    """[ROWS, BLOCK] as [ROWS, BLOCK / WIDTH, WIDTH]: the last dimension lies in one thread."""
    return tl.reshape(x, [x.shape[0], x.shape[1] // WIDTH, WIDTH])


@triton.jit
def of_vectors(x, WIDTH: tl.constexpr):
    """[ROWS, LANES] as [ROWS, BLOCK], each value WIDTH times."""
    wide = tl.broadcast_to(x[:, :, None], [x.shape[0], x.shape[1], WIDTH])
    return tl.reshape(wide, [x.shape[0], x.shape[1] * WIDTH])


@triton.jit
def spread(values, WIDTH: tl.constexpr):
    """Tiles of edges as tiles of a chunk, where they stand at the first element of each vector."""
    wide = ()
    for i in tl.static_range(len(values)):
        wide += (of_vectors(values[i], WIDTH),)  # type: ignore[assignment]
    return wide


@triton.jit
def spread_mask(mask, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    return of_vectors(mask, WIDTH) & (tl.arange(0, BLOCK)[None, :] % WIDTH == 0)
