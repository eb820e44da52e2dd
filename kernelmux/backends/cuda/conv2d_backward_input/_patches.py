"""conv2d_backward_input where windows do not overlap (conv2d_backward_input_patches.cu): plans."""

from struct import pack
from typing import NamedTuple

import torch

from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, Tiles, ctype
from kernelmux.backends.cuda.conv2d._patches import Patches, places_of
from kernelmux.backends.cuda.conv2d._pixel_copies import VECTOR
from kernelmux.backends.cuda.conv2d._problem import Convolution
from kernelmux.backends.cuda.conv2d._tilings import NARROW, TILINGS
from kernelmux.backends.cuda.matmul._choice import choose, problem
from kernelmux.backends.cuda.matmul._maps import tiles
from kernelmux.backends.cuda.matmul._padding import padded
from kernelmux.backends.cuda.matmul._wgmma import LINE, WgmmaTiling
from kernelmux.registry.util.cards import remembered

SOURCE = Source(__file__, "conv2d_backward_input_patches.cu")
_NUMBERS = "M:i32 N:i32 K:i32 works:i32"


class PatchesPlan(NamedTuple):
    """A kind of call, ready to run."""

    launch: BoundLaunch
    left: Tiles
    right: Tiles
    packed: bytes

    def run(self, left: torch.Tensor, right: torch.Tensor, images: torch.Tensor) -> None:
        """Writes images where windows are."""
        self.launch(self.left.of(left), self.right.of(right), images, self.packed)


def gradient(c: Convolution, grad_out: torch.Tensor, weight: torch.Tensor, multiprocessors: int) -> torch.Tensor:
    """The gradient of images: zero where no window is."""
    p = Patches.of(c, c.shape[1], grad_out.shape[2:])
    left, right = places_of(grad_out), p.weight(weight)
    if p.terms == 1:  # a column is a line of K, which the kernel does not read
        right = torch.nn.functional.pad(right, (0, VECTOR - 1))[:, :1]
    right = right if problem(layout(left), layout(right)).right.aligned else padded(right, 0)
    images = torch.empty(c.shape, dtype=left.dtype, device=left.device, memory_format=c.order)
    if not p.covers(c.shape[2:]):
        images.zero_()
    best_plan(p, layout(left), layout(right), layout(images), multiprocessors).run(left, right, images)
    return images


@remembered
def best_plan(p: Patches, left: Layout, right: Layout, images: Layout, multiprocessors: int) -> PatchesPlan:
    """The quickest tiling by the rule of matmul."""
    tiling, _ = choose((*TILINGS, *NARROW), problem(left, right), multiprocessors, most=1)
    return plan(p, left, right, images, tiling, multiprocessors)


def plan(p: Patches, left: Layout, right: Layout, images: Layout, t: WgmmaTiling, multiprocessors: int) -> PatchesPlan:
    """The plan with a given tiling."""
    product, out = problem(left, right), left.dtype
    works = t.tiles(product)
    vector, group = p.together(images), p.group(images)
    kernel = SOURCE.kernel(
        "conv2d_backward_input_patches", f"left:map right:map out* images:struct {_NUMBERS}", ELEMENT=ctype(out),
        C_VECTOR=vector, BLOCK_N=t.n, CONSUMERS=t.consumers, HEIGHT=t.height, STAGES=t.stages, GROUP_M=t.group_m,
        A_K_MAJOR=1, B_K_MAJOR=0, GROUP=group, **p.defines,
    )  # fmt: skip
    blocks, shared = min(works, multiprocessors), t.shared(out)
    launch = kernel.bind(blocks, t.threads, product.M, product.N, product.K, works, shared=shared)
    by_n, by_c, by_h, by_w = images.strides
    packed = pack("q7i4x", by_n, by_c, by_h, by_w, *images.shape[2:], *p.places)
    maps = tiles(product, product.left, product.M, t.m), tiles(product, product.right, product.N, LINE // 2)
    return PatchesPlan(launch, *maps, packed)
