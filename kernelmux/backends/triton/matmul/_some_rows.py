"""Tiles for products of some hundred rows: of c^T = b^T a^T, so few that all run at one time.

A tile has 64, 128 or 256 columns of c, and as many rows as two instructions, each of a power of two, have columns: for 144
rows 128 and 16, where tiles of c would have 192.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernelmux.backends.triton._launch.launch import Config, cdiv, processors, shared_bytes
from kernelmux.backends.triton.matmul._problem import MatmulShapes

FEWEST, MOST = 65, 1024  # rows of a that the times below were measured with
# Of a tile: those of an instruction, and those beside them.
ROWS = [(n, more) for n in (64, 128, 256) for more in (0, 16, 32, 64, 128) if more < n and n + more <= 320]
SUMS = 176  # of a thread, which has addresses and products under way besides
# Products of a multiprocessor in a microsecond, with tiles 64 wide and wider; bytes that L2 gives to all, by the multiples
# of bytes at which lines begin; bytes from memory. Columns whose time an instruction of fewer takes too. Microseconds of a
# step beside its products, of a launch, of one more that adds shares of K, and sums of these in one. Of b, what tiles
# below one another read again, so much counts as if it came from memory. H200, 44 products of 72 to 1000 rows, b with
# either axis contiguous: what is chosen takes 1 % longer in the mean than the quickest of up to ten tiles and those of c.
NARROW_RATE, RATE = 2.95e6, 3.5e6
FROM_L2, FROM_MEMORY = {128: 11.5e6, 32: 8.3e6, 16: 7.1e6}, 4.3e6
LEAST_COLUMNS, STEP, BEGIN, ENDING, SUMS_ADDED, READ_AGAIN = 37, 0.05, 8.2, 10.7, 4.5e6, 0.31


def some_rows_rule(p: MatmulShapes, of_c: Config) -> Config:
    """The quickest of the tiles of c^T, or those of c that are given; these where the copy engine cannot write lines of c.

    H200, us, and with tiles of c: 144 x 7168 by 7168 x 7168 42.0 as 64 columns of 128 + 16 rows, 68.8; 310 x 3000 by 3000 x
    5000 30.9 as 128 of twice 128 + 32, 49.5; 288 x 13824 by 13824 x 5120 72.2 and 113.1; 80 x 5120 by 5120 x 5120 26.3 and
    31.7. Where programs share K, another launch has to add their sums: 310 x 5000 by 5000 x 3000 takes 35.3 in halves.
    """
    if p.batch is not None or not FEWEST <= p.M <= MOST or p.N % 8:
        return of_c
    return min((of_c, *_tiles_for(p)), key=lambda config: _microseconds(p, config))


def _tiles_for(p: MatmulShapes) -> Iterator[Config]:
    sms = processors(p.device)
    for m in (64, 128, 256):
        for n, more in ROWS:
            tiles = cdiv(p.N, m) * cdiv(p.M, n + more)
            for split in (1, 2, 3, 4):
                out = 2 * m * rows_leaving(n, more, split)
                stages = (shared_bytes(p.device) - 1024 - out) // (128 * (m + n + more) + 16)
                fit = max(64, m // 2) * (n + more) <= 128 * SUMS and stages >= 3 and tiles * split <= sms
                if fit and (split == 1 or (split * 512 <= p.K and 2 * tiles * split >= sms)):
                    yield {
                        "BLOCK_M": m, "BLOCK_N": n, "MORE_N": more, "BLOCK_K": 64, "GROUP_M": 1, "STAGES": min(stages, 10),
                        "SPLIT": split, "TURNED": True,
                    }  # fmt: skip


def rows_leaving(n: int, more: int, split: int) -> int:
    """Of the rows of c of a tile those that leave through shared memory at a time; shares of K leave from registers."""
    return min(64, n, more or n) if split == 1 else 8


def _microseconds(p: MatmulShapes, config: Config) -> float:
    """A rough time: of the products, or of what L2 gives to all multiprocessors, or of reading everything."""
    sides: list[int] = [config[name] for name in ("BLOCK_M", "BLOCK_N", "MORE_N", "SPLIT")]
    m, n, more, split = sides
    rows, columns = (n + more, m) if config.get("TURNED") else (m, n + more)
    below, sms, steps = cdiv(p.M, rows), processors(p.device), cdiv(p.K, 64)
    tiles = below * cdiv(p.N, columns)
    wide = max(n, LEAST_COLUMNS) + (max(more, LEAST_COLUMNS) if more else 0)
    products = m * wide * 64 / (RATE if m > 64 else NARROW_RATE) + STEP
    if config.get("TURNED"):
        steps, tiles = cdiv(steps, split), tiles * split
        rounds = 1.0
    else:
        rounds = tiles // sms + (tiles % sms > 0) / split
    work = rounds * steps * max(products, min(tiles, sms) * (rows + columns) * 128 / FROM_L2[p.line_multiple])
    read = 2 * (p.M * p.K + p.K * p.N + p.M * p.N) + READ_AGAIN * (below - 1) * 2 * p.K * p.N
    ending = ENDING + split * p.M * p.N / SUMS_ADDED if split > 1 else 0.0
    return max(work, read / FROM_MEMORY + 0.05 * work) + BEGIN + ending
