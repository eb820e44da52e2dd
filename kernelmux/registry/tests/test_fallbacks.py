"""A call that does not run where it was meant to: said once per operator and reason, at the line of the user."""

import warnings

import pytest
import torch

import kernelmux as kx
from kernelmux.registry.call import dispatch
from kernelmux.registry.tests import made_up

TEXT = """\
softmax: auto chose plain/eager, because these cannot run the call:
  swift: N = 1001, needs a multiple of 8; N = 1001, needs N <= 64  -> pad N to 1008
  steady: x has a stride of 1001 elements, needs a multiple of 4  -> pad the last axis of x to 1004
  Said once; kernelmux.stats() counts further calls, kernelmux.explain() tells more,\
 use(..., strict=True) makes it an error."""


@pytest.fixture(autouse=True)
def backends(monkeypatch):
    made_up.install(monkeypatch, made_up.BACKENDS)


def told(*calls):
    """The texts of the warnings that calls give; each is the arguments of one."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for x, backend in calls:
            kx.softmax(x, backend=backend)
    assert all(w.category is kx.FallbackWarning and w.filename == __file__ for w in found)
    return [str(w.message) for w in found]


def test_auto_says_it_once_with_reasons_and_what_to_do():
    assert told((torch.zeros(4, 1001), None), (torch.zeros(4, 1001), None)) == [TEXT]


def test_other_sizes_are_the_same_reason_and_another_condition_is_not():
    odd = [(torch.zeros(2, n), None) for n in (1001, 1003, 1005, 1007)]
    assert len(told(*odd)) == 1
    assert len(told((torch.zeros(4, 8)[:, :5], None))) == 1  # swift for N only, and steady can


def test_nothing_is_said_where_nothing_is_passed_over():
    assert told((torch.zeros(4, 64), None), (torch.zeros(4, 5), "plain"), (torch.zeros(4, 64), "swift,plain")) == []


def test_auto_says_nothing_of_a_backend_that_cannot_work_here_or_lacks_the_operator(monkeypatch):
    """`closed` has the highest priority and `other` one above plain: both are in doctor and in the support matrix."""
    only = {name: made_up.BACKENDS[name] for name in ("closed", "other", "plain")}
    made_up.install(monkeypatch, only)
    assert told((torch.zeros(4, 5), None)) == []


def test_a_chain_names_what_it_falls_through_also_what_cannot_work_here():
    (text,) = told((torch.zeros(4, 5), "closed,other,swift/rows,plain"))
    assert text.startswith("softmax: closed, other, swift/rows, plain (from call argument) chose plain/eager, because")
    assert "\n  closed: the package closed is not installed\n  other: has no implementation of softmax\n" in text
    assert "\n  swift/rows: N = 5, needs a multiple of 8  -> pad N to 8\n" in text


def test_where_warnings_are_errors_it_stops_one_call_and_no_other():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(kx.FallbackWarning):
            kx.softmax(torch.zeros(4, 1001))
        kx.softmax(torch.zeros(4, 1001))


def test_asking_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kx.which("softmax", torch.zeros(4, 1001)) == "plain/eager"
        assert [f.label for f in kx.explain("softmax", torch.zeros(4, 1001)).fallbacks] == ["swift", "steady"]


def test_what_is_no_truth_value_resets_nothing():
    for ask in (kx.stats, kx.shadow_report):
        with pytest.raises(kx.ArgumentError, match="reset: expected True or False, got 'softmax'"):
            ask("softmax")  # type: ignore[arg-type]


def test_stats_and_records_have_the_reason_without_the_sizes():
    with kx.record() as log:
        told(*((torch.zeros(2, n), None) for n in (1001, 1003)))
    (entry,) = kx.stats().entries
    assert entry.calls == 2 and entry.fallback == "swift: N a multiple of 8; N <= 64 | steady: x aligned to 16 bytes"
    assert log.entries[0].fallback == entry.fallback
    assert "swift: N a multiple of 8; N <= 64" in str(log) and "steady: x aligned to 16 bytes" in str(kx.stats())


def test_on_a_cpu_auto_says_nothing_of_backends_for_gpus(monkeypatch):
    monkeypatch.undo()
    dispatch._plans.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kx.softmax(torch.zeros(3, 5))
