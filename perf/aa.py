"""A/A: every variant timed twice as if it were two contestants; how far the two lie apart is the noise of a run.

    rows = twice(plan)                      a group ABC becomes ABC CBA: the second time after other neighbours
    rows = fold(outcome.rows)               one row per variant again, with `again_us` and `apart`

The spread of a row's samples says how alike calls in a row are; clocks, addresses and what ran before change between
rows, and only a second contestant with the same kernel sees that. No variant is faster than another within the larger
`apart` of the two.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from kernelmux.perf import report
from kernelmux.perf.plan import Row

LIMIT, ABSOLUTE_US = 0.05, 1.0  # the gate: further apart than both, and than either spread, the run proves nothing

Told = dict[str, Any]


def twice(rows: Iterable[Row]) -> list[Row]:
    """The rows of each group, and once more in reverse order; rows that cannot run stay single."""
    found = []
    for _, group in groupby(rows, key=lambda row: row.group):
        first = list(group)
        found += first + [replace(row, again=True) for row in reversed(first) if not row.problem]
    return found


def fold(rows: Iterable[Told]) -> list[Told]:
    """The first rows with what the second ones found; a variant that failed the second time has failed."""
    told = list(rows)
    second = {report.key(row): row for row in told if row.get("again")}
    return [_folded(row, second.get(report.key(row))) for row in told if not row.get("again")]


def _folded(row: Told, again: Told | None) -> Told:
    if again is None or row["status"] != "ok":
        return row
    if again["status"] != "ok":
        return row | {"status": "failed", "error": f"the second time: {again['error']}"}
    return row | {
        "again_us": again["median_us"],
        "again_spread": again["spread"],
        "apart": apart(row["median_us"], again["median_us"]),
    }


def apart(first_us: float, second_us: float) -> float:
    """How much longer the longer one takes, relative."""
    return max(first_us, second_us) / min(first_us, second_us) - 1


@dataclass(frozen=True)
class Noise:
    """What a run with A/A says of itself: `apart` of its rows, the row with the largest, and those beyond the gate."""

    typical: float
    largest: float
    where: str
    beyond: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"A/A: the same variant timed twice lies {self.typical:.1%} apart in the median, {self.largest:.1%} at most"
            f" ({self.where}); within the noise of two variants neither is called faster"
        )


def noise(rows: Iterable[Told]) -> Noise | None:
    """The noise of folded rows; None without A/A."""
    pairs = [row for row in rows if row["status"] == "ok" and "apart" in row]
    if not pairs:
        return None
    worst = max(pairs, key=lambda row: float(row["apart"]))
    beyond = tuple(_beyond(row) for row in pairs if unstable(row))
    return Noise(statistics.median(row["apart"] for row in pairs), worst["apart"], _name(worst), beyond)


def unstable(row: Told) -> bool:
    """Whether a variant differs from itself by more than the gate allows."""
    delta = abs(row["again_us"] - row["median_us"])
    spread = max(row["spread"], row.get("again_spread", 0.0))
    return delta > ABSOLUTE_US and bool(row["apart"] > max(LIMIT, spread))


def _beyond(row: Told) -> str:
    first, second = report.microseconds(row["median_us"]), report.microseconds(row["again_us"])
    return f"{_name(row)}: {first} us, then {second} us ({row['apart']:.1%} apart)"


def _name(row: Told) -> str:
    return f"{row['op']} {row['workload']} {row['dtype']} {report.label(row)}"
