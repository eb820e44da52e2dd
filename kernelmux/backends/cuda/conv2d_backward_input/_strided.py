"""conv2d_backward_input by strides through TMA's im2col mode and wgmma: a product for each phase, all in one launch."""

from itertools import product
from math import gcd
from typing import NamedTuple

import torch

from kernelmux.backends.cuda._launch.layout import Layout
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, Tiles, cdiv, ctype
from kernelmux.backends.cuda.conv2d._im2col import last_products, weights_of, whole_steps
from kernelmux.backends.cuda.conv2d._pixel_maps import STEP, PixelMaps
from kernelmux.backends.cuda.conv2d._problem import BACKWARD_INPUT, ConvolutionAxis
from kernelmux.backends.cuda.conv2d._tilings import NARROW, TILINGS
from kernelmux.backends.cuda.matmul._wgmma import WgmmaTiling
from kernelmux.registry.util.cards import remembered

SOURCE = Source(__file__, "conv2d_backward_input_strided.cu")
TILES = *TILINGS, *NARROW
_NUMBERS = "M:i32 N:i32 channels:i32 tiles:i32 works:i32 size_h:i32 positions_h:i32 size_w:i32 positions_w:i32"


class StridedPlan(NamedTuple):
    """A kind of call, ready to run. shape: of the result as [N, H, W, C]."""

    launch: BoundLaunch
    image: Tiles
    weight: Tiles
    shape: tuple[int, ...]

    def run(self, grad_out: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The result as a matrix [N * H * W, C]."""
        out = grad_out.new_empty(self.shape)
        self.launch(self.image.of(grad_out), self.weight.of(weight), out)
        return out


@remembered
def best_plan(
    channels: int, grad_out: Layout, weight: Layout, h: ConvolutionAxis, w: ConvolutionAxis, multiprocessors: int
) -> StridedPlan:
    """The quickest tiling. channels: of the result."""
    tiling = min(TILES, key=lambda t: _microseconds(t, channels, grad_out, h, w, multiprocessors))
    return plan(channels, grad_out, weight, h, w, tiling, multiprocessors)


def _microseconds(
    t: WgmmaTiling, channels: int, grad_out: Layout, h: ConvolutionAxis, w: ConvolutionAxis, multiprocessors: int
) -> float:
    """A rough time: the works are shared out evenly, but for half of the longest one."""
    positions = grad_out.shape[0] * cdiv(h.positions, h.stride) * cdiv(w.positions, w.stride)
    tiles = cdiv(positions, t.m) * cdiv(channels, t.n)
    taps = [a * b for a, b in product(h.taps_of_phases, w.taps_of_phases)]
    tap = t.m * t.n * whole_steps(grad_out.shape[1]) / t.rate
    drain = max(0.5, t.m * t.n / 2**16)
    return tiles * sum(drain + n * tap for n in taps) / multiprocessors + max(taps) * tap / 2


def plan(
    channels: int, grad_out: Layout, weight: Layout, h: ConvolutionAxis, w: ConvolutionAxis, t: WgmmaTiling,
    multiprocessors: int,
) -> StridedPlan:  # fmt: skip
    """The plan with a given tiling. channels: of the result."""
    images, deep = grad_out.shape[0], whole_steps(grad_out.shape[1])
    rows, columns = h.over(grad_out.shape[2]), w.over(grad_out.shape[3])
    M = images * rows.positions * columns.positions
    tiles = cdiv(M, t.m) * cdiv(channels, t.n)
    works = tiles * h.stride * w.stride
    kernel = SOURCE.kernel(
        "conv2d_backward_input_strided", f"image:map weight:map out* {_NUMBERS}",
        ELEMENT=ctype(grad_out.dtype), C_VECTOR=gcd(8, channels), BLOCK_N=t.n, CONSUMERS=t.consumers, HEIGHT=t.height,
        STAGES=t.stages, GROUP_M=t.group_m, A_K_MAJOR=1, B_K_MAJOR=0, **windows_of("H", h), **windows_of("W", w),
        **last_products(BACKWARD_INPUT, grad_out, weight),
    )  # fmt: skip
    sizes = h.positions, rows.positions, w.positions, columns.positions
    blocks, shared = min(works, multiprocessors), t.shared(grad_out.dtype)
    launch = kernel.bind(blocks, t.threads, M, channels, deep, tiles, works, *sizes, shared=shared)
    maps = PixelMaps(grad_out, rows, columns, t.m), weights_of(weight, (STEP, STEP))
    return StridedPlan(launch, *maps, (images, h.positions, w.positions, channels))


def windows_of(axis: str, a: ConvolutionAxis) -> dict[str, int]:
    """What the kernel is compiled for."""
    names = "STRIDE", "PADDING", "DILATION", "TAPS", "COMMON", "LOWEST"
    numbers = a.stride, a.padding, a.dilation, a.taps, a.common, a.reach[0]
    return {f"{name}_{axis}": number for name, number in zip(names, numbers, strict=True)}
