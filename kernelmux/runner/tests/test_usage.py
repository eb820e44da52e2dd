"""Where the workers' seconds went, and what the runner itself takes."""

import time

import pytest

from kernelmux.runner.item import WorkItem
from kernelmux.runner.run import STARTING, EndRun, Usage
from kernelmux.runner.tests import toy


def adds_up(usage):
    return (usage.busy + sum(usage.waits.values())) / (usage.workers * usage.seconds)


def test_seconds_add_up(tmp_path):
    """Of workers that are busy, that have nothing to do, and that are started anew."""
    every = [
        *toy.items(8, 0.1),
        WorkItem("compiles", ["passes", 0.6], 9),
        WorkItem("runs", ["passes", 0.5], 8),
        WorkItem("loses", ["loses"], 7),
        WorkItem("killed", ["killed_once", str(tmp_path / "was_killed")], 6),
        WorkItem("raises", ["raises"], 5),
    ]
    report, _rows = toy.go(tmp_path, every, 3)
    assert adds_up(report.usage) == pytest.approx(1.0, abs=0.03)
    assert report.usage.waits[STARTING] > 0  # how long a process takes to start is the machine's affair
    imports = [line["imports"] for line in toy.lines(tmp_path, "worker")]
    assert 0 < max(imports) < report.usage.until_first


def test_a_steady_set_of_workers_is_busy(tmp_path):
    report, _rows = toy.go(tmp_path, toy.items(40, 0.05))
    assert adds_up(report.usage) == pytest.approx(1.0, abs=0.02)
    assert report.usage.busy > 0.5 * report.usage.workers * report.usage.seconds


def test_what_is_said_of_it():
    usage = Usage(2, 10.0, 15.0)
    usage.waits.update({"compilers": 3.0, "memory": 2.0, "others": 0.0})
    assert str(usage) == "2 workers were busy 75 % of 10 s, 15 % waiting for compilers, 10 % waiting for memory"
    assert str(Usage()) == "0 workers were busy 0 % of 0 s"


def test_what_an_item_costs(tmp_path, capsys):
    """Beside what it does, with two workers; and how long it is until the first begins."""
    began = time.perf_counter()
    report, _rows = toy.go(tmp_path, toy.items(200))
    whole = time.perf_counter() - began
    each = 2 * report.usage.seconds / 200
    with capsys.disabled():
        print(f"\n{1e3 * each:.2f} ms for an item, the first after {report.usage.until_first:.2f} s of {whole:.2f} s")
    assert each < 0.060  # 0.002 on a machine with nothing else to do
    assert report.usage.until_first < 10


def test_a_suite_that_has_seen_enough(tmp_path):
    class Once(toy.Toy):
        def takes(self, item, row):
            super().takes(item, row)
            raise EndRun

    report, rows = toy.go(tmp_path, toy.items(10), suite=Once())
    assert len(rows) == 1 and not report.errors
    report, rows = toy.go(tmp_path, toy.items(10), suite=Once(), resume=True)
    assert len(rows) == 2


class Follows(toy.Toy):
    """Each item of a row without a follower gives one, three deep."""

    def takes(self, item, row):
        super().takes(item, row)
        return [WorkItem(f"{item.id}+", ["passes"])] if item.id.count("+") < 3 else []


def test_items_follow_from_rows_and_so_they_do_when_a_run_goes_on(tmp_path):
    report, rows = toy.go(tmp_path, toy.items(2), suite=Follows())
    assert sorted(rows) == sorted(f"passes{i}{n * '+'}" for i in range(2) for n in range(4))
    path = tmp_path / "rows.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"passes1++' not in line), encoding="utf-8")
    report, again = toy.go(tmp_path, toy.items(2), suite=Follows(), resume=True)
    assert report.resumed == 6
    assert report.rows.keys() == again.keys() == rows.keys()
