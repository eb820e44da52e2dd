"""Windows that do not overlap: one product of matrices, between whose factors and images a kernel moves the pixels.

Each pixel is in one window at most, so that the windows as rows of a matrix are no more than the image: a copy and the product
take less time than a product that finds its pixels itself, where channels are few.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd, prod
from struct import pack
from typing import NamedTuple

import torch

from kernelmux.backends.cuda._families.epilogue import PLAIN, Epilogue
from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda._launch.runtime import Source, bits_type, cdiv
from kernelmux.backends.cuda.conv2d._im2col import ready, result
from kernelmux.backends.cuda.conv2d._pixel_copies import SECTOR, VECTOR
from kernelmux.backends.cuda.conv2d._plans import halves_on_hopper, indices
from kernelmux.backends.cuda.conv2d._problem import Convolution
from kernelmux.backends.cuda.matmul._wgmma import wgmma
from kernelmux.registry.conditions import AtLeast, AtMost, Condition, OneOf
from kernelmux.registry.spec import Call
from kernelmux.registry.spec.sliding_windows import Window
from kernelmux.registry.util.cards import remembered
from kernelmux.registry.util.memory_format import fresh

SOURCE = Source(__file__, "conv2d_patches.cu")
THREADS, UNITS = 256, 4  # of a block; vectors of a thread
MOST_CHANNELS = 32
MOST_GROUP = 8  # neighbouring places, which fill sectors together
IEEE = "ieee"  # of halves all products are


class Patches(NamedTuple):
    """Windows of images [N, C, H, W] as rows of a matrix. last: channels are the inner part of a row, else the outer one."""

    h: Window
    w: Window
    channels: int
    places: tuple[int, int]
    last: bool

    @classmethod
    def of(cls, c: Convolution, channels: int, places: tuple[int, int]) -> "Patches":
        """Those of a convolution, in the order of its result."""
        return cls(c.h.window, c.w.window, channels, places, c.last)

    @property
    def terms(self) -> int:
        """Of a row."""
        return self.channels * self.h.kernel * self.w.kernel

    @property
    def pitch(self) -> int:
        """Elements from row to row: whole sectors, which TMA reads without waste."""
        return cdiv(self.terms, SECTOR) * SECTOR

    def matrix(self, images: torch.Tensor) -> torch.Tensor:
        """[places, terms] of images."""
        made = images.new_empty(len(images) * prod(self.places), self.pitch)
        _moving("conv2d_patches_of_images", self, layout(images), self.pitch)(made, images)
        return made[:, : self.terms]

    def images(self, matrix: torch.Tensor, shape: tuple[int, ...], order: torch.memory_format) -> torch.Tensor:
        """The reverse: images of this shape, zero where no window is. matrix: dense."""
        made = torch.empty(shape, dtype=matrix.dtype, device=matrix.device, memory_format=order)
        if not all(map(covers, (self.h, self.w), self.places, shape[2:])):
            made.zero_()
        _moving("conv2d_images_of_patches", self, layout(made), matrix.stride(0))(made, matrix)
        return made

    def weight(self, weight: torch.Tensor) -> torch.Tensor:
        """[O, C, R, S] as [O, terms]."""
        return (weight.permute(0, 2, 3, 1) if self.last else weight).reshape(len(weight), -1)

    def of_weight(self, matrix: torch.Tensor) -> torch.Tensor:
        """The reverse."""
        taps = self.h.kernel, self.w.kernel
        if self.last:
            return matrix.view(len(matrix), *taps, self.channels).permute(0, 3, 1, 2)
        return matrix.view(len(matrix), self.channels, *taps)


def covers(w: Window, places: int, size: int) -> bool:
    """Whether windows at so many places are side by side and reach the end of an axis."""
    return w.kernel == w.stride and places * w.stride - w.padding >= size


@remembered
def _moving(entry: str, p: Patches, images: Layout, pitch: int) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """The copy between images that lie so and rows of a matrix that are `pitch` elements apart."""
    n, c, height, width = images.shape
    rows, columns = p.places
    run = _run(p, images)
    vector = gcd(_together(p, images, run), pitch)
    group = next(g for g in (1, 2, 4, MOST_GROUP) if g == MOST_GROUP or g * run >= SECTOR)
    units = pitch // vector * cdiv(columns, group) * group
    blocks = cdiv(units, THREADS * UNITS)
    kernel = SOURCE.kernel(
        entry, "to* from* images:struct blocks:i32", ELEMENT=bits_type(images.dtype), CHANNELS=c, TAPS_H=p.h.kernel,
        TAPS_W=p.w.kernel, STRIDE_H=p.h.stride, STRIDE_W=p.w.stride, PADDING_H=p.h.padding, PADDING_W=p.w.padding,
        PITCH=pitch, LAST=int(p.last), VECTOR=vector, GROUP=group, UNITS=UNITS, THREADS=THREADS,
    )  # fmt: skip
    launch = kernel.bind(n * rows * blocks, THREADS, blocks)
    packed = pack("4q4i", *images.strides, height, width, rows, columns)
    return lambda to, of: launch(to, of, packed)


def _run(p: Patches, images: Layout) -> int:
    """Terms that lie side by side in images, whole windows wide where none of these is partly outside."""
    by_n, by_c, by_h, by_w = images.strides
    if not p.last:
        return p.w.kernel if by_w == 1 and not p.w.padding else 1
    if by_c != 1 and p.channels > 1:
        return 1
    return p.channels * (p.w.kernel if by_w == p.channels and not p.w.padding else 1)


def _together(p: Patches, images: Layout, run: int) -> int:
    """How many of them an access takes: its place is a multiple of so many elements wherever it may be."""
    by_n, by_c, by_h, by_w = images.strides
    steps = by_n, by_h, by_h * p.h.stride, by_w * p.w.stride, by_w if run == p.channels else 0, 0 if p.last else by_c
    return gcd(VECTOR, run, images.offset // images.dtype.itemsize, *steps)


def forward(c: Convolution, x: torch.Tensor, weight: torch.Tensor, epilogue: Epilogue) -> torch.Tensor:
    """conv2d."""
    p = Patches.of(c, x.shape[1], c.shape[2:])
    return result(wgmma(p.matrix(x), p.weight(weight).t(), IEEE, epilogue), c)


def backward_input(c: Convolution, grad_out: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The gradient of images."""
    p = Patches.of(c, c.shape[1], grad_out.shape[2:])
    return p.images(wgmma(_places(grad_out), p.weight(weight), IEEE, PLAIN), c.shape, c.order)


