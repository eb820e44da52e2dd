"""Boxes of images, rows and columns, which are tiles of places: each side is a power of two."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from kernelmux.backends.triton._launch.launch import Ints, cdiv


def box_of(places: int, lengths: Ints) -> Ints:
    """Images, rows and columns, powers of two, of the box of so many places of which the fewest cover all lengths."""
    return min(boxes(places), key=lambda box: covering(box, lengths))


def boxes(places: int) -> Iterator[Ints]:
    """Images, rows and columns of every box of so many places, each a power of two."""
    sides = [1 << i for i in range(places.bit_length())]
    yield from ((n, h, w) for n, h, w in product(sides, repeat=3) if n * h * w == places)


def covering(box: Ints, lengths: Ints) -> int:
    """How many boxes cover all lengths."""
    return prod(cdiv(length, side) for length, side in zip(lengths, box, strict=True))


def part_of(box: Ints, parts: int) -> Ints:
    """The boxes, one after the other, that are a box in one or two parts."""
    outermost = next((axis for axis, side in enumerate(box) if side > 1), 2)
    return tuple(side // parts if axis == outermost else side for axis, side in enumerate(box))
