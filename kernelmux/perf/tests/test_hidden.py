"""Work that the events of a stream do not time, and values that a timed call meets for the first time."""

from __future__ import annotations

import weakref

import pytest
import torch

from kernelmux.perf.planning.plan import Row
from kernelmux.perf.rows.row_result import RooflinePoint
from kernelmux.perf.timing import graph, inputs, reseed, untimed_work
from kernelmux.perf.timing.reseed import Exchange
from kernelmux.perf.timing.untimed_work import HiddenWork
from kernelmux.perf.timing.verify import WrongOutput

ROW = Row("softmax", "x=4x8", "fp32", "torch_ref", "plain")
POINT = RooflinePoint(floor_us=100.0, floor_by="memory", share=0.5, rate=1.0, rate_unit="GB/s")


def test_a_device_that_goes_on_each_time_is_told(monkeypatch):
    busy = iter([400.0, 390.0, 410.0, 380.0, 400.0])
    monkeypatch.setattr(untimed_work, "_busy_us", lambda call, i: (next(busy), untimed_work.IDLE_US, 10.0))
    with pytest.raises(HiddenWork, match="work is on another stream: the device goes on for 380 us"):
        untimed_work.require_none(lambda i: None)
    waits = iter([400.0, 8.0, 500.0, 9.0, 8.0])  # a host that was busy now and then
    monkeypatch.setattr(untimed_work, "_busy_us", lambda call, i: (next(waits), untimed_work.IDLE_US, 10.0))
    untimed_work.require_none(lambda i: None)
    monkeypatch.setattr(
        untimed_work, "_busy_us", lambda call, i: (143.0, 30_000 * untimed_work.IDLE_OF_CALL, 10.0)
    )  # a call of 30 ms
    untimed_work.require_none(lambda i: None)
    monkeypatch.setattr(
        untimed_work, "_busy_us", lambda call, i: (83.0, untimed_work.IDLE_US, 40.0)
    )  # a host that is busy always
    untimed_work.require_none(lambda i: None)


def test_a_graph_holds_the_work_of_its_call():
    untimed_work.require_captured(70.0, "", POINT)  # inputs that lie in the L2 cache
    untimed_work.require_captured(None, "cannot be captured: RuntimeError: a copy to the host", POINT)
    with pytest.raises(HiddenWork, match=r"takes 2\.00 us where 100\.0 us are the least possible"):
        untimed_work.require_captured(2.0, "", POINT)
    with pytest.raises(HiddenWork, match="not joined"):
        untimed_work.require_captured(None, "cannot be captured: CUDA error: capturing stream has unjoined work", POINT)


def test_fresh_values_come_and_go():
    given, new = inputs.make(ROW, "cpu").call, reseed.draw(ROW, "cpu")
    x, before = given.arguments["x"], given.arguments["x"].clone()
    exchange = Exchange(tuple(given.arguments.values()), tuple(new.arguments.values()))
    exchange.take_back()  # nothing was put
    exchange.put()
    assert torch.equal(x, new.arguments["x"]) and not torch.equal(x, before)
    exchange.take_back()
    assert torch.equal(x, before)
    assert not torch.equal(new.arguments["x"], reseed.draw(ROW, "cpu").arguments["x"])


def test_a_call_that_changes_its_inputs_is_told_and_they_are_restored():
    given, new = inputs.make(ROW, "cpu").call, reseed.draw(ROW, "cpu")
    x, before = given.arguments["x"], given.arguments["x"].clone()
    exchange = Exchange(tuple(given.arguments.values()), tuple(new.arguments.values()))
    exchange.put()
    x.zero_()
    with pytest.raises(WrongOutput, match="an input was changed by the call"):
        exchange.take_back()
    assert torch.equal(x, before)


class Held:
    """Stands for a tensor."""


def test_a_call_that_cannot_be_captured_leaves_nothing_behind(monkeypatch):
    """The frames of an error hold the tensors of the call, in a circle if one of them holds the error."""
    held = []

    def fails(i):
        tensor = Held()
        held.append(weakref.ref(tensor))
        try:
            raise RuntimeError("out of memory")
        except RuntimeError as error:
            kept = error  # noqa: F841
            raise

    monkeypatch.setattr(graph, "_capture", lambda call, count: call(0))
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    assert graph.replay_us(fails, 1, 10.0) == (None, "cannot be captured: RuntimeError: out of memory")
    assert held[0]() is None
