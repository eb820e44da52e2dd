"""The kernels of paged_attention: even shares of the keys of all sequences, whose lengths only the GPU knows.

All tiles of all keys stand in one line, ordered by sequence and key head. A program takes a share of them, wherever
sequences begin and end, and writes a head that it has whole, or a part of one.
"""

import triton
import triton.language as tl
from triton.language.extra import cuda

from kernelmux.backends.triton._launch.dependent import follow_previous
from kernelmux.backends.triton.attention._split_keys import joined


@triton.jit
def tiles_of(lengths_ptr, batches, B, most, BLOCK_N: tl.constexpr, INDEX: tl.constexpr):
    """Tiles of keys of each key head of some sequences. Without keys there is one too: its zeros must be written."""
    length = tl.load(lengths_ptr + batches, mask=batches < B, other=0)
    length = tl.where((length < 0) | (length > most), 0, length)
    return tl.where(batches < B, (tl.maximum(length, 1) - 1) // BLOCK_N + 1, 0).to(INDEX)


@triton.jit
def share_of(
    lengths_ptr, B, G, most, shares, LEAST: tl.constexpr, BLOCK_N: tl.constexpr, SCANNED: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    """Tiles of a share: those of all sequences and key heads stand in one line, which is divided evenly."""
    tiles = tl.zeros([SCANNED], INDEX)
    for start in range(0, B, SCANNED):
        tiles += tiles_of(lengths_ptr, start + tl.arange(0, SCANNED), B, most, BLOCK_N, INDEX)
    return tl.maximum(tl.cdiv(tl.sum(tiles, 0) * G, shares), LEAST)


@triton.jit
def sequence_of(index, lengths_ptr, B, G, most, BLOCK_N: tl.constexpr, SCANNED: tl.constexpr, INDEX: tl.constexpr):
    """The sequence of tile number `index` of the line, B if there is no such tile, and the number of its first one."""
    batch = 0
    first = index * 0
    scanned = index * 0
    for start in range(0, B, SCANNED):
        batches = start + tl.arange(0, SCANNED)
        tiles = tiles_of(lengths_ptr, batches, B, most, BLOCK_N, INDEX) * G
        before = (scanned + tl.cumsum(tiles, 0) <= index) & (batches < B)
        batch += tl.sum(before.to(tl.int32), 0)
        first += tl.sum(tl.where(before, tiles, 0), 0)
        scanned += tl.sum(tiles, 0)
    return batch, first


@triton.jit
def paged_attention_shares_kernel(
    y_ptr, sums_ptr, stats_ptr, spans_ptr, q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, B, P, most, table_row, scale,
    q_strides, k_strides, v_strides,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, S: tl.constexpr, FLIP: tl.constexpr, SHARES: tl.constexpr,
    LEAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_N: tl.constexpr, SCANNED: tl.constexpr,
    INDEX: tl.constexpr, LEADS: tl.constexpr,
):  # fmt: skip
    if LEADS:
        cuda.gdc_launch_dependents()
    follow_previous(LEADS)
    # The tiles of the heads of a group stand side by side, as they read the same keys.
    TILES: tl.constexpr = (H // G + ROWS - 1) // ROWS
    rows = tl.program_id(0) % TILES * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    in_q = (rows < H // G)[:, None] & (columns < D)[None, :]
    share = share_of(lengths_ptr, B, G, most, SHARES, LEAST, BLOCK_N, SCANNED, INDEX)
    at = (tl.program_id(0) // TILES).to(INDEX) * share
    stop = at + share
    batch, first = sequence_of(at, lengths_ptr, B, G, most, BLOCK_N, SCANNED, INDEX)
    while (at < stop) & (batch < B):
        length = tl.load(lengths_ptr + batch)
        possible = (length >= 0) & (length <= most)
        length = tl.where(possible, length, 0)  # of an impossible one the table would be read behind its end
        tiles = (tl.maximum(length, 1) - 1) // BLOCK_N + 1
        group = ((at - first) // tiles).to(tl.int64)
        begin = ((at - first) % tiles).to(tl.int32)
        count = tl.minimum(tiles - begin, stop - at).to(tl.int32)
        end = tl.minimum(length, (begin + count) * BLOCK_N)
        heads = group * (H // G) + rows
        # [ROWS, COLUMNS]
        q_rows = batch.to(tl.int64) * q_strides[0] + heads * q_strides[1]
        q = tl.load(q_ptr + q_rows[:, None] + columns[None, :], mask=in_q, other=0.0)
        if FLIP:
            q = -q
        k_ptrs = k_ptr + group * k_strides[1] + columns[None, :]
        v_ptrs = v_ptr + group * v_strides[1] + columns[None, :]
        pages_ptr = table_ptr + batch.to(tl.int64) * table_row
        acc = tl.zeros([ROWS, COLUMNS], tl.float32)
        top = tl.full([ROWS], -float("inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        # From 0: of a loop that begins at a number from the loop around it, Triton 3.7 to 3.9 do not see that 8 columns are
        # one load (H200, D = 128: 404 us under 3.6, 1107 under 3.7.1).
        for done in range(0, end - begin * BLOCK_N, BLOCK_N):
            start = begin * BLOCK_N + done
            keys = start + tl.arange(0, BLOCK_N)
            inside = keys < end
            if S % BLOCK_N == 0:  # the whole block lies in one page
                page = tl.load(pages_ptr + start // S)
                slots = (start % S + tl.arange(0, BLOCK_N)).to(tl.int64)
            else:
                page = tl.load(pages_ptr + keys // S, mask=inside, other=0)
                slots = (keys % S).to(tl.int64)
            known = (page >= 0) & (page < P)
            here = inside & known
            k_rows = page.to(tl.int64) * k_strides[0] + slots * k_strides[2]
            v_rows = page.to(tl.int64) * v_strides[0] + slots * v_strides[2]
            in_block = here[:, None] & (columns < D)[None, :]
            # [BLOCK_N, COLUMNS]; a slot that was never written is not read: 0 * NaN is NaN
            k = tl.load(k_ptrs + k_rows[:, None], mask=in_block, other=0.0)
            scores = tl.dot(q, k.T)
            scores = tl.where(inside[None, :], scores, -float("inf"))
            scores = tl.where((here | (inside == 0))[None, :], scores, float("nan"))
            new_top = tl.maximum(top, tl.max(scores, 1) * scale)
            p = tl.exp2(scores * scale - new_top[:, None])
            fade = tl.exp2(top - new_top)
            total = total * fade + tl.sum(p, 1)
            v = tl.load(v_ptrs + v_rows[:, None], mask=in_block, other=0.0)
            acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None])
            top = new_top

        total = tl.where(possible, total, float("nan"))
        if count == tiles:
            out = acc / tl.where(total == 0.0, 1.0, total)[:, None]
            y_rows = batch.to(tl.int64) * H + heads
            tl.store(y_ptr + y_rows[:, None] * D + columns[None, :], out.to(y_ptr.dtype.element_ty), mask=in_q)
        else:
            # A program has two at most: of what an earlier one has begun, and of what it begins and a later one ends.
            part = (2 * tl.program_id(0) + (begin == 0)).to(tl.int64) * ROWS + tl.arange(0, ROWS)
            tl.store(sums_ptr + part[:, None] * D + columns[None, :], acc, mask=in_q)
            tl.store(stats_ptr + 2 * part, top, mask=rows < H // G)
            tl.store(stats_ptr + 2 * part + 1, total, mask=rows < H // G)
        span_ptr = spans_ptr + 2 * (batch.to(tl.int64) * G + group)
        starts = (begin == 0) & (tl.program_id(0) % TILES == 0)
        tl.store(span_ptr, (at // share).to(tl.int32), mask=starts)
        tl.store(span_ptr + 1, ((at + tiles - 1) // share).to(tl.int32), mask=starts)
        at += count
        if at == first + tiles.to(INDEX) * G:
            first = at
            batch += 1


@triton.jit
def paged_attention_join_kernel(
    y_ptr, sums_ptr, stats_ptr, spans_ptr, GROUP: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, MERGED: tl.constexpr, FOLLOWS: tl.constexpr,
):  # fmt: skip
    """One head of a sequence, if it has more than one part."""
    follow_previous(FOLLOWS)
    TILES: tl.constexpr = (GROUP + ROWS - 1) // ROWS
    line = tl.program_id(0).to(tl.int64)
    row = tl.program_id(0) % GROUP
    span_ptr = spans_ptr + line // GROUP * 2
    begin = tl.load(span_ptr)
    count = tl.load(span_ptr + 1) - begin + 1
    if count > 1:
        columns = tl.arange(0, COLUMNS)
        part = (2 * (begin * TILES + row // ROWS)).to(tl.int64) * ROWS + row % ROWS
        acc, total, _ = joined(sums_ptr, stats_ptr, part, 2 * TILES * ROWS, ROWS, count, D, COLUMNS, MERGED)
        out = acc / tl.where(total == 0.0, 1.0, total)
        tl.store(y_ptr + line * D + columns, out.to(y_ptr.dtype.element_ty), mask=columns < D)
