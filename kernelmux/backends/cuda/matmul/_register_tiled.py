"""matmul on the FP32 pipes, 4 x 4 to 8 x 16 sums to a thread, with the tile that fills the multiprocessors best."""

from dataclasses import dataclass
from math import gcd

import torch

from kernelmux.backends.cuda._families.epilogue import PLAIN, Epilogue, EpilogueKind
from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, cdiv, ctype, multiprocessors
from kernelmux.backends.cuda.matmul._choice import HOPPER_MEMORY, MatmulProblem, Tiling, problem
from kernelmux.registry.util.cards import remembered

SOURCE = Source(__file__, "matmul_register_tiled.cu")
# Steps of a block that shares tiles, at least; what a tile takes to begin and end, as a length of K; microseconds of the
# launch that adds parts, and bytes of these per microsecond.
LEAST_STEPS, FILL, SUM, PARTS = 8, 48, 4.0, 3e6
# How much longer a tile takes in a kernel some of whose blocks share tiles, and one of 16 columns to a
# thread with columns of b contiguous.
STREAMED, TURNED = 1.06, 1.05


@dataclass(frozen=True)
class RegisterTiling(Tiling):
    """rows, columns: of a thread. lanes_m: of a warp, down the rows; so many warps share the tile. step: of K.
    waits: how many tiles' time a launch takes besides, of a tile whose steps are too short to hide what they wait for."""

    rows: int
    columns: int
    blocks: int
    lanes_m: int = 8
    warps: int = 4
    step: int = 16
    waits: float = 0.0

    @property
    def warps_m(self) -> int:
        return self.m // (self.lanes_m * self.rows)

    def skew(self, p: MatmulProblem) -> int:
        """Words beyond the rows of a stage. H200, us, with 4 and with none: 128 x 256 with rows of b contiguous, 4096^3
        2900 and 2822; with columns 2988 and 3017; 96 x 128 with columns, 465 x 6080 by 6080 x 7721 1003 and 1044."""
        return 0 if self.warps == 8 and not p.right.k_major else 4

    def shared(self, p: MatmulProblem) -> int:
        """Bytes of two stages."""
        return 8 * self.step * (self.m + self.n + 2 * self.skew(p))

    def cuts(self, p: MatmulProblem, multiprocessors: int) -> list[tuple[int, int]]:
        """Tiles of one block each, and blocks that share the others: no others; those that whole rounds leave over."""
        tiles, room = self.tiles(p), multiprocessors * self.blocks
        over = tiles % room
        blocks = min(room, over * cdiv(p.K, self.step) // LEAST_STEPS)
        return [(tiles, 0), *([(tiles - over, blocks)] if blocks > over else [])]

    def time(self, p: MatmulProblem, multiprocessors: int, whole: int, blocks: int) -> float:
        """Microseconds: those of the multiprocessor that has most to do, and of adding what blocks leave."""
        tiles, room = self.tiles(p), multiprocessors * self.blocks
        slowed = STREAMED if blocks else 1.0
        if self.columns == 16 and p.right.k_major and (blocks or self.warps == 8):
            slowed *= TURNED
        length = (tiles - whole) / blocks * p.K if blocks else p.K
        last = cdiv(blocks or tiles % room, multiprocessors)
        busy = tiles // room * self.blocks * (p.K + FILL) + self._lasting(last) * (length + FILL)
        added = SUM + (blocks + tiles - whole) * self.m * self.n * 8 / PARTS if blocks else 0.0
        work = busy * self.m * self.n * slowed / self.rate
        return max(work, p.bytes / HOPPER_MEMORY + 0.1 * work) + added

    def _lasting(self, resident: int) -> float:
        """How many tiles' time the last ones of a multiprocessor take, with fewer blocks than there is room for more. H200:
        2048 x 2880 by 2880 x 1500 takes 410 us in two of three blocks; one of 128 x 128 has 0.55 of the rate of two."""
        if self.waits or resident == self.blocks:
            return resident + self.waits
        return resident * max(1.05, 1 + 0.2 * (8 - resident * self.warps))

    def fits(self, p: MatmulProblem) -> bool:
        """Lines of 48 or 96 rows are no whole number of loads for all threads; K-major ones are of any number."""
        return p.left.k_major or self.m & (self.m - 1) == 0


# Rates are those of whole rounds in an H200, or what the times of few tiles leave. By the last, us: 4 tiles of a
# multiprocessor at K = 257 (5000 x 257 x 96) 19.5, 64 x 64 23.2; 10 at 128 (20000 x 128 x 64) 21.9, 64 x 64 18.8; 30 at 333
# (5003 x 333 x 777) 122; one at 163 (846 x 163 x 78) 11.0.
TILINGS = (
    RegisterTiling(128, 256, 1.94e5, 8, 16, blocks=1, warps=8),
    RegisterTiling(128, 128, 1.86e5, 8, 16, blocks=2),
    RegisterTiling(96, 128, 1.84e5, 12, 8, blocks=3),
    RegisterTiling(64, 128, 1.65e5, 8, 8, blocks=3),
    RegisterTiling(48, 256, 1.55e5, 12, 8, blocks=3, lanes_m=4),
    RegisterTiling(32, 256, 1.25e5, 8, 8, blocks=3, lanes_m=4),
    RegisterTiling(16, 128, 0.9e5, 4, 8, blocks=6, lanes_m=4, warps=2),
    RegisterTiling(64, 64, 1.2e5, 8, 4, blocks=4),
    RegisterTiling(32, 32, 0.95e5, 4, 4, blocks=8, warps=2, step=32, waits=2.5),
)


@dataclass(frozen=True)
class RegisterPlan:
    """A launch of the tiles, whose last ones leave `parts` floats, and one that adds these, None if there are none."""

    launch: BoundLaunch
    shape: tuple[int, ...]
    parts: int
    sum_parts: BoundLaunch | None

    def run(self, a: torch.Tensor, b: torch.Tensor, epilogue: Epilogue) -> torch.Tensor:
        c = a.new_empty(self.shape)
        parts = a.new_empty(self.parts, dtype=torch.float32) if self.parts else None
        self.launch(a, b, parts, c, *epilogue.tensors)
        if self.sum_parts:
            self.sum_parts(parts, c, *epilogue.tensors)
        return c


def register_tiled(a: torch.Tensor, b: torch.Tensor, precision: str, epilogue: Epilogue) -> torch.Tensor:
    return _best_plan(layout(a), layout(b), multiprocessors(a), epilogue.ending).run(a, b, epilogue)


@remembered
def _best_plan(a: Layout, b: Layout, multiprocessors: int, end: EpilogueKind) -> RegisterPlan:
    return plan(a, b, *choice(problem(a, b), multiprocessors), end)


def choice(p: MatmulProblem, multiprocessors: int) -> tuple[RegisterTiling, int, int]:
    """The quickest tiling, tiles that blocks have for themselves, and how many blocks share the others."""
    choices = [(t, *cut) for t in TILINGS if t.fits(p) for cut in t.cuts(p, multiprocessors)]
    return min(choices, key=lambda c: c[0].time(p, multiprocessors, *c[1:]))


def guarded(a: Layout, b: Layout, multiprocessors: int, end: EpilogueKind, flags: int) -> BoundLaunch:
    """The product in one launch, which ends at once if none of so many words in front of its arguments is set."""
    p = problem(a, b)
    t = min((t for t in TILINGS if t.fits(p)), key=lambda t: t.time(p, multiprocessors, t.tiles(p), 0))
    return plan(a, b, t, t.tiles(p), 0, end, flags).launch


def plan(
    a: Layout, b: Layout, t: RegisterTiling, whole: int, blocks: int, end: EpilogueKind = PLAIN.ending, flags: int = 0
) -> RegisterPlan:
    """The product with a given tiling; so many blocks share tiles behind the first `whole` ones. flags: of `guarded`."""
    p, size = problem(a, b), a.dtype.itemsize
    tiles, steps, threads = t.tiles(p), max(cdiv(p.K, t.step), 1), 32 * t.warps
    share = cdiv((tiles - whole) * steps, blocks) if tiles > whole else 0
    blocks = cdiv((tiles - whole) * steps, share) if share else 0
    options = dict(
        ELEMENT=ctype(p.dtype), C_VECTOR=gcd(4, p.N),
        A_VECTOR=min(4, p.left.bytes // size), B_VECTOR=min(4, p.right.bytes // size), THREAD_M=t.rows, THREAD_N=t.columns,
        LANES_M=t.lanes_m, WARPS_M=t.warps_m, WARPS_N=t.warps // t.warps_m, STEP_K=t.step, BLOCKS_PER_SM=t.blocks,
        SKEW=t.skew(p), STREAMED=int(blocks > 0), **({"GUARDED": flags} if flags else {}),
        **p.macros, **end.macros,
    )  # fmt: skip
    batch, of_batch = p.batch_signature, p.batch_numbers
    kernel = SOURCE.kernel(
        "matmul_register_tiled",
        f"{'flags* ' if flags else ''}a* b* parts* {end.tensors} "
        f"M:i32 N:i32 K:i32 lda:i64 ldb:i64 tiles:i32 whole:i32 share:i32 {batch}", **options,
    )  # fmt: skip
    numbers = p.M, p.N, p.K, p.left.ld, p.right.ld, tiles, whole, share, *of_batch
    launch = kernel.bind(whole + blocks, threads, *numbers, shared=t.shared(p), follows=flags > 0)
    if share % steps == 0:  # no tile is cut
        return RegisterPlan(launch, p.shape, 0, None)
    adding = SOURCE.kernel(
        "matmul_register_tiled_sum", f"parts* {end.tensors} M:i32 N:i32 K:i32 whole:i32 share:i32 {batch}", **options
    )
    groups = t.rows * t.columns // 4
    add = adding.bind((tiles - whole) * groups, threads, p.M, p.N, p.K, whole, share, *of_batch)
    return RegisterPlan(launch, p.shape, 2 * blocks * t.m * t.n, add)
