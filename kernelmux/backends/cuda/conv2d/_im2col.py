"""conv2d and its gradients through TMA's im2col mode and wgmma, on sm_90: maps of images and plans.

Images and weights are channels-last here, with channels and pixels at multiples of 16 bytes; others are copied first.
"""

from dataclasses import replace
from math import gcd, log2, prod
from typing import NamedTuple

import torch

from kernelmux.backends.cuda._families.epilogue import PLAIN, Epilogue, EpilogueKind
from kernelmux.backends.cuda._launch.layout import Layout
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, Tiles, cdiv, ctype
from kernelmux.backends.cuda.conv2d._pixel_copies import SECTOR, VECTOR, copied, turned
from kernelmux.backends.cuda.conv2d._pixel_maps import STEP, PixelMaps, channels_last
from kernelmux.backends.cuda.conv2d._problem import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    CONV2D,
    Convolution,
    ConvolutionAxis,
)
from kernelmux.backends.cuda.conv2d._tilings import NARROW, ROOM, TALL, TILINGS, ConvolutionTiling
from kernelmux.backends.cuda.matmul._choice import HOPPER_MEMORY, MatmulProblem, Tiling, adding, problem, split_length
from kernelmux.backends.cuda.matmul._wgmma import LINE, WgmmaTiling
from kernelmux.backends.cuda.transpose import transpose_batch
from kernelmux.registry.util.batch_strides import merged
from kernelmux.registry.util.cards import remembered
from kernelmux.registry.util.memory_format import fresh

SOURCE = Source(__file__, "conv2d_implicit_gemm_tma.cu")
MOST_MATRICES = 65535  # along an axis of a grid
NUMBERS = (
    "M:i32 N:i32 K:i32 k_split:i32 works:i32 rows:i32 columns:i32 stride_h:i32 stride_w:i32 padding_h:i32 padding_w:i32 "
    "dilation_h:i32 dilation_w:i32 taps_h:i32 taps_w:i32 channels:i32 first:i32"
)
# us of the launch for rows behind whole rounds. H200, bf16: 512 of 3 x 3 on 32x512x14x14 take 46.6 us so, 50.8 without.
FOLLOWING = 2.0
# Sums per us that the blocks of a cluster add, which takes a us more for twice as many blocks. H200, us, beside products:
# 64 x 128 sums of 2, 4 and 8 blocks 1.4, 2.4 and 3.4, 128 x 128 of 4 and 8 3.6 and 4.8, 128 x 256 of 3 6.1.
ADDED = 6800
LEAST_SHARE = 192  # of K for each of them
# Products per us of 128 x 192 and 128 x 256 as sums over positions. H200, us, bf16: 512 of 3 x 3 on 79x512x14x67, dilated,
# take 439.6 in four pieces of 128 x 192, three rounds of them, 461.2 in five of 128 x 256, 493.0 in three of 256 x 128.
SUMMED, SUMMED_ROUNDS = 3.3e6, 3
PASS = 3.0  # us of a launch that makes contiguous images of a result, beside what it moves


def backwards(axis: ConvolutionAxis) -> ConvolutionAxis:
    """The axis of grad_out, for stride 1: its pixels are read at the taps in reverse order."""
    return axis._replace(padding=axis.dilation * (axis.taps - 1) - axis.padding)


