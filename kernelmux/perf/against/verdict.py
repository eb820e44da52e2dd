"""The judgement of a row, from rounds in which both contestants were timed: an interval of their ratio, beside a limit.

A round gives one ratio, of medians; what drifts from round to round, such as a clock, meets both sides of it. The interval
holds the median of the ratios with 99 % confidence, by the ranks of a sign test, which assumes no distribution. The limit
is the larger of 1.5 % and of how far the same row lies from itself in two processes of the base (A/A), by the far end of
that interval.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import comb

from kernelmux.perf.rows.codec import SPARSE
from kernelmux.perf.rows.row_result import Contestant

SAME, FASTER, SLOWER, AMBIGUOUS = "SAME", "FASTER", "SLOWER", "AMBIGUOUS"
FAILED, NO_BASE = "FAILED", "NO BASE"  # here; there
CONFIDENCE = 0.99  # of an interval
LEAST = 0.015  # a change that counts: more than this
UNSTEADY = 0.05  # A/A noise beyond which nothing is called the same
FEWEST = 8  # rounds for which ranks give that confidence


@dataclass(frozen=True)
class Round:
    """Median seconds of both contestants in one round."""

    base: float
    here: float

    @property
    def ratio(self) -> float:
        return self.here / self.base


@dataclass(frozen=True)
class Interval:
    """The median of some ratios, and between which two values it lies with 99 % confidence."""

    ratio: float
    low: float
    high: float

    @property
    def noise(self) -> float:
        """How far from 1 the farther end lies, relative."""
        return max(self.high, 1 / self.low) - 1


@dataclass(frozen=True, kw_only=True)
class Judged(Contestant):
    """A row with its verdict. ratio: time here / time of the base, more than 1 is slower; low, high: its interval.

    confidence: of the verdict. noise: of A/A; limit: what counts as no change. Times in microseconds. note: why there
    is no time, or what else to know.
    """

    verdict: str
    base_us: float | None = field(default=None, metadata=SPARSE)
    here_us: float | None = field(default=None, metadata=SPARSE)
    ratio: float | None = field(default=None, metadata=SPARSE)
    low: float | None = field(default=None, metadata=SPARSE)
    high: float | None = field(default=None, metadata=SPARSE)
    confidence: float | None = field(default=None, metadata=SPARSE)
    noise: float | None = field(default=None, metadata=SPARSE)
    limit: float | None = field(default=None, metadata=SPARSE)
    rounds: int | None = field(default=None, metadata=SPARSE)
    note: str = field(default="", metadata=SPARSE)


@cache
def chance(most: int, rounds: int) -> float:
    """That at most so many of the rounds fall on one given side of their true median."""
    return float(sum(comb(rounds, i) for i in range(most + 1)) / 2**rounds)


def interval(ratios: Sequence[float]) -> Interval:
    """The interval of at least `FEWEST` ratios."""
    ordered, count = sorted(ratios), len(ratios)
    outside = max(k for k in range(count // 2) if chance(k, count) <= (1 - CONFIDENCE) / 2)
    return Interval(statistics.median(ordered), ordered[outside], ordered[-1 - outside])


def judge(row: Contestant, apart: Sequence[Round], rounds: Sequence[Round]) -> Judged:
    """The verdict of a row. apart: rounds of the base with itself (A/A)."""
    noise = interval([r.ratio for r in apart]).noise
    limit = max(noise, LEAST)
    ratios = [r.ratio for r in rounds]
    found = interval(ratios)
    verdict = _verdict(found, limit)
    return Judged(
        **row.identity,
        verdict=verdict,
        confidence=_confidence(verdict, ratios, limit),
        noise=noise,
        limit=limit,
        ratio=found.ratio,
        low=found.low,
        high=found.high,
        rounds=len(ratios),
        base_us=statistics.median(r.base for r in rounds) * 1e6,
        here_us=statistics.median(r.here for r in rounds) * 1e6,
    )


def _verdict(found: Interval, limit: float) -> str:
    if found.low > 1 + limit:
        return SLOWER
    if found.high < 1 / (1 + limit):
        return FASTER
    within = 1 / (1 + limit) <= found.low and found.high <= 1 + limit
    return SAME if within and limit <= UNSTEADY else AMBIGUOUS


def _confidence(verdict: str, ratios: Sequence[float], limit: float) -> float | None:
    """Of a verdict: 1 less the chance of so few rounds that speak against it."""
    below, above = (sum(r < 1 / (1 + limit) for r in ratios), sum(r > 1 + limit for r in ratios))
    count = len(ratios)
    against = {SLOWER: count - above, FASTER: count - below, SAME: max(below, above)}
    return 1 - chance(against[verdict], count) if verdict in against else None


def confirmed(first: Judged, second: Judged) -> Judged:
    """What two judgements, each in processes of its own, agree on: the smaller change, or nothing."""
    if second.verdict in (FAILED, NO_BASE):
        return second
    if first.verdict != second.verdict or first.ratio is None or second.ratio is None:
        note = f"in other processes {second.verdict} ({_percent(second)}), at first {first.verdict} ({_percent(first)})"
        return replace(second, verdict=AMBIGUOUS, confidence=None, note=note)
    return min(first, second, key=lambda judged: abs((judged.ratio or 1) - 1))


def _percent(judged: Judged) -> str:
    return f"{(judged.ratio or 1) - 1:+.1%}"
