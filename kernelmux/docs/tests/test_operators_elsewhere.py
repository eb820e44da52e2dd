"""What a package with operators keeps of its own: records, times, tiles, expected failures, budgets, pages and types."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import kernelmux as kx
from kernelmux.conformance.judging import resource_budgets
from kernelmux.conformance.judging.trial_outcome import Record
from kernelmux.conformance.options import Options
from kernelmux.conformance.session import expected_failures, plan
from kernelmux.conformance.session.execute import Outcome
from kernelmux.conformance.session.plan import Item
from kernelmux.conformance.verified import ledger
from kernelmux.docs import __main__ as docs
from kernelmux.docs import index_page, operator_page
from kernelmux.perf.cli import command
from kernelmux.perf.record import history
from kernelmux.perf.rows.roofline import Work
from kernelmux.perf.tests import synthetic
from kernelmux.registry import catalog, elsewhere
from kernelmux.registry.backend import device_tables, timings, tuned_configs
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.device_tables import Table
from kernelmux.registry.backend.tuned_configs import TunedConfig
from kernelmux.registry.call import dispatch
from kernelmux.registry.cli import type_stubs
from kernelmux.registry.util import entry_points
from kernelmux.registry.util.files import GpuFiles
from kernelmux.tune import cli, tables
from kernelmux.tune.job import Job

EXAMPLE = Path(__file__).parents[3] / "examples/operator_package/our_ops"
NAME, GPU = "kept_ops", "NVIDIA H200"
SHORT = f"{NAME}.short"
PAIRS = Work(bytes=2 * 4096 * 1024 * 2, flops=5 * 4096 * 1024, written=4096 * 1024 * 2, dtype="bf16")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The folder of a copy of the example's package, announced while this module runs."""
    place = tmp_path_factory.mktemp("site")
    shutil.copytree(EXAMPLE, place / NAME, ignore=shutil.ignore_patterns("__pycache__"))
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(place)
    patch.setattr(entry_points, "_with_operators", {})
    entry_points.announce_operators(NAME, NAME)
    yield place / NAME
    patch.undo()
    dispatch.refresh()


@pytest.fixture
def ours(home, tmp_path, monkeypatch):
    """Folders for the records of kernelmux itself, empty at first; those of the package go afterwards."""
    monkeypatch.setattr(ledger, "PLACE", GpuFiles(tmp_path / "verified"))
    monkeypatch.setattr(history, "PLACE", GpuFiles(tmp_path / "results"))
    monkeypatch.setattr(timings, "TABLES", replace(timings.TABLES, place=GpuFiles(tmp_path / "results")))
    monkeypatch.setattr(tuned_configs, "TABLES", replace(tuned_configs.TABLES, place=GpuFiles(tmp_path / "tuned")))
    for name in ("verified", "results", "times", "tuned"):
        (tmp_path / name).mkdir()
    forget()
    yield tmp_path
    monkeypatch.undo()
    for name in ("verified", "results", "times", "tuned"):
        shutil.rmtree(home / name, ignore_errors=True)
    forget()


def forget():
    for cached in (ledger.books, history.recorded):
        cached.cache_clear()
    timings.forget()
    tuned_configs.forget()
    dispatch._plans.clear()


def row(op, variant, us, backend="triton"):
    spec = catalog.spec(op)
    call = spec.hypothetical(spec.case("x=4096x1024"), torch.bfloat16)
    source = registered.source_hash(backend, op, variant)
    work = {"bytes": call.cost.bytes, "flops": call.cost.flops, "workload": "x=4096x1024", "source": source}
    return synthetic.row(op, backend, variant, us, PAIRS, **work)