class Im2colPlan(NamedTuple):
    """A kind of convolution, ready to run. parts: pieces of K, which are added in order. turned: the shape of contiguous
    images that the product writes in place of a matrix."""

    launch: BoundLaunch
    product: MatmulProblem
    left: Tiles
    right: Tiles
    parts: int
    sum_parts: BoundLaunch | None
    first: int = 0
    rest: "Im2colPlan | None" = None
    turned: tuple[int, ...] = ()

    def run(self, left: torch.Tensor, right: torch.Tensor, epilogue: Epilogue) -> torch.Tensor:
        """The result as a matrix [M, N]; `turned`, as contiguous images."""
        p = self.product
        if self.turned:
            images = left.new_empty(self.turned)
            self._run(left, right, images, epilogue)
            return images
        c = left.new_empty((p.M + (self.rest.product.M if self.rest else 0), p.N))
        self._run(left, right, c, epilogue)
        if self.rest:
            self.rest._run(left, right, c[p.M :], epilogue)
        return c

    def _run(self, left: torch.Tensor, right: torch.Tensor, c: torch.Tensor, epilogue: Epilogue) -> None:
        p = self.product
        maps = self.left.of(left), self.right.of(right)
        if self.sum_parts is None:
            self.launch(*maps, c, *epilogue.tensors)
            return
        parts = left.new_empty((self.parts, p.M, p.N), dtype=torch.float32)
        self.launch(*maps, parts)
        self.sum_parts(parts, c, *epilogue.tensors)


class TilingChoice(NamedTuple):
    """How a product is cut: a tiling and pieces of K, for the first `head` rows alone if that is not 0. shared: the pieces
    of a tile are those of the blocks of a cluster. turned: the product writes contiguous images."""

    microseconds: float
    tiling: ConvolutionTiling
    splits: int = 1
    head: int = 0
    shared: bool = False
    turned: bool = False


@remembered
def best_plan(
    operator: int,
    channels: int,
    left: Layout,
    right: Layout,
    h: ConvolutionAxis,
    w: ConvolutionAxis,
    end: EpilogueKind,
    multiprocessors: int,
    contiguous: bool = False,
    after: bool = False,
) -> Im2colPlan:
    """The quickest tiling by the rule of matmul, perhaps another one for what is left behind whole rounds of tiles.

    channels: of the result, of which operands may have more. left, right: the operands as they lie. contiguous: the result
    is to lie so in the end. after: the launch before makes a copy that is one of the operands.
    """
    given = operator, channels, left, right, h, w
    best = choose(*given, multiprocessors, contiguous)
    if not best.head:
        cut = best.tiling, best.splits
        return plan(*given, end, *cut, multiprocessors, shared=best.shared, turned=best.turned, after=after)
    p, moved = _counted(*given)
    behind = quickest(operator, p, multiprocessors, moved, p.M - best.head)
    rest = plan(*given, end, behind.tiling, behind.splits, multiprocessors, best.head)
    return plan(*given, end, best.tiling, 1, multiprocessors, rest=rest)


