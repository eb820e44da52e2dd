"""What becomes of items on a GPU whose context another item loses. The GPUs are names alone: nothing asks a driver."""

import pytest

from kernelmux.runner.item import Slot, WorkItem
from kernelmux.runner.run import EndRun, RunState
from kernelmux.runner.tests import toy


def slots():
    """Two on one GPU, which each see as CUDA_VISIBLE_DEVICES, and one on another."""
    gpus = [("0", "1"), ("0", "1"), ("1", "0")]
    return [Slot(f"s{i}", "node", g, environment={"CUDA_VISIBLE_DEVICES": ",".join(g)}) for i, g in enumerate(gpus)]


def here(number, verb, folder):
    """An item of each slot: each waits until all are there."""
    return [verb, str(folder), f"there{number}", 3]


@pytest.mark.parametrize("verb", ["loses", "killed_beside"])
def test_neighbours_that_fail_are_run_again(tmp_path, verb):
    """Those on the same GPU; on another a failure stays one. Slots begin in their order."""
    folder = tmp_path / "there"
    folder.mkdir()
    every = [
        WorkItem("it", here(0, verb, folder), gpus=1, seconds=9),
        WorkItem("beside", here(1, "fails_beside", folder), gpus=1, seconds=8),
        WorkItem("elsewhere", here(2, "fails_beside", folder), gpus=1, seconds=7),
    ]
    _report, rows = run_in_order(tmp_path, every)
    assert rows["beside"] == {"status": "passed", "again": True, **kept(rows["beside"])}
    assert rows["elsewhere"]["status"] == "failed"
    again = {line["again"]: line for line in toy.lines(tmp_path, "again")}
    assert again.keys() == ({"beside"} if verb == "loses" else {"beside", "it"})
    assert again["beside"]["failed"]["status"] == "failed"
    assert again["beside"]["reason"].endswith("beside it")


@pytest.mark.parametrize("verb", ["loses_late", "passes_beside"])
def test_a_neighbour_that_has_failed_waits_for_what_still_runs_beside_it(tmp_path, verb):
    """Its row comes before that of the item that may have hurt it: it has failed only if that one has not."""
    folder = tmp_path / "there"
    folder.mkdir()
    every = [
        WorkItem("it", here(0, verb, folder), gpus=1, seconds=9),
        WorkItem("beside", here(1, "fails_first", folder), gpus=1, seconds=8),
        WorkItem("elsewhere", here(2, "fails_first", folder), gpus=1, seconds=7),
    ]
    _report, rows = run_in_order(tmp_path, every)
    assert rows["beside"]["status"] == ("passed" if verb == "loses_late" else "failed")
    assert rows["elsewhere"]["status"] == "failed" and rows.keys() == {"it", "beside", "elsewhere"}
    again = [line["again"] for line in toy.lines(tmp_path, "again")]
    assert again == (["beside"] if verb == "loses_late" else [])


class Once(toy.Toy):
    """Ends the run with the first row."""

    def takes(self, item, row):
        super().takes(item, row)
        raise EndRun


def test_a_run_that_ends_tells_no_failure_of_an_item_that_was_hurt(tmp_path):
    """The run that goes on with it runs the item."""
    folder = tmp_path / "there"
    folder.mkdir()
    every = [
        WorkItem("it", here(0, "loses_late", folder), gpus=1, seconds=9),
        WorkItem("beside", here(1, "fails_first", folder), gpus=1, seconds=8),
        WorkItem("elsewhere", here(2, "passes_later", folder), gpus=1, seconds=7),
    ]
    report, rows = run_in_order(tmp_path, every, Once())
    assert rows.keys() == report.rows.keys() == {"it"} and rows["it"]["status"] == "failed"


def test_neighbours_that_pass_are_kept_and_the_worker_is_another(tmp_path):
    folder = tmp_path / "there"
    folder.mkdir()
    every = [
        WorkItem("it", here(0, "loses", folder), gpus=1, seconds=9),
        WorkItem("beside", here(1, "passes_beside", folder), gpus=1, seconds=8),
        WorkItem("elsewhere", here(2, "passes_beside", folder), gpus=1, seconds=7),
    ]
    _report, rows = run_in_order(tmp_path, [*every, *toy.items(6, 0.3)])
    assert rows["it"]["status"] == "failed"
    assert rows["beside"]["status"] == rows["elsewhere"]["status"] == "passed"
    assert toy.lines(tmp_path, "again") == []
    pids = {row["pid"] for row in rows.values()}
    assert pids - set(toy.workers_of(tmp_path))  # what came after it was run by a new process
    assert not toy.alive(rows["it"]["pid"])
    assert sum(row["pid"] == rows["it"]["pid"] for row in rows.values()) == 1


def test_a_slot_sees_its_gpus_only(tmp_path):
    one = Slot("one", "node", ("7", "3"), environment={"CUDA_VISIBLE_DEVICES": "7,3"})
    _report, rows = toy.go(tmp_path, [WorkItem("reads", ["reads", "CUDA_VISIBLE_DEVICES"], gpus=2)], [one])
    assert rows["reads"]["variable"] == "7,3"


def kept(row):
    return {name: row[name] for name in ("pid", "seconds")}


def run_in_order(home, every, suite=None):
    """Each of the first three items in the slot of its number, whichever process is ready first."""

    class Ordered(RunState):
        def begin(self, slot):
            return super().begin(slot) if len(self.slots) == 3 and self._is_next(slot) else None

        def _is_next(self, slot):
            begun = len(self.suite.begun)
            return begun >= 3 or slot.id == f"s{begun}"

    before, toy.RunState = toy.RunState, Ordered
    try:
        return toy.go(home, every, slots(), suite)
    finally:
        toy.RunState = before
