"""Ranges: one per call while they are on, and nothing else of a call changes; off, a call is the very same code."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.profiler import ProfilerActivity, profile

import kernelmux as kx
from kernelmux.registry import catalog
from kernelmux.registry.call import dispatch
from kernelmux.registry.observe import profiler_ranges

X = torch.randn(4, 6)
LABEL = "softmax[torch_ref/exact]"


@pytest.fixture(autouse=True)
def apart():
    dispatch._plans.clear()
    yield
    dispatch._plans.clear()


def counted(*calls):
    """How often the range of a softmax is in a profile of these calls."""
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as found:
        for call in calls:
            call()
    return sum(event.count for event in found.key_averages() if event.key == LABEL)


def soft():
    return kx.softmax(X, backend="torch_ref")


def test_calls_are_ranges_while_they_are_on():
    soft(), soft(), soft()
    with kx.ranges():
        assert counted(soft, soft, soft, soft) == 4
        with kx.ranges():
            pass
        assert counted(soft) == 1
    assert counted(soft, soft) == 0


def test_a_bound_call_has_one_if_it_was_bound_inside():
    before = kx.bind("softmax", like=(X,), backend="torch_ref")
    with kx.ranges():
        inside = kx.bind("softmax", like=(X,), backend="torch_ref")
        assert counted(lambda: before(X)) == 0
    assert counted(lambda: inside(X)) == 1


def test_a_program_turns_them_on_by_a_variable(monkeypatch):
    monkeypatch.setenv(profiler_ranges.VARIABLE, "1")
    assert counted(soft) == 1
    monkeypatch.setenv(profiler_ranges.VARIABLE, "yes")
    with pytest.raises(kx.ArgumentError, match="KERNELMUX_NVTX: expected 0 or 1, got 'yes'"):
        kx.softmax(X[:3], backend="torch_ref")


def test_off_the_plan_holds_the_implementation_itself():
    spec = catalog.spec("softmax")
    plan, chosen = dispatch.resolve(spec, spec.given(X), "torch_ref")
    assert plan.fn is dispatch.registered.variants(chosen.backend, "softmax")[chosen.variant].fn


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
def test_a_traced_graph_holds_no_range():
    with kx.ranges():
        graph = make_fx(lambda x: kx.softmax(x, backend="torch_ref"))(X)
        traced = torch.jit.trace(lambda x: kx.softmax(x, backend="torch_ref"), X)
    assert "record_function" not in graph.code + str(traced.graph)


def test_a_gradient_comes_through():
    x = X.clone().requires_grad_()
    with kx.ranges():
        kx.softmax(x).square().sum().backward()
    assert x.grad is not None