@remembered
def choose(
    operator: int,
    channels: int,
    left: Layout,
    right: Layout,
    h: ConvolutionAxis,
    w: ConvolutionAxis,
    multiprocessors: int,
    contiguous: bool = False,
) -> TilingChoice:
    """What `best_plan` does, and in what time."""
    p, moved = _counted(operator, channels, left, right, h, w)
    best = quickest(operator, p, multiprocessors, moved, p.M)
    for t in tilings(operator) if operator != BACKWARD_WEIGHT else ():
        head = t.tiles(p) // multiprocessors * multiprocessors // cdiv(p.N, t.n) * t.m  # rows of whole rounds
        if 0 < head < p.M:
            whole = t.microseconds(p._replace(M=head), 1, multiprocessors, moved * head // p.M)
            behind = quickest(operator, p, multiprocessors, moved, p.M - head)
            best = min(
                best, TilingChoice(whole + FOLLOWING + behind.microseconds, t, 1, head), key=lambda c: c.microseconds
            )
    if not contiguous:
        return best
    in_pass = best._replace(microseconds=best.microseconds + turning(p))
    across = quickest(operator, _turned(p), multiprocessors, moved, p.N, turned=True)
    return min(across._replace(turned=True), in_pass, key=lambda c: c.microseconds)


def turning(p: MatmulProblem) -> float:
    """Microseconds of the pass that makes contiguous images of a result."""
    return PASS + 2 * p.M * p.N * p.dtype.itemsize / HOPPER_MEMORY


def _counted(
    operator: int, channels: int, left: Layout, right: Layout, h: ConvolutionAxis, w: ConvolutionAxis
) -> tuple[MatmulProblem, int]:
    """The product without terms that are zero, and how many bytes it moves, an image once and not at each tap."""
    p = product(operator, channels, left, right, h, w)
    moved = sum(map(prod, (left.shape, right.shape, (p.M, p.N)))) * p.dtype.itemsize
    return p if operator == BACKWARD_WEIGHT else p._replace(K=terms(operator, left, right, h, w)), moved


def quickest(
    operator: int, p: MatmulProblem, multiprocessors: int, moved: int, rows: int, turned: bool = False
) -> TilingChoice:
    """The quickest tiling of so many rows of a product; turned: which has no second pass."""
    some, part = p._replace(M=rows), moved * rows // p.M
    rounds = 0 if turned else SUMMED_ROUNDS if operator == BACKWARD_WEIGHT else 2
    choices = ((t, s) for t in tilings(operator) for s in pieces(t, some, multiprocessors, rounds))
    timed = [TilingChoice(t.microseconds(some, s, multiprocessors, part), t, s) for t, s in choices]
    timed += [c for t in tilings(operator) for c in shared_choices(t, some, multiprocessors, part)]
    return min(timed, key=lambda c: c.microseconds)


def shared_choices(t: ConvolutionTiling, p: MatmulProblem, multiprocessors: int, moved: int) -> list[TilingChoice]:
    """K in pieces for the blocks of a cluster, where all clusters find room at one time, and the sums where stages were."""
    found: list[TilingChoice] = []
    if t.m * (t.n + 8) * 4 > t.stages * (t.m + t.n) * LINE:
        return found
    for blocks, room in ROOM.items():
        if t.tiles(p) * 132 <= room * multiprocessors and LEAST_SHARE * blocks <= p.K:
            work = max(0.5, t.m * t.n / 2**16) + t.m * t.n * cdiv(p.K, blocks) / t.rate
            adding = log2(blocks) + t.m * t.n / ADDED - 0.8
            time = max(work, moved / HOPPER_MEMORY + 0.1 * work) + adding
            found.append(TilingChoice(time, t, blocks, shared=True))
    return found


def terms(operator: int, left: Layout, right: Layout, h: ConvolutionAxis, w: ConvolutionAxis) -> int:
    """Of each sum, without the zeros that no product is made of."""
    channels = min(left.shape[1], right.shape[0 if operator == BACKWARD_INPUT else 1])
    return h.taps * w.taps * cdiv(channels, 16) * 16


def tilings(operator: int) -> tuple[ConvolutionTiling, ...]:
    """Those among which an operator chooses. Where columns are terms, a copy of STEP channels must not cross taps."""
    if operator != BACKWARD_WEIGHT:
        return *TILINGS, *NARROW
    fit = (t for t in (*TILINGS, *NARROW, *TALL) if t.n % STEP == 0)
    return tuple(replace(t, rate=SUMMED) if t.m == 128 and t.n >= 192 else t for t in fit)


def pieces(t: Tiling, p: MatmulProblem, multiprocessors: int, rounds: int = 2) -> range:
    """Pieces of K, of 256 or more: as many as give every multiprocessor so many tiles, if K is as long."""
    return range(1, max(1, min(rounds * multiprocessors // t.tiles(p), p.K // 256)) + 1)


def plan(
    operator: int,
    channels: int,
    left: Layout,
    right: Layout,
    h: ConvolutionAxis,
    w: ConvolutionAxis,
    end: EpilogueKind,
    t: WgmmaTiling,
    splits: int,
    multiprocessors: int,
    first: int = 0,
    rest: Im2colPlan | None = None,
    shared: bool = False,
    turned: bool = False,
    after: bool = False,
) -> Im2colPlan:
    """The plan with a given tiling, K cut into at most `splits` pieces, perhaps for the blocks of a cluster. turned: for a
    result in contiguous images. after: it follows a copy that it reads, and begins before that has ended."""
    p = product(operator, channels, left, right, h, w)
    p = _turned(p) if turned else p
    p = p._replace(M=p.M - first - (rest.product.M if rest else 0))
    k_split = split_length(p.K, splits, STEP)
    shares = cdiv(p.K, k_split) if shared else 1
    parts = 1 if shared else cdiv(p.K, k_split)
    out, ending = (p.dtype, end) if parts == 1 else (torch.float32, PLAIN.ending)
    works = t.tiles(p) * parts
    roles = {
        "LEAVES_REST": (1, rest),
        "IS_REST": (1, first),
        "SHARES": (shares, shares > 1),
        "TURNED": (1, turned),
        "AFTER_COPY": (1, after),
    }
    run = h.positions * w.positions if turned else p.N
    more = {name: value for name, (value, given) in roles.items() if given}
    kernel = SOURCE.kernel(
        "conv2d_implicit_gemm_tma", f"left:map right:map {ending.tensors} {NUMBERS}", OPERATOR=operator,
        ELEMENT=ctype(p.dtype), OUTPUT=ctype(out), BLOCK_N=t.n,
        C_VECTOR=gcd(4 if shares > 1 else 16 // out.itemsize, run),
        CONSUMERS=t.consumers, HEIGHT=t.height, STAGES=t.stages, GROUP_M=t.group_m, **p.macros, **ending.macros,
        **last_products(operator, left, right), **more,
    )  # fmt: skip
    image = right if operator == BACKWARD_WEIGHT else left
    windows = (n for pair in zip(h[3:], w[3:], strict=True) for n in pair)
    numbers = h.positions, w.positions, *windows, h.taps, w.taps, whole_steps(image.shape[1]), first
    blocks, room = works * shares if shared else min(works, multiprocessors), t.shared(out)
    sizes, follows = (p.M, p.N, p.K, k_split, works), after or first > 0
    launch = kernel.bind(blocks, t.threads, *sizes, *numbers, shared=room, follows=follows)
    if operator == BACKWARD_WEIGHT:
        maps: tuple[Tiles, Tiles] = _lines(left), PixelMaps(image, h, w, STEP)
    else:
        pixels, lines = (t.n, t.m) if turned else (t.m, t.n)
        maps = PixelMaps(image, h, w, pixels), weights_of(right, (lines if operator == CONV2D else STEP, STEP))
    shape = (image.shape[0], channels, h.positions, w.positions) if turned else ()
    return Im2colPlan(launch, p, *maps, parts, adding(parts, p, end), first, rest, shape)


def _turned(p: MatmulProblem) -> MatmulProblem:
    """The product of the factors in the other order, each turned."""
    return p._replace(M=p.N, N=p.M, left=p.right, right=p.left)


def last_products(operator: int, left: Layout, right: Layout) -> dict[str, int]:
    """What tells a kernel how much of the last step of a tap is not zero."""
    channels = min(left.shape[1], right.shape[0 if operator == BACKWARD_INPUT else 1])
    products = cdiv(channels % STEP, 16)
    if operator == BACKWARD_WEIGHT or products in (0, STEP // 16):
        return {}
    return {"TAP_K": whole_steps(channels), "TAP_PRODUCTS": products}


def whole_steps(channels: int) -> int:
    return cdiv(channels, STEP) * STEP


def product(
    operator: int, channels: int, left: Layout, right: Layout, h: ConvolutionAxis, w: ConvolutionAxis
) -> MatmulProblem:
    """The product of matrices that it is, which of their indices are contiguous."""
    image = right if operator == BACKWARD_WEIGHT else left
    positions, terms = image.shape[0] * h.positions * w.positions, h.taps * w.taps * whole_steps(image.shape[1])
    if operator == BACKWARD_WEIGHT:
        M, N, K = channels, terms, positions
        return problem(Layout((M, K), (1, M), left.dtype, 0), Layout((K, N), (N, 1), left.dtype, 0))
    M, N, K = positions, channels, terms
    by = (1, K) if operator == CONV2D else (N, 1)
    return problem(Layout((M, K), (K, 1), left.dtype, 0), Layout((K, N), by, left.dtype, 0))


def _lines(grad_out: Layout) -> Tiles:
    """[positions, O], a pixel after the other."""
    n, o, rows, columns = grad_out.shape
    pixels = _pixels(grad_out.shape, grad_out.strides)
    pitch = pixels[0][1] if pixels else cdiv(o, VECTOR) * VECTOR
    return Tiles((n * rows * columns, o), (pitch, 1), (STEP, STEP), swizzle=LINE)


def weights_of(weight: Layout, box: tuple[int, int]) -> Tiles:
    """[O, R, S, C], so many of O and of C at a time."""
    o, c, r, s = weight.shape
    return Tiles((o, r, s, c), channels_last(weight), (box[0], 1, 1, box[1]), swizzle=LINE)


def spacing(channels: int, *taps: int) -> int:
    """Of what the channels of an image, and distances between its pixels, are to be multiples, in elements.

    A single tap reads a pixel once, as a copy would, and few channels are a small part of one. Others are read again and
    again, faster from whole sectors of 32 bytes: on an H200 64 of 3 x 3 on 32x40x56x56 took 52 us, copied with 48 46.
    """
    return VECTOR if prod(taps) == 1 or channels < SECTOR else SECTOR


def ready(x: torch.Tensor, *, dense: bool = False, apart: int = VECTOR) -> torch.Tensor:
    """x if its channels lie side by side, and they and the distances of pixels, or of taps, are multiples of `apart`, and
    if asked all pixels are equally far apart. Else a copy of STEP channels or a multiple of it.

    What x has not is zero there. TMA is slow where it fills a box itself: on an H200 128 of 3 x 3 on 32x50x56x56 took 80 us
    where the map ended behind 50 channels, 43 with 64; 100 of 3 x 3 on 32x100x56x56 took 90 us with 112, 80 with 128.
    """
    n, c, h, w = x.shape
    steps = [s for axis, (n, s) in enumerate(zip(x.shape, x.stride(), strict=True)) if n > 1 and axis != 1]
    fits = x.stride(1) == 1 and c % apart == 0 and all(s > 0 and s % apart == 0 for s in steps)
    if fits and x.data_ptr() % 16 == 0 and not (dense and len(_pixels(x.shape, x.stride())) > 1):
        return x
    if x.is_contiguous() and c % apart == 0:
        if (few := turned(x.flatten(2))) is not None:
            return few.view(n, h, w, c).permute(0, 3, 1, 2)
        if n <= MOST_MATRICES:
            return transpose_batch(x.flatten(2)).view(n, h, w, c).permute(0, 3, 1, 2)
    return copied(x, 0, w, whole_steps(c)).permute(0, 3, 1, 2)


def _pixels(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Lengths and strides that walk over all pixels; one pair at most if these are equally far apart."""
    return merged([(shape[axis], strides[axis]) for axis in (0, 2, 3)])


def result(matrix: torch.Tensor, c: Convolution) -> torch.Tensor:
    """Images, or kernels, from their matrix [N * P * Q, O], in the order of the convolution's result. matrix: or images."""
    if matrix.dim() == 4 and matrix.shape == c.shape and c.order == torch.contiguous_format:
        return matrix
    n, o, rows, columns = c.shape
    images = matrix.view(n, rows, columns, -1)[..., :o].permute(0, 3, 1, 2)
    if c.last or images.is_contiguous():
        return fresh(images, c.order)
    if (few := turned(matrix.view(n, rows * columns, -1)[..., :o], back=True)) is not None:
        return few.view(c.shape)
    if n > MOST_MATRICES:
        return fresh(images, c.order)
    return transpose_batch(matrix.view(n, rows * columns, -1)[..., :o]).view(c.shape)
