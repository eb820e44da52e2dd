"""How many samples a time is made of: a fixed number, or as many as it takes until the median is known.

    timing = until_known(sample, benchmark, copies)      a standard error of 0.5 % of the median, or 0.3 s

The samples of the second kind are taken first and then told to pytest-benchmark, whose clock is a virtual one.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

from kernelmux.perf.timing.clock import Sample

WARMUP = 3
CLOSE = 0.005  # standard error of the median, relative
ENOUGH, MOST = 10, 400  # samples
FEWEST, LONGEST = 5, 0.3  # samples of a slow call; seconds
STANDARD_ERROR = 0.93  # of a median, in interquartile ranges over the root of the count: of a normal distribution


@dataclass(frozen=True)
class Timing:
    """What the rounds say, in microseconds; spread is the interquartile range over the median."""

    median_us: float
    spread: float
    least_us: float
    rounds: int


def until_known(sample: Sample, benchmark: Any, copies: int) -> Timing:
    """Time a call until its median is known well enough. The last sample is the one before which `before_last` runs."""
    for _ in range(WARMUP):
        sample()
    taken, began = list[float](), time.perf_counter()
    while not _done(taken, time.perf_counter() - began):
        taken.append(_seconds(sample))
    sample.end_on(copies - 1, 1, copies)
    taken.append(_seconds(sample))
    again = iter(taken)
    benchmark.pedantic(lambda: sample.clock.advance(next(again)), rounds=len(taken), iterations=1)
    return timing_of(benchmark, len(taken))


def timing_of(benchmark: Any, count: int) -> Timing:
    """What pytest-benchmark makes of the rounds."""
    stats = benchmark.stats.stats
    return Timing(stats.median * 1e6, stats.iqr / stats.median if stats.median else 0.0, stats.min * 1e6, count)


def error(taken: list[float]) -> float:
    """The standard error of the median, relative to it."""
    low, middle, high = statistics.quantiles(taken)
    return STANDARD_ERROR * (high - low) / len(taken) ** 0.5 / middle if middle else 0.0


def _done(taken: list[float], seconds: float) -> bool:
    """Whether the samples are enough, but for the last one."""
    count = len(taken) + 1
    if count < FEWEST or (count < ENOUGH and seconds < LONGEST):
        return False
    return count >= MOST or seconds >= LONGEST or error(taken) <= CLOSE


def _seconds(sample: Sample) -> float:
    before = sample.clock.now
    sample()
    return sample.clock.now - before
