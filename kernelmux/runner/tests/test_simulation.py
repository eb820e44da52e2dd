"""The plan in simulated time: what it costs, and what it loses."""

import json

import pytest

from kernelmux.runner.item import WorkItem
from kernelmux.runner.tests import simulation


def test_the_plan_costs_less_than_a_fifth_of_a_millisecond():
    items = simulation.drawn(20_000, 0.5)
    assert simulation.simulate(items, simulation.workers(64)).cpu / len(items) < 0.2e-3


def test_so_does_one_for_gpus_with_all_that_an_item_may_ask():
    items, slots = simulation.mixed(10_000)
    found = simulation.simulate(items, slots)
    assert sorted(found.order) == sorted(item.id for item in items)
    assert found.cpu / len(items) < 0.2e-3


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
