"""What the launchers of conv2d and of its gradients share: a convolution as a product, cut into tiles and splits of K.

The kernels' side is convolution.cuh, whose words these are. A launcher works out a `Plan` once per kind of call and
afterwards only fills in the addresses.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, prod
from typing import NamedTuple

import torch

from kernelmux.backends.cuda._layout import Layout
from kernelmux.backends.cuda._runtime import Bound, Source, cdiv, ctype
from kernelmux.registry.batching import merged
from kernelmux.registry.conditions import AtMost, Capability, Condition, Dtypes
from kernelmux.registry.spec import Call

Maybe = torch.Tensor | None
CONV2D, BACKWARD_INPUT, BACKWARD_WEIGHT = range(3)
TILED = Source(__file__, "conv2d_tiled.cu")
IMPLICIT_GEMM = Source(__file__, "conv2d_implicit_gemm.cu")
SPLITS = Source(__file__, "conv2d_splits.cu")
THREADS = 256
_LARGEST = 2**31 - 512  # of an int, rounded up to whole tiles
_PLACE = 16  # bytes of an entry of the tables
_DEEP = 256  # of K, at least, in a split: less does not repay the second pass
_SIGNATURE = "left* right* bias* out* c:struct"


@dataclass(frozen=True)
class Together:
    """The product of these axes is not larger than `maximum`."""

    axes: str
    maximum: int

    @property
    def text(self) -> str:
        return f"{' * '.join(self.axes)} <= {self.maximum}"

    def check(self, call: Call) -> str | None:
        """None, or how large it is."""
        value = prod(call.axes[axis] for axis in self.axes)
        return None if value <= self.maximum else f"{' * '.join(self.axes)} = {value}, needs {self.text}"


def indices(*together: str) -> tuple[Condition, ...]:
    """What tiles are addressed with fits an int: positions or taps of all images or channels, rows, columns."""
    pixels = (AtMost(axis, 2**29) for axis in "HW")  # added to a padding, a tap and `nowhere`
    sizes = (AtMost(axis, _LARGEST) for axis in "NCO")
    return (*pixels, *sizes, *(Together(axes, _LARGEST) for axes in together))


def on_tensor_cores(x: str) -> tuple[Condition, ...]:
    """Halves, of which `x` is one operand, on a GPU that has cp.async."""
    return Dtypes(x, torch.float16, torch.bfloat16), Capability((8, 0))


class Axis(NamedTuple):
    """Rows or columns. size: of the image that is read at taps. count: of positions, in BACKWARD_INPUT of pixels."""

    size: int
    count: int
    taps: int
    stride: int
    padding: int
    dilation: int

    @property
    def period(self) -> int:
        """Every how many taps one meets the same phase."""
        return self.stride // gcd(self.stride, self.dilation)

    @property
    def phases(self) -> int:
        """Classes of pixels by which taps they meet."""
        return min(self.stride, self.count)

    @property
    def first_phase(self) -> "Axis":
        """What the largest of them has: every stride-th pixel, every period-th tap, rounded up."""
        return self._replace(count=cdiv(self.count, self.stride), taps=cdiv(self.taps, self.period))


class Convolution(NamedTuple):
    """A convolution: image [N C H W] read at taps; other: weight [O C R S], its first axes swapped in BACKWARD_INPUT, or
    grad_out [N O P Q] in BACKWARD_WEIGHT; shape: of the result."""

    operator: int
    image: Layout
    other: Layout
    shape: tuple[int, ...]
    h: Axis
    w: Axis

    @property
    def filters(self) -> int:
        return self.other.shape[1 if self.operator == BACKWARD_WEIGHT else 0]

    @property
    def phases(self) -> int:
        return self.h.phases * self.w.phases if self.operator == BACKWARD_INPUT else 1

    @property
    def sizes(self) -> tuple[int, int, int]:
        """M, N and K of the product; of the largest phase, the first."""
        h, w = (a.first_phase if self.operator == BACKWARD_INPUT else a for a in (self.h, self.w))
        positions, terms = self.image.shape[0] * h.count * w.count, self.image.shape[1] * h.taps * w.taps
        if self.operator == BACKWARD_WEIGHT:
            return self.filters, terms, positions
        return positions, self.filters, terms

    @property
    def m_contiguous(self) -> bool:
        """Whether neighbours along m are neighbours in the result."""
        return self.operator != BACKWARD_WEIGHT and self.shape[2] * self.shape[3] > 1

    @property
    def taps_outer(self) -> bool:
        """Whether the channels of the image are side by side: then they are the inner part of an index (tap, c)."""
        return self.image.strides[1] == 1 and self.image.shape[1] > 1

    def packed(self, tiles: int = 0, k_split: int = 0) -> bytes:
        """The struct of the kernels. tiles: of a phase. k_split: length of a piece of K."""
        _, b, c, d = self.shape
        sizes = self.image.shape[0], self.image.shape[1], self.filters, self.phases, tiles, k_split
        axes = (number for a in (self.h, self.w) for number in (*a, a.period))
        return struct.pack("32q", *self.image.strides, *self.other.strides, b * c * d, c * d, d, 1, *sizes, *axes)


def swapped(weight: Layout) -> Layout:
    """A weight [O C R S] as [C O R S]."""
    (o, c, *taps), (by_o, by_c, *by_tap) = weight.shape, weight.strides
    return weight._replace(shape=(c, o, *taps), strides=(by_c, by_o, *by_tap))


class Operand(NamedTuple):
    """How tiles of an operand are read: whether k has unit stride, and bytes per access."""

    k_major: bool
    copy: int


def _side_by_side(x: Layout, axes: tuple[int, ...]) -> bool:
    """Whether these axes together have unit stride."""
    found = merged([(x.shape[a], x.strides[a]) for a in axes])
    return all(stride == 1 for _, stride in found) and len(found) <= 1


def _copy(x: Layout, axes: tuple[int, ...]) -> int:
    """Bytes that can be read at once along these axes, which have unit stride: 16 or an element."""
    extent = prod(x.shape[a] for a in axes)
    apart = [x.strides[a] for a in range(4) if a not in axes and x.shape[a] > 1]
    size = x.dtype.itemsize
    whole = x.offset == 0 and all(n * size % 16 == 0 for n in (extent, *apart))
    return 16 if whole and _side_by_side(x, axes) else size


def _image(c: Convolution) -> Operand:
    """Along its channels; or along its pixels, which are neighbours for every tap if there is one and no step."""
    along_k = c.operator != BACKWARD_WEIGHT
    if c.taps_outer:
        return Operand(along_k, _copy(c.image, (1,)))
    plain = all((a.taps, a.stride, a.padding) == (1, 1, 0) for a in (c.h, c.w))
    return Operand(not along_k, _copy(c.image, (2, 3)) if plain else c.image.dtype.itemsize)


def _other(c: Convolution) -> Operand:
    """A weight along an index (tap, c) if that is one, else along its first axis; grad_out along channels or positions."""
    if c.operator == BACKWARD_WEIGHT:
        inner = (1,) if c.other.strides[1] == 1 and c.other.shape[1] > 1 else (2, 3)
        return Operand(inner != (1,), _copy(c.other, inner))
    if c.operator == BACKWARD_INPUT:
        return Operand(False, _copy(c.other, (0,)))
    return Operand(True, _copy(c.other, (1,) if c.taps_outer else (1, 2, 3)))


class Tile(NamedTuple):
    """A block's part of the product, m x n of the result, k at a time; blocks of it that share a multiprocessor."""

    m: int
    n: int
    k: int
    blocks: int
    threads: int

    def tiles(self, c: Convolution) -> int:
        """Of the largest phase; the others have as many, some of them empty."""
        return cdiv(c.sizes[0], self.m) * cdiv(c.sizes[1], self.n)


