"""conv2d_backward_input of fp32 by tensor cores of bf16, on sm_90: six products of three planes each, as exact as fp32.

For stride 1 it is the kernel of conv2d; otherwise there is a product for each phase, all of them in one launch.
"""

from itertools import product
from math import gcd

import torch

from kernelmux.backends.cuda._families import planes
from kernelmux.backends.cuda._families.epilogue import PLAIN
from kernelmux.backends.cuda._launch.runtime import Source, card, cdiv
from kernelmux.backends.cuda.conv2d import _bf16x6
from kernelmux.backends.cuda.conv2d._bf16x6 import TILINGS, PixelPlanesTiling, PlanesPlan
from kernelmux.backends.cuda.conv2d._im2col import last_products, weights_of, whole_steps
from kernelmux.backends.cuda.conv2d._pixel_maps import STEP, PixelMaps
from kernelmux.backends.cuda.conv2d._planes import of_planes
from kernelmux.backends.cuda.conv2d._plans import guarded, tiled
from kernelmux.backends.cuda.conv2d._problem import CONV2D, Convolution, swapped
from kernelmux.backends.cuda.conv2d_backward_input._strided import windows_of
from kernelmux.registry.util.cards import Card, remembered

SOURCE = Source(__file__, "conv2d_backward_input_bf16x6.cu")
TILES = tuple(t for t in TILINGS if t.n % STEP == 0)
_SIZES = "size_h:i32 positions_h:i32 size_w:i32 positions_w:i32"
NUMBERS = f"M:i32 N:i32 channels:i32 weight_plane:i32 tiles:i32 works:i32 {_SIZES}"


def bf16x6(c: Convolution, grad_out: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The gradient c."""
    here = card(grad_out)
    if 0 in (*c.shape, *grad_out.shape, *weight.shape):
        return tiled(c, here).run(grad_out, weight)
    return best_plan(c, here).run(grad_out, weight)


@remembered
def best_plan(c: Convolution, card: Card) -> PlanesPlan:
    """That of the quickest tiling."""
    if (c.h.stride, c.w.stride) == (1, 1):
        return _bf16x6.best_plan(c, card, PLAIN.ending)
    return plan(c, card, min(TILES, key=lambda t: microseconds(t, c, card.processors)))


def microseconds(t: PixelPlanesTiling, c: Convolution, processors: int) -> float:
    """A rough time of a gradient by strides: works are shared out evenly, but for half of the longest one."""
    positions = c.image.shape[0] * cdiv(c.h.positions, c.h.stride) * cdiv(c.w.positions, c.w.stride)
    taps = [a * b for a, b in product(c.h.taps_of_phases, c.w.taps_of_phases)]
    tap = t.m * t.n * whole_steps(c.image.shape[1]) / t.rate
    drain = max(0.5, t.m * t.n / 2**16)
    works = cdiv(positions, t.m) * cdiv(c.filters, t.n)
    return works * sum(drain + n * tap for n in taps) / processors + max(taps) * tap / 2


def plan(c: Convolution, card: Card, t: PixelPlanesTiling) -> PlanesPlan:
    """The plan by strides with a given tiling; no extent is 0."""
    weight, (images, _, rows, columns) = swapped(c.other), c.image.shape
    h, w = c.h.over(rows), c.w.over(columns)
    M, N = images * h.positions * w.positions, c.filters
    tiles = cdiv(M, t.m) * cdiv(N, t.n)
    works = tiles * c.h.stride * c.w.stride
    kernel = SOURCE.kernel(
        "conv2d_backward_input_bf16x6", f"image:map weight:map out* {NUMBERS}",
        ELEMENT="__nv_bfloat16", OUTPUT="float", C_VECTOR=gcd(4, N), BLOCK_N=t.n, CONSUMERS=t.consumers, HEIGHT=t.height,
        STAGES=t.stages, A_K_MAJOR=1, B_K_MAJOR=0, M_CONTIGUOUS=int(c.m_contiguous), **windows_of("H", c.h),
        **windows_of("W", c.w), **last_products(CONV2D, c.image, c.other),
    )  # fmt: skip
    numbers = M, N, whole_steps(c.image.shape[1]), whole_steps(weight.shape[1]), tiles, works
    sizes, blocks = (c.h.positions, h.positions, c.w.positions, w.positions), min(works, card.processors)
    launch = kernel.bind(blocks, t.threads, *numbers, *sizes, shared=t.shared, follows=True)
    maps = PixelMaps(of_planes(c.image), h, w, t.m), weights_of(of_planes(weight), (STEP, STEP))
    plain = guarded(c, card, 2 * planes.words(card))
    return PlanesPlan(c, launch, *maps, 0, None, plain.launch, plain.packed)