def backward_weight(c: Convolution, grad_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The gradient of the weight."""
    p = Patches.of(c, x.shape[1], grad_out.shape[2:])
    return fresh(p.of_weight(wgmma(_places(grad_out).t(), p.matrix(x), IEEE, PLAIN)), c.order)


def _places(grad_out: torch.Tensor) -> torch.Tensor:
    """[N * P * Q, O]."""
    lines = ready(grad_out, dense=True).permute(0, 2, 3, 1)
    return lines.reshape(-1, lines.shape[-1])[:, : grad_out.shape[1]]


@dataclass(frozen=True)
class SideBySideWindows:
    """Windows do not overlap."""

    text = "stride >= kernel"

    def check(self, call: Call) -> str | None:
        """None, or which do."""
        for taps, side in (("R", 0), ("S", 1)):
            if call.axes[taps] > (stride := call.arguments["stride"][side]):
                return f"{taps} = {call.axes[taps]} with a stride of {stride}, needs {self.text}"
        return None


def asks(lead: str, *together: str) -> tuple[Condition, ...]:
    """What the rung needs. lead: an operand."""
    some = *(AtLeast(axis, 1) for axis in "NCOHWPQ"), AtMost("C", MOST_CHANNELS), OneOf("dilation", (1, 1))
    return (*halves_on_hopper(lead), *some, SideBySideWindows(), *indices(*together))
