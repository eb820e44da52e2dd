"""A short run asks less of what a GPU has verified, and of rungs that no call picks by itself; as much of all others."""

from __future__ import annotations

import pytest

from kernelmux.conformance.cli import arguments
from kernelmux.conformance.judging import asked_less
from kernelmux.conformance.judging.probe import Probe
from kernelmux.conformance.options import Options
from kernelmux.conformance.session import execute, time_budget
from kernelmux.conformance.session.plan import Item
from kernelmux.conformance.verified import ledger
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered


@pytest.mark.parametrize("op", catalog.names())
@pytest.mark.parametrize("backend", ("cuda", "triton", "torch_ref"))
def test_the_last_rung_is_never_superseded(op: str, backend: str) -> None:
    assert not asked_less.superseded(op, backend, list(registered.variants(backend, op))[-1])


def test_a_rung_that_some_gpu_or_call_picks_is_not_superseded() -> None:
    assert asked_less.superseded("matmul", "cuda", "naive")
    assert not asked_less.superseded("attention", "cuda", "tensor_cores")  # of a GPU without wgmma
    assert not asked_less.superseded("attention", "cuda", "online")  # of fp32


@pytest.mark.parametrize(
    ("variant", "options", "tier"),
    [
        ("naive", Options(), "smoke"),
        ("naive", Options(coverage=True), "ci"),
        ("wgmma", Options(), "ci"),
        ("naive", Options(tier="full"), "full"),
        ("naive", Options(dtypes=("fp16",)), "ci"),
        ("wgmma", Options(verified=("matmul/cuda/wgmma",)), "smoke"),
        ("wgmma", Options(verified=("matmul/cuda/tensor_cores", "linear/cuda/wgmma")), "ci"),
    ],
)
def test_what_a_variant_is_asked(variant: str, options: Options, tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def run(probe: Probe) -> None:
        asked.append(probe.options.tier)
        probe.skip_all("nothing")

    monkeypatch.setattr(execute.catalogue, "check", lambda name: execute.catalogue.Check(run, "", "none"))
    execute.execute(Item("matmul", "cuda", variant, "accuracy"), options)
    assert asked == [tier]


@pytest.mark.parametrize(
    ("label", "check", "status"),
    [
        ("cuda/wgmma", "layout", "skipped"),
        ("cuda/wgmma", "compile_only", "passed"),
        ("torch_ref/exact", "layout", "passed"),
        ("cuda/wgmma", "extent", "skipped"),
        ("torch_ref/exact", "extent", "passed"),
    ],
)
def test_what_is_asked_of_a_verified_variant(
    label: str, check: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(probe: Probe) -> None:
        with probe.judge(probe.sample(1)[0]) as judge:
            judge.require(True, "")

    monkeypatch.setattr(execute.catalogue, "check", lambda name: execute.catalogue.Check(run, "", "none"))
    backend, variant = label.split("/")
    outcome = execute.execute(Item("matmul", backend, variant, check), Options(verified=(f"matmul/{label}",)))
    assert outcome.status == status
    assert outcome.text == (time_budget.VERIFIED if status == "skipped" else "")


def test_a_whole_run_of_tier_ci_relies_on_the_ledger_unless_all_is_asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments.torch.cuda, "is_available", lambda: False)
    known = ledger.verified()
    assert len(known) > 50
    for given in ([], ["-n", "2"], ["--tier", "smoke"], ["--tier", "ci"], ["--tier", "ci", "--minutes", "3"]):
        assert chosen(given).verified == known
    assert chosen(["--tier", "ci"]).minutes == 0
    assert chosen(["--anew"]).verified == () and chosen(["--anew"]).minutes > 0
    for given in (["--tier", "ci", "--anew"], ["--tier", "full"], ["--tier", "ci", "--coverage"]):
        assert chosen(given).verified == () and chosen(given).minutes == 0
    for given in (["--op", "softmax"], ["--backend", "cuda"], ["--check", "exact"], ["--seed", "0"]):
        assert chosen(given).verified == () and chosen(given).tier == "ci"


def test_a_gpu_relies_on_records_of_its_own_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ledger.verified(capability="sm_90") == ledger.verified()
    assert ledger.verified(["softmax"], "sm_90") == tuple(n for n in ledger.verified() if n.startswith("softmax/"))
    assert ledger.verified(capability="sm_80") == ()


def chosen(given: list[str]) -> Options:
    return arguments.options_of(arguments.parser().parse_args(given))


def test_an_operator_whose_small_cases_have_no_exact_inputs_is_asked_a_larger_one() -> None:
    item = Item("linear", "torch_ref", "exact", "exact")
    outcome = execute.execute(item, Options(tier="smoke"))
    assert outcome.status == "passed" and outcome.passed == 1
