"""A clock that pytest-benchmark can read and that only device work advances.

    clock = VirtualClock()
    sample = Sample(call, stopwatch, clock)
    benchmark.pedantic(sample, rounds=30)      with @pytest.mark.benchmark(timer=clock)

pytest-benchmark takes the timer before and after the function; the function flushes the L2 cache, times one launch with
two events, and advances the clock by that alone. So its statistics are those of device time with a cold cache.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import torch

from kernelmux.perf.rows.options import REST_SECONDS

cuda: Any = torch.cuda  # whether its classes are typed depends on the build of torch
HIDE_US = 20.0  # added to the host time that the device sleep covers
LONGEST_SLEEP_US = 3000.0
CYCLES_PER_US = 2000  # of a GPU at 2 GHz; a slower one sleeps longer, which is safe
EMPTY = 21  # measurements of a sleep of no cycles


class VirtualClock:
    """Seconds of device work so far."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Add the seconds of one measurement."""
        if not seconds >= 0:
            raise ValueError(f"a measured time must not be negative, got {seconds}")
        self.now += seconds


class Stopwatch(Protocol):
    """Times one call on some device."""

    def __call__(self, call: Callable[[], Any]) -> tuple[float, Any]:
        """Seconds that the call took, and its result."""


class Sample:
    """The function under test: one timed call; `result` is what the last one returned, `count` how many there were."""

    def __init__(self, call: Callable[[int], Any], stopwatch: Stopwatch, clock: VirtualClock) -> None:
        self.call, self.stopwatch, self.clock = call, stopwatch, clock
        self.before_last: Callable[[], None] = lambda: None
        self.count, self.last = 0, -1
        self.result: Any = None

    def end_on(self, copy: int, rounds: int, copies: int) -> None:
        """Count on from where `rounds` more samples end on a given one of `copies` sets of inputs.

        `before_last` is called before the last of them.
        """
        self.count = (copy + 1 - rounds) % copies
        self.last = self.count + rounds - 1

    def __call__(self) -> None:
        if self.count == self.last:
            self.before_last()
        poison(self.result)  # the allocator may reuse this memory: no earlier result may be left in it
        self.result = None
        seconds, self.result = self.stopwatch(lambda: self.call(self.count))
        self.clock.advance(seconds)
        self.count += 1


def poison(result: Any) -> None:
    """Overwrite outputs with NaN, or with the largest integer."""
    for out in result if isinstance(result, tuple) else (result,):
        if isinstance(out, torch.Tensor):
            out.fill_(float("nan") if out.dtype.is_floating_point else torch.iinfo(out.dtype).max)


class CudaStopwatch:
    """Seconds of device time with a cold L2 cache, between two events.

    Before the first event the stream overwrites a buffer of more than twice the L2 cache, then sleeps for about the
    host time of the call: the launch is queued before the timed region begins, so that no host time gets into it.
    The sleep counts clock cycles, so the clock follows from the time that it takes.
    """

    def __init__(self, host_us: float = 0.0) -> None:
        size = l2_bytes()
        self.flush = torch.empty(int(2.1 * size), dtype=torch.uint8, device="cuda")
        self.asleep, self.begin, self.end = (cuda.Event(enable_timing=True) for _ in range(3))
        self.sleep_us = min(host_us * 1.5 + HIDE_US, LONGEST_SLEEP_US)
        self.slept: list[float] = []

    def __call__(self, call: Callable[[], Any]) -> tuple[float, Any]:
        self.flush.zero_()
        self.asleep.record()
        sleep_on_device(self.sleep_us)
        self.begin.record()
        result = call()
        self.end.record()
        self.end.synchronize()
        self.slept.append(self.asleep.elapsed_time(self.begin) * 1e3)
        return self.begin.elapsed_time(self.end) / 1e3, result

    @property
    def mhz(self) -> float | None:
        """MHz of the clock before the samples since the last call of this; None where the device cannot sleep."""
        slept, self.slept = self.slept, []
        spare = statistics.median(slept) - awake_us() if slept else 0.0
        return self.sleep_us * CYCLES_PER_US / spare if spare > 0 and can_sleep() else None


class SynchronousStopwatch:
    """Seconds from the call until the device is done: for work in which the host takes part."""

    def __call__(self, call: Callable[[], Any]) -> tuple[float, Any]:
        torch.cuda.synchronize()
        start = time.perf_counter()
        result = call()
        torch.cuda.synchronize()
        return time.perf_counter() - start, result


class WallStopwatch:
    """Seconds per call by the wall clock, over `repeat` calls; the CPU's caches are as the last call left them."""

    def __init__(self, repeat: int = 1) -> None:
        self.repeat = repeat

    def __call__(self, call: Callable[[], Any]) -> tuple[float, Any]:
        start = time.perf_counter()
        for _ in range(self.repeat):
            result = call()
        return (time.perf_counter() - start) / self.repeat, result


def l2_bytes() -> int:
    """Bytes of L2 cache of the current GPU; 64 MiB where torch does not say."""
    return int(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "L2_cache_size", 0)) or 64 << 20


def rest(seconds: float = REST_SECONDS) -> None:
    """Leave the device idle until its clock no longer depends on what ran before."""
    torch.cuda.synchronize()
    time.sleep(seconds)


def can_sleep() -> bool:
    return hasattr(torch.cuda, "_sleep")


def sleep_on_device(microseconds: float) -> None:
    """Keep the stream busy without touching memory, for as many cycles as a clock of 2 GHz has in that time."""
    spin = getattr(torch.cuda, "_sleep", None)  # torch's own, not public; without it short kernels show host gaps
    if spin is not None:
        spin(int(microseconds * CYCLES_PER_US))


@cache
def awake_us() -> float:
    """Microseconds between two events around a sleep of no cycles: what a sleep takes beyond its cycles."""
    filler = torch.empty(l2_bytes(), dtype=torch.uint8, device="cuda")
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
    times: list[float] = []
    for _ in range(EMPTY):
        filler.zero_()
        sleep_on_device(HIDE_US)  # until the rest is queued: no host time gets between the events
        begin.record()
        sleep_on_device(0.0)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)
