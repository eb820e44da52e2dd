"""conv2d and the gradient of its images for stride 1 with pixels in shared memory for all taps of a row.

H200, bf16, beside pixels that are copied for each tap and cuDNN: 192 of 5 x 5 on 16x96x57x57 84.5, 102.2 and 111.2 us, its
gradient 80.9, 115.1 and 101.0; 96 of 3 x 3 on 32x96x56x56 42.5, 78.5 and 42.2. Of 64 channels 23.9, 22.5 and 27.4, of 256
on 28x28 53.5, 44.6 and 45.3: positions in the padding are more than what is saved.
"""

from math import gcd
from typing import NamedTuple

import torch

from kernelmux.backends.cuda._families.epilogue import Epilogue, EpilogueKind
from kernelmux.backends.cuda._launch.layout import Layout
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, Tiles, cdiv, ctype
from kernelmux.backends.cuda.conv2d import _im2col
from kernelmux.backends.cuda.conv2d._im2col import (
    Im2colPlan,
    choose,
    last_products,
    product,
    terms,
    turning,
    weights_of,
    whole_steps,
)
from kernelmux.backends.cuda.conv2d._pixel_maps import CORNERS, STEP, PixelMaps, corners
from kernelmux.backends.cuda.conv2d._problem import CONV2D, ConvolutionAxis
from kernelmux.backends.cuda.matmul._wgmma import LINE, WgmmaTiling
from kernelmux.registry.util.cards import remembered

SOURCE = Source(__file__, "conv2d_implicit_gemm_shared.cu")
PIXEL_STAGES = 3
MOST_SHARED = 226 << 10  # bytes
MOST_HALO = 64  # lines behind a tile
TILES = (
    WgmmaTiling(256, 192, 3.0e6, 4, height=2),
    WgmmaTiling(256, 160, 3.05e6, 4, height=2),
    WgmmaTiling(256, 128, 3.1e6, 4, height=2),
    WgmmaTiling(256, 96, 2.8e6, 4, height=2),
    WgmmaTiling(256, 64, 1.9e6, 4, height=2),
)
# Bytes of pixels per microsecond that copies for each tap bring to all multiprocessors. Those of channels that are not
# multiples of 128 bytes begin within a line of L2, which costs more than twice the time.
COPIED_AGAIN, WITHIN_LINES = 5.2e6, 2.2
GAIN = 0.9  # of the time otherwise, from which on this is chosen
_NUMBERS = "M:i32 N:i32 works:i32 rows:i32 wide:i32 columns:i32 top:i32 left:i32 dilation_h:i32 taps_h:i32 channels:i32"


class SharedRowsPlan(NamedTuple):
    """A kind of convolution, ready to run. shape: of the result as [N, H, W, C]."""

    launch: BoundLaunch
    image: Tiles
    weight: Tiles
    shape: tuple[int, ...]

    def run(self, image: torch.Tensor, weight: torch.Tensor, epilogue: Epilogue) -> torch.Tensor:
        """The result as a matrix of pixels and channels."""
        out = image.new_empty(self.shape)
        self.launch(self.image.of(image), self.weight.of(weight), out, *epilogue.tensors)
        return out


def widened(w: ConvolutionAxis) -> ConvolutionAxis:
    """Columns with the padding between two rows as positions."""
    return w._replace(positions=w.positions + (w.taps - 1) * w.dilation)


@remembered
def best_plan(
    operator: int, channels: int, image: Layout, weight: Layout, h: ConvolutionAxis, w: ConvolutionAxis,
    end: EpilogueKind, multiprocessors: int, contiguous: bool = False, after: bool = False,
) -> "Im2colPlan | SharedRowsPlan":  # fmt: skip
    """Pixels for all taps of a row at once, or copied for each tap. channels: of the result. contiguous: as it is to lie in
    the end. after: the launch before makes a copy that is one of the operands."""
    given = operator, channels, image, weight, h, w
    if _fits(image, h, w):
        pixels = image.shape[0] * h.positions * w.positions * terms(operator, image, weight, h, w) * 2 / COPIED_AGAIN
        apart = image.shape[1] * 2 % LINE
        otherwise = max(
            choose(*given, multiprocessors, contiguous).microseconds, pixels * (WITHIN_LINES if apart else 1)
        )
        time, tiling = min(((_microseconds(t, *given, multiprocessors), t) for t in TILES), key=lambda c: c[0])
        time += turning(product(*given)) if contiguous else 0.0
        if time < GAIN * otherwise:
            return plan(*given, end, tiling, multiprocessors)
    return _im2col.best_plan(*given, end, multiprocessors, contiguous, after)


