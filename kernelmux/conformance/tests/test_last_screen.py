"""The end of a run: marks per operator and backend, what failed and how to see it again, who was really tested."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from rich.console import Console

from kernelmux.conformance.cli import main, run
from kernelmux.conformance.judging.trial_outcome import Record
from kernelmux.conformance.options import Options
from kernelmux.conformance.report import board, causes, progress
from kernelmux.conformance.session import plan, pytest_plugin, tested_backends
from kernelmux.conformance.session.execute import Outcome
from kernelmux.conformance.session.plan import UNAVAILABLE, Item
from kernelmux.registry import catalog
from kernelmux.registry.backend import Backend
from kernelmux.registry.backend.package_versions import NotInstalled
from kernelmux.registry.call import temporary_backends

EXACT = ["--op", "add", "--check", "exact", "-n", "1"]
MISSING = NotInstalled("the package theirs is not installed: pip install theirs")


def outcome(op: str, label: str, check: str = "exact", status: str = "passed", **more: object) -> Outcome:
    backend, _, variant = label.partition("/")
    return Outcome(Item(op, backend, variant, check), status, **more)  # type: ignore[arg-type]


def shown(width: int, encoding: str = "utf-8") -> Console:
    return Console(width=width, file=io.TextIOWrapper(io.BytesIO(), encoding=encoding), record=True)


# --- marks ------------------------------------------------------------------------------------------------------


def test_a_backend_has_one_mark_for_all_variants_and_checks() -> None:
    found = board.of(
        [
            outcome("add", "cuda/scalar"),
            outcome("add", "cuda/scalar", "graphs", "skipped"),
            outcome("add", "cuda/wide"),
            outcome("add", "triton/a"),
            outcome("add", "triton/b", status="failed"),
            outcome("gelu", "cuda/scalar", status="expected"),
            outcome("gelu", "triton/a"),
            outcome("gelu", "triton/b", status="skipped"),
            outcome("gelu", "theirs", status="skipped"),
            outcome("gelu", "spec", "vacuity"),
        ]
    )
    assert found.backends == ["cuda", "theirs", "triton", "spec"]
    assert found.marks["add"] == {"cuda": board.PASSED, "triton": board.FAILED}
    gelu = {"cuda": board.PART, "triton": board.PART, "theirs": board.NOTHING, "spec": board.PASSED}
    assert found.marks["gelu"] == gelu
    assert "| add | ✓ |   | ✗ |   |" in board.markdown(found)


@pytest.mark.parametrize(("width", "encoding"), [(40, "utf-8"), (80, "utf-8"), (120, "utf-8"), (80, "ascii")])
def test_all_operators_fit_a_screen(width: int, encoding: str) -> None:
    labels = ["cuda/scalar", "torch_ref/eager", "triton/blocked", "spec"]
    made = [outcome(op, label) for op in catalog.names() for label in labels]
    made[1] = outcome(catalog.names()[0], "torch_ref/eager", status="failed")
    console = shown(width, encoding)
    board.show(console, board.of(made))
    lines = console.export_text().splitlines()
    words = [word for line in lines for word in line.split()]
    assert all(words.count(op) == 1 for op in catalog.names())
    assert max(map(len, lines)) <= width and (width < 80 or len(lines) <= 32)
    assert words.count("✗" if encoding == "utf-8" else "X") == 2  # the mark, and what it means


# --- causes -----------------------------------------------------------------------------------------------------


def test_failures_of_one_cause_are_told_once_with_a_command() -> None:
    wrong = "add[cuda/scalar] exact fp16 case x4x100 seed 0x0: y must be equal\n  reproduce: try --op add again"
    place = [Record("x17", "fp16", "", 0, "failed", cause="softmax.py:34: out of bounds")]
    made = [
        outcome("add", "cuda/scalar", "exact", "failed", text=wrong),
        outcome("add", "cuda/scalar", "layout", "failed", text=wrong),
        outcome("softmax", "triton/a", "exact", "failed", text="a", records=place),
        outcome("softmax", "triton/b", "shapes", "failed", text="b", records=place),
        outcome("gelu", "cuda/scalar", "exact", "failed", text="gelu-cuda/scalar-exact: the worker died"),
        outcome("gelu", "cuda/scalar", "shapes"),
    ]
    console = shown(120)
    causes.show(console, Options(program="our command"), made, "report.html")
    lines = [line.strip() for line in console.export_text().splitlines()]
    assert lines[1:] == [
        "5 items failed, for 3 reasons:",
        "add[cuda/scalar] exact, layout: y must be equal",
        "reproduce: try --op add again",
        "softmax[triton/a], softmax[triton/b] exact, shapes: softmax.py:34: out of bounds",
        "reproduce: our command --op softmax --backend triton/a --check exact",
        "gelu[cuda/scalar] exact: the worker died",
        "reproduce: our command --op gelu --backend cuda/scalar --check exact",
    ]


def test_many_causes_are_cut_and_a_broken_backend_is_one() -> None:
    made = [outcome(op, "cuda/scalar", "exact", "failed", text="wrong") for op in catalog.names()[:14]]
    broken = [
        Outcome(Item(op, "theirs", "", plan.BROKEN, "Traceback\nOSError: gone"), "failed") for op in ("add", "silu")
    ]
    console = shown(80)
    causes.show(console, Options(), [*broken, *made], "report.html")
    text = console.export_text()
    assert "add[theirs], silu[theirs] import: OSError: gone" in text and text.count("reproduce:") == causes.SHOWN
    assert text.rstrip().endswith("and 5 more in report.html") and "16 items failed, for 15 reasons" in text


# --- who was tested ---------------------------------------------------------------------------------------------


def test_what_was_tested_is_taken_from_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [
        outcome("add", "cuda/scalar", status="failed"),
        outcome("add", "torch_ref/eager"),
        outcome("add", "triton/a", status="skipped"),
        outcome("add", "spec", "vacuity"),
    ]
    found = tested_backends.of(Options(), made)
    assert str(found) == "torch_ref on the CPU; cuda emulated on the CPU; not tested: triton"
    assert found.notes == ["triton is not tested: every item of it was skipped"] and not found.failures
    machine = {"gpu": "NVIDIA H100 80GB HBM3", "missing": {"cuda": "pip install cupy", "triton": "pip install triton"}}
    there = [replace(one, machine=machine) for one in made[:2]]
    assert tested_backends.missing(Options(device="cuda", elsewhere=True, backends=("cuda/tiled",)), there) == {
        "cuda": "on NVIDIA H100 80GB HBM3: pip install cupy"
    }
    assert str(tested_backends.of(Options(device="cuda", elsewhere=True), there)).startswith(
        "cuda, torch_ref on NVIDIA H100 80GB HBM3; not"
    )
    assert str(tested_backends.of(Options(), made[3:])) == "no backend was tested"


@pytest.fixture
def theirs() -> Iterator[list[str | None]]:
    """A backend "theirs" that gives this reason for not working on any device, and one that cannot be imported."""
    reason: list[str | None] = [MISSING]
    package = ModuleType("kernelmux_theirs")
    vars(package).update(BACKEND=Backend("theirs", "a backend", 1, lambda device: reason[0]), __path__=[])
    sys.modules[package.__name__] = package
    with temporary_backends.announced({"theirs": package.__name__, "gone": "no_such_package"}):
        yield reason
    sys.modules.pop(package.__name__)


def test_a_missing_package_fails_the_run_unless_the_backend_is_left_out(
    theirs: list[str | None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ["--out", str(tmp_path), "--junit", str(tmp_path / "junit.xml")]
    assert main.main([*EXACT, "--backend", "torch_ref", *folder]) == main.OK
    assert "theirs is" not in "".join(capsys.readouterr())
    assert main.main([*EXACT, "--backend", "torch_ref", "theirs", *folder]) == main.FAILED
    told = capsys.readouterr()
    line = told.out.splitlines()[0]
    assert line.startswith(f"theirs is not tested: {MISSING} (to leave it out: --backend ") and "torch_ref" in line
    assert told.err == f"conformance: failed: {line}\n" and "gone" not in line
    assert told.out.splitlines()[-1].endswith("torch_ref on the CPU; not tested: cuda, gone, theirs, triton")
    assert (
        line in (tmp_path / "matrix-partial.md").read_text() and line in (tmp_path / "report-partial.html").read_text()
    )
    assert line in [e.get("message") for e in ElementTree.parse(tmp_path / "junit.xml").getroot().iter("error")]


def test_without_a_choice_of_backends_a_missing_package_is_all_that_fails(
    theirs: list[str | None], tmp_path: Path
) -> None:
    assert "theirs" in tested_backends.missing(Options()) and "gone" not in tested_backends.missing(
        Options()
    )  # that is a failing item
    assert not tested_backends.missing(Options(backends=("spec",))) and not tested_backends.missing(
        Options(mutants=True)
    )
    skipped = Outcome(Item("add", "theirs", "", UNAVAILABLE, MISSING), "skipped", MISSING)
    made = [outcome("add", "torch_ref/eager"), skipped]
    found = tested_backends.of(Options(), made)
    assert "theirs is" not in "".join(found.notes) and f"theirs is not tested: {MISSING}" in found.failures[0]
    assert run.conclude(Options(out=str(tmp_path)), run.RunOutcome(made, [], 1.0, 3, found), shown(80)) == run.FAILED


def test_a_device_that_a_backend_cannot_have_is_a_note(theirs: list[str | None]) -> None:
    theirs[0] = reason = "theirs has no compiler for this system"
    item = Item("add", "theirs", "", UNAVAILABLE, reason)
    found = tested_backends.of(Options(), [Outcome(item, "skipped", reason), outcome("add", "torch_ref/eager")])
    assert found.notes == [f"theirs is not tested: {reason}"] and "theirs" not in found.missing


# --- while it runs ----------------------------------------------------------------------------------------------


def test_a_log_has_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now, items = [0.0], [Item("add", "cuda", "scalar", str(n)) for n in range(1000)]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    console = shown(120)
    reporter = progress.Reporter(items, console)
    for item in items:
        now[0] += 1.0
        reporter.take(Outcome(item, "failed" if item.check == "500" else "passed", f"{item.id}: wrong", 1.0))
    lines = console.export_text().splitlines()
    assert 40 <= sum(line.startswith("[") for line in lines) <= 75
    assert "FAILED add-cuda/scalar-500" in lines and "add-cuda/scalar-500: wrong" in lines
    assert lines[0] == "[10/1000, about 16 min left] 10 passed, 0 failed, 0 skipped"


def test_no_plugin_that_happens_to_be_installed_is_in_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """pytest-benchmark would warn in every worker process that it does nothing there."""
    pytest.importorskip("pytest_benchmark")
    monkeypatch.delenv(pytest_plugin.ALONE, raising=False)
    run_of_two = ["--op", "add", "--backend", "torch_ref", "--check", "exact", "accuracy", "-n", "2"]
    assert main.main([*run_of_two, "--out", str(tmp_path)]) == main.OK
    assert capfd.readouterr().err == "" and pytest_plugin.ALONE not in os.environ
