"""conv2d of few channels on rows of images that stay in shared memory (conv2d_implicit_gemm_rows.cu): plans, conditions."""

from dataclasses import dataclass
from typing import NamedTuple

from kernelmux.backends.cuda._launch.layout import Layout
from kernelmux.backends.cuda._launch.runtime import Source, cdiv, ctype
from kernelmux.backends.cuda.conv2d._plans import ConvolutionPlan, halves_on_hopper, indices
from kernelmux.backends.cuda.conv2d._problem import Convolution
from kernelmux.registry.conditions import AtLeast, AtMost, Condition
from kernelmux.registry.spec import Call
from kernelmux.registry.spec.sliding_windows import Fold, SideBySide, Window
from kernelmux.registry.util.cards import Card, remembered

SOURCE = Source(__file__, "conv2d_implicit_gemm_rows.cu")
HALVES = 8  # of a vector
THREADS = 256
MOST_SHARED = 227 << 10  # bytes, of a multiprocessor and of a block of sm_90
RESERVED = 1 << 10  # of each block, by the driver
MOST_CHANNELS = 24  # H200, 64 of 3 x 3 on 32x56x56: 24 take 24 us, by TMA 44; 28 take 33, folded 30


class ImageRowsBlock(NamedTuple):
    """What a block works on. channels: of a pixel in shared memory. rows: of 128 / rows results each. n: filters."""

    h: Window
    w: Window
    channels: int
    rows: int
    n: int

    @classmethod
    def of(cls, h: Window, w: Window, channels: int, filters: int, places: tuple[int, int]) -> "ImageRowsBlock":
        """That of a call: of the forms of a band, the one that leaves the fewest positions unused."""

        def positions(rows: int) -> int:
            return cdiv(places[0], rows) * rows * cdiv(places[1], 128 // rows) * (128 // rows)

        padded = Fold.of(w, places[1], channels, HALVES).channels
        return cls(h, w, padded, min((1, 2, 4), key=positions), 64 if filters <= 64 else 128)

    @property
    def shared(self) -> int:
        """Bytes of shared memory: filters, the ring of rows, a tile of results for each warpgroup."""
        steps = cdiv(self.w.kernel * self.channels, 16)
        length = (128 // self.rows - 1) * self.w.stride * self.channels // HALVES + 2 * steps
        rows = (self.rows - 1) * self.h.stride + self.h.reach + self.rows * self.h.stride
        tiles = 2 * max(64 * (self.n + HALVES), self.n * (64 + HALVES))
        return cdiv(self.h.kernel * steps, 4) * 128 * self.n + rows * length * 16 + tiles * 2

    @property
    def resident(self) -> int:
        """Blocks that share a multiprocessor. Three of 80 registers are slower: 59 us, 54 (32x3x224x224, 64 of 7 x 7)."""
        return max(1, min(2, MOST_SHARED // (self.shared + RESERVED)))


def block_of(c: Convolution) -> ImageRowsBlock:
    return ImageRowsBlock.of(c.h.window, c.w.window, c.image.shape[1], c.filters, (c.h.positions, c.w.positions))


@remembered
def implicit_gemm_rows(c: Convolution, card: Card) -> ConvolutionPlan:
    """The product of halves, windows read from rows in shared memory."""
    return plan(c, block_of(c), card.processors)


def plan(c: Convolution, block: ImageRowsBlock, multiprocessors: int) -> ConvolutionPlan:
    """The same with a given block."""
    bands = c.image.shape[0] * cdiv(c.h.positions, block.rows) * cdiv(c.w.positions, 128 // block.rows)
    tiles = cdiv(c.filters, block.n)
    side = c.w.positions if c.m_contiguous else c.filters
    kernel = SOURCE.kernel(
        "conv2d_implicit_gemm_rows", "image* weight* bias* out* c:struct", ELEMENT=ctype(c.image.dtype),
        M_CONTIGUOUS=int(c.m_contiguous), REAL=c.image.shape[1], CHANNELS=block.channels, TAPS_H=c.h.taps, TAPS_W=c.w.taps,
        STRIDE_H=c.h.stride, STRIDE_W=c.w.stride, DILATION_H=c.h.dilation, BLOCK_N=block.n,
        USED=min(block.n, cdiv(c.filters, 16) * 16), ROWS=block.rows, BLOCKS=block.resident,
        VECTOR=HALVES if side % HALVES == 0 else 1, WHOLE_PIXELS=int(_whole(c.image)), WHOLE_FILTERS=int(_whole(c.other)),
    )  # fmt: skip
    blocks = min(bands, max(1, block.resident * multiprocessors // max(tiles, 1)))
    launch = kernel.bind(blocks * tiles, THREADS, shared=block.shared)
    return ConvolutionPlan(launch, c.packed(), c.shape, c.order)


def _whole(x: Layout) -> bool:
    """Whether channels of [N C H W] come in whole vectors that can be read at once."""
    apart = [x.strides[axis] for axis in (0, 2, 3) if x.shape[axis] > 1]
    return x.strides[1] == 1 and x.offset == 0 and all(n % HALVES == 0 for n in (x.shape[1], *apart))


@dataclass(frozen=True)
class ImageRowsFit:
    """Filters and rows of a block fit into shared memory."""

    @property
    def text(self) -> str:
        return f"filters and rows of a block in {MOST_SHARED >> 10} KiB of shared memory"

    def check(self, call: Call) -> str | None:
        """None, or how much they take."""
        options = zip(*(call.arguments[name] for name in ("stride", "padding", "dilation")), strict=True)
        h, w = (Window(call.axes[taps], *o) for taps, o in zip("RS", options, strict=True))
        block = ImageRowsBlock.of(h, w, call.axes["C"], call.axes["O"], (call.axes["P"], call.axes["Q"]))
        if block.shared <= MOST_SHARED:
            return None
        return f"they take {block.shared >> 10} KiB of shared memory, needs {self.text}"


@dataclass(frozen=True)
class NoWholeSectors:
    """Windows overlap, or TMA does not read their channels as they are. H200, bf16, 32x16x224x224: 64 of 4 x 4 with a
    stride of 4 95 us, by TMA 42, 32 of 2 x 2 with a stride of 2 59 and 54."""

    text = f"C no multiple of {2 * HALVES}, or R > stride[0], or S > stride[1], or R = S = 1"

    def check(self, call: Call) -> str | None:
        """None, or how many channels there are."""
        c, *taps = (call.axes[axis] for axis in "CRS")
        apart = all(n <= stride for n, stride in zip(taps, call.arguments["stride"], strict=True))
        whole = c % (2 * HALVES) == 0 and apart and taps != [1, 1]
        return f"C = {c}, windows that do not overlap, needs {self.text}" if whole else None


def asks(lead: str, *together: str) -> tuple[Condition, ...]:
    """What the rung needs. lead: an operand."""
    few = AtLeast("C", 1), AtMost("C", MOST_CHANNELS)
    return (*halves_on_hopper(lead), *few, SideBySide(), ImageRowsFit(), NoWholeSectors(), *indices(*together))
