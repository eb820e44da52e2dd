"""What the products of 8-bit operands share: scales, tiles for TMA, the launch."""

from collections.abc import Iterable
from math import gcd
from typing import NamedTuple

import torch

from kernelmux.backends.cuda._launch.layout import Layout
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, Tiles, cdiv
from kernelmux.registry.conditions import AtMost, Capability, Condition

LINE = 128  # bytes of K in a stage, the widest swizzle
ROWS = 128  # of a in a tile
THREADS = 384
GROUP_M = 16  # rows of tiles that are computed together
HALF_STAGE, ENDING = 546, 2000  # rough cycles of a stage of half a tile, and to begin and end a tile
# Until the blocks of a cluster run. H200: fp8, full, 2048^3 takes 19.9 us in single blocks, 20.7 in pairs.
MEETING = 800
SHARED = 227 << 10  # bytes that a block may have on sm_90


INDICES = tuple(AtMost(axis, 2**31 - 512) for axis in "MNK")  # int, rounded up to whole tiles
ON_HOPPER: tuple[Condition, ...] = (Capability((9, 0), below=(10, 0)), *INDICES)


def vector(x: Layout, k_axis: int) -> int:
    """Bytes per access along K: 16 where every line starts at a multiple of that, and is one long."""
    line = x.strides[1 - k_axis] if x.shape[1 - k_axis] > 1 else 0
    return 1 if x.strides[k_axis] != 1 or x.shape[k_axis] % 16 or line % 16 or x.offset else 16


def step(scale: torch.Tensor | None) -> int:
    """Elements from a scale to the next: 0 where one stands for all."""
    return int(scale is not None and scale.numel() > 1)


def lines(x: Layout, k_axis: int, extent: int) -> Tiles:
    """An operand as lines along K, in boxes of `extent` lines."""
    count, length = x.shape[1 - k_axis], x.shape[k_axis]
    pitch = x.strides[1 - k_axis] if count > 1 else cdiv(length, 16) * 16
    return Tiles((count, length), (pitch, 1), (extent, LINE), swizzle=LINE)


class ByteLaunch(NamedTuple):
    """The launch of a kernel, and how it reads both operands."""

    kernel: BoundLaunch
    a: Tiles
    b: Tiles
    c: Tiles | None = None

    def __call__(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        scale_a: torch.Tensor | None,
        scale_b: torch.Tensor | None,
        c: torch.Tensor,
    ) -> None:
        self.kernel(self.a.of(a), self.b.of(b), scale_a, scale_b, self.c.of(c) if self.c else c)


