"""The plan in simulated time: what it costs, and what it loses."""

import json

import pytest

from kernelmux.runner.item import WorkItem
from kernelmux.runner.tests import simulation


def test_what_the_plan_costs_for_an_item_hardly_grows_with_their_number():
    """The milliseconds themselves are on record: another machine has others."""
    _hardly_grows(lambda number: (simulation.drawn(number, 0.5), simulation.workers(64)))


def test_nor_with_all_that_an_item_for_gpus_may_ask():
    _hardly_grows(simulation.mixed)


def _hardly_grows(made, few=1_000, many=20_000):
    costs = []
    for number in (few, many):
        items, slots = made(number)
        found = [simulation.simulate(items, slots) for _ in range(2)]
        assert sorted(found[0].order) == sorted(item.id for item in items)
        costs.append(min(one.cpu for one in found) / number)
    assert costs[1] < 6 * costs[0]  # 20 if each item were compared with all others


def test_a_straggler_costs_no_more_than_its_own_seconds():
    assert simulation.straggler(number=400, count=16, times=40) <= 1 + 1e-9


def test_workers_end_at_nearly_the_same_time():
    items = simulation.drawn(2000, 0.5)
    bound = sum(item.seconds for item in items) / 64
    assert simulation.simulate(items, simulation.workers(64)).makespan < 1.02 * bound


def test_an_item_that_needs_a_gpu_alone_is_not_left_to_the_end():
    """It is the longest: a run that began with it has the length of the rest."""
    items, slots = simulation.mixed(200, gpus=1, each=4)
    short = [WorkItem(item.id, seconds=1.0, gpus=1) for item in items if not item.alone]
    found = simulation.simulate([*short, WorkItem("alone", seconds=20.0, gpus=1, alone=True)], slots)
    assert "alone" in found.order[:5]


def test_a_driver_that_takes_long_bounds_the_rate():
    items = simulation.drawn(2000, 0.01)
    found = simulation.simulate(items, simulation.workers(256), driver=0.001)
    assert 900 < len(items) / found.makespan < 1000.5


def test_the_picture_is_of_the_record():
    pytest.importorskip("matplotlib")
    record = json.loads(simulation.RECORD.read_text(encoding="utf-8"))
    assert simulation.text(record) == simulation.RECORD.read_text(encoding="utf-8")
    assert simulation.draw(record) == simulation.PICTURE.read_text(encoding="utf-8")
