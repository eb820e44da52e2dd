"""Items that take too long, processes that never start, clocks that jump, and what a run has time for."""

import math
import signal
import threading
import time

import pytest

from kernelmux.runner import local_pool
from kernelmux.runner.item import WorkItem
from kernelmux.runner.run import TimeLimit
from kernelmux.runner.tests import toy


def test_a_hang_is_ended_and_others_go_on(tmp_path):
    _report, rows = toy.go(tmp_path, [WorkItem("hangs", ["hangs"], 9, limit=1.0), *toy.items(10, 0.05)])
    assert "it took more than 1 s, and was ended" in rows["hangs"]["why"]
    assert sum(row["status"] == "passed" for row in rows.values()) == 10


def test_an_item_in_time_is_not_ended(tmp_path):
    """The seconds of each begin with it, and none are left over from the one before."""
    _report, rows = toy.go(tmp_path, toy.items(4, 0.4, limit=1.0), 1)
    assert {row["status"] for row in rows.values()} == {"passed"}


def test_a_process_that_never_starts_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(local_pool, "START_LIMIT", 0.5)
    began = time.monotonic()
    report, _rows = toy.go(tmp_path, toy.items(2), 1, toy.Toy(start="hangs"))
    assert "the process did not start in time, and was ended" in report.errors[0]
    assert time.monotonic() - began < 10


def test_a_process_that_does_not_end_is_given_up(tmp_path, monkeypatch):
    """One that waits for a driver does not end by SIGKILL."""
    kill = local_pool.LocalPool._kill
    monkeypatch.setattr(local_pool, "DYING", 0.5)
    monkeypatch.setattr(local_pool.LocalPool, "_kill", lambda pool, process: process.ended or kill(pool, process))
    _report, rows = toy.go(tmp_path, [WorkItem("hangs", ["hangs"], limit=0.3), *toy.items(1)], 1)
    assert rows.keys() == {"hangs", "passes0"}
    assert toy.wait_until(lambda: not any(map(toy.alive, toy.workers_of(tmp_path))))


def test_a_clock_that_jumps_ends_nothing(tmp_path, monkeypatch):
    """Of the workers and of the driver."""
    now = time.time
    jumps = iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: now() + 3600 * (-1000) ** (next(jumps) % 3))
    every = [WorkItem(f"jumps{i}", ["jumps"], limit=20.0) for i in range(2)]
    report, rows = toy.go(tmp_path, every, limit=TimeLimit(time.monotonic() + 60))
    assert [row["status"] for row in rows.values()] == ["passed", "passed"]
    assert 0.3 < report.usage.seconds < 20


def test_a_driver_that_was_stopped_ends_nothing_in_time(tmp_path, monkeypatch):
    """What had ended while it was stopped had ended in time. As long as a stop: a suite that takes long over a row."""
    monkeypatch.setattr(local_pool, "ASLEEP", 1.0)

    class Slow(toy.Toy):
        def takes(self, item, row):
            super().takes(item, row)
            if len(self.taken) == 1:
                threading.Event().wait(2.5)

    every = [WorkItem("first", ["passes"], 9), WorkItem("second", ["passes", 1.0], 8, limit=1.5)]
    _report, rows = toy.go(tmp_path, every, suite=Slow())
    assert rows["second"]["status"] == "passed"


def test_without_time_items_are_late_and_required_ones_begin(tmp_path):
    every = [*toy.items(2), WorkItem("required", ["passes"], 60, rank=-1), WorkItem("long", ["passes"], 60)]
    suite = toy.Toy()
    report, rows = toy.go(tmp_path, every, 1, suite, limit=TimeLimit(time.monotonic() + 30, required=-1))
    assert suite.begun == ["required", "passes0", "passes1"]
    assert report.rows["long"] == {"status": "late"}
    assert "long" not in rows
    assert [line["row"] for line in toy.lines(tmp_path, "late")] == [{"status": "late"}]


def test_what_was_late_is_run_by_the_run_that_goes_on(tmp_path):
    every = [*toy.items(2), WorkItem("long", ["passes"], 60)]
    toy.go(tmp_path, every, 1, limit=TimeLimit(time.monotonic()))
    report, rows = toy.go(tmp_path, every, 1, resume=True)
    assert (report.resumed, len(rows)) == (0, 3)


@pytest.mark.parametrize(
    ("until", "remaining", "share"), [(10.0, 5, 4.0), (10.0, 0, 20.0), (-1.0, 5, 0.0), (math.inf, 5, math.inf)]
)
def test_each_item_has_its_share_of_the_time(until, remaining, share):
    item = WorkItem("a", seconds=2.0, rank=0)
    found = TimeLimit(time.monotonic() + until, required=0).share(item, remaining, workers=2)
    assert found == pytest.approx(share, abs=0.01)


def test_a_signal_behind_which_the_time_is_over_does_not_prolong_the_wait(tmp_path):
    """As Ctrl-C just before a look at the limits."""

    def returns_late(*_):
        signal.signal(signal.SIGALRM, prolonged)
        signal.alarm(10)
        time.sleep(0.3)

    def prolonged(*_):
        pytest.fail("the wait goes on")

    before = signal.signal(signal.SIGALRM, returns_late)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        assert local_pool.LocalPool([], "", None, tmp_path).events(0.2) == []
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