def test_what_passed_on_a_gpu_is_on_record_in_the_package(home, ours, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: GPU)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    items = [
        Item("hardswish", "triton", "blocked", "accuracy"),
        Item("softmax", "triton", SHORT, "accuracy"),
        Item("softmax", "triton", "online", "accuracy"),
    ]
    good = [Record("x", "fp32", "", 0, "passed", assertions=1)]
    here = {"gpu": GPU, "capability": "sm_90", "versions": {"torch": "2.11"}}
    ledger.record(Options(), items, [Outcome(item, "passed", records=good, machine=here) for item in items])
    theirs, own = (json.loads((p / "nvidia_h200.json").read_text()) for p in (home / "verified", ours / "verified"))
    assert sorted(theirs["entries"]) == ["hardswish/triton/blocked", f"softmax/triton/{SHORT}"]
    assert sorted(own["entries"]) == ["softmax/triton/online"]
    for item in items:
        assert ledger.status(item.op, item.backend, item.variant) == ("verified", (GPU,))
    assert f"softmax/triton/{SHORT}" in ledger.verified(["softmax"])
    theirs["entries"]["softmax/triton/resident"] = theirs["entries"][f"softmax/triton/{SHORT}"]
    (home / "verified/nvidia_h200.json").write_text(json.dumps(theirs))
    forget()
    assert ledger.status("softmax", "triton", "resident")[0] == "no record"  # a package speaks of its own alone


def test_times_are_kept_in_the_package_and_auto_goes_by_them(home, ours, monkeypatch):
    rows = (
        row("softmax", "registers", 8.0, "cuda"),
        row("softmax", "resident", 9.0),
        row("softmax", SHORT, 5.0),
        row("hardswish", "blocked", 4.0),
    )
    paths = history.record_all(synthetic.results(rows))
    assert paths == [ours / "results/nvidia_h200.json", home / "results/nvidia_h200.json"]
    assert [r.variant for r in history.recorded()[0].rows] == ["resident", "registers"]
    assert {(r.variant, r.stale) for r in history.find(GPU).rows} == {(r.variant, False) for r in rows}
    assert [r.variant for r in timings.TABLES.all()[1].of(GPU).rows] == ["blocked", SHORT]
    monkeypatch.setattr(device_tables, "gpu", lambda device: GPU)
    monkeypatch.setattr(registered, "emulates", lambda name, device: False)  # as on a GPU, where "auto" takes kernels
    x = torch.zeros(4096, 1024, dtype=torch.bfloat16)
    decision = dispatch.explain("softmax", x)
    assert decision.chosen.name == f"triton/{SHORT}" and "measured on NVIDIA H200" in decision.request.source
    assert kx.which("softmax", x, backend="triton") == "triton/resident"
    with (home / "backends/triton/softmax.py").open("a") as file:
        file.write("MORE = 1\n")
    forget()
    assert kx.which("softmax", x) == "cuda/registers"  # its time was of another source


def test_tiles_are_kept_in_the_package(home, ours):
    spec, source = catalog.spec("softmax").hash, registered.source_hash("triton", "softmax", SHORT)
    entry = TunedConfig(
        op="softmax",
        backend="triton",
        variant=SHORT,
        kind="",
        sizes=(1,),
        config={"a": 2},
        us=1.0,
        rule={"a": 1},
        rule_us=2.0,
        workload="x=4096x1024",
        dtype="bf16",
        spec=spec,
        source=source,
        versions=dict(device_tables.installed()),
    )
    ours_job, theirs = (Job("softmax", "triton", v, "x=4x8", "bf16") for v in ("online", SHORT))
    assert cli._table_of(ours_job, ours / "tuned") == ours / "tuned"
    assert cli._table_of(theirs, ours / "tuned") == home / "tuned" and cli._table_of(theirs, ours) == ours
    tables.write([entry], Table(GPU), home / "tuned")
    assert tuned_configs.times(GPU, "softmax", "x=4096x1024", "bf16") == {f"triton/{SHORT}": 1.0} and not entry.stale


