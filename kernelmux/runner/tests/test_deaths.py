"""What becomes of an item whose worker does not survive it, and of all others."""

import os
import threading
from collections import Counter

import pytest

from kernelmux.runner.item import Slot, WorkItem
from kernelmux.runner.run import TRIES, execute
from kernelmux.runner.tests import toy

WHY = {  # verbs that end a process, and what is told of it
    "crashes": "ended by SIGSEGV; it printed:\nFatal Python error: Segmentation fault",
    "crashes_beside_a_fork": "ended by SIGSEGV",
    "aborts": "ended by SIGABRT",
    "exits": "ended with status 7; it printed:\na last word",
    "exits_well": "ended with status 0",
    "raises": "ValueError: no such thing",
    "returns": "toy_serve.py:serve returned before its items had ended",
    "takes_memory": "MemoryError",
    "tells_nothing": "asked for another item before it told a row of this one",
}


def test_a_death_is_of_one_item(tmp_path):
    """Its row tells why, at once; what was killed from outside is run again; all others pass."""
    dying = [WorkItem(verb, [verb]) for verb in [*WHY, "tells_twice", "killed"]]
    once = WorkItem("killed once", ["killed_once", str(tmp_path / "was_killed")])
    report, rows = toy.go(tmp_path, [*toy.items(20), *dying, once], suite=toy.Toy(began=str(tmp_path / "began")))
    assert not report.errors
    assert rows == report.rows
    assert {item.id for item in [*toy.items(20), once]} | {"tells_twice"} == {
        name for name, row in rows.items() if row["status"] == "passed"
    }
    for verb, why in WHY.items():
        assert why in rows[verb]["why"]
    assert "in crashes\n" in rows["crashes"]["why"]
    assert "killed from outside" in rows["killed"]["why"]
    began = Counter(line.split("'")[1] for line in (tmp_path / "began").read_text(encoding="utf-8").splitlines())
    assert began == {**dict.fromkeys([*WHY, "tells_twice"], 1), "passes": 20, "killed": TRIES, "killed_once": 2}
    again = Counter(line["again"] for line in toy.lines(tmp_path, "again"))
    assert (
        again["killed"] >= TRIES - 1 and again["killed once"] >= 1
    )  # more, if a process went before it had begun the item
    assert not again.keys() & WHY.keys()


def test_a_log_of_an_earlier_process_is_no_reason(tmp_path):
    _report, rows = toy.go(tmp_path, [WorkItem("aborts", ["aborts"], 2), WorkItem("exits", ["exits"])], 1)
    assert rows["exits"]["why"] == "the process ended with status 7; it printed:\na last word"


def test_what_a_process_started_ends_with_it(tmp_path):
    _report, rows = toy.go(tmp_path, [WorkItem("starts", ["starts_a_process"])], 1)
    assert toy.wait_until(lambda: not toy.alive(rows["starts"]["child"]), 5)


@pytest.mark.parametrize(("start", "why"), [("raises", "ValueError: no such thing"), ("aborts", "ended by SIGABRT")])
def test_without_a_worker_a_run_ends_with_errors(tmp_path, start, why):
    report, rows = toy.go(tmp_path, toy.items(3), suite=toy.Toy(start=start))
    assert rows == {}
    assert why in report.errors[0]
    assert report.errors[-1].startswith("no worker is left that can run 3 of the items: passes0")


def test_a_process_that_cannot_be_started(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    report, _rows = toy.go(tmp_path, toy.items(3))
    assert "no process could be started: FileNotFoundError" in report.errors[0]


def test_one_slot_that_does_not_start_ends_no_run(tmp_path):
    """It has failed before the other is ready."""
    bad = Slot("bad", environment={"TOY_START": "exits"})
    report, rows = toy.go(tmp_path, toy.items(3), [bad, *toy.slots(1)], toy.Toy(start="sleeps"))
    assert len(rows) == 3
    assert report.errors == ["worker bad: the process ended with status 7; it printed:\na last word"]


def test_an_item_for_no_slot_is_told(tmp_path):
    report, rows = toy.go(tmp_path, [*toy.items(2), WorkItem("elsewhere", ["passes"], card="another")], 1)
    assert len(rows) == 2
    assert report.errors == ["no worker is left that can run 1 of the items: elsewhere"]


def test_in_this_process_an_item_may_need_a_gpu(tmp_path):
    every = [WorkItem("gpu", ["passes"], gpus=1, alone=True, card="nvidia_h200"), WorkItem("cpu", ["passes"])]
    report = execute(toy.Toy(), every, None, tmp_path, "here")
    assert report.rows.keys() == {"gpu", "cpu"} == toy.rows(tmp_path).keys()


def test_in_this_process_a_function_that_returns_is_told(tmp_path):
    report = execute(toy.Toy(), [WorkItem("returns", ["returns"]), *toy.items(2)], None, tmp_path, "here")
    assert report.errors


def test_no_descriptor_is_left_by_many_deaths(tmp_path):
    """Each costs a process, its pipes and a thread."""
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    _report, rows = toy.go(tmp_path, [WorkItem(f"raises{i}", ["raises"]) for i in range(8)], 2)
    assert len(rows) == 8
    assert toy.wait_until(lambda: (len(os.listdir("/proc/self/fd")), threading.active_count()) <= before, 5)
