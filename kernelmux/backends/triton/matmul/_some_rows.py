"""Tiles for products of some hundred rows: of c^T = b^T a^T, so few that all run at one time.

A tile has 64, 128 or 256 columns of c, and as many rows as up to three instructions, each of a power of two, have columns:
for 144 rows 128 and 16, where tiles of c would have 192, for 600 three times 128, 64 and 16.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernelmux.backends.triton._launch.launch import Config, cdiv, processors, shared_bytes
from kernelmux.backends.triton.matmul._problem import MatmulShapes

FEWEST, MOST = 65, 1024  # rows of a that the times below were measured with
# Of a tile: those of an instruction, those beside them, and those of a third one.
ROWS = [
    (n, more, last)
    for n in (64, 128, 256)
    for more in (0, 16, 32, 64, 128)
    for last in (0, 16, 32, 64)
    if more < n and (last < more or not last) and n + more + last <= 352
]
SUMS = 176  # of a thread, which has addresses and products under way besides
BESIDE = 512  # bytes of shared memory for barriers and what warps are given, beside stages and results
# Products of a multiprocessor in a microsecond, with tiles 64 wide and wider; bytes that L2 gives to all, by the multiples
# of bytes at which lines begin; bytes from memory. A narrow instruction takes the time of so many columns and this share of
# its own. Microseconds of a step beside its products, of a launch, of one more that adds shares of K, and sums of these in
# one; of a ring of three stages. Of b, what tiles below one another read again, so much counts as if it came from memory.
# By least squares, on an H200: 44 products of 72 to 1000 rows, b with either axis contiguous, and 23 more, six of which
# have lines at odd multiples of 16 bytes. What is chosen takes 2 % longer in the mean than the quickest of up to ten tiles
# of the 44 and those of c, and 1 % longer of the others.
NARROW_RATE, RATE = 2.92e6, 3.48e6
FROM_L2, FROM_MEMORY = {128: 13.7e6, 32: 8.94e6, 16: 7.49e6}, 3.58e6
MORE_COLUMNS, SHARE, STEP, BEGIN = 27.8, 0.507, 0.0058, 10.0
ENDING, SUMS_ADDED, READ_AGAIN, FEW_STAGES = 1.6, 0.575e6, 0.195, 5.8
# Of a copy of a to lines of whole 128 bytes, which the product follows: microseconds, and bytes read or written in one.
COPY, COPIED = 1.27, 4e6


def some_rows_rule(p: MatmulShapes, of_c: Config) -> Config:
    """The quickest of the tiles of c^T, or those of c that are given; these where the copy engine cannot write lines of c.
    COPIES: a is copied first, where its lines begin at odd multiples of 16 bytes. 200 x 3000 by 3000 x 7176 takes 26.9 us
    with a copy and 32.5 without, 440 x 3000 by 3000 x 5120 31.9 and 35.8. At odd multiples of 32 the one that was timed
    does not pay: 665 x 6032 by 6032 x 5120 takes 69.0 and 66.2.

    H200, us, and with tiles of c: 144 x 7168 by 7168 x 7168 42.0 as 64 columns of 128 + 16 rows, 68.8; 310 x 3000 by 3000 x
    5000 30.9 as 128 of twice 128 + 32, 49.5; 80 x 5120 by 5120 x 5120 26.3 and 31.7. Where programs share K, another launch
    has to add their sums: 288 x 13824 by 13824 x 5120 takes 74.3 in three shares, 113.1.
    """
    if p.batch is not None or not FEWEST <= p.M <= MOST or p.N % 8:
        return of_c
    turned = list(_tiles_for(p))
    copying = [{**tile, "COPIES": True} for tile in turned] if p.a_strides[1] == 1 and p.line_multiples[0] == 16 else []
    return min((of_c, *turned, *copying), key=lambda config: _microseconds(p, config))


def _tiles_for(p: MatmulShapes) -> Iterator[Config]:
    for m in (64, 128, 256):
        for n, more, last in ROWS:
            for split in (1, 2, 3, 4):
                if config := turned_tile(p, m, (n, more, last), split):
                    yield config


def turned_tile(p: MatmulShapes, m: int, parts: tuple[int, int, int], split: int) -> Config | None:
    """The tile of m columns of c with rows of these instructions, and K shared by so many programs; None for one that does
    not fit or leaves most multiprocessors without work. Three instructions need four stages."""
    (n, more, last), sms, rows = parts, processors(p.device), sum(parts)
    tiles = cdiv(p.N, m) * cdiv(p.M, rows)
    piece = rows_leaving(n, last or more, split)
    stage, out = 128 * (m + rows), 2 * m * piece
    stages = min((shared_bytes(p.device) - 1024 - out) // (stage + 16), 10)
    fit = max(64, m // 2) * rows <= 128 * SUMS and stages >= 3 + (last > 0) and tiles * split <= sms
    if not fit or (split > 1 and (split * 512 > p.K or 2 * tiles * split < sms)):
        return None
    slots, room = 1, shared_bytes(p.device) - stages * stage - BESIDE
    while last and split == 1 and slots * piece < 64 and 2 * slots * out <= room:
        slots *= 2
    return {
        "BLOCK_M": m, "BLOCK_N": n, "MORE_N": more, "BLOCK_K": 64, "GROUP_M": 1, "STAGES": stages, "SPLIT": split,
        "TURNED": True, "LAST_N": last, "SLOTS": slots,
    }  # fmt: skip


def rows_leaving(n: int, fewest: int, split: int) -> int:
    """Of the rows of c of a tile those that leave through shared memory at a time; shares of K leave from registers.
    fewest: those of the last instruction beside the first one, or 0."""
    return min(64, n, fewest or n) if split == 1 else 8


def _microseconds(p: MatmulShapes, config: Config) -> float:
    """A rough time: of the products, or of what L2 gives to all multiprocessors, or of reading everything."""
    sides: list[int] = [config[name] for name in ("BLOCK_M", "BLOCK_N", "MORE_N", "SPLIT", "STAGES")]
    m, n, more, split, stages = sides
    widths = [width for width in (n, more, config.get("LAST_N", 0)) if width]
    rows, columns = (sum(widths), m) if config.get("TURNED") else (m, n + more)
    below, sms, steps = cdiv(p.M, rows), processors(p.device), cdiv(p.K, 64)
    tiles = below * cdiv(p.N, columns)
    wide = sum(max(width, MORE_COLUMNS + SHARE * width) for width in widths)
    products = m * wide * 64 / (RATE if m > 64 else NARROW_RATE) + STEP
    if config.get("TURNED"):
        steps, tiles = cdiv(steps, split), tiles * split
        rounds = 1.0
    else:
        rounds = tiles // sms + (tiles % sms > 0) / split
    of_a, of_b = p.line_multiples
    copies = config.get("COPIES", False)
    lines = 128 * (rows / FROM_L2[128 if copies else of_a] + columns / FROM_L2[of_b])
    work = rounds * steps * max(products, min(tiles, sms) * lines)
    read = 2 * (p.M * p.K + p.K * p.N + p.M * p.N) + READ_AGAIN * (below - 1) * 2 * p.K * p.N
    others = ENDING + split * p.M * p.N / SUMS_ADDED if split > 1 else 0.0
    others += COPY + 4 * p.M * p.K / COPIED if copies else 0.0
    return max(work, read / FROM_MEMORY + 0.05 * work) + BEGIN + others + FEW_STAGES * (stages < 4)
