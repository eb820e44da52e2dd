"""Products of 8-bit operands with few rows of a, which read the weights once; clusters share K where tiles are few."""

from math import gcd
from typing import NamedTuple

from kernelmux.backends.cuda._families.byte_products import LINE, ON_HOPPER, ByteLaunch, lines
from kernelmux.backends.cuda._launch.layout import Layout
from kernelmux.backends.cuda._launch.runtime import Source, cdiv
from kernelmux.registry.conditions import AtMost, Condition

MOST_ROWS = 128
FEW_ROWS: tuple[Condition, ...] = (*ON_HOPPER, AtMost("M", MOST_ROWS))
COLUMNS = 64  # of c, that a block has
THREADS = 160  # those that multiply, and a warp that fetches


class FewRowsTile(NamedTuple):
    """Rows of a, stages of the ring, blocks of the cluster that share K."""

    rows: int
    stages: int
    splits: int

    @property
    def shared(self) -> int:
        """Bytes of the ring or of the sums that take its place, of barriers and of scales."""
        ring, sums = self.stages * _stage(self.rows), self.rows * (COLUMNS + 4) * 4
        return max(ring, sums) + 16 * self.stages + 4 * (COLUMNS + self.rows)


def few_rows_launch(source: Source, a: Layout, b: Layout, t: FewRowsTile, **macros: object) -> ByteLaunch:
    """Of the kernel of this source, which is called as its file is."""
    (M, K), N = a.shape, b.shape[1]
    kernel = source.kernel(
        source.path.stem, "a:map b:map scale_a* scale_b* c* M:i32 N:i32 K:i32", **macros,
        ROWS=t.rows, STAGES=t.stages, SPLITS=t.splits, C_VECTOR=gcd(4, N),
    )  # fmt: skip
    launch = kernel.bind(cdiv(N, COLUMNS) * t.splits, THREADS, M, N, K, shared=t.shared)
    return ByteLaunch(launch, lines(a, 1, t.rows), lines(b, 0, COLUMNS))


def pays(M: int, N: int, multiprocessors: int) -> bool:
    """Every tile reads all rows of a: with more than 64 of them, not for more tiles than run at a time."""
    return M <= 64 or cdiv(N, COLUMNS) <= 2 * multiprocessors


def few_rows_tile(M: int, N: int, K: int, multiprocessors: int) -> FewRowsTile:
    """Blocks that share K as `_splits` has it, with a ring as long as they need or have room for.

    A block that has a multiprocessor to itself may have all of its shared memory, else a third of it or four stages:
    clusters are placed whole, and wait for one another where they take all room. More tiles than run at a time want half
    of it. H200, us: fp8, 64 x 4096 by 4096 x 14336 with a half 23.4, with a third 22.7; int8, 17 x 4096 by 4096 x 4096 in
    clusters of two with all of it 11.7, of four with a half 14.9.
    """
    rows = next(n for n in (8, 16, 32, 64, 128) if M <= n)
    tiles, steps = cdiv(N, COLUMNS), cdiv(K, LINE)
    splits = _splits(rows, tiles, steps, multiprocessors)
    if tiles * splits <= multiprocessors and splits <= 2:
        room = 225 << 10
    else:
        room = (111 if tiles > 2 * multiprocessors else 73) << 10
    most = max(room // _stage(rows), 4 if splits <= 2 else 2)
    return FewRowsTile(rows, max(2, min(most, cdiv(steps, splits))), splits)


def _splits(rows: int, tiles: int, steps: int, multiprocessors: int) -> int:
    """Where there are tiles for nearly half of the multiprocessors, a has a block for each up to 16 rows, else a pair.

    H200, us with whole tiles and with pairs: fp8, 1 x 4096 by 4096 x 4096 11.3 and 11.5, int8, 17 rows 13.0 and 11.7,
    fp8, 32 x 8192 by 8192 x 8192 26.4 and 25.0.
    """
    wanted: tuple[int, ...] = (8, 4, 2)
    if 20 * tiles >= 9 * multiprocessors:
        wanted = (1,) if rows <= 16 else (2,)
    # Of blocks with 128 rows two have room on a multiprocessor, of others three: clusters of many must not need all of it.
    most = {n: multiprocessors if n > 2 and rows == 128 else 2 * multiprocessors for n in wanted}
    return next((n for n in wanted if n * tiles <= most[n] and 4 * n <= steps), 1)


def _stage(rows: int) -> int:
    """Bytes of a stage."""
    return (rows + COLUMNS) * LINE