def _microseconds(
    t: WgmmaTiling, operator: int, channels: int, image: Layout, weight: Layout, h: ConvolutionAxis,
    w: ConvolutionAxis, multiprocessors: int,
) -> float:  # fmt: skip
    """A rough time, as that of `Tiling`."""
    positions = image.shape[0] * h.positions * widened(w).positions
    rounds = cdiv(cdiv(positions, t.m) * cdiv(channels, t.n), multiprocessors)
    return rounds * (t.m * t.n / 2**16 + t.m * t.n * terms(operator, image, weight, h, w) / t.rate)


def _fits(image: Layout, h: ConvolutionAxis, w: ConvolutionAxis) -> bool:
    """Whether there are taps side by side, of neighbouring places, that copies of rows with their padding reach."""
    wide = widened(w)
    few = image.shape[0] * h.positions * wide.positions < 2**31 - 512 and _halo(w) <= MOST_HALO
    return h.stride == w.stride == 1 < w.taps and few and all(corner in CORNERS for corner in corners(wide))


def _halo(w: ConvolutionAxis) -> int:
    """Lines behind those of a tile, in whole patterns of the swizzle."""
    return cdiv((w.taps - 1) * w.dilation, 8) * 8


def plan(
    operator: int, channels: int, image: Layout, weight: Layout, h: ConvolutionAxis, w: ConvolutionAxis,
    end: EpilogueKind, t: WgmmaTiling, multiprocessors: int,
) -> SharedRowsPlan:  # fmt: skip
    """The plan with a given tiling. channels: of the result."""
    images, wide = image.shape[0], widened(w)
    M = images * h.positions * wide.positions
    halo = _halo(w)
    pixels = PIXEL_STAGES * (t.m + halo) * LINE
    line = LINE if t.n * 2 % LINE == 0 else LINE // 2
    strips = 4 * t.consumers * 16 * (line + 16)
    one = (t.n if operator == CONV2D else cdiv(t.n, 64) * 64) * LINE
    stages = min(8, (MOST_SHARED - pixels - strips - 256) // (one + 16))
    kernel = SOURCE.kernel(
        "conv2d_implicit_gemm_shared", f"image:map weight:map {end.tensors} {_NUMBERS}", OPERATOR=operator,
        ELEMENT=ctype(image.dtype), C_VECTOR=gcd(8, channels), BLOCK_N=t.n, CONSUMERS=t.consumers, HEIGHT=t.height,
        STAGES=stages, PIXEL_STAGES=PIXEL_STAGES, GROUP_M=t.group_m, A_K_MAJOR=1, B_K_MAJOR=int(operator == CONV2D),
        TAPS_W=w.taps, DILATION_W=w.dilation, **last_products(operator, image, weight), **end.macros,
    )  # fmt: skip
    works = cdiv(M, t.m) * cdiv(channels, t.n)
    numbers = h.positions, wide.positions, w.positions, h.padding, w.padding, h.dilation, h.taps
    shared = pixels + stages * (one + 16) + strips + 16 * PIXEL_STAGES
    blocks, deep = min(works, multiprocessors), whole_steps(image.shape[1])
    launch = kernel.bind(blocks, t.threads, M, channels, works, *numbers, deep, shared=shared)
    lines = t.n if operator == CONV2D else STEP
    maps = PixelMaps(image, h, wide, t.m + halo), weights_of(weight, (lines, STEP))
    return SharedRowsPlan(launch, *maps, (images, h.positions, w.positions, channels))
