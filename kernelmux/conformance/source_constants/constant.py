"""An integer of a source text: its value, where it stands, and what it is there for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

LEAST = 4  # smaller ones are ranks, flags and places; every check has such sizes
LARGEST = 2**31
SMALL = 16  # below it the check `shapes` draws most lengths
BYTES = ("itemsize", "element_size", "bytes", "sizeof")  # in a condition that counts bytes
ELEMENT_SIZES = (2, 4)  # bytes
# Words in an expression that is no size: what is compared with them is asked last.
NO_SIZES = frozenset(
    "capability arch __cuda_arch__ warps num_warps ndim dim dims rank axis lane warp threadidx grid stages num_stages"
    " version major minor device itemsize".split()
)

# What an integer does, and how soon it is asked: a fault behind a size stands behind a condition, or at the edge of a tile.
CONDITION, LIMIT, TILE, PARAMETER, OTHER = "condition", "limit", "tile", "parameter", "other"
WEIGHTS = {CONDITION: 0.0, LIMIT: 0.5, TILE: 1.0, PARAMETER: 1.0, OTHER: 3.0}


@dataclass(frozen=True)
class SourcePlace:
    """Where an integer stands. line: from 1 on, 0 for a declaration; code: what stands there, on one line."""

    file: Path
    line: int
    code: str

    def __str__(self) -> str:
        where = f"{self.file.name}:{self.line}" if self.line else f"{self.file.name}"
        return f"{where} `{self.code}`"


@dataclass(frozen=True)
class Constant:
    """A size at which the source may do something else.

    value: the size, for the condition `n // 1024 > 4` 4096. kind: one of WEIGHTS. distance: 0 in the function that is
    called, one more for each function, class or header that leads there. names: the words of the expression that it is
    compared with, in small letters.
    """

    value: int
    place: SourcePlace
    kind: str
    distance: int = 0
    names: frozenset[str] = frozenset()

    @property
    def rank(self) -> float:
        """The smaller, the sooner it is asked."""
        no_size = bool(self.names) and self.names <= NO_SIZES
        return self.distance + WEIGHTS[self.kind] + (2.0 if self.value < SMALL else 0.0) + (4.0 if no_size else 0.0)

    @property
    def counts_elements(self) -> bool:
        """Whether it is compared with a number of elements, and not with the length of an axis."""
        return bool(self.names & {"numel", "nelement", "elements", "total"})


def usable(found: Iterable[Constant]) -> list[Constant]:
    """Each value once, at the place that is asked first, in that order; a number of bytes as elements of both sizes too."""
    kept: dict[int, Constant] = {}
    for one in sorted(
        _in_elements(found), key=lambda c: (c.rank, c.distance, c.place.file.name, c.place.line, c.value)
    ):
        if LEAST <= one.value <= LARGEST:
            kept.setdefault(one.value, one)
    return list(kept.values())


def _in_elements(found: Iterable[Constant]) -> Iterable[Constant]:
    for one in found:
        yield one
        if one.kind == CONDITION and any(word in name for word in BYTES for name in one.names):
            yield from (replace(one, value=one.value // size) for size in ELEMENT_SIZES if one.value % size == 0)
