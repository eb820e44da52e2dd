"""conv2d with kernels of single elements, and the gradient of its images: products of matrices where these lie.

Contiguous images [N, C, H, W] are matrices [C, H * W], by which a weight [O, C] is multiplied: a batch of products with one
left factor.
"""

from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

import torch

from kernelmux.backends.cuda._families.epilogue import PLAIN, Epilogue, EpilogueKind
from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, Tiles, cdiv, ctype, multiprocessors
from kernelmux.backends.cuda.conv2d._im2col import TilingChoice, pieces, shared_choices
from kernelmux.backends.cuda.conv2d._pixel_copies import SECTOR, VECTOR
from kernelmux.backends.cuda.conv2d._pixel_maps import STEP
from kernelmux.backends.cuda.conv2d._plans import halves_on_hopper
from kernelmux.backends.cuda.conv2d._problem import BACKWARD_WEIGHT, CONV2D
from kernelmux.backends.cuda.conv2d._tilings import NARROW, TALL, TILINGS, ConvolutionTiling
from kernelmux.backends.cuda.matmul import COPY, mma_sync
from kernelmux.backends.cuda.matmul._choice import HOPPER_MEMORY, MatmulProblem, adding, operand, problem, split_length
from kernelmux.backends.cuda.matmul._maps import tiles
from kernelmux.backends.cuda.matmul._padding import padded
from kernelmux.backends.cuda.matmul._tensor_cores import tensor_cores
from kernelmux.backends.cuda.matmul._wgmma import LINE, WgmmaTiling, wgmma
from kernelmux.registry.conditions import AtLeast, AtMost, Condition
from kernelmux.registry.spec import Call
from kernelmux.registry.spec.sliding_windows import Pointwise
from kernelmux.registry.util.cards import remembered

SOURCE = Source(__file__, "conv2d_pointwise.cu")
_NUMBERS = "M:i32 N:i32 K:i32 k_split:i32 works:i32 pixels:i32 padded:i32"

UNALIGNED = 1e9  # operations at most where rows of pixels begin anywhere, which mma.sync reads
_LARGEST = 2**31 - 512  # of an int, rounded up to whole tiles
# Sums over pixels by pairs of blocks, which read rows of grad_out for one another. H200, us, bf16: 256 from 1024 channels
# of 35 images of 56 x 151 take 269.2 with 256 x 192, 273.6 with 256 x 128; 388.7 alone, with 128 x 256.
PAIRS = (
    ConvolutionTiling(256, 192, 3.0e6, 3, height=2, across=2),
    ConvolutionTiling(256, 128, 3.1e6, 4, height=2, across=2),
)
# Of 128 bytes that L2 gives to all multiprocessors per us, and how many a line of a box is that begins between them: at
# multiples of a sector of 32 bytes, and at others. 128 x 128 alone, us: of 56 x 152 pixels 245.2, 92 x 92 281.9, 56 x 151
# 447.7.
LINES, IN_SECTORS, ACROSS_SECTORS = 8e4, 1.15, 2.0


