"""conv2d_backward_weight of fp32 by tensor cores of bf16, on sm_90: six products of three planes each, as exact as fp32."""

from math import prod

import torch

from kernelmux.backends.cuda._families import planes
from kernelmux.backends.cuda._launch.runtime import Source, Tiles, card, cdiv
from kernelmux.backends.cuda.conv2d._bf16x6 import NUMBERS, TILINGS, PixelPlanesTiling, PlanesPlan
from kernelmux.backends.cuda.conv2d._im2col import SUMMED_ROUNDS, pieces, product, whole_steps
from kernelmux.backends.cuda.conv2d._pixel_maps import STEP, PixelMaps
from kernelmux.backends.cuda.conv2d._planes import of_planes
from kernelmux.backends.cuda.conv2d._plans import adding, guarded, tiled
from kernelmux.backends.cuda.conv2d._problem import BACKWARD_WEIGHT, Convolution
from kernelmux.backends.cuda.matmul._choice import split_length
from kernelmux.backends.cuda.matmul._maps import SWIZZLED
from kernelmux.registry.util.cards import Card, remembered

SOURCE = Source(__file__, "conv2d_bf16x6_positions.cu")
TILES = tuple(t for t in TILINGS if t.n % STEP == 0)


def bf16x6(c: Convolution, grad_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The gradient c."""
    here = card(x)
    if 0 in (*c.shape, *grad_out.shape, *x.shape):
        return tiled(c, here).run(grad_out, x)
    return best_plan(c, here).run(grad_out, x)


@remembered
def best_plan(c: Convolution, card: Card) -> PlanesPlan:
    """That of the quickest tiling."""
    return plan(c, card, *choose(c, card.processors)[1:])


def choose(c: Convolution, processors: int) -> tuple[float, PixelPlanesTiling, int]:
    """The microseconds of the quickest product, its tiling and pieces of K."""
    p = product(BACKWARD_WEIGHT, c.filters, c.other, c.image, c.h, c.w)
    moved = 6 * (prod(c.image.shape) + prod(c.other.shape)) + 4 * p.M * p.N
    cuts = ((t, s) for t in TILES for s in pieces(t, p, processors, SUMMED_ROUNDS))
    return min(((t.microseconds(p, s, processors, moved), t, s) for t, s in cuts), key=lambda cut: cut[0])


def plan(c: Convolution, card: Card, t: PixelPlanesTiling, splits: int) -> PlanesPlan:
    """The plan with a given tiling, K cut into at most `splits` pieces; no extent is 0."""
    p = product(BACKWARD_WEIGHT, c.filters, c.other, c.image, c.h, c.w)
    k_split, taps = split_length(p.K, splits, STEP), c.h.taps * c.w.taps
    parts = cdiv(p.K, k_split)
    kernel = SOURCE.kernel(
        "conv2d_bf16x6_positions", f"grad_out:map image:map c* {NUMBERS}", ELEMENT="__nv_bfloat16", OUTPUT="float",
        BLOCK_N=t.n, CONSUMERS=t.consumers, HEIGHT=t.height, STAGES=t.stages, A_K_MAJOR=0, B_K_MAJOR=0,
    )  # fmt: skip
    works, channels, filters = t.tiles(p) * parts, c.image.shape[1], whole_steps(c.filters)
    windows = (n for pair in zip(c.h[3:], c.w[3:], strict=True) for n in pair)
    numbers = c.h.positions, c.w.positions, *windows, c.h.taps, c.w.taps, whole_steps(channels), filters, channels
    sizes, blocks = (p.M, p.N, p.K, k_split, works), min(works, card.processors)
    launch = kernel.bind(blocks, t.threads, *sizes, *numbers, shared=t.shared, follows=True)
    lines = Tiles((p.K, 3 * filters), (3 * filters, 1), (STEP, STEP), swizzle=SWIZZLED)
    image, plain = PixelMaps(of_planes(c.image), c.h, c.w, STEP), guarded(c, card, 2 * planes.words(card))
    add = None if parts == 1 and (c.last or taps == 1) else adding(c, parts, TAPS_OUTER=1)
    return PlanesPlan(c, launch, lines, image, parts * p.M * taps * channels, add, plain.launch, plain.packed)
