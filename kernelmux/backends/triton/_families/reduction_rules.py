"""How a reduction is cut: tiles, chunks of the axis, and how wide an access is."""

from __future__ import annotations

import math
from typing import NamedTuple

from kernelmux.backends.triton._families.elementwise import ACCESS_BYTES
from kernelmux.backends.triton._launch.card import per_processor
from kernelmux.backends.triton._launch.launch import Config, cdiv, processors
from kernelmux.backends.triton._rows.rows import Walk, clamp, next_power

PROGRAMS = 8  # that keep a multiprocessor busy
WHOLE = 8192  # a row longer than this is walked by its program in shorter blocks, or cut
FOLDED, SHORT_ROW = 2**22, 128  # bytes from which on odd rows are put together, as the second launch costs less
# Of uneven rows in one block, whose ends every warp reads. H200, bf16: reduce_max of 176615 x 4302 360 us by 4 warps,
# 445 by 8; reduce_sum of 60000 x 1001 34.5 us by one warp, 79 by four.
WARP_BYTES = 4096
PEELED = 128  # elements of a row whose ends are worth reading apart
TILE = 4096  # elements of a tile whose columns are reduced
MOST_PARTS = 65535  # programs in the second dimension of a grid


class ColumnRule(NamedTuple):
    """Up to `most` bytes: a tile's bytes of each row, least elements and warps; programs; bytes of the least chunk."""

    most: int
    across: int
    short: int
    num_warps: int
    programs: int
    chunk: int


# H200, cold L2: reduce_max of 4501 x 144 in bf16 takes 7.7 us in 16 chunks, 21.8 in one; reduce_sum of 320 x 5444 6.7 us a
# sector at a time, 12.2 by tiles of 128 bytes and of 64 rows.
COLUMNS = (
    ColumnRule(2**22, 32, TILE // 8, 4, 528, 8192),
    ColumnRule(2**24, 64, TILE, 4, 1056, 16384),
    ColumnRule(2**27, 128, TILE, 8, 528, 16384),
    ColumnRule(2**62, 128, TILE, 8, 1056, 16384),
)


def rule(w: Walk, itemsize: int, indexed: bool, device: int) -> Config:
    """The tile of a program; smaller where every lane has an index too, and two of them take longer to combine."""
    if w.along:
        # H200, 8192 columns, in one step: 90 (fp32) and 87 % (bf16) of the copy rate; in four steps 89 and 82 %.
        few = math.prod(w.sizes) < PROGRAMS * processors(device)
        whole = few or w.length <= WHOLE
        long = w.length >= 4 * WHOLE  # so that the last block, of which a part is empty, is a small part of the row
        block = min(next_power(w.length), WHOLE if few or ((whole or long) and not indexed) else WHOLE // 4)
        if w.length <= block and peeled(w, itemsize):
            rows = clamp(WARP_BYTES // (block * itemsize), 1, next_power(w.sizes[-1]))
            return {"ROWS": rows, "BLOCK_N": block, "num_warps": max(1, rows * block * itemsize // WARP_BYTES)}
        rows = clamp(2048 // block, 1, next_power(w.sizes[-1]))
        # By what there is, not by the tile: 20264 rows of 4600, fp16, take 49.4 us by 8 warps, 62.9 by 16.
        warps = clamp(next_power(rows * min(block, w.length) // 512 + 1) // 2, 4, 16 if whole else 8)
        return {"ROWS": rows, "BLOCK_N": block, "num_warps": warps}
    c = _columns(w, itemsize, device)
    across, short = c.across // itemsize, c.short // next_power(w.length)
    rows = clamp(max(across, short), 1, next_power(w.sizes[-1]))
    warps = 4 if short > across else c.num_warps
    return {"ROWS": rows, "BLOCK_N": min(next_power(w.length), TILE // rows), "num_warps": warps}


def _columns(w: Walk, itemsize: int, device: int) -> ColumnRule:
    """How columns are reduced."""
    total = math.prod(w.sizes) * w.length * itemsize
    return next(c for c in COLUMNS if total <= per_processor(c.most, device))


def parts(w: Walk, itemsize: int, config: Config, device: int) -> int:
    """How many chunks the axis is worth cutting into; columns into equal ones, so that all programs run at once."""
    programs, most = w.grid(config["ROWS"])[0], PROGRAMS * processors(device)
    if w.along:
        return 1 if programs >= most or w.length < 2 * WHOLE else min(cdiv(w.length, WHOLE), MOST_PARTS)
    c = _columns(w, itemsize, device)
    least = max(c.chunk // itemsize // config["ROWS"], config["BLOCK_N"])
    if w.length <= 2 * least:
        return 1
    return clamp(per_processor(c.programs, device) // programs, 1, w.length // least)


def rows_in_one(w: Walk, itemsize: int, device: int) -> int:
    """How many rows make one that starts at a whole access, where columns of many 16-bit rows are reduced; else 1.

    H200, bf16: reduce_max of 3840 x 2278 14.2 us (16.5), reduce_sum of 1500 x 50257 69 (84), of 8192 x 5001 32 (42).
    """
    dense = not w.along and len(w.sizes) == 1 and w.strides[1] == (1,) and w.steps[1] == w.sizes[0]
    row = math.prod(w.sizes) * itemsize
    if not dense or itemsize > 2 or row < SHORT_ROW or row * w.length < per_processor(FOLDED, device):
        return 1
    widest = ACCESS_BYTES // itemsize
    return math.gcd(w.length, widest // math.gcd(widest, w.sizes[0]))


def peeled(w: Walk, itemsize: int) -> int:
    """The elements of an access if rows start anywhere between two of them, and are long; else 0."""
    widest = ACCESS_BYTES // itemsize
    uneven = w.along and w.steps[1] == 1 and math.prod(w.sizes) > 1 and access_width(w, widest) < widest
    return widest if uneven and w.length >= PEELED else 0


def access_width(w: Walk, widest: int) -> int:
    """The widest access, in elements, that divides what lies contiguous and the distances between; 1 if nothing does."""
    strides, step = w.strides[1], w.steps[1]
    if w.along:
        return math.gcd(widest, w.length, *strides)
    return math.gcd(widest, w.sizes[-1], step, *strides[:-1]) if strides[-1] == 1 else 1
