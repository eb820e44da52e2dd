"""Chunks of rows: where they lie, how they are masked, how wide their accesses are.

A chunk is a tile [ROWS, BLOCK]. A row is as many chunks as its length takes, so that a length that is no power of two
does not pay for the next one. Columns are counted from an aligned address at or before the start of the row: a row
that starts between two of those begins at column `begin` (it is peeled). A chunk that crosses the begin or the end of
the row is read and written as whole vectors of WIDTH elements, and what is left beside them element by element.
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
