"""The ladder of conv2d and of its gradients: kernels, their tiles, pieces of K.

A planner works out a `ConvolutionPlan` once per kind of call; afterwards only the addresses are filled in.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch

from kernelmux.backends.cuda._launch.occupancy import fits
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, cdiv, ctype
from kernelmux.backends.cuda.conv2d._problem import Convolution, operands
from kernelmux.backends.cuda.conv2d._sums import TermCut, choice, in_one_launch, vectors
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtLeast, AtMost, Capability, Condition, Dtypes, Multiple, Multiplies
from kernelmux.registry.spec import Call
from kernelmux.registry.util.cards import Card, remembered

TILED = Source(__file__, "conv2d_tiled.cu")
IMPLICIT_GEMM = Source(__file__, "conv2d_implicit_gemm.cu")
WGMMA = Source(__file__, "conv2d_implicit_gemm_wgmma.cu")
SPLITS = Source(__file__, "conv2d_splits.cu")
THREADS = 256
_LARGEST = 2**31 - 512  # of an int, rounded up to whole tiles
_PLACE = 16  # bytes of an entry of the tables
_DEEP = 256  # of K, at least, in a piece: less does not repay the second pass
_SIGNATURE = "left* right* bias* out* c:struct"


@dataclass(frozen=True)
class Together:
    """The product of these axes, some of which may follow from others, is not larger than `maximum`."""

    axes: str
    maximum: int

    @property
    def text(self) -> str:
        return f"{' * '.join(self.axes)} <= {self.maximum}"

    def check(self, call: Call) -> str | None:
        """None, or how large it is."""
        value = prod(call.axes[axis] for axis in self.axes)
        return None if value <= self.maximum else f"{' * '.join(self.axes)} = {value}, needs {self.text}"


def indices(*together: str) -> tuple[Condition, ...]:
    """What tiles are addressed with fits an int: positions or taps of all images or channels, rows, columns."""
    pixels = (Together(axis, 2**29) for axis in "HW")  # added to a padding, a tap and `nowhere`
    sizes = (AtMost(axis, _LARGEST) for axis in "NCO")
    return (*pixels, *sizes, *(Together(axes, _LARGEST) for axes in together))


def halves_on_hopper(lead: str, channels: str = "") -> tuple[Condition, ...]:
    """Operands of 16 bits, on sm_90. lead: an operand. channels: axes whose elements are copied 16 bytes at a time."""
    sizes = (c for axis in channels for c in (AtLeast(axis, 8), Multiple(axis, 8)))
    return (Dtypes(lead, torch.float16, torch.bfloat16), Capability((9, 0), below=(10, 0)), *sizes)


class ConvolutionTile(NamedTuple):
    """A block's part of the product, m x n of the result, k at a time. blocks: that share a multiprocessor. stages: of
    tiles in dynamic shared memory."""

    m: int
    n: int
    k: int
    threads: int
    blocks: int
    stages: int

    @property
    def shared(self) -> int:
        """Bytes of dynamic shared memory: stages of halves, and tables of the rows and of two tiles of k."""
        return self.stages * (self.m + self.n) * self.k * 2 + (self.m + self.n + 4 * self.k) * _PLACE

    def fits(self, card: Card) -> bool:
        """Whether the card holds the blocks that are to share a multiprocessor."""
        return fits(card, self.shared, self.threads, self.blocks)

    def tiles(self, c: Convolution) -> int:
        """Of the largest phase; the others have as many, some of them empty."""
        return cdiv(c.sizes[0], self.m) * cdiv(c.sizes[1], self.n)


class ConvolutionPlan(NamedTuple):
    """A kind of convolution, ready to run. parts: how many fp32 sums are added in the end, if K is in pieces."""

    launch: BoundLaunch
    packed: bytes
    shape: tuple[int, ...]
    order: torch.memory_format
    parts: int = 0
    sum_parts: BoundLaunch | None = None

    def run(self, left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        out = torch.empty(self.shape, dtype=left.dtype, device=left.device, memory_format=self.order)
        if self.sum_parts is None:
            self.launch(left, right, bias, out, self.packed)
            return out
        parts = left.new_empty(self.parts, dtype=torch.float32)
        self.launch(left, right, None, parts, self.packed)
        self.sum_parts(parts, bias, out, self.packed)
        return out


Planner = Callable[[Convolution, Card], ConvolutionPlan]
Make = Callable[[Planner, str, tuple[Condition, ...], str], Implementation]  # of an idea, conditions, arithmetic


def direct(source: Source, entry: str, c: Convolution) -> ConvolutionPlan:
    """One thread per element of the result."""
    kernel = source.kernel(entry, _SIGNATURE, ELEMENT=ctype(c.image.dtype), OPERATOR=c.operator)
    return ConvolutionPlan(kernel.bind(cdiv(prod(c.shape), THREADS), THREADS), c.packed(), c.shape, c.order)


@remembered
def tiled(c: Convolution, card: Card) -> ConvolutionPlan:
    """The product on the FP32 pipes."""
    return sums_plan(c, choice(c, card))


def guarded(c: Convolution, card: Card, flags: int) -> ConvolutionPlan:
    """The product on the FP32 pipes in one launch, which ends at once if none of so many words in front of its arguments is
    set."""
    return sums_plan(c, in_one_launch(c, card), GUARDED=flags)


def sums_plan(c: Convolution, cut: TermCut, **guard: int) -> ConvolutionPlan:
    """The product on the FP32 pipes with a given tile and pieces of K."""
    t, partial = cut.tile, cut.pieces > 1 and not cut.shared
    more = {**t.defines, **vectors(c), "VECTOR": min(4, _vector(c, partial)), "SHARES": cut.pieces if cut.shared else 1}
    more |= guard
    return _launches(TILED, "conv2d_tiled", c, t.tiles(c), (cut.length, cut.pieces), partial, 32 * t.warps, 0, **more)


@remembered
def implicit_gemm(c: Convolution, card: Card) -> ConvolutionPlan:
    """The product of halves by mma.sync."""
    tile = _largest(c, mma_tiles(_side(c.sizes[0], 128), _side(c.sizes[1], 128), card), card.processors)
    return halves_plan(IMPLICIT_GEMM, "conv2d_implicit_gemm", c, tile, card.processors)


def mma_tiles(m: int, n: int, card: Card) -> list[ConvolutionTile]:
    """Of such sides, of half of the columns if the card has no room for those, and of the smallest sides.

    Two blocks of 4 warps share a multiprocessor if they find room there, or else one of 8 warps.
    """
    forms = (128, 2, 3), (128, 2, 2), (256, 1, 3), (256, 1, 2)
    made = [[ConvolutionTile(*sides, 64, *form) for form in forms] for sides in ((m, n), (m, 64), (64, 64))]
    large, narrow, least = (next((t for t in tiles if t.fits(card)), None) for tiles in made)
    return [tile for tile in (large or narrow, least) if tile]


@remembered
def implicit_gemm_wgmma(c: Convolution, card: Card) -> ConvolutionPlan:
    """The product of halves by wgmma."""
    m = _side(c.sizes[0], 128)
    widest = _side(c.sizes[1], 2 * m)  # a thread per column at least
    tile = _largest(c, [wgmma_tile(m, n) for n in (256, 128, 64) if n <= widest], card.processors)
    return halves_plan(WGMMA, "conv2d_implicit_gemm_wgmma", c, tile, card.processors)


def wgmma_tile(m: int, n: int) -> ConvolutionTile:
    """A warpgroup per 64 rows; as many stages as fit beside the tables, or with narrow tiles in half of the room: on an
    H200 two blocks with 4 stages of 128 x 64 take 181 us where one with 8 takes 292 (32x3x224x224, 64 of 7 x 7)."""
    blocks = 2 if m + n <= 192 else 1
    return ConvolutionTile(m, n, 64, 2 * m, blocks, stages=min(8, 200 * 1024 // (blocks * (m + n) * 64 * 2)))


def _side(extent: int, largest: int) -> int:
    """Of a tile: the smallest from 64 on that holds the extent, if one does."""
    return next((side for side in (64, 128, 256) if side >= min(extent, largest)), largest)


def _largest(c: Convolution, tiles: list[ConvolutionTile], multiprocessors: int) -> ConvolutionTile:
    """The first tile of which there are enough for every multiprocessor, K in pieces that are worth it, or the last."""
    pieces = max(1, c.sizes[2] // (4 * _DEEP))
    return next((t for t in tiles if t.tiles(c) * c.phases * pieces >= multiprocessors), tiles[-1])


def halves_plan(
    source: Source, entry: str, c: Convolution, t: ConvolutionTile, multiprocessors: int
) -> ConvolutionPlan:
    """The product on the tensor cores with a given tile."""
    left, right = operands(c)
    more = {"BLOCK_M": t.m, "BLOCK_N": t.n, "STAGES": t.stages, "LEFT_COPY": left.copy, "RIGHT_COPY": right.copy}
    if source is IMPLICIT_GEMM and t.threads == 256:
        more["ACROSS"] = 4
    return tiled_plan(source, entry, c, t, multiprocessors, **more)


def tiled_plan(
    source: Source, entry: str, c: Convolution, t: ConvolutionTile, multiprocessors: int, **more: int
) -> ConvolutionPlan:
    """The launches of a kernel of halves."""
    cut = pieces(c, t, multiprocessors)
    more["VECTOR"] = _vector(c, cut[1] > 1)
    return _launches(source, entry, c, t.tiles(c), cut, cut[1] > 1, t.threads, t.shared, **more)


def _launches(
    source: Source, entry: str, c: Convolution, tiles: int, cut: tuple[int, int], parts: bool, threads: int, shared: int,
    **more: int,
) -> ConvolutionPlan:  # fmt: skip
    """Those of a kernel that works on tiles of the product. cut: length and number of the pieces of K; parts: whether their
    sums are added by a second kernel."""
    (M, N, _), (length, splits), (left, right) = c.sizes, cut, operands(c)
    guard = "flags* " if "GUARDED" in more else ""
    kernel = source.kernel(
        entry, guard + _SIGNATURE, **_defines(c), LEFT_K_MAJOR=int(left.k_major), RIGHT_K_MAJOR=int(right.k_major),
        PARTIAL=int(parts), **more,
    )  # fmt: skip
    launch = kernel.bind((tiles * c.phases, splits), threads, shared=shared, follows=bool(guard))
    packed = c.packed(tiles, length)
    if not parts:
        return ConvolutionPlan(launch, packed, c.shape, c.order)
    return ConvolutionPlan(launch, packed, c.shape, c.order, splits * c.phases * M * N, adding(c, splits))


def adding(c: Convolution, splits: int, **order: int) -> BoundLaunch:
    """What adds the parts of so many pieces of K, in order. order: of their sums, where it is not that of `c`."""
    M, N, _ = c.sizes
    kernel = SPLITS.kernel("conv2d_sum_splits", "parts* bias* out* c:struct splits:i32", **_defines(c) | order)
    return kernel.bind(cdiv(c.phases * M * N, THREADS), THREADS, splits)


def _defines(c: Convolution) -> dict[str, object]:
    order = {"TAPS_OUTER": int(c.taps_outer), "M_CONTIGUOUS": int(c.m_contiguous)}
    return {"ELEMENT": ctype(c.image.dtype), "OPERATOR": c.operator, **order}


def _vector(c: Convolution, parts: bool) -> int:
    """Sums per store: 16 bytes of neighbours in the result, or among the parts, or one."""
    M, N, _ = c.sizes
    if parts:
        width, run = 4, N if not c.m_contiguous else M if c.phases == 1 else 1
    else:
        width, run = 16 // c.image.dtype.itemsize, c.run
    return width if run % width == 0 else 1


def pieces(c: Convolution, t: ConvolutionTile, multiprocessors: int) -> tuple[int, int]:
    """Length and number of the pieces of K: as many as keep every multiprocessor busy, each of `_DEEP` or more."""
    K, tiles = c.sizes[2], max(1, t.tiles(c) * c.phases)
    wanted = max(1, min(multiprocessors * t.blocks // tiles, K // _DEEP))
    length = max(1, cdiv(cdiv(K, wanted), t.k)) * t.k
    return length, max(1, cdiv(K, length))


@dataclass(frozen=True)
class MoreThanFew:
    """Not so few sums of so few terms that a thread for each is done before tiles are: fp32 on an H200, 96 of 4 x 4 with a
    stride of 4 on 8x3x7x7 by threads 14.5 us, by tiles 19.0. sums, terms: axes."""

    sums: str
    terms: str
    most_sums: int = 2**14
    most_terms: int = 48

    @property
    def text(self) -> str:
        few = f"{' * '.join(self.sums)} > {self.most_sums}"
        return f"{few} or {' * '.join(self.terms)} > {self.most_terms}"

    def check(self, call: Call) -> str | None:
        """None, or how few they are."""
        sums, terms = (prod(call.axes[axis] for axis in axes) for axes in (self.sums, self.terms))
        few = sums <= self.most_sums and terms <= self.most_terms
        return f"{sums} sums of {terms} terms, needs {self.text}" if few else None


def ladder(
    make: Make, direct: Planner, lead: str, *together: str, of_tiles: tuple[Condition, ...] = ()
) -> dict[str, Implementation]:
    """The rungs of an operator. direct: the first one. lead: an operand. together: as in `indices`. of_tiles: what tiles in
    shared memory need besides."""
    fit, halves = indices(*together), Dtypes(lead, torch.float16, torch.bfloat16)
    hopper = halves_on_hopper(lead)
    mma, overlapped = "mma.sync on tiles gathered by cp.async", "the next tiles are gathered while wgmma multiplies"
    return {
        "direct": make(direct, "one thread per result", (), "fp32_sequential"),
        "tiled": make(tiled, "tiles of both operands in shared memory", (*fit, *of_tiles), "fp32_sequential"),
        "implicit_gemm": make(implicit_gemm, mma, (halves, Multiplies(lead), *fit), "mma"),
        "implicit_gemm_wgmma": make(implicit_gemm_wgmma, overlapped, (*hopper, *fit), "mma"),
    }
