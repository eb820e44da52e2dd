"""The pixels that an im2col copy of TMA moves: base points of a filter, row after row through images in a batch.

Tensors are [N, W, C], [N, H, W, C] or [N, D, H, W, C]. The base point of a filter runs over the bounding box, which
reaches from `lower` to the size + `upper` (exclusive), W fastest, by `steps`; then the next image follows. The offsets in
the instruction say which element of the filter is meant: they are added to each base point. What lies outside of the
tensor is filled. Source: PTX ISA, "im2col mode"; CUDA driver API, `cuTensorMapEncodeIm2col`.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
SPACE = 3  # dimensions of an image, at most
MAX_PIXELS, MAX_CHANNELS, MAX_STEP = 1024, 256, 8
CORNER_BITS = {1: 16, 2: 8, 3: 5}  # of a signed corner, by dimensions of the image
_FORMAT = struct.Struct("<HH3h3h3B")
SIZE = _FORMAT.size


@dataclass(frozen=True)
class PixelBox:
    """Pixels per column, channels per pixel, corners of the bounding box and steps; all tuples W first."""

    count: int
    channels: int
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    steps: tuple[int, ...]

    def problems(self, rank: int) -> dict[str, bool]:
        """What the driver asks for, and whether it holds for a tensor of this rank."""
        space = rank - 2
        limit = 1 << CORNER_BITS.get(space, 1) - 1
        corners = (*self.lower, *self.upper)
        return {
            "im2col needs a tensor of rank 3 to 5": 1 <= space <= SPACE,
            f"corners and steps must have {space} numbers each": len(self.lower)
            == len(self.upper)
            == len(self.steps)
            == space,
            f"corners must be {-limit} to {limit - 1}": all(-limit <= c < limit for c in corners),
            f"pixels must be 1 to {MAX_PIXELS}": 1 <= self.count <= MAX_PIXELS,
            f"channels must be 1 to {MAX_CHANNELS}": 1 <= self.channels <= MAX_CHANNELS,
            f"steps must be 1 to {MAX_STEP}": all(1 <= s <= MAX_STEP for s in self.steps),
        }

    def places(
        self, shape: Sequence[int], coordinates: Sequence[int], offsets: Sequence[int]
    ) -> tuple[Integers, NDArray[np.bool_]]:
        """Points `[pixels, dimensions without C]` from (w, .., n) on, and which of them lie in the tensor.

        shape, coordinates and offsets are innermost first; the first two begin with C.
        """
        points = np.empty((self.count, len(shape) - 1), np.int64)
        point = list(coordinates[1:])
        ends = [size + upper for size, upper in zip(shape[1:-1], self.upper, strict=True)]
        for i in range(self.count):
            points[i] = point
            self._advance(point, ends)
        points[:, :-1] += np.asarray(offsets, np.int64)
        inside = np.logical_and.reduce((points >= 0) & (points < np.asarray(shape[1:])), axis=1)
        return points, inside

    def _advance(self, point: list[int], ends: Sequence[int]) -> None:
        """The next base point; behind the last row of an image comes the next image."""
        for axis, end in enumerate(ends):
            point[axis] += self.steps[axis]
            if point[axis] < end:
                return
            point[axis] = self.lower[axis]
        point[-1] += 1

    def encode(self) -> bytes:
        """The numbers as they follow those of a tiled map."""
        padded = [(*numbers, 0, 0, 0)[:SPACE] for numbers in (self.lower, self.upper, self.steps)]
        return _FORMAT.pack(self.count, self.channels, *padded[0], *padded[1], *padded[2])


def decode(content: bytes, rank: int) -> PixelBox | None:
    """The inverse of `encode`; None for a map of tiles, where all is zero."""
    count, channels, *numbers = _FORMAT.unpack_from(content)
    if not count:
        return None
    space = rank - 2
    lower, upper, steps = (tuple(numbers[i : i + space]) for i in (0, SPACE, 2 * SPACE))
    return PixelBox(count, channels, lower, upper, steps)
