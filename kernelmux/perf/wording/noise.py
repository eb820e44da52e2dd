"""The noise of a run with A/A, and the variants whose two timings differ too much."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from kernelmux.perf.rows.row_result import RowResult, SecondTiming, Timed
from kernelmux.perf.wording.wording import microseconds

LIMIT, ABSOLUTE_US = 0.05, 1.0  # beyond both, and beyond either spread, the two timings of a variant fail the run


@dataclass(frozen=True)
class Noise:
    """How far the two timings of a variant lie apart: in the median, at most, of which row; and those beyond the limits."""

    typical: float
    largest: float
    where: str
    beyond: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"A/A: the same variant timed twice lies {self.typical:.1%} apart in the median, {self.largest:.1%} at most"
            f" ({self.where}); within the noise of two variants neither is called faster"
        )


def noise(rows: Iterable[RowResult]) -> Noise | None:
    """The noise of folded rows; None without A/A."""
    pairs = [(row, row.second) for row in rows if isinstance(row, Timed) and row.second is not None]
    if not pairs:
        return None
    worst, second = max(pairs, key=lambda pair: pair[1].apart)
    beyond = tuple(_beyond(*pair) for pair in pairs if unstable(*pair))
    return Noise(statistics.median(second.apart for _, second in pairs), second.apart, worst.name, beyond)


def unstable(row: Timed, second: SecondTiming) -> bool:
    """Whether the two timings of a variant differ beyond all three limits."""
    delta = abs(second.again_us - row.median_us)
    return delta > ABSOLUTE_US and second.apart > max(LIMIT, row.spread, second.again_spread)


def _beyond(row: Timed, second: SecondTiming) -> str:
    first, again = microseconds(row.median_us), microseconds(second.again_us)
    return f"{row.name}: {first} us, then {again} us ({second.apart:.1%} apart)"
