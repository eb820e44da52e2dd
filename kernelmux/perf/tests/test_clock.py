"""The virtual clock: pytest-benchmark must see device time and nothing else."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from kernelmux.perf.tests.synthetic import environment
from kernelmux.perf.timing import clock
from kernelmux.perf.timing.clock import Sample, VirtualClock

INNER = '''
import time
import pytest
from kernelmux.perf.timing.clock import Sample, VirtualClock

CLOCK = VirtualClock()

class Events:
    """Says that each call took so many microseconds, whatever it took."""

    def __init__(self, *microseconds):
        self.left = list(microseconds)

    def __call__(self, call):
        time.sleep(0.01)  # a flush, a launch: this must not be counted
        return self.left.pop(0) / 1e6, call()

@pytest.mark.benchmark(timer=CLOCK)
def test_row(benchmark):
    sample = Sample(lambda i: i, Events(900, 800, 700, 100, 300, 200, 500, 400), CLOCK)
    benchmark.pedantic(sample, rounds=5, iterations=1, warmup_rounds=3)
    assert sample.result == 7
'''


def test_pytest_benchmark_measures_the_virtual_clock(tmp_path):
    (tmp_path / "test_inner.py").write_text(INNER)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "test_inner.py",
        "--benchmark-json=out.json",
        "-p",
        "no:cacheprovider",
    ]
    run = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    stats = json.loads((tmp_path / "out.json").read_text())["benchmarks"][0]["stats"]
    assert stats["rounds"] == 5
    assert stats["median"] == pytest.approx(300e-6)
    assert (stats["min"], stats["max"]) == (pytest.approx(100e-6), pytest.approx(500e-6))


def test_time_does_not_run_backwards():
    with pytest.raises(ValueError, match="negative"):
        VirtualClock().advance(-1e-9)
    with pytest.raises(ValueError, match="negative"):
        VirtualClock().advance(float("nan"))


def test_samples_rotate_the_inputs_and_end_where_they_are_told():
    seen = []
    sample = Sample(lambda i: seen.append(i % 4), lambda call: (0.0, call()), VirtualClock())
    sample()
    sample.end_on(copy=3, rounds=5, copies=4)
    for _ in range(5):
        sample()
    assert seen == [0, 3, 0, 1, 2, 3]


def test_an_output_is_poisoned_before_its_memory_is_given_back():
    first = torch.ones(4)
    integers = torch.ones(4, dtype=torch.int8)
    clock.poison((first, integers))
    assert first.isnan().all()
    assert (integers == 127).all()


def test_the_region_between_the_events_holds_the_call_alone(monkeypatch):
    log: list[str] = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            log.append("event")

        def synchronize(self):
            log.append("wait")

        def elapsed_time(self, end):
            return 0.25  # milliseconds

    class Buffer:
        def zero_(self):
            log.append("flush")

    def allocate(size, **more):
        sizes.append(size)
        return Buffer()

    def call():
        log.append("call")
        return "result"

    sizes: list[int] = []
    monkeypatch.setattr(clock, "l2_bytes", lambda: 1000)
    monkeypatch.setattr(torch, "empty", allocate)
    monkeypatch.setattr(clock, "cuda", SimpleNamespace(Event=Event))
    monkeypatch.setattr(clock, "sleep_on_device", lambda us: log.append(f"sleep {us:.0f}"))
    seconds, result = clock.CudaStopwatch(host_us=30.0)(call)
    assert log == ["flush", "event", "sleep 65", "event", "call", "event", "wait"]
    assert (seconds, result) == (0.00025, "result")
    assert sizes == [2100]


def test_the_sleep_on_the_device_covers_the_host_but_has_an_end(monkeypatch):
    slept: list[int] = []
    monkeypatch.setattr(torch.cuda, "_sleep", slept.append, raising=False)
    clock.sleep_on_device(10.0)
    assert slept == [10 * clock.CYCLES_PER_US]


def test_the_clock_follows_from_the_sleep(monkeypatch):
    monkeypatch.setattr(clock, "awake_us", lambda: 2.0)
    monkeypatch.setattr(clock, "can_sleep", lambda: True)
    stopwatch = object.__new__(clock.CudaStopwatch)
    stopwatch.sleep_us, stopwatch.slept = 50.0, [72.0, 71.0, 90.0]
    assert stopwatch.mhz == pytest.approx(50 * clock.CYCLES_PER_US / 70)
    assert stopwatch.mhz is None  # asked once, the samples are gone
