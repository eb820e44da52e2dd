"""A run within a number of minutes: what is required, what comes first, where an item stops, what the report says."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from kernelmux.conformance.cli import arguments
from kernelmux.conformance.cli.main import main
from kernelmux.conformance.cli.suite import ConformanceSuite, planned
from kernelmux.conformance.judging.probe import Probe
from kernelmux.conformance.options import Options
from kernelmux.conformance.report import artifacts
from kernelmux.conformance.report.progress import Reporter
from kernelmux.conformance.session import execute, time_budget
from kernelmux.conformance.session.execute import BY_GPU, IN_PART, NOT, WHOLE, Outcome
from kernelmux.conformance.session.plan import Item, items
from kernelmux.conformance.session.time_budget import Share
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.errors import ArgumentError
from kernelmux.runner.run import TimeLimit

WHOLE_CI = time_budget.WHOLE["cpu"]["ci"]
OPS = ("add", "softmax", "matmul", "rms_norm")


def chosen(*given: str) -> Options:
    return arguments.options_of(arguments.parser().parse_args(given))


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments.torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize(
    ("given", "minutes"),
    [
        ("", WHOLE_CI),
        ("--tier smoke", time_budget.WHOLE["cpu"]["smoke"]),
        ("--minutes 7", 7.0),
        ("--tier full --minutes 0.5", 0.5),
        ("--op softmax", WHOLE_CI),
        ("--backend cuda", WHOLE_CI),
        ("-k layout", WHOLE_CI),
        ("--tier ci", 0.0),
        ("--tier full", 0.0),
        ("--check exact", 0.0),
        ("--dtype bf16", 0.0),
        ("--seed 3", 0.0),
        ("--op softmax --case x37x1000", 0.0),
        ("--mutants", 0.0),
        ("--op softmax --pdb", 0.0),
    ],
)
def test_the_minutes_of_a_run(given: str, minutes: float, no_gpu: None) -> None:
    assert chosen(*given.split()).minutes == minutes


def test_on_a_gpu_one_operator_has_a_limit_of_its_own() -> None:
    assert time_budget.usual(Options(device="cuda", ops=("softmax",))) == time_budget.ONE["cuda"] < 1 / 3
    assert time_budget.usual(Options(device="cuda", ops=OPS)) == pytest.approx(4 * time_budget.ONE["cuda"])
    assert time_budget.usual(Options(device="cuda")) == time_budget.WHOLE["cuda"]["ci"] < 8
    for limits in time_budget.WHOLE.values():
        assert limits["smoke"] < limits["ci"]


@pytest.mark.parametrize("given", ["0", "-1", "nan", "inf", "soon"])
def test_minutes_that_are_none(given: str, no_gpu: None) -> None:
    with pytest.raises(ArgumentError, match="expected minutes, more than 0, got"):
        chosen("--minutes", given)


def test_a_record_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="leave out --minutes"):
        chosen("--minutes", "3", "--record", "--device", "cpu")


def test_no_operator_backend_or_check_is_left_out() -> None:
    """Specs, the accuracy of what each backend picks, and every check of each backend on some operators."""
    every = items(Options())
    asked = time_budget.required(every, {})
    found = [item for item in every if item.id in asked]
    assert {i.id for i in every if i.backend == "spec"} <= asked
    for op in {i.op for i in every}:
        for name in registered.backends():
            last = list(registered.variants(name, op))[-1:]
            assert all(f"{op}-{name}/{variant}-accuracy" in asked for variant in last)
    assert {(i.backend, i.check) for i in found} == {(i.backend, i.check) for i in every}
    assert len(found) < len(every) / 10


def test_the_required_come_first_then_what_no_gpu_has_verified_then_what_is_picked() -> None:
    known = tuple(f"softmax/triton/{v}" for v in registered.variants("triton", "softmax"))
    options = Options(ops=("softmax",), backends=("triton", "torch_ref"), device="cuda", verified=known)
    labels = [(b, v) for b in options.backends for v in registered.variants(b, "softmax")]
    every = [Item("softmax", b, v, check) for b, v in labels for check in ("accuracy", "exact", "layout")]
    order = time_budget.ordered(every, options, {"softmax-triton/online-exact"}, {})
    assert order[0].id == "softmax-triton/online-exact" and sorted(map(str, order)) == sorted(map(str, every))
    kinds = [
        (i.backend == "triton", i.variant != known[-1].rpartition("/")[2]) for i in order[1:] if i.backend == "triton"
    ]
    assert order[1].backend == "torch_ref" and kinds == sorted(kinds)


def test_without_a_gpu_the_items_of_a_variant_stay_together() -> None:
    every = [
        i for i in items(Options(ops=OPS, backends=("torch_ref", "cuda"))) if i.check in ("accuracy", "exact", "memory")
    ]
    order = [f"{i.op}-{i.label}" for i in time_budget.ordered(every, Options(), set(), {})]
    assert sum(a != b for a, b in pairwise(order)) == len(set(order)) - 1


def test_time_is_shared_out_among_what_is_left() -> None:
    picked = list(registered.variants("torch_ref", "softmax"))[-1]  # its accuracy is asked in any case
    item = Item("softmax", "torch_ref", picked, "accuracy")
    other = Item("softmax", "cuda", next(iter(registered.variants("cuda", "softmax"))), "accuracy")
    known = {item.id: 200.0, other.id: 1.0}
    options = Options(minutes=1.0)
    made, required = planned(options, [item, other], known, 1)
    ranked = {i.id: i for i in made}
    limit = TimeLimit(time.monotonic() + 100, required)
    assert limit.share(ranked[other.id], 40, 4) == pytest.approx(10, rel=0.05)
    assert limit.share(replace(ranked[other.id], seconds=200.0), 40, 4) is None, "it would not end in time"
    late = TimeLimit(time.monotonic() - 1, required)
    assert late.share(ranked[other.id], 40, 4) is None and late.share(ranked[item.id], 40, 4) == 0.0


def test_what_does_not_begin_in_time_is_a_skip_that_says_so() -> None:
    item = Item("add", "cuda", "scalar", "exact")
    options = Options(minutes=2.5)
    suite = ConformanceSuite(options, Reporter([item], Console()), 0, None)
    row = suite.late(planned(options, [item], {}, 1)[0][0])
    assert (row["status"], row["asked"]) == ("skipped", NOT) and "2.5 minutes were too short" in row["text"]


def test_an_item_stops_behind_the_trial_in_which_its_share_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(probe: Probe) -> None:
        for trial in probe.sample(3):
            with probe.judge(trial) as judge:
                judge.require(True, "")

    monkeypatch.setattr(execute.catalogue, "check", lambda name: execute.catalogue.Check(run, "", "none"))
    item = Item("softmax", "torch_ref", list(registered.variants("torch_ref", "softmax"))[-1], "exact")
    outcomes = [execute.execute(item, Options(tier="ci"), Share(seconds)) for seconds in (0.0, 60.0)]
    assert [(o.passed, o.asked) for o in outcomes] == [(1, IN_PART), (3, WHOLE)]
    assert {o.status for o in outcomes} == {"passed"}


def test_what_the_ledger_says_is_asked_where_it_is_required() -> None:
    item = Item("softmax", "cuda", "registers", "exact")
    options = Options(tier="smoke", verified=("softmax/cuda/registers",))
    assert execute.execute(item, options).asked == BY_GPU
    assert execute.execute(item, options, Share(required=True)).asked == WHOLE


def test_the_report_says_what_was_not_asked() -> None:
    item = Item("add", "cuda", "scalar", "exact")
    outcomes = [Outcome(item, "passed", asked=kind) for kind in (WHOLE, WHOLE, IN_PART, NOT, BY_GPU)]
    told = artifacts.omissions(Options(minutes=2.5), outcomes)
    assert told.startswith("5 items within 2.5 minutes: 2 in full, 1 in part, 1 not again")
    assert "1 not for lack of time" in told and artifacts.omissions(Options(), outcomes) == ""


def test_a_run_ends_in_time_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_budget, "EVERY_CHECK", 0)
    out = tmp_path / "out"
    given = "--op add --backend spec torch_ref --tier ci --minutes 0.01 -n 1 --device cpu"
    assert main([*given.split(), "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "not for lack of time; --minutes N asks more" in " ".join(told.split())
    lines = (out / "results-partial.jsonl").read_text()
    assert '"asked": "not"' in lines and '"asked": "in part"' in lines
