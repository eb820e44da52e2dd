"""A/A: every variant timed twice as if it were two contestants; the difference of the two is the noise of a run.

    rows = twice(plan)                      a group ABC becomes ABC CBA: the second time after other neighbours
    rows = fold(outcome.rows)               one row per variant again, with its second time

The spread of a row's samples shows how far calls in direct succession differ. From row to row the clock, the addresses
and the kernel that ran before differ as well: only a second timing of the same kernel shows what that changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby

from kernelmux.perf.planning.plan import Row
from kernelmux.perf.rows.row_result import RowResult, SecondTiming, Timed


def twice(rows: Iterable[Row]) -> list[Row]:
    """The rows of each group, and once more in reverse order; rows that cannot run stay single."""
    contestants = []
    for _, group in groupby(rows, key=lambda row: row.group):
        first = list(group)
        contestants += first + [replace(row, again=True) for row in reversed(first) if not row.problem]
    return contestants


def fold(rows: Iterable[RowResult]) -> list[RowResult]:
    """The first rows, each with the time of its second one; a variant that failed the second time has failed."""
    told = list(rows)
    second = {row.key: row for row in told if row.again}
    return [_folded(row, second.get(row.key)) for row in told if not row.again]


def _folded(row: RowResult, again: RowResult | None) -> RowResult:
    if again is None or not isinstance(row, Timed):
        return row
    if isinstance(again, Timed):
        return replace(
            row,
            second=SecondTiming(
                again_us=again.median_us, again_spread=again.spread, apart=apart(row.median_us, again.median_us)
            ),
        )
    return row.not_timed(again.status, f"the second time: {again.error}")


def apart(first_us: float, second_us: float) -> float:
    """How much longer the longer one takes, relative."""
    return max(first_us, second_us) / min(first_us, second_us) - 1
