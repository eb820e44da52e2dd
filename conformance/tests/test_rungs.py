"""A short run asks less of rungs that no call picks by itself, and as much as before of all others."""

from __future__ import annotations

import pytest

from kernelmux.conformance import execute, rungs
from kernelmux.conformance.options import Options
from kernelmux.conformance.plan import Item
from kernelmux.conformance.probe import Probe
from kernelmux.registry import backend as registered
from kernelmux.registry import catalog


@pytest.mark.parametrize("op", catalog.names())
@pytest.mark.parametrize("backend", ("cuda", "triton", "torch_ref"))
def test_the_last_rung_is_never_superseded(op: str, backend: str) -> None:
    assert not rungs.superseded(op, backend, list(registered.variants(backend, op))[-1])


def test_a_rung_that_some_gpu_or_call_picks_is_not_superseded() -> None:
    assert rungs.superseded("matmul", "cuda", "naive")
    assert not rungs.superseded("attention", "cuda", "tensor_cores")  # of a GPU without wgmma
    assert not rungs.superseded("attention", "cuda", "online")  # of fp32


@pytest.mark.parametrize(
    ("variant", "options", "tier"),
    [
        ("naive", Options(), "smoke"),
        ("wgmma", Options(), "ci"),
        ("naive", Options(tier="full"), "full"),
        ("naive", Options(dtypes=("fp16",)), "ci"),
    ],
)
def test_what_a_rung_is_asked(variant: str, options: Options, tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def run(probe: Probe) -> None:
        asked.append(probe.options.tier)
        probe.skip_all("nothing")

    monkeypatch.setattr(execute.catalogue, "check", lambda name: execute.catalogue.Check(run, "", "none"))
    execute.execute(Item("matmul", "cuda", variant, "accuracy"), options)
    assert asked == [tier]
