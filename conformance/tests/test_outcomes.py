"""Expected failures, the ledger, the matrix, and the rule that a check which asks nothing fails."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from kernelmux.conformance import check as catalogue
from kernelmux.conformance import expected, ledger, matrix, report
from kernelmux.conformance.check import Check
from kernelmux.conformance.execute import Outcome, execute, from_dict
from kernelmux.conformance.expected import Expected
from kernelmux.conformance.options import Options
from kernelmux.conformance.plan import Item
from kernelmux.conformance.probe import Probe, Record
from kernelmux.registry import catalog
from kernelmux.registry.errors import ArgumentError, SpecError

ITEM = Item("softmax", "torch_ref", "eager", "accuracy")
KNOWN = (Expected("softmax-*-accuracy", "a reason", device="cpu"),)


def test_an_expected_failure_counts_as_skipped_and_its_disappearance_fails() -> None:
    failed = expected.applied(Outcome(ITEM, "failed", "wrong"), Options(), KNOWN)
    assert (failed.status, failed.text) == ("expected", "expected failure: a reason")
    assert report.counts([failed]) == {"passed": 0, "failed": 0, "skipped": 1}
    assert expected.applied(Outcome(ITEM, "passed"), Options(), KNOWN).status == "failed"
    assert expected.applied(Outcome(ITEM, "passed"), Options(dtypes=("fp16",)), KNOWN).status == "passed"
    assert expected.applied(Outcome(ITEM, "failed", "wrong"), Options(device="cuda"), KNOWN).status == "failed"


def test_an_expected_failure_covers_its_trials_only() -> None:
    known = (Expected("softmax-*", "a reason", "x17 *"),)
    records = [Record(case, "fp16", "", 0, "failed") for case in ("x17", "x4x100")]
    assert (
        expected.applied(Outcome(ITEM, "failed", "wrong", records=records[:1]), Options(), known).status == "expected"
    )
    assert expected.applied(Outcome(ITEM, "failed", "wrong", records=records), Options(), known).status == "failed"


def test_an_entry_that_matches_nothing_is_stale() -> None:
    assert expected.stale([ITEM.id], "cpu", "ci", KNOWN) == []
    assert expected.stale(["add-torch_ref/eager-accuracy"], "cpu", "ci", KNOWN) == ["softmax-*-accuracy"]


def test_an_entry_without_a_reason_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "expected.toml"
    path.write_text('[[expected]]\nitem = "x"\nreason = " "\n')
    with pytest.raises(SpecError, match="needs item and reason"):
        expected.entries(path)


def _check(monkeypatch: pytest.MonkeyPatch, run: object) -> Outcome:
    monkeypatch.setattr(catalogue, "check", lambda name: Check(run=run, summary="", column="x"))  # type: ignore[arg-type]
    return execute(ITEM, Options())


def test_a_check_that_asks_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "asked nothing" in _check(monkeypatch, lambda probe: None).text

    def silent(probe: Probe) -> None:
        with probe.judge(probe.sample(1)[0]):
            pass

    outcome = _check(monkeypatch, silent)
    assert outcome.status == "failed" and "the check asked nothing" in outcome.text


def test_a_check_that_crashes_fails_with_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = _check(monkeypatch, lambda probe: 1 / 0)
    assert outcome.status == "failed" and "ZeroDivisionError" in outcome.text and "reproduce:" in outcome.text


def test_an_outcome_survives_the_way_between_processes() -> None:
    outcome = Outcome(ITEM, "passed", "", 1.5, [Record("x4x100", "fp16", "", 3, assertions=2, budget=0.5)])
    assert from_dict(json.loads(json.dumps(outcome.as_dict()))) == outcome


def test_an_unavailable_backend_is_skipped_unless_it_was_asked_for() -> None:
    item = Item("softmax", "cuda", "", "unavailable", "there is no compiler")
    assert execute(item, Options()).status == "skipped"
    asked = execute(item, Options(backends=("cuda",)))
    assert asked.status == "failed" and "asked for and cannot work here: there is no compiler" in asked.text


def test_the_matrix_fits_a_terminal() -> None:
    names = [
        n for n in catalogue.names() if n not in ("graphs", "offsets", "streams")
    ]  # these run on a GPU only, compile_only not there
    outcomes = [Outcome(Item("rms_norm_backward", "triton", "cooperative", n), "passed") for n in names]
    outcomes += [Outcome(Item("softmax", "cuda", "", "unavailable", "no compiler"), "skipped", "no compiler")]
    console = Console(width=110, record=True, file=io.StringIO())
    matrix.show(console, outcomes, "title")
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 110 and "- 1: no compiler" in text and "…" not in text
    assert "| rms_norm_backward | triton/cooperative |" in matrix.markdown(outcomes, "title")


def test_the_ledger_knows_verified_from_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "FOLDER", tmp_path)
    ledger.books.cache_clear()
    assert ledger.status("softmax", "torch_ref", "eager") == ("never run", ())
    assert ledger.status("softmax", "triton", "online") == ("emulated only", ())
    entry = {"spec": catalog.spec("softmax").hash, "source": report.source_hash("torch_ref", "softmax")}
    for source, status in ((entry["source"], "verified"), ("other", "stale")):
        book = {"gpu": "NVIDIA H200", "entries": {"softmax/torch_ref/eager": entry | {"source": source}}}
        (tmp_path / "nvidia_h200.json").write_text(json.dumps(book))
        ledger.books.cache_clear()
        assert ledger.status("softmax", "torch_ref", "eager") == (status, ("NVIDIA H200",))
    ledger.books.cache_clear()


def test_only_a_complete_run_on_a_gpu_is_recorded() -> None:
    with pytest.raises(ArgumentError, match="not verified on a GPU"):
        ledger.check_recordable(Options())
    with pytest.raises(ArgumentError, match="all checks"):
        ledger.check_recordable(Options(device="cuda", checks=("accuracy",)))


def test_the_support_matrix_replaces_what_stands_between_its_markers(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text("before\n<!-- matrix -->\nold\n<!-- /matrix -->\nafter\n")
    assert ledger.command(str(path), Console()) == 0
    text = path.read_text()
    assert (
        text.startswith("before\n<!-- matrix -->\n| operator |")
        and "old" not in text
        and text.endswith("<!-- /matrix -->\nafter\n")
    )
