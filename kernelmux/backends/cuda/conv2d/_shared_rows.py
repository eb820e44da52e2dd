"""conv2d and the gradient of its images for stride 1 with pixels in shared memory for all taps of a row."""

from math import gcd
from typing import NamedTuple

import torch

from kernelmux.backends.cuda._families.epilogue import Epilogue, EpilogueKind
from kernelmux.backends.cuda._launch.layout import Layout
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, Tiles, cdiv, ctype
from kernelmux.backends.cuda.conv2d._im2col import last_products, weights_of, whole_steps
from kernelmux.backends.cuda.conv2d._pixel_maps import STEP, PixelMaps
from kernelmux.backends.cuda.conv2d._problem import CONV2D, ConvolutionAxis
from kernelmux.backends.cuda.matmul._wgmma import LINE, WgmmaTiling

SOURCE = Source(__file__, "conv2d_implicit_gemm_shared.cu")
PIXEL_STAGES = 3
MOST_SHARED = 226 << 10  # bytes
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


def plan(
    operator: int, channels: int, image: Layout, weight: Layout, h: ConvolutionAxis, w: ConvolutionAxis,
    end: EpilogueKind, t: WgmmaTiling, multiprocessors: int,
) -> SharedRowsPlan:  # fmt: skip
    """The plan with a given tiling. channels: of the result."""
    images, wide = image.shape[0], widened(w)
    M = images * h.positions * wide.positions
    halo = cdiv((w.taps - 1) * w.dilation, 8) * 8
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
        **({"DOWN": t.down} if t.down > 1 else {}),
    )  # fmt: skip
    works = t.down * cdiv(M, t.down * t.m) * cdiv(channels, t.n)
    numbers = h.positions, wide.positions, w.positions, h.padding, w.padding, h.dilation, h.taps
    shared = pixels + stages * (one + 16) + strips + 16 * PIXEL_STAGES
    blocks, deep = min(works, t.resident(multiprocessors)), whole_steps(image.shape[1])
    launch = kernel.bind(blocks, t.threads, M, channels, works, *numbers, deep, shared=shared)
    lines = (t.n if operator == CONV2D else STEP) // t.down
    maps = PixelMaps(image, h, wide, t.m + halo), weights_of(weight, (lines, STEP))
    return SharedRowsPlan(launch, *maps, (images, h.positions, w.positions, channels))
