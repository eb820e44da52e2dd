"""The notice that a backend's kernels run on the emulator: once, of a category of its own, before anything runs."""

import warnings

import pytest
import torch

import kernelmux as kx
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.call.plan import CallPlans
from kernelmux.registry.choice import warn_once

REASON = registered.unavailable("cuda", torch.device("cpu"))
pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.skipif(torch.cuda.is_available(), reason="about calls without a GPU"),
]


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch):
    monkeypatch.setattr(warn_once, "_emulating", set())
    monkeypatch.setattr(dispatch, "_plans", CallPlans())


def add():
    x = torch.arange(5.0)
    assert kx.add(x, x, backend="cuda").tolist() == [0, 2, 4, 6, 8]


def test_it_is_said_once_at_the_line_of_the_caller():
    with pytest.warns(kx.EmulationWarning, match='backend "cuda" runs its GPU kernels on the emulator') as told:
        add()
        add()
    assert [w.filename for w in told] == [__file__]


def test_where_warnings_are_errors_it_stops_one_call_and_no_other():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(kx.EmulationWarning):
            add()
        add()


def test_it_can_be_filtered_by_its_category():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", kx.EmulationWarning)
        add()
