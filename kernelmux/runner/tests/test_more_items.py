"""Items that come while a run goes on, workers that see no GPU, and files that keep the rows of all runs."""

import pytest

from kernelmux.runner import results
from kernelmux.runner.item import Slot, WorkItem
from kernelmux.runner.machine import VISIBLE, on_cpu
from kernelmux.runner.plan import Plan
from kernelmux.runner.tests import toy


class Grows(toy.Toy):
    """Each of the first items is followed by two more."""

    def takes(self, item, row):
        super().takes(item, row)
        return [WorkItem(f"{item.id}-{i}", ["passes", 0.0]) for i in range(2)] if "-" not in item.id else None


def test_what_follows_from_a_row_runs(tmp_path):
    report, rows = toy.go(tmp_path, toy.items(3), suite=Grows())
    assert len(report.rows) == len(rows) == 9 and not report.errors


def test_a_run_that_goes_on_takes_what_followed_as_it_is(tmp_path):
    toy.go(tmp_path, toy.items(2), suite=Grows())
    path = tmp_path / results.NAME
    lines = [line for line in path.read_text().splitlines(keepends=True) if '"item":"passes1-0"' not in line]
    path.write_text("".join(lines))
    suite = Grows()
    report, rows = toy.go(tmp_path, toy.items(2), suite=suite, resume=True)
    assert suite.begun == ["passes1-0"] and report.resumed == 5 and len(rows) == 6


def test_later_items_of_a_group_stay_with_its_worker():
    plan = Plan([WorkItem("a0", group="a"), WorkItem("a1", group="a"), WorkItem("b0", group="b")])
    one, other = Slot("one"), Slot("other")
    assert [plan.next(slot).id for slot in (one, other)] == ["a0", "b0"]
    plan.add([WorkItem("a2", group="a"), WorkItem("b1", group="b"), WorkItem("c")])
    for slot in (one, other):
        plan.end(slot)
    assert [plan.next(slot).id for slot in (one, other)] == ["a1", "b1"]
    plan.end(one)
    assert plan.next(one).id == "a2"
    assert plan.left == 3


def test_a_name_that_is_there_is_no_new_item():
    plan = Plan([WorkItem("a")])
    with pytest.raises(ValueError, match="expected each item once, got a again"):
        plan.add([WorkItem("a")])


def test_an_item_for_a_worker_without_a_gpu_goes_to_no_other():
    plan = Plan([WorkItem("compiles", cpu=True)])
    assert plan.next(Slot("with", gpus=("g",))) is None
    assert plan.next(Slot("without")).id == "compiles"
    assert on_cpu(1, "node", [""])[0].environment[VISIBLE] == ""


def test_rows_of_all_runs_are_kept(tmp_path):
    assert results.kept(tmp_path).rows == ()
    for program in ("one", "two"):
        with results.opened(tmp_path, {"program": program}, False, keep=True) as (file, done):
            file.append({"item": program, "row": 1})
        with file.path.open("a") as torn:
            torn.write('{"item": "cut o')
    assert [line.get("item") for line in results.kept(tmp_path).rows] == ["one", None, "two"] and not done
    (tmp_path / results.NAME).write_text('{"kind": "ro')
    assert results.kept(tmp_path).rows == ()
    with results.opened(tmp_path, {"program": "three"}, False, keep=True):
        pass
    assert results.read(tmp_path / results.NAME).head["program"] == "three"
