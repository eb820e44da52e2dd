"""Windows of images: what the kernels of max_pool2d and of its gradient take beside their tensors."""

import struct
from collections.abc import Callable
from typing import NamedTuple

import torch

from kernelmux.backends.cuda._launch.runtime import cdiv, ctype
from kernelmux.registry.spec.sliding_windows import Pair, Window

BLOCK = 256
UNROLLED = 32  # elements of a window up to which its loops are unrolled, one compilation for each size and stride
ACCESS_BYTES = 16
RESULTS = 8  # windows of a row that a thread takes where it reads vectors of them
MOST_WINDOWS = 1 << 15  # of a block: within the range of the kernels' divisions
BLOCKS = 1024  # several per multiprocessor: planes are put together only where there are as many blocks
Strides = tuple[int, ...]
Launch = Callable[..., None]


class Windows(NamedTuple):
    """Images [N C H W], and where windows lie in them."""

    images: int
    channels: int
    size: Pair
    kernel: Pair
    stride: Pair
    padding: Pair

    @property
    def counts(self) -> Pair:
        """How many windows there are, along H and W."""
        sides = zip(self.size, self.kernel, self.stride, self.padding, strict=True)
        oh, ow = (Window(k, s, p).places(n) for n, k, s, p in sides)
        return oh, ow

    @property
    def small(self) -> bool:
        """Whether the kernels know a window's size and unroll its loops."""
        return self.kernel[0] * self.kernel[1] <= UNROLLED

    @property
    def rows_of_a_thread(self) -> int:
        """Two rows share what they read where windows overlap by more than half; H200, kernels of 5 x 5: 37 us, else 57."""
        return 2 if self.kernel[0] >= 2 * self.stride[0] > 0 else 1

    def geometry(self, strides: Strides) -> bytes:
        """The kernels' Geometry struct, for tensors of these four strides."""
        numbers = (self.channels, *self.size, *self.counts, *self.kernel, *self.stride, *self.padding)
        return struct.pack("4q11i4x", *strides, *numbers)

    def defines(self, dtype: torch.dtype, **more: object) -> dict[str, object]:
        """What the kernels are compiled with."""
        numbers = (*self.kernel, *self.stride, *self.padding)
        names = zip(("KH", "KW", "SH", "SW", "PH", "PW"), numbers, strict=True)
        return {"ELEMENT": ctype(dtype), "BLOCK": BLOCK, **(dict(names) if self.small else {}), **more}

    def tile(self, together: int, rows: int, per_plane: int) -> bytes:
        """The kernels' Tile struct: planes and rows of a block, and blocks of a plane."""
        oh, ow = self.counts
        return struct.pack(
            "q3i2I4x", self.images * self.channels, together, rows, per_plane, 2**31 // ow + 1, 2**31 // (oh * ow) + 1
        )


def counter(units: int) -> str:
    """The type that counts so many threads."""
    return "int" if units + BLOCK < 2**31 else "i64"


def divisor(n: int) -> bytes:
    """The kernels' Divisor struct, that divides numbers below 2^31 by n."""
    shift = 31 + (n - 1).bit_length()
    return struct.pack("Ii", -(-(1 << shift) // n), shift)


def balanced(length: int, most: int) -> int:
    """Rows of each of the fewest tiles of at most `most` rows, all about as long."""
    return cdiv(length, cdiv(length, most))
