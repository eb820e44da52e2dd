"""Which rows short_gradients_kernel takes, and how they are dealt out: by their length alone, so many side by side."""

from __future__ import annotations

import math

from kernelmux.backends.triton._families.elementwise import ACCESS_BYTES
from kernelmux.backends.triton._launch.card import SPARE
from kernelmux.backends.triton._launch.launch import Config, cdiv
from kernelmux.backends.triton._rows.row_chunks import least_chunk
from kernelmux.backends.triton._rows.rows import clamp, next_power

# Elements of an access of rows that would be read less than 8 bytes at a time, which then begins where it is aligned. All
# figures here are of even_rows_and_turns.json of the trials, H200, bf16, us.
PEELED, LEAST = 4, 8
WARPS = 4
# Elements of a row, of one input, in a lane; lanes of a row that has as many accesses; columns of a chunk at least. With
# one tile on its way, by 16 lanes and by 8: rms_norm 170327 x 197 81.4 and 90.2, layer_norm 130561 x 257 80.6 and 94.9, but
# rms_norm 262144 x 130 78.6 and 71.3.
OF_A_LANE, LANES, COLUMNS = 16, (8, 32), 16
# Elements of an input in a thread at least, in all chunks; rows of a tile at most if they are peeled, and if not.
OF_A_THREAD, PEELED_ROWS, MOST_ROWS = 16, 32, 128
# The same in all programs of a multiprocessor, and these at most: one less where inputs and sums are more than three. By
# four and by three: rms_norm 170327 x 197 67.3 and 72.5, layer_norm 516222 x 65 77.7 and 73.8, add_rms_norm 84.4 and 81.1;
# by three and by two layer_norm 43690 x 769 76.9 and 89.0.
TOGETHER, MOST_PROGRAMS = 72, 4
# Bytes at most of aligned rows; of others, and how many of those at least. By this kernel, and by the other one: rms_norm
# 87000 x 384 62.1 and 67.4, layer_norm 131072 x 256 66.1 and 113.7, but rms_norm 65536 x 512 65.8 and 57.2; rms_norm
# 60000 x 1097 107.8 and 240.7, but in fp32 32768 x 1026 129.8 and 112.6; layer_norm 31000 x 66 17.3 and 29.3, 16200 x 130
# 18.9 and 27.1, but 2100 x 1025 19.2 and 15.9, rms_norm 5000 x 197 14.3 and 12.4.
EVEN, UNEVEN, MANY = 800, 2200, 6000


def many_short(M: int, N: int, itemsize: int) -> bool:
    """Whether rows are for this kernel; their number decides only for those that begin between two aligned addresses."""
    row = N * itemsize
    return row <= EVEN if row % ACCESS_BYTES == 0 else row <= UNEVEN and M >= MANY


def short_rule(N: int, itemsize: int, inputs: int, room: int, count: int) -> Config:
    """What the kernel must know at compilation, and programs per SM. room, count: as in row_gradients."""
    unit = math.gcd(N, ACCESS_BYTES // itemsize)
    peeled = unit * itemsize < LEAST
    width = PEELED if peeled else unit
    block = _block(N // width * width, width, peeled)
    chunks = max(1, cdiv(N // width * width, block))
    rows = next_power(cdiv(OF_A_THREAD * 32 * WARPS, chunks * block))
    rows = clamp(rows, PEELED, PEELED_ROWS if peeled else MOST_ROWS)
    programs = clamp(TOGETHER * 32 * WARPS // (rows * chunks * block), 2, MOST_PROGRAMS - (inputs + count > 3))
    tile = inputs * rows * chunks * block * itemsize
    ahead = clamp((room // programs - SPARE) // tile, 0, 2)
    return {
        "PER_SM": programs, "ROWS": rows, "BLOCK": block, "CHUNKS": chunks,
        "FULL": max(0, N - (width - 1) * peeled) // block, "UNIT": unit, "WIDTH": width,
        "PERIOD": width // unit if peeled else 1, "STAGES": 1 + ahead, "num_warps": WARPS,
        "maxnreg": min(255, 512 // programs // 8 * 8),
    }  # fmt: skip


def _block(whole: int, width: int, peeled: bool) -> int:
    """Columns of a chunk: less than a third of the row is in vain, and edges of a peeled one have a lane each."""
    fewest, most = LANES
    least = least_chunk(width) if peeled else COLUMNS
    lanes = clamp(next_power(cdiv(whole, OF_A_LANE)), min(fewest, next_power(cdiv(whole, width))), most)
    block = max(lanes * max(width, PEELED), least)
    while block > least and 3 * (cdiv(whole, block) * block - whole) >= whole:
        block //= 2
    return block
