"""conv2d and its gradients through TMA's im2col mode and wgmma, on sm_90: maps of images, plans, what they ask for.

Images and weights are channels-last here, with channels and pixels at multiples of 16 bytes; others are copied first.
"""

from dataclasses import dataclass
from math import gcd, prod
from typing import NamedTuple

import torch

from kernelmux.backends.cuda._families.epilogue import PLAIN, Epilogue, EpilogueKind
from kernelmux.backends.cuda._launch.layout import Layout
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, Tiles, cdiv, ctype
from kernelmux.backends.cuda.conv2d._pixel_copies import SECTOR, VECTOR, copied, turned
from kernelmux.backends.cuda.conv2d._pixel_maps import CORNERS, STEP, PixelMaps, channels_last, corners
from kernelmux.backends.cuda.conv2d._plans import halves_on_hopper, indices
from kernelmux.backends.cuda.conv2d._problem import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    CONV2D,
    Convolution,
    ConvolutionAxis,
)
from kernelmux.backends.cuda.matmul._choice import MatmulProblem, adding, problem, split_length
from kernelmux.backends.cuda.matmul._wgmma import LINE, TILINGS, WgmmaTiling
from kernelmux.backends.cuda.transpose import transpose_batch
from kernelmux.registry.conditions import Condition
from kernelmux.registry.spec import Call
from kernelmux.registry.spec.sliding_windows import InVectors
from kernelmux.registry.util.batch_strides import merged
from kernelmux.registry.util.cards import remembered
from kernelmux.registry.util.memory_format import fresh

SOURCE = Source(__file__, "conv2d_implicit_gemm_tma.cu")
COPIED = 33  # channels from which on images are copied; below, a fold of them has fewer terms
MOST_MATRICES = 65535  # along an axis of a grid
# For few channels of the result.
NARROW = (
    WgmmaTiling(128, 64, 1.6e6, 8),
    WgmmaTiling(256, 64, 2.4e6, 5, height=2),
    WgmmaTiling(256, 96, 2.6e6, 4, height=2),
)
# Sums over positions: the right operand comes in copies of 64 pixels, so that narrow tiles wait less for it. On an H200
# 256 x 2304 sums of 100352 terms take 184 us with these tiles, 198 with 128 x 256.
TALL = (WgmmaTiling(256, 128, 3.3e6, 4, height=2),)
NUMBERS = (
    "M:i32 N:i32 K:i32 k_split:i32 works:i32 rows:i32 columns:i32 stride_h:i32 stride_w:i32 padding_h:i32 padding_w:i32 "
    "dilation_h:i32 dilation_w:i32 taps_h:i32 taps_w:i32 channels:i32 first:i32"
)
# us of the launch for rows behind whole rounds. H200, bf16: 512 of 3 x 3 on 32x512x14x14 take 46.6 us so, 50.8 without.
FOLLOWING = 2.0
MOST_STEP, _MOST_OFFSET = 8, 255
_MOST_STRIDE = 64  # of conv2d_backward_input, whose works are counted for all phases together


def backwards(axis: ConvolutionAxis) -> ConvolutionAxis:
    """The axis of grad_out, for stride 1: its pixels are read at the taps in reverse order."""
    return axis._replace(padding=axis.dilation * (axis.taps - 1) - axis.padding)


class Im2colPlan(NamedTuple):
    """A kind of convolution, ready to run. parts: pieces of K, which are added in order."""

    launch: BoundLaunch
    product: MatmulProblem
    left: Tiles
    right: Tiles
    parts: int
    sum_parts: BoundLaunch | None
    first: int = 0
    rest: "Im2colPlan | None" = None

    def run(self, left: torch.Tensor, right: torch.Tensor, epilogue: Epilogue) -> torch.Tensor:
        """The result as a matrix [M, N]."""
        p = self.product
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


