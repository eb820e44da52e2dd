"""conv2d of fp32 by tensor cores of bf16, on sm_90: six products of three planes each, as exact as fp32.

The gradient of images for stride 1 is the same, with the taps backwards and a weight whose filters are summed over.
"""

from dataclasses import dataclass
from math import gcd, prod
from typing import Any, NamedTuple

import torch

from kernelmux.backends.cuda._families import planes
from kernelmux.backends.cuda._families.epilogue import PLAIN, Epilogue, EpilogueKind
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, Tiles, card, cdiv
from kernelmux.backends.cuda.conv2d._im2col import (
    backwards,
    last_products,
    pieces,
    product,
    weights_of,
    whole_steps,
)
from kernelmux.backends.cuda.conv2d._pixel_maps import STEP, PixelMaps
from kernelmux.backends.cuda.conv2d._planes import of_planes, split
from kernelmux.backends.cuda.conv2d._plans import Together, adding, guarded, indices, tiled
from kernelmux.backends.cuda.conv2d._problem import CONV2D, Convolution, ConvolutionAxis, swapped
from kernelmux.backends.cuda.conv2d._walked import Walked
from kernelmux.backends.cuda.matmul._bf16x6 import PlanesTiling
from kernelmux.backends.cuda.matmul._choice import HOPPER_MEMORY, split_length
from kernelmux.registry.conditions import Capability, Condition, Dtypes
from kernelmux.registry.util.cards import Card, remembered

SOURCE = Source(__file__, "conv2d_bf16x6.cu")
NUMBERS = (
    "M:i32 N:i32 K:i32 k_split:i32 works:i32 rows:i32 columns:i32 stride_h:i32 stride_w:i32 padding_h:i32 padding_w:i32 "
    "dilation_h:i32 dilation_w:i32 taps_h:i32 taps_w:i32 channels:i32 weight_plane:i32 pixels:i32"
)
LARGEST = 2**29  # terms of a sum, whose channels are rounded up to whole steps, and counted for three planes
PLAIN_FP32, SPLITTING = 36e6, 8.0  # operations per microsecond of `tiled`; microseconds of the launches of planes


@dataclass(frozen=True)
class PixelPlanesTiling(PlanesTiling):
    """Of positions and filters. height: of 64 rows, a consumer's."""

    height: int = 1

    @property
    def consumers(self) -> int:
        return self.m // 64 // self.height


# Rates of those that copies of planes keep up with: 5.2e6 bytes per microsecond, as in `_shared_rows.COPIED_AGAIN`.
TILINGS = (
    PixelPlanesTiling(128, 192, 0.50e6, 5),
    PixelPlanesTiling(128, 160, 0.47e6, 5),
    PixelPlanesTiling(128, 128, 0.48e6, 6),
    PixelPlanesTiling(128, 96, 0.36e6, 7),
    PixelPlanesTiling(128, 64, 0.28e6, 8),
    PixelPlanesTiling(256, 96, 0.45e6, 4, height=2),
    PixelPlanesTiling(256, 64, 0.34e6, 5, height=2),
)


