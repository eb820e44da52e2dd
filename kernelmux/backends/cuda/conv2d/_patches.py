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
        if not self.covers(shape[2:]):
            made.zero_()
        _moving("conv2d_images_of_patches", self, layout(made), matrix.stride(0))(made, matrix)
        return made

    def covers(self, size: tuple[int, ...]) -> bool:
        """Whether all pixels of an image are in windows."""
        over = zip((self.h, self.w), self.places, size, strict=True)
        return all(w.kernel == w.stride and n * w.stride - w.padding >= length for w, n, length in over)

    @property
    def defines(self) -> dict[str, int]:
        """What kernels are compiled for."""
        h, w = self.h, self.w
        windows = {"TAPS_H": h.kernel, "TAPS_W": w.kernel, "STRIDE_H": h.stride, "STRIDE_W": w.stride}
        windows |= {"PADDING_H": h.padding, "PADDING_W": w.padding}
        return {"CHANNELS": self.channels, **windows, "LAST": int(self.last)}

    def run(self, images: Layout) -> int:
        """Terms that lie side by side in images, whole windows wide where none of these is partly outside."""
        _, by_c, _, by_w = images.strides
        if not self.last:
            return self.w.kernel if by_w == 1 and not self.w.padding else 1
        if by_c != 1 and self.channels > 1:
            return 1
        return self.channels * (self.w.kernel if by_w == self.channels and not self.w.padding else 1)

    def together(self, images: Layout) -> int:
        """How many of them an access takes: its place is a multiple of so many elements wherever it may be."""
        by_n, by_c, by_h, by_w = images.strides
        run = self.run(images)
        steps = by_n, by_h, by_w * self.w.stride, by_w if run == self.channels else 0, 0 if self.last else by_c
        return gcd(VECTOR, run, images.offset // images.dtype.itemsize, *steps)

    def group(self, images: Layout) -> int:
        """Neighbouring places of which the same run fills a sector, or a few more."""
        run = self.run(images)
        return next(g for g in (1, 2, 4, MOST_GROUP) if g == MOST_GROUP or g * run >= SECTOR)

    def weight(self, weight: torch.Tensor) -> torch.Tensor:
        """[O, C, R, S] as [O, terms]."""
        return (weight.permute(0, 2, 3, 1) if self.last else weight).reshape(len(weight), -1)

    def of_weight(self, matrix: torch.Tensor) -> torch.Tensor:
        """The reverse."""
        taps = self.h.kernel, self.w.kernel
        if self.last:
            return matrix.view(len(matrix), *taps, self.channels).permute(0, 3, 1, 2)
        return matrix.view(len(matrix), self.channels, *taps)


@remembered
def _moving(entry: str, p: Patches, images: Layout, pitch: int) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """The copy between images that lie so and rows of a matrix that are `pitch` elements apart."""
    n, _, height, width = images.shape
    rows, columns = p.places
    read, group = gcd(p.together(images), pitch), p.group(images)
    vector = VECTOR if entry == "conv2d_patches_of_images" else read
    units = pitch // vector * cdiv(columns, group) * group
    blocks = cdiv(units, THREADS * UNITS)
    kernel = SOURCE.kernel(
        entry, "to* from* images:struct blocks:i32", ELEMENT=bits_type(images.dtype), PITCH=pitch, VECTOR=vector, READ=read,
        GROUP=group, UNITS=UNITS, THREADS=THREADS, **p.defines,
    )  # fmt: skip
    launch = kernel.bind(n * rows * blocks, THREADS, blocks)
    packed = pack("4q4i", *images.strides, height, width, rows, columns)
    return lambda to, of: launch(to, of, packed)


def forward(c: Convolution, x: torch.Tensor, weight: torch.Tensor, epilogue: Epilogue) -> torch.Tensor:
    """conv2d."""
    p = Patches.of(c, x.shape[1], c.shape[2:])
    return result(wgmma(p.matrix(x), p.weight(weight).t(), IEEE, epilogue), c)


def backward_input(c: Convolution, grad_out: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The gradient of images."""
    p = Patches.of(c, c.shape[1], grad_out.shape[2:])
    return p.images(wgmma(places_of(grad_out), p.weight(weight), IEEE, PLAIN), c.shape, c.order)


def backward_weight(c: Convolution, grad_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The gradient of the weight."""
    p = Patches.of(c, x.shape[1], grad_out.shape[2:])
    return fresh(p.of_weight(wgmma(places_of(grad_out).t(), p.matrix(x), IEEE, PLAIN)), c.order)


def places_of(grad_out: torch.Tensor) -> torch.Tensor:
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