def test_a_table_of_a_package_that_is_damaged_is_a_line_and_nothing_else(home, ours):
    (home / "times").mkdir()
    (home / "times/nvidia_h200.json").write_text("{")
    forget()
    assert timings.TABLES.everywhere(GPU) == ()
    assert any(line.startswith("! ") and "expected times" in line for line in timings.summary())


def test_expected_failures_and_budgets_of_the_package_are_for_its_own_items(home):
    (home / expected_failures.NAME).write_text('[[expected]]\nitem = "softmax-*-accuracy"\nreason = "why"\n')
    (home / resource_budgets.NAME).write_text(
        f'[[variant]]\nname = "softmax/triton/{SHORT}"\nregisters = 17\nspills = 0\nreason = "why"\n'
    )
    bad = [Record("x", "fp32", "", 0, "failed", text="off")]
    outcomes = [
        Outcome(Item("softmax", "triton", variant, "accuracy"), "failed", records=bad) for variant in (SHORT, "online")
    ]
    assert [expected_failures.applied(o, Options()).status for o in outcomes] == ["expected", "failed"]
    assert resource_budgets.budget("softmax", "triton", f"triton/{SHORT}", "sm_90a").registers == 17
    assert resource_budgets.budget("softmax", "triton", "triton/online", "sm_90a").registers != 17
    for name in (expected_failures.NAME, resource_budgets.NAME):
        (home / name).unlink()


def test_a_spec_that_cannot_be_loaded_fails_the_suite_and_is_named_by_perf(home):
    (home / "ops/broken.py").write_text("import nowhere_to_be_found")
    dispatch.refresh()
    try:
        (item,) = (item for item in plan.items(Options()) if item.op == "broken")
        assert item.check == plan.BROKEN and "nowhere_to_be_found" in item.problem
        told = [*command.lacking(command.PerfOptions(device="cpu"))]
        assert any(line.startswith("operator broken was left out: ") for line in told)
    finally:
        (home / "ops/broken.py").unlink()
        dispatch.refresh()


def test_the_pages_of_a_package_and_ours_without_it(home, tmp_path, capsys):
    assert docs.main(["--package", NAME, "--out", str(tmp_path)]) == 0
    text = (tmp_path / "hardswish.md").read_text()
    assert (
        f"Spec: {NAME}/ops/hardswish.py, version 1." in text
        and "by [hardswish_backward](hardswish_backward.md)" in text
    )
    assert (
        "](../" not in text
        and "Not on record yet: `python -m kernelmux.perf --op hardswish --record --into-checkout`" in text
    )
    assert docs.main(["--package", NAME, "--out", str(tmp_path), "--check"]) == 0
    assert docs.main(["--package", "kept", "--out", str(tmp_path)]) == 2
    assert f'did you mean "{NAME}"' in capsys.readouterr().err
    assert SHORT not in operator_page.page("softmax") and "hardswish" not in index_page.page()
    assert "hardswish" not in type_stubs.text() and set(elsewhere.own()) < set(catalog.names())


def test_a_type_checker_knows_the_operators_of_a_package(home, tmp_path):
    pytest.importorskip("mypy")
    assert type_stubs.main(["--out", str(tmp_path / "typings")]) == 0
    lines = [
        "import torch",
        "import kernelmux as kx",
        "x = torch.zeros(3)",
        "kx.nn.Softmx",
        "reveal_type(kx.hardswish)",
    ]
    (tmp_path / "snippet.py").write_text("\n".join([*lines, "kx.hardswish(x, 3)\n"]))
    (tmp_path / "mypy.ini").write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")
    path = os.pathsep.join([str(tmp_path / "typings"), str(Path(str(kx.__file__)).parents[1])])
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "cache", "snippet.py"]
    told = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    ).stdout
    assert "snippet.py:4: error: Module has no attribute" in told
    assert 'snippet.py:5: note: Revealed type is "def (x: Any, *, backend: str | typing.Sequence[str] | None =)' in told
    assert 'snippet.py:6: error: Too many positional arguments for "hardswish"' in told
