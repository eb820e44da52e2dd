"""`--fuzz`: the same calls in every run, untyped errors, crashes and hangs found and told, a way to see them again."""

import os
import time
import warnings
from collections import Counter

import pytest
import torch

from kernelmux.conformance.cli import main
from kernelmux.conformance.fuzz import calls, command, judge
from kernelmux.conformance.fuzz.judge import CLASS, OUTSIDE, RETURNED, SPELLING, UNTYPED, WRONG
from kernelmux.registry import catalog
from kernelmux.registry.call import dispatch
from kernelmux.registry.interop import torch_ops

PLAIN = ("torch_ref",)
X = torch.linspace(-2, 2, 12).reshape(3, 4)


def draft(op="softmax", route=calls.FUNCTION, around=(), missing="", backend="torch_ref", **given):
    spec = catalog.spec(op)
    known = {i.name: getattr(i, "default", None) for i in spec.inputs}
    return calls.Draft(spec, {**known, "x": X, **given}, backend, list(around), missing=missing, route=route)


def kind(*args, **kwargs):
    return judge.judge(draft(*args, **kwargs), PLAIN).kind


def test_three_hundred_calls_are_returned_or_refused():
    found = Counter(command.one(11, index, catalog.names())[0].kind for index in range(300))
    assert not found[UNTYPED] and not found[WRONG], found
    assert found[RETURNED] > 60 and found["ArgumentError"] > 60, found


def test_a_call_is_the_same_in_every_run():
    drawn = [repr(command.drafted(4, index, catalog.names())[0]) for _ in range(2) for index in range(40)]
    assert drawn[:40] == drawn[40:] and len(set(drawn)) == 40
    assert drawn[0] != repr(command.drafted(5, 0, catalog.names())[0])


def test_what_became_of_calls():
    assert kind() == kind(route=calls.BIND) == kind(route=calls.MAPPED) == kind(route=calls.WHICH) == RETURNED
    assert kind(axis=7) == kind(route=calls.OPERATOR, axis=7) == kind(x=None) == "ArgumentError"
    assert kind(missing="dim") == kind(missing="x") == SPELLING
    assert kind(route=calls.OPERATOR, x=torch.nn.UninitializedParameter()) == OUTSIDE  # torch says so before kernelmux
    assert kind(route=calls.OPERATOR, scale="1") == OUTSIDE


def test_an_error_of_a_users_class_is_its_own():
    class Odd(torch.Tensor):
        pass

    assert kind(x=X.as_subclass(Odd)) == RETURNED
    with warnings.catch_warnings(action="ignore"):  # of a prototype
        masked = torch.masked.masked_tensor(X, X > 0)
    masked._masked_data = None
    assert kind(x=masked) in (CLASS, "UnsupportedError")


def test_an_untyped_error_is_found_and_made_small(monkeypatch):
    whole = dispatch.call

    def broken(spec, values, *rest):
        if any(isinstance(v, torch.nn.Parameter) for v in values):
            raise IndexError("list index out of range")
        return whole(spec, values, *rest)

    monkeypatch.setattr(dispatch, "call", broken)
    monkeypatch.setitem(judge.ROUTES, calls.FUNCTION, lambda d: broken(d.spec, tuple(d.arguments.values()), d.backend))
    made = draft("add", around=("no_grad", "autocast"), x=torch.nn.Parameter(X), y=X.T.contiguous().T)
    verdict = judge.judge(made, PLAIN)
    assert verdict.kind == UNTYPED and "IndexError" in verdict.text
    small = judge.smallest(made, PLAIN, verdict)
    assert not small.surroundings and small.backend is None and small.arguments["y"].is_contiguous()
    assert isinstance(small.arguments["x"], torch.nn.Parameter)


def test_a_result_of_another_shape_or_dtype_is_found(monkeypatch):
    for wrong in (lambda d: X.double(), lambda d: X[0], lambda d: (X, X)):
        monkeypatch.setitem(judge.ROUTES, calls.FUNCTION, wrong)
        assert kind() == WRONG


def test_the_command_counts_and_tells_how_to_see_a_call_again(monkeypatch, capsys):
    assert main.main(["--fuzz", "60", "--seed", "3", "--op", "softmax", "silu", "-n", "1"]) == main.OK
    out = capsys.readouterr().out
    assert "60 calls of 2 operators, seed 3" in out and "0 untyped" in out and "returned" in out
    assert main.main(["--fuzz-only", "7", "--seed", "3", "--op", "softmax", "silu"]) == main.OK
    monkeypatch.setattr(torch_ops, "_differentiable", None)
    bad = judge.FuzzVerdict(UNTYPED, "TypeError: x", "TypeError at a.py:1 in f")
    monkeypatch.setattr(judge, "judge", lambda draft, able: bad)
    assert main.main(["--fuzz-only", "7", "--seed", "3", "--op", "softmax"]) == main.FAILED
    assert "reproduce: " in (out := capsys.readouterr().out) and "--op softmax --fuzz-only 7 --seed 3" in out


@pytest.mark.parametrize("option", [["--check", "torch"], ["--backend", "cuda"], ["--tier", "full"], ["--case", "x5"]])
def test_a_selection_that_has_no_meaning_is_refused(option, capsys):
    assert main.main(["--fuzz", "10", *option]) == main.USAGE
    assert f"--fuzz: expected no selection but --op, got {option[0]}" in capsys.readouterr().err


def _faulty(pipe, place, seed, indices, ops, in_process):
    """In place of `command._work`: the third call ends the process, or never comes back."""
    for index in indices:
        place.value = index
        if index == 2:
            os.abort() if seed else time.sleep(60)
        pipe.send((Counter({RETURNED: 1}), []))


@pytest.mark.parametrize(("seed", "told"), [(1, "SIGABRT"), (0, "hangs")])
def test_a_call_that_ends_its_process_or_hangs_is_found_and_the_rest_is_made(monkeypatch, seed, told):
    monkeypatch.setattr(command, "_work", _faulty)
    monkeypatch.setattr(command, "PATIENCE", 0.5)
    monkeypatch.setattr(command, "METHOD", "fork")  # a new interpreter would import torch
    *_, found = command._run(seed, 5, ("softmax",), 1)
    (bad,) = found.bad
    assert bad.index == 2 and told in bad.verdict.text and bad.draft.startswith("softmax(")
    assert found.counts[RETURNED] == 4 and found.counts[UNTYPED] == 1