class Plan(NamedTuple):
    """A kind of convolution, ready to run. parts: how many fp32 sums are added in the end, 0 where K is in one piece."""

    launch: Bound
    packed: bytes
    shape: tuple[int, ...]
    parts: int = 0
    sum_parts: Bound | None = None

    def run(self, left: torch.Tensor, right: torch.Tensor, bias: Maybe = None) -> torch.Tensor:
        out = left.new_empty(self.shape)
        if self.sum_parts is None:
            self.launch(left, right, bias, out, self.packed)
            return out
        parts = left.new_empty(self.parts, dtype=torch.float32)
        self.launch(left, right, None, parts, self.packed)
        self.sum_parts(parts, bias, out, self.packed)
        return out


Planner = Callable[[Convolution, int], Plan]  # of a GPU with so many multiprocessors


def direct(source: Source, entry: str, c: Convolution) -> Plan:
    """One thread per element of the result."""
    kernel = source.kernel(entry, _SIGNATURE, ELEMENT=ctype(c.image.dtype), OPERATOR=c.operator)
    return Plan(kernel.bind(cdiv(prod(c.shape), THREADS), THREADS), c.packed(), c.shape)


@lru_cache(maxsize=4096)
def tiled(c: Convolution, multiprocessors: int) -> Plan:
    """The product on the FP32 pipes."""
    return _plan(TILED, "conv2d_tiled", c, Tile(64, 64, 16, 3, 256), multiprocessors, 0, {})


