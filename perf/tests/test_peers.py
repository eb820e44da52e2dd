"""Other libraries as contestants."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernelmux.perf import cli, peers, plan
from kernelmux.perf.options import Options
from kernelmux.perf.report import beside
from kernelmux.perf.tests.synthetic import row
from kernelmux.registry import backend as registered
from kernelmux.registry import catalog, plugins

OPS = [m.name for m in pkgutil.iter_modules([str(Path(peers.__file__).parent)]) if not m.name.startswith("_")]


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(plugins, "_announced", {})
    peers.join()
    yield
    plugins.find.cache_clear()
    registered.backend.cache_clear()
    registered.variants.cache_clear()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.usefixtures("joined")
def test_every_peer_has_the_signature_of_its_operator(op: str) -> None:
    assert op in catalog.names()
    assert "torch_compile" in registered.variants(peers.NAME, op)


@pytest.mark.usefixtures("joined")
def test_what_is_not_installed_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(registered, "unavailable", lambda name, device: None)
    rows = plan.rows(Options(ops=("softmax",), workloads=("large",), device="cuda", peers=True))
    found = {r.variant: r.problem for r in rows if r.backend == peers.NAME and r.dtype == "bf16"}
    assert found["torch_compile"] == ""
    assert found["quack"] == "quack is not installed"


def test_a_run_without_them_does_not_know_them() -> None:
    assert peers.NAME not in registered.backend_names()


def test_their_times_are_not_recorded(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert cli.main(["--record", "--peers"]) == 2
    assert "other libraries are not recorded" in capsys.readouterr().err


@pytest.mark.usefixtures("joined")
def test_a_line_compares_the_best_variants_with_the_fastest_of_the_others() -> None:
    times = {
        ("cuda", "naive"): 40.0, ("cuda", "fast"): 10.0, ("triton", "one"): 20.0, ("torch_ref", "eager"): 50.0,
        ("peers", "quack"): 15.0, ("peers", "liger"): 30.0,
    }  # fmt: skip
    ((name, cuda, triton, torch_us, other, *ahead),) = beside.lines(
        row(backend=backend, variant=variant, median_us=us) for (backend, variant), us in times.items()
    )
    assert name.startswith("softmax x=")
    assert (cuda.split(), triton.split()) == (["10.0", "fast"], ["20.0", "one"])
    assert (torch_us.split()[0], other.split()) == ("50.0", ["15.0", "quack"])
    assert ahead == ["1.50x", "0.75x"]


@pytest.mark.usefixtures("joined")
def test_where_torch_is_faster_than_the_other_libraries_it_is_the_measure() -> None:
    rows = [row(backend="cuda", median_us=10.0), row(backend="torch_ref", variant="eager", median_us=9.0)]
    (line,) = beside.lines([*rows, row(backend="peers", variant="quack", median_us=12.0)])
    assert line[4].split() == ["9.00", "torch"]


def test_without_other_libraries_there_is_nothing_to_compare() -> None:
    assert beside.lines([row(backend="cuda"), row(backend="torch_ref", variant="eager")]) == []