class Choice(NamedTuple):
    """How a product is cut: a tiling and pieces of K, for the first `head` rows alone if that is not 0."""

    microseconds: float
    tiling: WgmmaTiling
    splits: int = 1
    head: int = 0


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
) -> Im2colPlan:
    """The quickest tiling by the rule of matmul, perhaps another one for what is left behind whole rounds of tiles.

    channels: of the result, of which operands may have more. left, right: the operands as they lie.
    """
    given = operator, channels, left, right, h, w
    best = choose(*given, multiprocessors)
    if not best.head:
        return plan(*given, end, best.tiling, best.splits, multiprocessors)
    p, moved = _counted(*given)
    behind = _quickest(operator, p, multiprocessors, moved, p.M - best.head)
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
) -> Choice:
    """What `best_plan` does, and in what time."""
    p, moved = _counted(operator, channels, left, right, h, w)
    best = _quickest(operator, p, multiprocessors, moved, p.M)
    for t in tilings(operator) if operator != BACKWARD_WEIGHT else ():
        head = t.tiles(p) // multiprocessors * multiprocessors // cdiv(p.N, t.n) * t.m  # rows of whole rounds
        if 0 < head < p.M:
            whole = t.microseconds(p._replace(M=head), 1, multiprocessors, moved * head // p.M)
            behind = _quickest(operator, p, multiprocessors, moved, p.M - head)
            best = min(best, Choice(whole + FOLLOWING + behind.microseconds, t, 1, head), key=lambda c: c.microseconds)
    return best


def _counted(
    operator: int, channels: int, left: Layout, right: Layout, h: ConvolutionAxis, w: ConvolutionAxis
) -> tuple[MatmulProblem, int]:
    """The product without terms that are zero, and how many bytes it moves, an image once and not at each tap."""
    p = _product(operator, channels, left, right, h, w)
    moved = sum(map(prod, (left.shape, right.shape, (p.M, p.N)))) * p.dtype.itemsize
    return p if operator == BACKWARD_WEIGHT else p._replace(K=terms(operator, left, right, h, w)), moved


def _quickest(operator: int, p: MatmulProblem, multiprocessors: int, moved: int, rows: int) -> Choice:
    """The quickest tiling of so many rows of a product."""
    some, part = p._replace(M=rows), moved * rows // p.M
    choices = ((t, s) for t in tilings(operator) for s in _splits(t, some, multiprocessors))
    timed = (Choice(t.microseconds(some, s, multiprocessors, part), t, s) for t, s in choices)
    return min(timed, key=lambda c: c.microseconds)


def terms(operator: int, left: Layout, right: Layout, h: ConvolutionAxis, w: ConvolutionAxis) -> int:
    """Of each sum, without the zeros that no product is made of."""
    channels = min(left.shape[1], right.shape[0 if operator == BACKWARD_INPUT else 1])
    return h.taps * w.taps * cdiv(channels, 16) * 16


def tilings(operator: int) -> tuple[WgmmaTiling, ...]:
    """Those among which an operator chooses. Where columns are terms, a copy of STEP channels must not cross taps."""
    if operator != BACKWARD_WEIGHT:
        return *TILINGS, *NARROW
    return tuple(t for t in (*TILINGS, *NARROW, *TALL) if t.n % STEP == 0)


def _splits(t: WgmmaTiling, p: MatmulProblem, multiprocessors: int) -> range:
    """Pieces of K, of 256 or more: as many as give every multiprocessor two tiles, if K is as long."""
    return range(1, max(1, min(2 * multiprocessors // t.tiles(p), p.K // 256)) + 1)


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
) -> Im2colPlan:
    """The plan with a given tiling, K cut into at most `splits` pieces."""
    p = _product(operator, channels, left, right, h, w)
    p = p._replace(M=p.M - first - (rest.product.M if rest else 0))
    k_split = split_length(p.K, splits, STEP)
    parts = cdiv(p.K, k_split)
    out, ending = (p.dtype, end) if parts == 1 else (torch.float32, PLAIN.ending)
    works = t.tiles(p) * parts
    roles = {"LEAVES_REST": (1, rest), "IS_REST": (1, first)}
    more = {name: value for name, (value, given) in roles.items() if given}
    kernel = SOURCE.kernel(
        "conv2d_implicit_gemm_tma", f"left:map right:map {ending.tensors} {NUMBERS}", OPERATOR=operator,
        ELEMENT=ctype(p.dtype), OUTPUT=ctype(out), C_VECTOR=gcd(16 // out.itemsize, p.N), BLOCK_N=t.n,
        CONSUMERS=t.consumers, HEIGHT=t.height, STAGES=t.stages, GROUP_M=t.group_m, **p.macros, **ending.macros,
        **last_products(operator, left, right), **more,
    )  # fmt: skip
    image = right if operator == BACKWARD_WEIGHT else left
    windows = (n for pair in zip(h[3:], w[3:], strict=True) for n in pair)
    numbers = h.positions, w.positions, *windows, h.taps, w.taps, whole_steps(image.shape[1]), first
    blocks, shared = min(works, multiprocessors), t.shared(out)
    launch = kernel.bind(blocks, t.threads, p.M, p.N, p.K, k_split, works, *numbers, shared=shared, follows=first > 0)
    if operator == BACKWARD_WEIGHT:
        maps: tuple[Tiles, Tiles] = _lines(left), PixelMaps(image, h, w, STEP)
    else:
        maps = PixelMaps(image, h, w, t.m), weights_of(right, (t.n if operator == CONV2D else STEP, STEP))
    return Im2colPlan(launch, p, *maps, parts, adding(parts, p, end), first, rest)


def last_products(operator: int, left: Layout, right: Layout) -> dict[str, int]:
    """What tells a kernel how much of the last step of a tap is not zero."""
    channels = min(left.shape[1], right.shape[0 if operator == BACKWARD_INPUT else 1])
    products = cdiv(channels % STEP, 16)
    if operator == BACKWARD_WEIGHT or products in (0, STEP // 16):
        return {}
    return {"TAP_K": whole_steps(channels), "TAP_PRODUCTS": products}


def whole_steps(channels: int) -> int:
    return cdiv(channels, STEP) * STEP


def _product(
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
    """Images, or kernels, from their matrix [N * P * Q, O], in the order of the convolution's result."""
    n, o, rows, columns = c.shape
    images = matrix.view(n, rows, columns, -1)[..., :o].permute(0, 3, 1, 2)
    if c.last or images.is_contiguous():
        return fresh(images, c.order)
    if (few := turned(matrix.view(n, rows * columns, -1)[..., :o], back=True)) is not None:
        return few.view(c.shape)
    if n > MOST_MATRICES:
        return fresh(images, c.order)
    return transpose_batch(matrix.view(n, rows * columns, -1)[..., :o]).view(c.shape)


@dataclass(frozen=True)
class Walked:
    """im2col copies reach every position and tap. transposed: of conv2d_backward_input, where they are of pixels that are
    equal modulo the stride. columns: whether they walk over those too."""

    transposed: bool = False
    columns: bool = True

    @property
    def text(self) -> str:
        border = "and the windows within 128 of the image's border"
        if self.transposed:
            return f"stride <= {_MOST_STRIDE}, a pixel's places at most {_MOST_OFFSET} apart, {border}"
        stride = f"stride <= {MOST_STEP}"
        stride = stride if self.columns else f"along rows {stride}"
        return f"{stride}, dilation * (kernel - 1) <= {_MOST_OFFSET}, {border}"

    def check(self, call: Call) -> str | None:
        """None, or where they do not."""
        for n, places, taps, name in (("H", "P", "R", "rows"), ("W", "Q", "S", "columns"))[: 1 + self.columns]:
            side = name == "columns"
            stride, padding, dilation = (call.arguments[key][side] for key in ("stride", "padding", "dilation"))
            size, positions, count = (call.axes[key] for key in (n, places, taps))
            axis = ConvolutionAxis(size, positions, count, stride, padding, dilation)
            if self.transposed:
                axis = axis._replace(positions=size).over(positions)
            far = axis.dilation * (axis.taps - 1)
            if stride > (_MOST_STRIDE if self.transposed else MOST_STEP) or far > _MOST_OFFSET:
                return f"{name}: stride {stride}, places {far} apart, needs {self.text}"
            if any(corner not in CORNERS for corner in corners(axis)):
                first, last = corners(axis)
                return f"{name}: windows from {first} on, to {last} beyond the end, needs -128 to 127"
        return None


def asks(lead: str, *together: str, channels: str, transposed: bool = False) -> tuple[Condition, ...]:
    """What the rung needs. lead: an operand. channels: axes that are inner ones of operands."""
    lines = (InVectors(axis, VECTOR, COPIED) for axis in channels)
    return (*halves_on_hopper(lead), *lines, Walked(transposed), *indices(*together))