@lru_cache(maxsize=4096)
def implicit_gemm(c: Convolution, multiprocessors: int) -> Plan:
    """The product of halves on the tensor cores."""
    return implicit_gemm_plan(c, _tile(c, multiprocessors), multiprocessors)


def _tile(c: Convolution, multiprocessors: int) -> Tile:
    """The largest that has work for every multiprocessor; none twice as wide as the result."""
    M, N, _ = c.sizes
    m, n = (128 if extent > 64 else 64 for extent in (M, N))
    large = Tile(m, n, 64, 2, 128)
    return large if large.tiles(c) * c.phases >= multiprocessors else Tile(64, 64, 64, 3, 128)


def implicit_gemm_plan(c: Convolution, t: Tile, multiprocessors: int) -> Plan:
    """The product with a given tile."""
    left, right = _operands(c)
    stages = 3
    shared = stages * (t.m + t.n) * t.k * 2 + (t.m + t.n + 4 * t.k) * _PLACE
    more = {"BLOCK_M": t.m, "BLOCK_N": t.n, "STAGES": stages, "LEFT_COPY": left.copy, "RIGHT_COPY": right.copy}
    return _plan(IMPLICIT_GEMM, "conv2d_implicit_gemm", c, t, multiprocessors, shared, more)


def _operands(c: Convolution) -> tuple[Operand, Operand]:
    """The left and the right one."""
    image, other = _image(c), _other(c)
    return (other, image) if c.operator == BACKWARD_WEIGHT else (image, other)


def _plan(
    source: Source, entry: str, c: Convolution, t: Tile, multiprocessors: int, shared: int, more: dict[str, int]
) -> Plan:
    """The launches of a kernel that works on tiles of the product."""
    (M, N, _), (length, splits), (left, right) = c.sizes, _pieces(c, t, multiprocessors), _operands(c)
    parts = splits > 1
    kernel = source.kernel(
        entry, _SIGNATURE, **_defines(c), PARTIAL=int(parts), VECTOR=_vector(c, parts), LEFT_K_MAJOR=int(left.k_major),
        RIGHT_K_MAJOR=int(right.k_major), **more,
    )  # fmt: skip
    launch, packed = (
        kernel.bind((t.tiles(c) * c.phases, splits), t.threads, shared=shared),
        c.packed(t.tiles(c), length),
    )
    if not parts:
        return Plan(launch, packed, c.shape)
    sums = c.phases * M * N
    adding = SPLITS.kernel("conv2d_sum_splits", "parts* bias* out* c:struct splits:i32", **_defines(c))
    return Plan(launch, packed, c.shape, splits * sums, adding.bind(cdiv(sums, THREADS), THREADS, splits))


def _defines(c: Convolution) -> dict[str, object]:
    order = {"TAPS_OUTER": int(c.taps_outer), "M_CONTIGUOUS": int(c.m_contiguous)}
    return {"ELEMENT": ctype(c.image.dtype), "OPERATOR": c.operator, **order}


def _vector(c: Convolution, parts: bool) -> int:
    """Sums per store: 16 bytes of neighbours in the result, or among the parts, or one."""
    M, N, _ = c.sizes
    if parts:
        return 4 if (M if c.m_contiguous else N) % 4 == 0 and (c.phases == 1 or not c.m_contiguous) else 1
    if c.m_contiguous:
        run = c.shape[2] * c.shape[3] if c.phases == 1 else 1
    else:
        run = N if c.operator != BACKWARD_WEIGHT or not c.taps_outer or c.shape[2] * c.shape[3] == 1 else 1
    width = 16 // c.image.dtype.itemsize
    return width if run % width == 0 else 1


def _pieces(c: Convolution, t: Tile, multiprocessors: int) -> tuple[int, int]:
    """Length and number of the pieces of K: as many as keep every multiprocessor busy, each of `_DEEP` or more."""
    K, tiles = c.sizes[2], max(1, t.tiles(c) * c.phases)
    wanted = max(1, min(multiprocessors * t.blocks // tiles, K // _DEEP))
    length = max(1, cdiv(cdiv(K, wanted), t.k)) * t.k
    return length, max(1, cdiv(K, length))