class ByteTile(NamedTuple):
    """Columns of a block's tile of 128 rows, a multiple of 64, and the cycles of a stage of it.

    halves: the last tiles, where they would fill a round of blocks by half at most, are two works each. H200, fp8, us so
    and without: 4096 x 6144 by 6144 x 11008 371.4 and 388.1, 3008 x 2880 by 2880 x 5760 86.0 and 94.0.
    down: blocks of a cluster, whose tiles lie below one another; each fetches its share of their columns of b for all.
    """

    columns: int
    cycles: int
    halves: bool = False
    down: int = 1

    def beside(self, size: int, *, scaled: bool) -> int:
        """Bytes of the strips through which results of this size leave, and of the scales of columns: of 8 warps."""
        return 8 * 16 * (LINE + 8 * size) + (8 * 4 * self.columns if scaled else 0)

    def stages(self, size: int, *, scaled: bool) -> int:
        """Of the ring: as many as there is room for, at most 8."""
        return min(8, (SHARED - self.beside(size, scaled=scaled)) // self._stage)

    def shared(self, size: int, *, scaled: bool) -> int:
        """Bytes of the stages with their barriers, and what lies beside."""
        return self.stages(size, scaled=scaled) * self._stage + self.beside(size, scaled=scaled)

    @property
    def _stage(self) -> int:
        return (ROWS + self.columns) * LINE + 2 * 8

    def tiles(self, M: int, N: int) -> int:
        """Of c, for a cluster each."""
        return cdiv(M, ROWS * self.down) * cdiv(N, self.columns)

    def whole(self, M: int, N: int, multiprocessors: int) -> int:
        """How many of them are one work."""
        tiles, clusters = self.tiles(M, N), multiprocessors // self.down
        rest = tiles % clusters
        return tiles - rest if self.halves and 2 * rest <= clusters else tiles

    def time(self, a: Layout, b: Layout, multiprocessors: int) -> float:
        """Rough cycles: of whole rounds of blocks, and of half a tile in the last one."""
        (M, K), N = a.shape, b.shape[1]
        whole, stages = self.whole(M, N, multiprocessors), cdiv(K, LINE)
        fetched = ROWS * _line(a.strides[0]) + self.columns // self.down * _line(b.strides[1])
        cycles = max(self.cycles, fetched) * stages + ENDING
        rest = HALF_STAGE * stages + ENDING if whole < self.tiles(M, N) else 0
        return cdiv(whole, multiprocessors // self.down) * cycles + rest + (MEETING if self.down > 1 else 0)


def _line(pitch: int) -> float:
    """Rough cycles for L2 to deliver a line of a stage, where all multiprocessors ask. Lines that begin in the middle of
    a sector of 32 bytes take longer: so all blocks that need the same ones should share them.

    H200, us alone and in pairs: fp8 10928 x 2384 by 2384 x 14336, fast, 815 and 567 to 610, 2839 x 4016 by 4016 x 5120,
    full, 150 and 109, 5000 x 1520 by 1520 x 9008, fast, 160 and 124, int8 4281 x 8112 by 8112 x 14336 1059 and 706. With
    whole sectors: fp8 8192 x 4096 by 4096 x 14336, full, 711 and 684, by 4096 x 4096, fast, 192.8 and 190.5.
    """
    return 3.8 if pitch % 32 else 2.1


def fastest(a: Layout, b: Layout, multiprocessors: int, tiles: Iterable[ByteTile]) -> ByteTile:
    """The tile of least `time`; there is none below the first row of them."""
    most = multiprocessors if a.shape[0] > ROWS else 1  # blocks of a cluster
    return min((t for t in tiles if t.down <= most), key=lambda t: t.time(a, b, multiprocessors))


def byte_launch(
    source: Source, a: Layout, b: Layout, t: ByteTile, size: int, scaled: bool, multiprocessors: int, **macros: object
) -> ByteLaunch:
    """Of the kernel of this source, which is called as its file is; bytes of a result, whether columns have scales."""
    (M, K), N = a.shape, b.shape[1]
    whole = t.whole(M, N, multiprocessors)
    # The copy engine writes results of several rounds. H200, fp8, us so and by the threads: 8192 x 4096 by 4096 x 4096
    # 193.8 and 195.0, but 1024 x 4096 by that 31.5 and 31.1.
    halves, mapped = whole < t.tiles(M, N), N * size % 16 == 0 and t.down * t.tiles(M, N) > 2 * multiprocessors
    kernel = source.kernel(
        source.path.stem, f"a:map b:map scale_a* scale_b* c{':map' if mapped else '*'} M:i32 N:i32 K:i32 whole:i32",
        **macros, DOWN=t.down, MAPPED=int(mapped), BLOCK_N=t.columns,
        STAGES=t.stages(size, scaled=scaled), GROUP_M=GROUP_M, HALVES=int(halves), C_VECTOR=gcd(16 // size, N),
    )  # fmt: skip
    grid = t.down * min(2 * t.tiles(M, N) - whole, multiprocessors // t.down)
    launch = kernel.bind(grid, THREADS, M, N, K, whole, shared=t.shared(size, scaled=scaled))
    results = Tiles((M, N), (N, 1), (16, LINE // size), swizzle=LINE) if mapped else None
    return ByteLaunch(launch, lines(a, 1, ROWS), lines(b, 0, t.columns // (t.down * (2 if halves else 1))), results)
