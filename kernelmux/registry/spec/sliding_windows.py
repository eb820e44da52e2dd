"""How windows over an axis go: from its length to the number of places of a window, and back; the images they lie on.
And how blocks walk over the tiles that a mask of attention lets them see.

A window of `kernel` elements that lie `dilation` apart begins at every `stride`-th element of an axis that has `padding`
zeros more at both ends. What is left at its end, too short for a further step, is the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapreplace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from kernelmux.registry.spec.conditions import AtLeast, Condition

if TYPE_CHECKING:
    from kernelmux.registry.spec.signature import Call

Pair = tuple[int, int]
PIXELS: tuple[Condition, ...] = (AtLeast("H", 1), AtLeast("W", 1))  # with padding there are results without any


def pair(value: int | Sequence[int]) -> Pair:
    """One number for both axes of an image, or a number for each, as a pair."""
    if isinstance(value, Sequence):
        rows, columns = value
        return rows, columns
    return value, value


class Window(NamedTuple):
    """A window along one axis."""

    kernel: int
    stride: int
    padding: int
    dilation: int = 1

    @property
    def reach(self) -> int:
        """Elements from the first to the last one of the window."""
        return self.dilation * (self.kernel - 1) + 1

    def places(self, length: int) -> int:
        """How many places the window has on an axis of this length; below 1 where it does not fit."""
        return (length + 2 * self.padding - self.reach) // self.stride + 1

    def rest(self, length: int) -> int:
        """Elements of the padded axis behind the last place of the window."""
        return (length + 2 * self.padding - self.reach) % self.stride

    def length(self, places: int, rest: int = 0) -> int:
        """Of the axis on which the window has so many places."""
        return (places - 1) * self.stride + self.reach + rest - 2 * self.padding


def windows(kernel: Sequence[int], stride: Any, padding: Any, dilation: Any) -> tuple[Window, Window]:
    """The windows along the rows and the columns of an image, from the lengths of a kernel [..., R, S]."""
    rows, columns = zip(kernel[-2:], pair(stride), pair(padding), pair(dilation), strict=True)
    return Window(*rows), Window(*columns)


class Fold(NamedTuple):
    """How images of few channels are copied so that the columns of a window become channels: [N, H, columns, channels].

    A window along a row meets one line of kernel * channels numbers there. Lines of neighbouring places begin `stride`
    pixels apart, which are whole vectors, and overlap. As images [N, H, places] of these lines they have no padding along
    rows, and kernels over them one column. Not for windows whose dilation is above 1.
    """

    channels: int
    columns: int

    @classmethod
    def of(cls, window: Window, places: int, channels: int, vector: int) -> Fold:
        """The least copy for the windows of an image; vector: elements that are read together, a power of two."""
        few = (n for n in _powers(vector) if n >= channels and n * window.stride % vector == 0)
        return cls._whole(window, places, next(few, _up(max(channels, 1), vector)), vector)

    def of_kernel(self, window: Window, vector: int) -> Fold:
        """That of the kernels, of as many channels, whose columns are one window."""
        return self._whole(window, 1, self.channels, vector)

    @classmethod
    def _whole(cls, window: Window, places: int, channels: int, vector: int) -> Fold:
        """Rows are whole vectors."""
        columns = (places - 1) * window.stride + window.kernel
        return cls(channels, _up(columns, vector // min(channels, vector)))


def _powers(end: int) -> list[int]:
    return [1 << i for i in range(end.bit_length() - 1)]


def _up(n: int, factor: int) -> int:
    return -(-n // factor) * factor


@dataclass(frozen=True)
class SideBySide:
    """The columns of a window are neighbours. overlapping: and some of them belong to the next window too."""

    overlapping: bool = False

    @property
    def text(self) -> str:
        return "dilation[1] = 1" + ", and S > stride[1]" * self.overlapping

    def check(self, call: Call) -> str | None:
        """None, or how far apart they are."""
        dilation, stride, kernel = call.arguments["dilation"][1], call.arguments["stride"][1], call.axes["S"]
        if dilation != 1 and kernel > 1:
            return f"dilation[1] = {dilation}, needs {self.text}"
        if self.overlapping and kernel <= stride:
            return f"S = {kernel} with stride[1] = {stride}, needs {self.text}"
        return None


@dataclass(frozen=True)
class InVectors:
    """Lines of the axis `name` are whole vectors, or long enough that a copy in which they are is worth it.

    vector: elements. copied: the length from which on it is.
    """

    name: str
    vector: int
    copied: int

    @property
    def text(self) -> str:
        return f"{self.name} a multiple of {self.vector}, or {self.copied} and more"

    def check(self, call: Call) -> str | None:
        """None, or how long they are."""
        length = call.axes[self.name]
        fits = length >= self.copied or (length > 0 and length % self.vector == 0)
        return None if fits else f"{self.name} = {length}, needs {self.text}"


def planes(x: torch.Tensor) -> Pair:
    """N and C of images [N C H W], or of one [C H W]."""
    return (x.shape[0], x.shape[1]) if x.dim() == 4 else (1, x.shape[0])


def four_strides(x: torch.Tensor) -> tuple[int, ...]:
    """Strides of images that may lack the first axis: 0 for that."""
    strides = x.stride()
    return strides if len(strides) == 4 else (0, *strides)


Limit = int | None  # a number of keys; None: no limit


class Mask(NamedTuple):
    """Query i stands at key i + shift: it sees no later one if causal, and of those up to there the last `window`.

    A window of 0 is none.
    """

    causal: bool
    shift: int
    window: int


def mask_of(queries: int, keys: int, causal: bool, window: Limit, ahead: Limit) -> Mask:
    """The mask of a call of attention, whose last query stands at the last key.

    Queries that see some keys ahead are causal queries so many places further on. A bound that hides no key is none.
    """
    further = ahead if ahead is not None and 0 < ahead < queries - 1 else 0
    length = 0 if window is None or window >= keys else window + further
    return Mask(causal or ahead == 0 or further > 0, keys - queries + further, length)


ROUNDS = 8  # of walks at a time


def over_queries(mask: Mask, queries: int, keys: int, own: int, tile: int) -> list[int]:
    """Tiles of queries that see any of a block's `own` keys, of each block."""
    found = []
    for first in range(0, keys, own):
        last = min(first + own, keys) - 1
        begin = max(0, first - mask.shift) if mask.causal else 0
        end = min(queries, last - mask.shift + mask.window) if mask.window else queries
        found.append(-(-end // tile) - begin // tile if end > begin else 0)
    return found


def over_keys(mask: Mask, queries: int, keys: int, own: int, tile: int) -> list[int]:
    """Tiles of keys that any of a block's `own` queries sees, of each block."""
    found = []
    for first in range(0, queries, own):
        last = min(first + own, queries) - 1
        begin = max(0, first + mask.shift - mask.window + 1) if mask.window else 0
        end = min(keys, last + mask.shift + 1) if mask.causal else keys
        found.append(max(0, -(-(end - begin) // tile)))
    return found


def last_end(walks: Iterable[int], places: int, shares: int, apart: float) -> float:
    """Steps until all walks are over, each begun where one ended first; `apart`: what a walk takes beside its steps."""
    free = [0.0] * max(1, places)
    for walk in walks:
        heapreplace(free, free[0] + -(-walk // shares) + apart)
    return max(free)


def best_shares(
    walks: Sequence[int], slices: int, places: dict[int, int], apart: dict[int, float], once: float = 0.0
) -> int:
    """Into how many shares walks are best cut: the fewest that come within a twentieth of the best.

    slices: so many have these walks. places, apart: how many walks run at a time, and what each takes beside its steps, by
    the number of shares. once: what adding sums up takes for each share. Many rounds of walks fill the card as they are.
    """
    if not walks or len(walks) * slices > ROUNDS * places[1]:
        return 1
    dealt = [walk for walk in walks for _ in range(slices)]
    ends = {n: last_end(dealt, places[n], n, apart[n]) + (n > 1) * n * once for n in places}
    return min(n for n, end in ends.items() if end <= 1.05 * min(ends.values()))


@dataclass(frozen=True)
class SideBySideWindows:
    """Windows do not overlap: a condition of calls with axes R and S, and a stride."""

    text: str = "stride >= kernel"

    def check(self, call: Call) -> str | None:
        """None, or which do."""
        for taps, side in (("R", 0), ("S", 1)):
            if call.axes[taps] > (stride := call.arguments["stride"][side]):
                return f"{taps} = {call.axes[taps]} with a stride of {stride}, needs {self.text}"
        return None


# Of `Pointwise`: columns of a tile of products, operations per microsecond; microseconds of the launches of two passes that
# turn images, and bytes per microsecond of these; pixels whose rows begin at multiples of 16 bytes.
_TILE, _RATE, _PASSES, _MEMORY, _ALIGNED = 128, 6e8, 6.0, 4.2e6, 8


@dataclass(frozen=True)
class Pointwise:
    """Kernels are single elements, and images are contiguous: each is a matrix of channels and pixels where it lies, and so
    is its result.

    images: an operand. What tiles have beyond the pixels of an image may take as long as it takes to turn images, which
    are then one matrix; half as long where rows begin anywhere, and then no more than `unaligned` operations. H200, bf16,
    us, so and turned: 256 channels of 3x1024x14x14 11.5 and 18.5, 2048 of 12x512x28x142 188 and 376, 96 of 6x384x7x7 12.5
    and 15.5; 512 of 16x1024x14x14, in CUDA, where 5 Gflop are too many, 30.1, in Triton 16.4 (cuDNN 28.8).
    """

    images: str
    unaligned: float = 1e12

    @property
    def text(self) -> str:
        return f"1 x 1, stride 1, no padding, {self.images} contiguous, few or unaligned pixels only with few channels"

    def check(self, call: Call) -> str | None:
        """None, or what is otherwise."""
        x, places = call.arguments[self.images], call.axes["P"] * call.axes["Q"]
        kernel = call.axes["R"] * call.axes["S"], *call.arguments["stride"], *(1 + n for n in call.arguments["padding"])
        dense = x.stride(3) == 1 and (x.stride(2) == x.shape[3] or x.shape[2] == 1)
        if set(kernel) != {1} or not dense or x.shape[1] < 2 or places < 2:
            return f"needs {self.text}"
        n, c, o = (call.axes[axis] for axis in "NCO")
        aligned = places % _ALIGNED == 0
        empty = 2 * n * c * o * (_up(places, _TILE) - places) / _RATE
        turned = (_PASSES + 4 * n * (c + o) * places / _MEMORY) * (1.0 if aligned else 0.5)
        if empty <= turned and (aligned or 2 * n * c * o * places <= self.unaligned):
            return None
        return f"{places} pixels and {c} by {o} channels, needs {self.text}"
