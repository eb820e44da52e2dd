"""What the matmul launchers share: how an operand lies in memory, how a product is cut into tiles and splits of K.

A launcher works out a `MatmulPlan` once per kind of call (shapes, strides, dtype, alignment) and afterwards only fills in
the addresses.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple, TypeVar

import torch

from kernelmux.backends.cuda._families.epilogue import Epilogue, EpilogueKind
from kernelmux.backends.cuda._launch.layout import Layout
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Kernel, Source, Tiles, cdiv, ctype
from kernelmux.registry.util import batch_strides
from kernelmux.registry.util.batch_strides import Batch
from kernelmux.registry.util.cards import Card, remembered

SPLITS = Source(__file__, "matmul_splits.cu")
THREADS = 256
HOPPER_MEMORY = 4e6  # bytes per microsecond, of the 4.8e6 of an H200


class Operand(NamedTuple):
    """Where the elements are: whether K is contiguous, the stride of the other index, bytes of the widest access; in a
    batch the strides from one matrix to the next along its two axes. aligned: all lines begin at multiples of 16 bytes,
    whatever their length."""

    k_major: bool
    ld: int
    bytes: int
    apart: tuple[int, int]
    aligned: bool


def operand(x: Layout, k_axis: int, apart: tuple[int, int] = (0, 0)) -> Operand:
    """How to read matrices, one of whose strides is 1; `k_axis` is the axis, 0 or 1, that is summed over."""
    shape, strides = x.shape[-2:], x.strides[-2:]
    inner = 0 if strides[0] == 1 and (strides[1] != 1 or shape[1] == 1) else 1
    extent, lines, size = shape[inner], shape[1 - inner], x.dtype.itemsize
    ld = strides[1 - inner] if lines > 1 else cdiv(extent, 16) * 16  # a single line has no next one
    begin = gcd(16, x.offset, ld * size, *(stride * size for stride in apart))
    return Operand(inner == k_axis, ld, gcd(begin, extent * size), apart, begin == 16)


class MatmulProblem(NamedTuple):
    """Sizes of each product, how its factors lie in memory, where the next ones of a batch are (None: there is one of
    each), and the shape of all results."""

    M: int
    N: int
    K: int
    left: Operand
    right: Operand
    batch: Batch | None
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def products(self) -> int:
        """How many there are."""
        return self.batch.products if self.batch else 1

    @property
    def line_multiple(self) -> int:
        """Bytes, 128, 32 or 16, at multiples of which lines of both factors begin, where TMA can read them.

        At odd multiples of 16 it reads five sectors for four.
        """
        sizes = [x.ld * self.dtype.itemsize for x in (self.left, self.right)]
        return next((n for n in (128, 32) if not any(size % n for size in sizes)), 16)

    def in_turn(self, tile: int) -> "MatmulProblem | None":
        """The products of the even and of the odd rows of a, as a batch of two; None where nothing is won by that, or where
        they do not fill tiles of so many rows. Of an odd number of rows, the second one has a row less."""
        turns = self.M >= 2 * tile and batch_strides.take_turns(self.K, self.left.ld, self.dtype.itemsize)
        if self.batch or not (turns and self.left.k_major and self.left.aligned):
            return None
        left = self.left._replace(ld=2 * self.left.ld, apart=(0, self.left.ld))
        return self._replace(M=cdiv(self.M, 2), left=left, batch=Batch(1, 2, left.apart, (0, 0)))

    @property
    def without_first(self) -> "MatmulProblem":
        """For an odd number of rows in turn, matrices of as many rows each: the even ones but the last, the odd ones, and
        the even ones but the first."""
        return self._replace(M=self.M - 1, batch=self.batch and self.batch._replace(inner=3))

    @property
    def bytes(self) -> int:
        """Of all operands and results."""
        return self.products * (self.M * self.K + self.K * self.N + self.M * self.N) * self.dtype.itemsize

    @property
    def macros(self) -> dict[str, int]:
        """What tells a kernel which index of each operand is contiguous, and whether there is a batch."""
        batched = {"BATCHED": 1} if self.batch else {}
        return {"A_K_MAJOR": int(self.left.k_major), "B_K_MAJOR": int(self.right.k_major), **batched}

    @property
    def batch_signature(self) -> str:
        """The parameters of a kernel that are last: those of a batch."""
        return "products:i32 inner:i32 a_outer:i64 a_inner:i64 b_outer:i64 b_inner:i64" if self.batch else ""

    @property
    def batch_numbers(self) -> tuple[int, ...]:
        """The numbers for those parameters."""
        return (self.products, self.batch.inner, *self.batch.a, *self.batch.b) if self.batch else ()


@remembered
def problem(a: Layout, b: Layout) -> MatmulProblem:
    """The problem of a @ b."""
    found = batch_strides.product(a.shape, a.strides, b.shape, b.strides)
    if found is None:
        raise ValueError(f"more than two strides walk the batches of {a} and {b}")
    M, N, K, a_strides, b_strides, batch = found
    left = operand(a._replace(shape=(M, K), strides=a_strides), 1, batch.a if batch else (0, 0))
    right = operand(b._replace(shape=(K, N), strides=b_strides), 0, batch.b if batch else (0, 0))
    return MatmulProblem(M, N, K, left, right, batch, a.dtype, (*a.shape[:-1], N))


@dataclass(frozen=True)
class MatmulPlan:
    """A kind of product, ready to run.

    shape: of the results. a, b: descriptors of the operands where the kernel wants those, last: another one of b. parts:
    pieces of K, whose products land in fp32 [parts, *shape] and are added by `sum_parts`. rest: a launch of the same
    tensors that follows, for tiles that the first one leaves.
    """

    launch: BoundLaunch
    shape: tuple[int, ...]
    a: Tiles | None = None
    b: Tiles | None = None
    parts: int = 1
    sum_parts: BoundLaunch | None = None
    last: Tiles | None = None
    rest: BoundLaunch | None = None

    def run(self, a: torch.Tensor, b: torch.Tensor, epilogue: Epilogue) -> torch.Tensor:
        c = a.new_empty(self.shape)
        factors = [self.a.of(a) if self.a else a, self.b.of(b) if self.b else b]
        if self.last:
            factors.append(self.last.of(b))
        if self.sum_parts is None:
            self.launch(*factors, c, *epilogue.tensors)
            if self.rest:
                self.rest(*factors, c, *epilogue.tensors)
            return c
        parts = a.new_empty((self.parts, *self.shape), dtype=torch.float32)
        self.launch(*factors, parts)
        self.sum_parts(parts, c, *epilogue.tensors)
        return c


def adding(parts: int, p: MatmulProblem, end: EpilogueKind) -> BoundLaunch | None:
    """The launch that adds the parts in order, ends the product and rounds once; None if K is in one piece."""
    if parts == 1:
        return None
    signature = f"parts* {end.tensors} size:i64 splits:i32 N:i32"
    kernel = SPLITS.kernel("matmul_sum_splits", signature, ELEMENT=ctype(p.dtype), **end.macros)
    size = p.products * p.M * p.N
    return kernel.bind(cdiv(size, THREADS), THREADS, size, parts, p.N)


def simple_kernel(source: Source, entry: str, p: MatmulProblem, end: EpilogueKind, **defines: object) -> Kernel:
    """A kernel that knows no splits."""
    signature = f"a* b* {end.tensors} M:i32 N:i32 K:i32 lda:i64 ldb:i64 {p.batch_signature}"
    return source.kernel(entry, signature, ELEMENT=ctype(p.dtype), **defines, **p.macros, **end.macros)


def simple_plan(kernel: Kernel, grid: int, block: int | tuple[int, int], p: MatmulProblem) -> MatmulPlan:
    """The plan of a kernel that knows no splits."""
    return MatmulPlan(kernel.bind(grid, block, p.M, p.N, p.K, p.left.ld, p.right.ld, *p.batch_numbers), p.shape)


@dataclass(frozen=True)
class Tiling:
    """A block's tile of c; `rate` is its products per microsecond on one multiprocessor with operands at hand."""

    m: int
    n: int
    rate: float
    blocks = 1  # that share a multiprocessor

    def tiles(self, p: MatmulProblem) -> int:
        return p.products * cdiv(p.M, self.m) * cdiv(p.N, self.n)

    def resident(self, multiprocessors: int) -> int:
        """Blocks that run at one time."""
        return multiprocessors * self.blocks

    def microseconds(
        self,
        p: MatmulProblem,
        splits: int,
        multiprocessors: int,
        moved: int | None = None,
        memory: float = HOPPER_MEMORY,
    ) -> float:
        """A rough time: whole waves of tiles, half a microsecond or more to fill and drain each, or that of reading and
        writing everything once, which hides most of it; the second pass of a split.

        moved: bytes of everything, where they are not those of the matrices. memory: bytes per microsecond.
        The measured times of 1024^3 to 8192^3 on an H200 follow it within 5 %, plus 4.5 us for the launch.
        """
        waves = cdiv(self.tiles(p) * splits, self.resident(multiprocessors))
        second_pass = 4 + splits * p.products * p.M * p.N * 8 / memory if splits > 1 else 0
        drain = max(0.5, self.m * self.n / 2**16)
        work = waves * (drain + self.blocks * self.m * self.n * cdiv(p.K, splits) / self.rate)
        return max(work, (p.bytes if moved is None else moved) / memory + 0.1 * work) + second_pass


AnyTiling = TypeVar("AnyTiling", bound=Tiling)


def memory_of(card: Card) -> float:
    """Bytes per microsecond that a product moves: fitted on an H200 for sm_90, of other cards the same share."""
    return HOPPER_MEMORY if card.capability == (9, 0) else HOPPER_MEMORY * card.bandwidth / 4.8e12


def choose(
    tilings: Iterable[AnyTiling], p: MatmulProblem, multiprocessors: int, memory: float = HOPPER_MEMORY, most: int = 32
) -> tuple[AnyTiling, int]:
    """The quickest tiling and number of splits of K by `Tiling.microseconds`; splits of 256 or more, at most so many."""
    splits = [s for s in range(1, most + 1) if s == 1 or s * 256 <= p.K]
    choices = ((t, s) for t in tilings for s in splits)
    return min(choices, key=lambda c: c[0].microseconds(p, c[1], multiprocessors, memory=memory))


def split_length(K: int, splits: int, block_k: int) -> int:
    """K of each split: equal shares, rounded up to whole tiles."""
    return cdiv(cdiv(K, splits), block_k) * block_k