class PlanesPlan(NamedTuple):
    """A convolution of planes, or a gradient, what adds pieces of K, and the launch that computes all of it if planes
    cannot hold a number. left, right: maps of its operands; parts: sums of all pieces."""

    c: Convolution
    launch: BoundLaunch
    left: PixelMaps | Tiles
    right: PixelMaps | Tiles
    parts: int
    sum_parts: BoundLaunch | None
    plain: BoundLaunch
    packed: bytes

    def run(self, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Of two operands in the order of the operator."""
        flags = planes.flags_for(a, 2)
        held = split(a, flags, 0), split(b, flags, 1)  # a map holds no memory
        factors = self.left.of(held[0]), self.right.of(held[1])
        y = torch.empty(self.c.shape, dtype=a.dtype, device=a.device, memory_format=self.c.order)
        if self.sum_parts:
            parts = a.new_empty(self.parts)
            self.launch(*factors, parts)
            self.sum_parts(parts, bias, y, self.packed)
        else:
            self.launch(*factors, y, *ending(bias).tensors)
        self.plain(flags, a, b, bias, y, self.packed)
        return y


def ending(bias: torch.Tensor | None) -> Epilogue:
    return PLAIN if bias is None else Epilogue(EpilogueKind(bias=True), (bias, None))


def bf16x6(c: Convolution, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The convolution c."""
    here = card(x)
    if 0 in (*c.shape, *x.shape, *weight.shape):
        return tiled(c, here).run(x, weight, bias)
    return best_plan(c, here, ending(bias).ending).run(x, weight, bias)


@remembered
def best_plan(c: Convolution, card: Card, end: EpilogueKind) -> PlanesPlan:
    """That of the quickest tiling."""
    return plan(c, card, end, *choose(c, card.processors)[1:])


def choose(c: Convolution, processors: int) -> tuple[float, PixelPlanesTiling, int]:
    """The microseconds of the quickest product, its tiling and pieces of K."""
    p = product(CONV2D, c.filters, c.image, c.other, *walk(c))
    moved = 6 * (prod(c.image.shape) + prod(c.other.shape)) + 4 * p.M * p.N
    fit = (t for t in TILINGS if c.operator == CONV2D or t.n % STEP == 0)
    cuts = ((t, s) for t in fit for s in pieces(t, p, processors))
    return min(((t.microseconds(p, s, processors, moved), t, s) for t, s in cuts), key=lambda cut: cut[0])


def walk(c: Convolution) -> tuple[ConvolutionAxis, ConvolutionAxis]:
    """How windows walk over what is read at taps."""
    return (c.h, c.w) if c.operator == CONV2D else (backwards(c.h), backwards(c.w))


def plan(c: Convolution, card: Card, end: EpilogueKind, t: PixelPlanesTiling, splits: int) -> PlanesPlan:
    """The plan with a given tiling, K cut into at most `splits` pieces; no extent is 0. Not CONV2D, c has no stride."""
    (h, w), forward = walk(c), c.operator == CONV2D
    weight = c.other if forward else swapped(c.other)
    p = product(CONV2D, c.filters, c.image, c.other, h, w)
    k_split = split_length(p.K, splits, STEP)
    parts = cdiv(p.K, k_split)
    kind, pixels = (end, c.shape[2] * c.shape[3]) if parts == 1 else (PLAIN.ending, p.M)
    kernel = SOURCE.kernel(
        "conv2d_bf16x6", f"image:map weight:map {kind.tensors} {NUMBERS}", OPERATOR=c.operator,
        ELEMENT="__nv_bfloat16", OUTPUT="float", C_VECTOR=gcd(4, p.N), BLOCK_N=t.n, CONSUMERS=t.consumers, HEIGHT=t.height,
        STAGES=t.stages, M_CONTIGUOUS=int(c.m_contiguous), A_K_MAJOR=1, B_K_MAJOR=int(forward), **kind.macros,
        **last_products(CONV2D, c.image, c.other),
    )  # fmt: skip
    works = t.tiles(p) * parts
    windows = (n for pair in zip(h[3:], w[3:], strict=True) for n in pair)
    channels = whole_steps(c.image.shape[1]), whole_steps(weight.shape[1])
    numbers = h.positions, w.positions, *windows, h.taps, w.taps, *channels, pixels
    sizes, blocks = (p.M, p.N, p.K, k_split, works), min(works, card.processors)
    launch = kernel.bind(blocks, t.threads, *sizes, *numbers, shared=t.shared, follows=True)
    box = t.n if forward else STEP, STEP
    maps = PixelMaps(of_planes(c.image), h, w, t.m), weights_of(of_planes(weight), box)
    plain, add = guarded(c, card, 2 * planes.words(card)), adding(c, parts) if parts > 1 else None
    return PlanesPlan(c, launch, *maps, parts * p.M * p.N, add, plain.launch, plain.packed)


@dataclass(frozen=True)
class RepaysPlanesOfImages:
    """A convolution, or a gradient, large enough to repay what splits its operands and what checks behind it whether that
    was right."""

    operator: int = CONV2D
    text: str = "a convolution that repays splitting its operands"

    def check(self, call: Any) -> str | None:
        """None, or that it is too small."""
        n, c, o, h, w, r, s, p, q = (call.axes[axis] for axis in "NCOHWRSPQ")
        positions, taps = n * p * q, r * s
        images, gradients, kernels = n * h * w * c, positions * o, o * c * taps
        rows, columns, terms, split = (
            (positions, o, taps * _steps(c, STEP), images + kernels),
            (positions, c, taps * _steps(o, STEP), gradients + kernels),
            (o, taps * _steps(c, STEP), positions, images + gradients),
        )[self.operator]
        whole = min(_steps(rows, t.m) * _steps(columns, t.n) / t.rate for t in TILINGS) * terms / 132
        saved = 2 * positions * kernels / PLAIN_FP32 - whole
        if saved >= SPLITTING + 10 * split / HOPPER_MEMORY:
            return None
        return f"{positions} positions, {o} by {c} channels and {taps} taps are too few to repay splitting the operands"


def _steps(length: int, step: int) -> int:
    return cdiv(length, step) * step


@dataclass(frozen=True)
class PlanesWithin:
    """A plane of the images is not larger than an int counts vectors in, and than memory holds three of. pixels, channels:
    axes."""

    pixels: str
    channels: str
    most: int = 2**33

    @property
    def text(self) -> str:
        return f"{' * '.join(self.pixels)} * {self.channels}, in whole {STEP}s, <= {self.most}"

    def check(self, call: Any) -> str | None:
        """None, or how large it is."""
        size = prod(call.axes[axis] for axis in self.pixels) * _steps(call.axes[self.channels], STEP)
        return None if size <= self.most else f"a plane of {size} elements, needs {self.text}"


IMAGES, GRADIENTS = PlanesWithin("NHW", "C"), PlanesWithin("NPQ", "O")


def asks(
    lead: str, positions: str, terms: str, *split: PlanesWithin, transposed: bool = False
) -> tuple[Condition, ...]:
    """What the rung needs. lead: an operand. positions, terms: axes whose product they are. split: what is."""
    hopper = Dtypes(lead, torch.float32), Capability((9, 0), below=(10, 0))
    return (*hopper, Walked(transposed), *indices(positions, terms), Together(terms, LARGEST), *split)
