"""Strides without tensors, and the fewest dimensions that describe the same walk over strided tensors."""

from __future__ import annotations

from collections.abc import Sequence

Ints = tuple[int, ...]


def contiguous(shape: Sequence[int]) -> Ints:
    """Strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def collapse(shape: Sequence[int], *strides: Sequence[int]) -> tuple[Ints, tuple[Ints, ...]]:
    """Sizes, and one tuple of strides per tensor, with dimensions of size 1 dropped and neighbours merged.

    Two neighbours merge where every tensor walks both as one: outer stride = inner size * inner stride.
    There is at least one dimension in the result.
    """
    sizes: list[int] = []
    steps: list[Ints] = []
    for size, *step in zip(shape, *strides, strict=True):
        if size == 1:
            continue
        if sizes and all(outer == size * inner for outer, inner in zip(steps[-1], step, strict=True)):
            sizes[-1], steps[-1] = sizes[-1] * size, tuple(step)
        else:
            sizes.append(size)
            steps.append(tuple(step))
    if not sizes:
        return (1,), tuple((0,) for _ in strides)
    return tuple(sizes), tuple(zip(*steps, strict=True))
