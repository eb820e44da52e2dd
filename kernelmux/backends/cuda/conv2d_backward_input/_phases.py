"""conv2d_backward_input of few channels, all phases in one product (conv2d_backward_input_phases.cu): plans."""

from dataclasses import dataclass
from itertools import product
from math import gcd, prod
from typing import NamedTuple

from kernelmux.backends.cuda._launch.runtime import Source, cdiv, ctype
from kernelmux.backends.cuda.conv2d._pixel_copies import VECTOR
from kernelmux.backends.cuda.conv2d._plans import ConvolutionPlan, halves_on_hopper, indices
from kernelmux.backends.cuda.conv2d._problem import Convolution
from kernelmux.registry.conditions import AtLeast, AtMost, Condition, OneOf
from kernelmux.registry.spec import Call
from kernelmux.registry.spec.sliding_windows import Window
from kernelmux.registry.util.cards import remembered

SOURCE = Source(__file__, "conv2d_backward_input_phases.cu")
WARPS, THREADS = 4, 128
WIDE = 16  # squares of a row of a tile
MOST_COLUMNS, MANY_COLUMNS, FEW_COLUMNS = 96, 64, 32  # of the product: sums in registers
MOST_CHANNELS = 24
SMALL, SHARE = 1 << 14, 64  # elements of filters, which each block loads: so many, or so small a part of grad_out
MOST_SHARED = 227 << 10  # bytes, of a multiprocessor and of a block of sm_90
RESERVED = 1 << 10  # of each block, by the driver


class PhaseBlock(NamedTuple):
    """What a block works on. channels: of the result. filters: O. height: rows of squares of a warp. depth: channels of
    grad_out at once."""

    h: Window
    w: Window
    channels: int
    filters: int
    height: int
    depth: int

    @property
    def columns(self) -> int:
        """Of the product: the pixels of a square, all channels of each."""
        return self.h.stride * self.w.stride * self.channels

    @property
    def shared(self) -> int:
        """Bytes of shared memory: two stages of places, rows of the result, filters."""
        near_h, near_w = near(self.h), near(self.w)
        stage = (WARPS * self.height + near_h - 1) * (WIDE + near_w - 1) * self.depth
        terms = near_h * near_w * cdiv(self.filters, self.depth) * self.depth
        return 2 * (2 * stage + WARPS * self.height * WIDE * self.columns + terms * cdiv(self.columns, 8) * 8)

    @property
    def resident(self) -> int:
        """Blocks that share a multiprocessor, with 168 registers for each thread, or 255 where there are many sums."""
        return max(1, min(3 if self.columns <= FEW_COLUMNS else 2, MOST_SHARED // (self.shared + RESERVED)))


def near(window: Window) -> int:
    """Places that pixels of a square meet, along an axis."""
    return cdiv(window.padding, window.stride) - cdiv(window.padding - window.kernel + 1, window.stride) + 1


def blocks(h: Window, w: Window, channels: int, filters: int) -> tuple[PhaseBlock, ...]:
    """Those that fit, the best one first: two share a multiprocessor, they are high, their stages deep."""
    deep = [d for d in (64, 32) if cdiv(filters, d) * d == cdiv(filters, 32) * 32 and filters > d // 2]
    high = (4, 2) if h.stride * w.stride * channels <= MANY_COLUMNS else (2, 1)
    some = (PhaseBlock(h, w, channels, filters, *form) for form in product(high, (*deep, 16)))
    fit = (b for b in some if b.columns <= MOST_COLUMNS and b.shared <= MOST_SHARED)
    return tuple(sorted(fit, key=lambda b: b.resident < 2))


@remembered
def implicit_gemm_phases(c: Convolution, multiprocessors: int) -> ConvolutionPlan:
    """The product of halves, the pixels of all phases side by side. The channels of c.image are whole vectors."""
    return plan(c, blocks(c.h.window, c.w.window, c.filters, c.other.shape[1])[0], multiprocessors)


def plan(c: Convolution, block: PhaseBlock, multiprocessors: int) -> ConvolutionPlan:
    """The same with a given block."""
    squares = cdiv(c.h.positions, c.h.stride), cdiv(c.w.positions, c.w.stride)
    tiles = c.image.shape[0] * cdiv(squares[0], WARPS * block.height) * cdiv(squares[1], WIDE)
    kernel = SOURCE.kernel(
        "conv2d_backward_input_phases", "image* weight* bias* out* c:struct tiles:i32 filters:i32",
        ELEMENT=ctype(c.image.dtype), CHANNELS=c.filters, TAPS_H=c.h.taps, TAPS_W=c.w.taps, STRIDE_H=c.h.stride,
        STRIDE_W=c.w.stride, PADDING_H=c.h.padding, PADDING_W=c.w.padding, LAST=int(c.last), DEPTH=block.depth,
        HEIGHT=block.height, BLOCKS=block.resident, VECTOR=gcd(VECTOR, c.w.positions * (c.filters if c.last else 1)),
    )  # fmt: skip
    grid = min(tiles, block.resident * multiprocessors)
    launch = kernel.bind(grid, THREADS, tiles, block.filters, shared=block.shared)
    return ConvolutionPlan(launch, c.packed(), c.shape, c.order)


@dataclass(frozen=True)
class PhaseFits:
    """The sums of a block fit into registers, filters and grad_out into shared memory."""

    @property
    def text(self) -> str:
        memory = f"{MOST_SHARED >> 10} KiB of shared memory"
        return f"C * stride[0] * stride[1] <= {MOST_COLUMNS}, filters and places of a tile in {memory}"

    def check(self, call: Call) -> str | None:
        """None, or how much they take."""
        options = zip("RS", call.arguments["stride"], call.arguments["padding"], strict=True)
        h, w = (Window(call.axes[taps], *along) for taps, *along in options)
        if blocks(h, w, call.axes["C"], call.axes["O"]):
            return None
        least = PhaseBlock(h, w, call.axes["C"], call.axes["O"], 1, 16)
        return f"{least.columns} columns, {least.shared >> 10} KiB of shared memory, needs {self.text}"


@dataclass(frozen=True)
class Reused:
    """Loading all filters into each block costs little beside its products."""

    @property
    def text(self) -> str:
        return f"O * C * R * S <= {SMALL}, or a {SHARE}th of N * O * P * Q"

    def check(self, call: Call) -> str | None:
        """None, or how large they are."""
        filters, grad_out = (prod(call.axes[axis] for axis in axes) for axes in ("OCRS", "NOPQ"))
        if filters <= max(SMALL, grad_out // SHARE):
            return None
        return f"O * C * R * S = {filters} of N * O * P * Q = {grad_out}, needs {self.text}"


def asks(lead: str, *together: str) -> tuple[Condition, ...]:
    """What the rung needs. lead: an operand."""
    some = (
        AtLeast("O", 1),
        AtLeast("C", 1),
        AtMost("C", MOST_CHANNELS),
        OneOf("dilation", (1, 1)),
        PhaseFits(),
        Reused(),
    )
    return (*halves_on_hopper(lead), *some, *indices(*together))