def product(weight: torch.Tensor, images: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """weight [O, C] by images [N, C, H, W]: [N, O, H, W]. bias: only of rows of pixels, as `RowsOfPixels` has them."""
    n, _, rows, columns = images.shape
    weight = weight if 1 in weight.stride() else weight.contiguous()
    if bias is not None:
        weight = weight if operand(layout(weight), 1).aligned else padded(weight, 1)
        epilogue = Epilogue(EpilogueKind(bias=True), (bias, None))
        made = best_plan(layout(weight), layout(images), epilogue.ending, multiprocessors(images))
        return made.run(weight, images, epilogue)
    a, b = weight.expand(n, *weight.shape), images.flatten(2)
    by = wgmma if _copies_paid(a, b) else tensor_cores
    return by(a, b, "ieee", PLAIN).view(n, len(weight), rows, columns)


def _copies_paid(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the copy engine can read the factors, or copies that it can read take less time than products by mma.sync."""
    p = problem(layout(a), layout(b))
    left, right = (side.aligned for side in (p.left, p.right))
    copied = p.M * p.K * (not left) + p.products * p.K * p.N * (not right)
    units = [min(8, side.bytes) for side, fits in ((p.left, left), (p.right, right)) if not fits]
    shifted = not any(layout(x).offset for x, fits in ((a, left), (b, right)) if not fits)
    saved = mma_sync(p.M, p.N, p.K, p.products, units, shifted=shifted) if units else 0.0
    return saved >= COPY * len(units) + 2 * copied * p.dtype.itemsize / HOPPER_MEMORY


def asks(images: str, *more: Condition) -> tuple[Condition, ...]:
    """What the rung needs. images: an operand."""
    some: list[Condition] = [size for axis in "NCO" for size in (AtLeast(axis, 1), AtMost(axis, _LARGEST))]
    return (*halves_on_hopper(images), *some, Pointwise(images, UNALIGNED), *more)


class PointwisePlan(NamedTuple):
    """A kind of call of conv2d_pointwise.cu, ready to run. shape: of the result. parts: pieces of K, added in order."""

    launch: BoundLaunch
    left: Tiles
    right: Tiles
    shape: tuple[int, ...]
    parts: int = 1
    sum_parts: BoundLaunch | None = None

    def run(self, left: torch.Tensor, right: torch.Tensor, epilogue: Epilogue) -> torch.Tensor:
        """The result, contiguous."""
        out = right.new_empty(self.shape)
        maps = self.left.of(left), self.right.of(right)
        if self.sum_parts is None:
            self.launch(*maps, out, *epilogue.tensors)
            return out
        parts = right.new_empty((self.parts, *self.shape[:2]), dtype=torch.float32)
        self.launch(*maps, parts)
        self.sum_parts(parts, out)
        return out


@remembered
def best_plan(left: Layout, right: Layout, end: EpilogueKind, processors: int) -> PointwisePlan:
    """Of a weight [O, C] and images [N, C, H, W], or of grad_out [N, O, H, W] and images: the quickest tiling."""
    if len(left.shape) == 2:
        fit = [t for t in TILINGS if t.n % STEP == 0]
        tiling = min(fit, key=lambda t: t.microseconds(_product(left, right, t), 1, processors))
        return plan(left, right, end, tiling, 1, False, processors)
    best = choose(left, right, processors)
    return plan(left, right, end, best.tiling, best.splits, best.shared, processors)


@remembered
def choose(left: Layout, right: Layout, processors: int) -> TilingChoice:
    """How the sums over pixels are cut: the quickest tiling, of which L2 may be what it waits for."""
    p = _product(left, right, TILINGS[0])
    return min(choices(p, right.shape[2] * right.shape[3], processors), key=lambda c: c.microseconds)


def choices(p: MatmulProblem, pixels: int, processors: int) -> list[TilingChoice]:
    """All that are to choose from. pixels: of an image."""
    crossed = ACROSS_SECTORS if pixels % SECTOR else IN_SECTORS if pixels % STEP else 1.0

    def least(t: ConvolutionTiling, q: MatmulProblem, split: bool) -> float:
        rows = q.M * cdiv(q.N, t.n * t.across) + q.N * cdiv(q.M, t.m)
        work = q.M * q.N * q.K / (t.rate * processors)
        return rows * q.K * q.dtype.itemsize / LINE * crossed / LINES + 0.1 * work + 5.0 * split

    found = []
    for t in (*(t for t in (*TILINGS, *NARROW, *TALL) if t.n % STEP == 0), *PAIRS):
        for s in pieces(t, p, processors):
            # As if the last piece were as long as the others, for which they all wait.
            q = p._replace(K=s * split_length(p.K, s, STEP))
            found.append(TilingChoice(max(t.microseconds(q, s, processors), least(t, q, s > 1)), t, s))
        if t.peers == 1:
            shared = shared_choices(t, p, processors, p.bytes)
            found += [c._replace(microseconds=max(c.microseconds, least(t, p, split=True))) for c in shared]
    return found


def _padded(pixels: int, left: Layout, t: WgmmaTiling) -> int:
    """Pixels of an image, rounded up to whole tiles or steps of K."""
    whole = t.n if len(left.shape) == 2 else STEP
    return cdiv(pixels, whole) * whole


def _product(left: Layout, right: Layout, t: WgmmaTiling) -> MatmulProblem:
    n, c, rows, columns = right.shape
    pixels = n * _padded(rows * columns, left, t)
    if len(left.shape) == 2:
        return problem(left, Layout((c, pixels), (pixels, 1), right.dtype, 0))
    o = left.shape[1]
    return problem(Layout((o, pixels), (pixels, 1), right.dtype, 0), Layout((pixels, c), (1, pixels), right.dtype, 0))


def plan(
    left: Layout, right: Layout, end: EpilogueKind, t: WgmmaTiling, splits: int, shared: bool, processors: int
) -> PointwisePlan:
    """The plan with a given tiling, K cut into at most `splits` pieces, perhaps for the blocks of a cluster."""
    turned, (n, _, rows, columns) = len(left.shape) == 2, right.shape
    p, pixels = _product(left, right, t), rows * columns
    k_split = split_length(p.K, splits, STEP)
    pieces = cdiv(p.K, k_split)
    shares, parts = (pieces, 1) if shared else (1, pieces)
    out, ending = (p.dtype, end) if parts == 1 else (torch.float32, PLAIN.ending)
    works = t.tiles(p) * parts
    more = {name: n for name, n in (("SHARES", shares), ("TURNED", turned)) if n > 1 or n is True}
    kernel = SOURCE.kernel(
        "conv2d_pointwise", f"left:map right:map {ending.tensors} {_NUMBERS}", ELEMENT=ctype(p.dtype), OUTPUT=ctype(out),
        OPERATOR=CONV2D if turned else BACKWARD_WEIGHT, BLOCK_N=t.n, CONSUMERS=t.consumers, HEIGHT=t.height,
        STAGES=t.stages, GROUP_M=t.group_m, **p.macros, **ending.macros, **{name: int(n) for name, n in more.items()},
        C_VECTOR=gcd(4 if shares > 1 else 16 // out.itemsize, pixels if turned else p.N),
        **({"ACROSS": t.across} if t.across > 1 else {}),
    )  # fmt: skip
    blocks = works * shares if shared else min(works, t.resident(processors))
    sizes = p.M, p.N, p.K, k_split, works, pixels, _padded(pixels, left, t)
    launch = kernel.bind(blocks, t.threads, *sizes, shared=t.shared(out))
    if turned:
        lines = t.m if p.left.k_major else STEP
        maps = tiles(p, p.left, p.M, lines), _lines(right, STEP)
        return PointwisePlan(launch, *maps, (n, p.M, rows, columns))
    maps = _lines(left, t.m // t.across), _lines(right, t.n)
    return PointwisePlan(launch, *maps, (p.M, p.N, 1, 1), parts, adding(parts, p, end))


def _lines(images: Layout, channels: int) -> Tiles:
    """[N, 1, C, pixels], so many channels at a time."""
    n, c, rows, columns = images.shape
    by_n, by_c, _, _ = images.strides
    by_n = by_n if n > 1 else rows * columns
    return Tiles((n, 1, c, rows * columns), (by_n, by_n, by_c, 1), (1, 1, channels, STEP), swizzle=LINE)


@dataclass(frozen=True)
class RowsOfPixels:
    """The copy engine can read images [N, C, H, W] as rows of pixels: these are dense and begin at multiples of 16 bytes.

    biased: this is asked of calls with a bias alone.
    """

    images: str
    biased: bool = False

    @property
    def text(self) -> str:
        return (
            f"{self.images} contiguous, H * W a multiple of {VECTOR} and no small part of 64"
            + ", if biased" * self.biased
        )

    def check(self, call: Call) -> str | None:
        """None, or that it cannot."""
        if self.biased and call.arguments["bias"] is None:
            return None
        x = call.arguments[self.images]
        n, c, rows, columns = x.shape
        dense = x.stride(3) == 1 and (x.stride(2) == columns or rows == 1) and rows * columns % VECTOR == 0
        dense = dense and 2 * rows * columns >= cdiv(rows * columns, STEP) * STEP
        whole = not any(s % VECTOR for s, n in ((x.stride(0), n), (x.stride(1), c)) if n > 1)
        return None if dense and whole and x.data_ptr() % 16 == 0 and c > 1 else f"needs {self.text}"


@dataclass(frozen=True)
class Single:
    """Kernels of one element that meet every pixel."""

    text = "1 x 1, stride 1, no padding"

    def check(self, call: Call) -> str | None:
        """None, or that they do not."""
        along = (*call.arguments["stride"], *(1 + n for n in call.arguments["padding"]))
        return None if {call.axes["R"], call.axes["S"], *along} == {1} else f"needs {self.text}"


def asks_of_rows(*images: str) -> tuple[Condition, ...]:
    """What conv2d_pointwise.cu needs. images: operands."""
    some: list[Condition] = [size for axis in "NCO" for size in (AtLeast(axis, 1), AtMost(axis, _LARGEST))]
    return (*halves_on_hopper(images[0]), *some, Single(), *(RowsOfPixels(name) for name in images))
