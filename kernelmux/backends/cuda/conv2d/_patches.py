"""Windows that do not overlap: one product of matrices, between whose factors and images a kernel moves the pixels.

Each pixel is in one window at most, so that the windows as rows of a matrix are no more than the image: a copy and the
product take less time than a product that finds its pixels itself, where channels are few.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd, prod
from struct import pack
from typing import NamedTuple

import torch

from kernelmux.backends.cuda._families.epilogue import Epilogue
from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda._launch.runtime import Source, bits_type, cdiv
from kernelmux.backends.cuda.conv2d._im2col import ready, result
from kernelmux.backends.cuda.conv2d._pixel_copies import SECTOR, VECTOR
from kernelmux.backends.cuda.conv2d._plans import halves_on_hopper, indices
from kernelmux.backends.cuda.conv2d._problem import Convolution
from kernelmux.backends.cuda.conv2d._walked import MOST_STEP
from kernelmux.backends.cuda.matmul._wgmma import wgmma
from kernelmux.registry.conditions import AtLeast, Condition, OneOf
from kernelmux.registry.spec import Call
from kernelmux.registry.spec.sliding_windows import SideBySideWindows, Window
from kernelmux.registry.util.cards import remembered
from kernelmux.registry.util.memory_format import format_of

SOURCE = Source(__file__, "conv2d_patches.cu")
THREADS = 256
MOST_CHANNELS = 32
TIMES_WEIGHT = 4
MOST_GROUP = 8  # neighbouring places, which fill sectors together


class Patches(NamedTuple):
    """Windows of images [N, C, H, W] as rows of a matrix. last: channels are the inner part of a row, not the outer one."""

    h: Window
    w: Window
    channels: int
    places: tuple[int, ...]
    last: bool

    @classmethod
    def of(cls, c: Convolution, channels: int, places: tuple[int, ...]) -> "Patches":
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
        _copying(self, layout(images))(made, images)
        return made[:, : self.terms]

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
        by_w = images.strides[3]
        if not self.last:
            return self.w.kernel if by_w == 1 and not self.w.padding else 1
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
        return (weight.permute(0, 2, 3, 1) if self.last else weight).reshape(len(weight), -1).contiguous()


@remembered
def _copying(p: Patches, images: Layout) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """The copy of windows to rows of a matrix."""
    n, _, height, width = images.shape
    rows, columns = p.places
    group = p.group(images)
    blocks = cdiv(p.pitch // VECTOR * cdiv(columns, group) * group, THREADS)
    kernel = SOURCE.kernel(
        "conv2d_patches", "matrix* x* images:struct blocks:i32", ELEMENT=bits_type(images.dtype), PITCH=p.pitch,
        READ=p.together(images), GROUP=group, THREADS=THREADS, **p.defines,
    )  # fmt: skip
    launch = kernel.bind(n * rows * blocks, THREADS, blocks)
    packed = pack("4q4i", *images.strides, height, width, rows, columns)
    return lambda matrix, x: launch(matrix, x, packed)


def forward(c: Convolution, x: torch.Tensor, weight: torch.Tensor, epilogue: Epilogue) -> torch.Tensor:
    """conv2d."""
    p = Patches.of(c, x.shape[1], c.shape[2:])
    return result(wgmma(p.matrix(x), p.weight(weight).t(), "ieee", epilogue), c)


def places_of(grad_out: torch.Tensor) -> torch.Tensor:
    """[N * P * Q, O]."""
    lines = ready(grad_out, dense=True).permute(0, 2, 3, 1)
    return lines.reshape(-1, lines.shape[-1])[:, : grad_out.shape[1]]


@dataclass(frozen=True)
class FewOrContiguous:
    """A copy of the windows takes less time than what is done otherwise: channels are few, but for those that the copy
    engine reads as they are, or images would be copied too, and a weight that is not much smaller.

    images: an operand. H200, bf16, us, and by the other rungs: conv2d 64x3x224x224, 768 of 16 x 16, 43 and 247; of
    contiguous images and 2 x 2: 2x768x28x28, 1536 30 and 35, 8x384x28x28, 768 29.6 and 30.8, 32x192x28x28, 384 36 and 34.
    """

    images: str

    @property
    def text(self) -> str:
        few = f"C <= {MOST_CHANNELS} and no multiple of {SECTOR}, or stride > {MOST_STEP}"
        large = f"{self.images} contiguous and at most {TIMES_WEIGHT} times the weight, R * S > 1"
        return f"C * R * S >= {SECTOR}; {few}, or {large}"

    def check(self, call: Call) -> str | None:
        """None, or why it does not."""
        n, o, c, h, w, r, s = (call.axes[axis] for axis in "NOCHWRS")
        few = (c <= MOST_CHANNELS and c % SECTOR > 0) or max(call.arguments["stride"]) > MOST_STEP
        contiguous = format_of(call.arguments[self.images]) == torch.contiguous_format
        large = contiguous and r * s > 1 and TIMES_WEIGHT * o * r * s >= n * h * w
        return None if c * r * s >= SECTOR and (few or large) else f"C = {c}, {r} x {s}, needs {self.text}"


@dataclass(frozen=True)
class FewOrCovered:
    """Channels are few, or no pixels are between windows, where zeros would have to be written first."""

    text = f"C <= {MOST_CHANNELS}, or stride = kernel"

    def check(self, call: Call) -> str | None:
        """None, or which pixels there are."""
        c, stride, kernel = call.axes["C"], call.arguments["stride"], (call.axes["R"], call.axes["S"])
        fits = c <= MOST_CHANNELS or kernel == tuple(stride)
        return None if fits else f"C = {c}, kernel = {kernel} with stride = {stride}, needs {self.text}"


def asks(lead: str, more: Condition, *together: str) -> tuple[Condition, ...]:
    """What the rung needs. lead: an operand."""
    some: list[Condition] = [*(AtLeast(axis, 1) for axis in "NCOHWPQ"), OneOf("dilation", (1, 1)), SideBySideWindows()]
    return (*halves_on_hopper(lead), *some, more, *indices(*together))
