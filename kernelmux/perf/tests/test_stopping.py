"""Samples until the median is known."""

import random
from itertools import cycle
from types import SimpleNamespace

import pytest

from kernelmux.perf.timing import stopping
from kernelmux.perf.timing.clock import Sample, VirtualClock


class Benchmark:
    """What pytest-benchmark does in `pedantic`: the clock before and after each round."""

    def __init__(self, clock):
        self.clock, self.rounds = clock, []

    def pedantic(self, function, rounds, iterations):
        for _ in range(rounds):
            before = self.clock()
            function()
            self.rounds.append(self.clock() - before)
        low, middle, high = stopping.statistics.quantiles(self.rounds)
        self.stats = SimpleNamespace(stats=SimpleNamespace(median=middle, iqr=high - low, min=min(self.rounds)))


def timed(times, monkeypatch, wall=0.0):
    """The timing of calls that take `times`, where each takes `wall` seconds of the host; and the inputs in their order."""
    now, order, last = [0.0], [], []
    clock, times = VirtualClock(), iter(times)

    def stopwatch(call):
        now[0] += wall
        return next(times), call()

    sample = Sample(lambda i: order.append(i % 3), stopwatch, clock)
    sample.before_last = lambda: last.append(len(order))
    monkeypatch.setattr(stopping, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    benchmark = Benchmark(clock)
    found = stopping.until_known(sample, benchmark, copies=3)
    assert last == [len(order) - 1] and order[-1] == 2  # fresh values before the last sample, on the last set of inputs
    assert found.rounds == len(benchmark.rounds) == len(order) - stopping.WARMUP
    return found


def test_equal_times_take_few_samples(monkeypatch):
    found = timed(cycle([1e-4]), monkeypatch)
    assert found.rounds == stopping.ENOUGH
    assert (found.median_us, found.spread) == (pytest.approx(100), pytest.approx(0, abs=1e-6))


def test_times_that_scatter_take_as_many_as_the_median_needs(monkeypatch):
    """4 % of scatter need about 0.93 * 1.35 * 0.04 / 0.005 squared, 100 samples."""
    rng = random.Random(5)
    found = timed((rng.gauss(1e-4, 4e-6) for _ in range(10_000)), monkeypatch)
    assert 50 < found.rounds < 200
    assert found.median_us == pytest.approx(100, rel=3 * stopping.CLOSE)


def test_wild_times_end_at_the_most(monkeypatch):
    rng = random.Random(5)
    assert timed((rng.uniform(1e-4, 1e-3) for _ in range(10_000)), monkeypatch).rounds == stopping.MOST


@pytest.mark.parametrize(("wall", "rounds"), [(stopping.LONGEST, stopping.FEWEST), (stopping.LONGEST / 7, 8)])
def test_slow_calls_end_with_their_seconds(wall, rounds, monkeypatch):
    found = timed(cycle([1e-2, 2e-2]), monkeypatch, wall)
    assert found.rounds == pytest.approx(rounds, abs=1)
