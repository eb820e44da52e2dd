"""Expected failures, the ledger, the matrix, and the rule that a check which asks nothing fails."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from kernelmux.conformance import check as catalogue
from kernelmux.conformance.check import Check
from kernelmux.conformance.judging import resource_budgets
from kernelmux.conformance.judging.probe import Probe
from kernelmux.conformance.judging.trial_outcome import Record
from kernelmux.conformance.options import Options
from kernelmux.conformance.report import artifacts, causes, matrix
from kernelmux.conformance.report.progress import Clock, Reporter, duration
from kernelmux.conformance.session import expected_failures
from kernelmux.conformance.session.execute import Outcome, execute, from_dict
from kernelmux.conformance.session.expected_failures import Book, Expected
from kernelmux.conformance.session.plan import Item
from kernelmux.conformance.verified import ledger
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend import package_versions
from kernelmux.registry.errors import ArgumentError, SpecError
from kernelmux.registry.util.files import GpuFiles

ITEM = Item("softmax", "torch_ref", "exact", "accuracy")
KNOWN = [Book(expected_failures.FILE, (Expected("softmax-*-accuracy", "a reason", device="cpu"),))]
H200 = {"gpu": "NVIDIA H200", "capability": "sm_90", "versions": {"torch": "2.13"}}
RAN = [Record("x17", "fp16", "", 0, assertions=1)]


def test_an_expected_failure_counts_as_skipped_and_its_disappearance_fails() -> None:
    failed = expected_failures.applied(Outcome(ITEM, "failed", "wrong"), Options(), KNOWN)
    assert (failed.status, failed.text) == ("expected", "expected failure: a reason")
    assert artifacts.counts([failed]) == {"passed": 0, "failed": 0, "skipped": 1}
    passed = Outcome(ITEM, "passed", records=RAN)
    assert expected_failures.applied(passed, Options(), KNOWN).status == "failed"
    sometimes = [Book(expected_failures.FILE, (Expected("softmax-*-accuracy", "a reason", sometimes="some CPUs"),))]
    assert expected_failures.applied(passed, Options(), sometimes).status == "passed"
    assert expected_failures.applied(passed, Options(dtypes=("fp16",)), KNOWN).status == "passed"
    assert expected_failures.applied(passed, Options(seeds=(1, 2)), KNOWN).status == "passed"
    assert expected_failures.applied(replace(passed, small=True), Options(), KNOWN).status == "passed"
    assert expected_failures.applied(Outcome(ITEM, "failed", "wrong"), Options(device="cuda"), KNOWN).status == "failed"


def test_an_expected_failure_covers_its_trials_only() -> None:
    known = [Book(expected_failures.FILE, (Expected("softmax-*", "a reason", ("x17 *",)),))]
    records = [Record(case, "fp16", "", 0, "failed") for case in ("x17", "x4x100")]
    assert (
        expected_failures.applied(Outcome(ITEM, "failed", "wrong", records=records[:1]), Options(), known).status
        == "expected"
    )
    assert (
        expected_failures.applied(Outcome(ITEM, "failed", "wrong", records=records), Options(), known).status
        == "failed"
    )


def test_an_entry_whose_trials_did_not_run_says_nothing() -> None:
    """A small tier may hold none of the trials that an entry is about."""
    known = [Book(expected_failures.FILE, (Expected("softmax-*", "a reason", ("x4x100 *",)),))]
    assert expected_failures.applied(Outcome(ITEM, "passed", records=RAN), Options(), known).status == "passed"
    other = [*RAN, Record("x4x100", "fp16", "", 0, assertions=1)]
    assert expected_failures.applied(Outcome(ITEM, "passed", records=other), Options(), known).status == "failed"


def test_an_entry_that_matches_nothing_is_stale() -> None:
    assert expected_failures.stale([ITEM.name], Options(), KNOWN) == []
    found = ["expected_failures.toml: softmax-*-accuracy"]
    assert expected_failures.stale(["add-torch_ref/plain-accuracy"], Options(), KNOWN) == found
    assert expected_failures.stale(["add-torch_ref/plain-accuracy"], Options(backends=("torch_ref",)), KNOWN) == []
    theirs = [Book(Path("theirs.toml"), KNOWN[0].entries, "theirs")]
    assert expected_failures.stale([], Options(backends=("torch_ref",)), theirs) == []
    assert expected_failures.stale([], Options(backends=("theirs",)), theirs) == ["theirs.toml: softmax-*-accuracy"]


def test_the_file_of_a_backend_speaks_of_its_own_items_alone() -> None:
    theirs = [Book(Path("theirs.toml"), (Expected("*", "a reason"),), "theirs")]
    wrong = Outcome(ITEM, "failed", "wrong")
    assert expected_failures.applied(wrong, Options(), theirs).status == "failed"
    assert (
        expected_failures.applied(replace(wrong, item=replace(ITEM, backend="theirs")), Options(), theirs).status
        == "expected"
    )


def test_files_in_the_package_of_a_backend_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = '[[expected]]\nitem = "softmax-theirs/*"\nreason = "known"\n'
    (tmp_path / "expected_failures.toml").write_text(entry)
    (tmp_path / "resource_budgets.toml").write_text(
        '[budget]\nspills = 4\n[[variant]]\nname = "softmax/torch_ref/exact"\nspills = 8\nreason = "why"\n'
    )
    monkeypatch.setattr(registered, "folder", lambda name: tmp_path if name == "torch_ref" else None)
    more = tmp_path / "more.toml"
    more.write_text(entry)
    found = expected_failures.books(Options(expected=(str(more),)))
    assert [(b.path, b.backend) for b in found[1:]] == [(tmp_path / expected_failures.NAME, "torch_ref"), (more, "")]
    assert resource_budgets.budget(
        "softmax", "torch_ref", "torch_ref/exact", "sm_80"
    ) == resource_budgets.ResourceBudget(255, 8, "why")
    assert resource_budgets.budget("add", "torch_ref", "torch_ref/plain", "sm_80").spills == 4
    assert resource_budgets.budget("add", "cuda", "cuda/scalar", "sm_80").spills == 0


def test_a_gpu_has_budgets_of_its_own_and_a_variant_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '[[gpu]]\narch = "sm_89"\nspills = 64\nreason = "not timed"\n'
    (tmp_path / resource_budgets.NAME).write_text(
        text + '[[variant]]\nname = "softmax/theirs/plain"\nspills = 8\nreason = "why"\n'
    )
    monkeypatch.setattr(registered, "folder", lambda name: tmp_path if name == "theirs" else None)
    assert resource_budgets.budget("add", "theirs", "theirs/plain", "sm_89") == resource_budgets.ResourceBudget(
        255, 64, "not timed"
    )
    assert resource_budgets.budget("softmax", "theirs", "theirs/plain", "sm_89") == resource_budgets.ResourceBudget(
        255, 8, "why"
    )
    assert resource_budgets.budget("add", "theirs", "theirs/plain", "sm_90a") == resource_budgets.ResourceBudget(255, 0)
    (tmp_path / "wrong.toml").write_text('[[gpu]]\narch = "sm_89"\nspills = 64\n')
    with pytest.raises(SpecError, match="a gpu needs arch and reason"):
        resource_budgets._table(tmp_path / "wrong.toml")


@pytest.mark.parametrize(
    ("installed", "spills"), [("3.6.0", 8), ("3.7.1+git12", 8), ("3.9.0", 4), ("3.10.0", 4), ("", 4)]
)
def test_a_budget_may_be_of_older_versions_of_triton(
    installed: str, spills: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = '[[variant]]\nname = "softmax/theirs/plain"\nreason = "why"\n'
    (tmp_path / resource_budgets.NAME).write_text(f'{entry}triton = "3.7"\nspills = 8\n{entry}spills = 4\n')
    monkeypatch.setattr(registered, "folder", lambda name: tmp_path if name == "theirs" else None)
    monkeypatch.setattr(package_versions, "version", lambda name: installed)
    assert resource_budgets.budget("softmax", "theirs", "theirs/plain", "sm_90a").spills == spills
    (tmp_path / "wrong.toml").write_text(f'{entry}triton = "new"\n')
    with pytest.raises(
        SpecError, match=r"triton of softmax/theirs/plain: expected two numbers, as \"3\.7\", got 'new'"
    ):
        resource_budgets._table(tmp_path / "wrong.toml")


def test_the_file_of_a_backend_limits_its_kernels_on_amd_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = '[amd]\narchs = ["gfx950"]\n[[amd.variant]]\nname = "softmax/theirs/plain"\nscratch = 8\nreason = "why"\n'
    (tmp_path / resource_budgets.NAME).write_text(own)
    monkeypatch.setattr(registered, "folder", lambda name: tmp_path if name == "theirs" else None)
    assert resource_budgets.amd_archs("theirs") == ["gfx950"] and resource_budgets.amd_archs("triton") == [
        "gfx942",
        "gfx950",
    ]
    found = resource_budgets.amd_budget("softmax", "theirs", "theirs/plain", "gfx950")
    assert found == resource_budgets.AmdBudget(vgprs=512, scratch=8, lds=160 * 1024, threads=1024, reason="why")
    assert resource_budgets.amd_budget("add", "theirs", "theirs/plain", "gfx942").lds == 64 * 1024
    (tmp_path / "wrong.toml").write_text('[[amd.variant]]\nname = "softmax/theirs/plain"\nscratch = 8\n')
    with pytest.raises(SpecError, match="needs name and reason"):
        resource_budgets._table(tmp_path / "wrong.toml")


def test_the_folder_of_a_backend_is_that_of_its_package() -> None:
    folder = registered.folder("triton")
    assert folder is not None and (folder / "softmax.py").is_file()


def test_an_entry_without_a_reason_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "expected.toml"
    path.write_text('[[expected]]\nitem = "x"\nreason = " "\n')
    with pytest.raises(SpecError, match="needs item and reason"):
        expected_failures.entries(path)


def test_patterns_behind_an_exclamation_mark_are_not_covered(tmp_path: Path) -> None:
    path = tmp_path / "expected.toml"
    path.write_text(
        '[[expected]]\nitem = "softmax-*"\nreason = "why"\ntrial = ["* inf *", "* nan", "!* fp16 *", "!*tanh*"]\n'
    )
    (entry,) = expected_failures.entries(path)
    made = [
        ("x17", "fp32", "inf in x"),
        ("x17", "bf16", "a nan"),
        ("x17", "fp32", "-0 in x"),
        ("x17", "fp16", "inf in x"),
    ]
    made.append(("x17-tanh", "fp32", "inf in x"))
    assert [entry.covers(Record(*one, 0)) for one in made] == [True, True, False, False, False]


@pytest.mark.parametrize("trial", ["[]", "3", '["x", 3]'])
def test_a_pattern_that_is_no_text_is_refused(trial: str, tmp_path: Path) -> None:
    path = tmp_path / "expected.toml"
    path.write_text(f'[[expected]]\nitem = "x"\nreason = "why"\ntrial = {trial}\n')
    with pytest.raises(SpecError, match="needs item and reason"):
        expected_failures.entries(path)


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
    again = execute(ITEM, Options(tier="smoke", program="their command"))
    assert "reproduce: their command --op softmax --backend torch_ref/exact --check accuracy --tier smoke" in again.text


def test_an_outcome_survives_the_way_between_processes() -> None:
    outcome = Outcome(ITEM, "passed", "", 1.5, [Record("x4x100", "fp16", "", 3, assertions=2, budget=0.5)])
    assert from_dict(json.loads(json.dumps(outcome.as_dict()))) == outcome


def test_an_unavailable_backend_is_skipped_unless_it_was_asked_for() -> None:
    item = Item("softmax", "cuda", "", "unavailable", "there is no compiler")
    assert execute(item, Options()).status == "skipped"
    asked = execute(item, Options(backends=("cuda",)))
    assert asked.status == "failed" and "asked for and cannot work here: there is no compiler" in asked.text


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_matrix_fits_a_terminal(width: int) -> None:
    """Headers are whole at every width, a column has its header once, and a note keeps its number."""
    names = catalogue.names()
    outcomes = [Outcome(Item("rms_norm_backward", "triton", "cooperative", n), "passed") for n in names]
    outcomes[3] = replace(outcomes[3], status="expected", text="expected failure: a reason")
    outcomes += [Outcome(Item("softmax", "cuda", "", "unavailable", "no compiler"), "skipped", "no compiler")]
    console = Console(width=width, record=True, file=io.StringIO())
    matrix.show(console, outcomes)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    assert "- 1: expected failure: a reason" in text and "- 2: no compiler" in text and "xfail 1" in text
    heads = [word for line in text.splitlines() if line.startswith(" " * 12) for word in line.split()]
    assert [h for h in heads if not h.isdigit()] == [catalogue.check(n).column for n in names]
    assert "| rms_norm_backward | triton/cooperative |" in matrix.markdown(outcomes)


def test_the_legend_ends_where_there_is_nothing_to_explain() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    matrix.show(console, [Outcome(Item("add", "cuda", "scalar", "layout"), "passed", records=RAN)])
    assert console.export_text().rstrip().endswith("cells: trials passed")


def test_several_seeds_are_one_cell_that_fails_if_one_of_them_does() -> None:
    first, second = (Outcome(replace(ITEM, seed=s), "passed", records=RAN) for s in (1, 2))
    (row,) = matrix.rows([first, second])
    assert row.cells["accuracy"].passed == 2 and ledger._sound(row)
    (row,) = matrix.rows([first, replace(second, status="failed")])
    assert row.cells["accuracy"].status == "failed" and not ledger._sound(row)


def test_one_cause_is_told_once() -> None:
    cause = "softmax.py:34: out of bounds"
    records = [Record("x17", "fp16", "", 0, "failed", cause=cause)]
    outcomes = [
        Outcome(replace(ITEM, check=c), "failed", f"the text of {c}", records=records) for c in ("layout", "shapes")
    ]
    console = Console(width=120, record=True, file=io.StringIO())
    reporter = Reporter([o.item for o in outcomes], console)
    for outcome in outcomes:
        reporter.take(outcome)
    causes.show(console, Options(), outcomes, "report.html")
    text = console.export_text()
    assert "the text of layout" in text and "the text of shapes" not in text
    assert f"the same as in softmax-torch_ref/exact-layout: {cause}" in text
    assert f"softmax[torch_ref/exact] layout, shapes: {cause}" in text and "2 items failed, for 1 reason" in text


def test_how_long_the_rest_takes() -> None:
    items = [replace(ITEM, check=c) for c in "abcd"]
    clock = Clock(items, {items[0].id: 10.0, items[1].id: 20.0, items[2].id: 30.0}, 2)
    assert str(clock) == ""
    clock.finish(Outcome(items[0], "passed", seconds=20.0))  # twice as slow as before
    assert str(clock) == "about 70 s left"  # 20 + 30 + 20 (the usual), twice, by two
    assert [duration(s) for s in (7, 200, 9000)] == ["7 s", "3 min", "2.5 h"]


def test_a_variant_with_items_that_did_not_report_is_not_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "PLACE", GpuFiles(tmp_path))
    items = [ITEM, replace(ITEM, check="layout")]
    first, second = (Outcome(item, "passed", records=RAN, machine=H200) for item in items)
    told = [ledger.record(Options(), items, outcomes) for outcomes in ([first], [first, second])]
    assert [text.split(" variants")[0] for text in told] == ["recorded: 0", "recorded: 1"]
    (name, entry), *others = ledger.books()[0][
        "entries"
    ].items()  # with all keys but what it launches, which --rekey adds
    assert not others and ledger.changed(entry, *name.split("/")) == () and not ledger.unasked(entry, "softmax")
    assert entry["asked"] and {"oracle", "judge", "source", "tier", "date", "versions"} < entry.keys()
    ledger.record(Options(), items, [replace(first, status="failed")])
    assert "softmax" not in (tmp_path / "nvidia_h200.json").read_text()
    ledger.books.cache_clear()


def test_each_gpu_of_a_run_has_a_ledger_of_what_ran_on_it_and_a_declared_one_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "PLACE", GpuFiles(tmp_path))
    h100 = {**H200, "gpu": "NVIDIA H100 80GB HBM3"}
    item, card = replace(ITEM, check="exact"), "nvidia_h100_80gb_hbm3"
    here = Outcome(ITEM, "passed", records=RAN, machine=H200, card="nvidia_h200")
    there = replace(here, machine=h100, card=card)
    told = ledger.record(Options(), [ITEM], [here, there, replace(here, card="h100-declared", machine={})])
    assert [line.split(" in ")[0] for line in told.splitlines()] == [
        "recorded: 1 variants verified on NVIDIA H100 80GB HBM3",
        "recorded: 1 variants verified on NVIDIA H200",
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{card}.json", "nvidia_h200.json"]
    gone = Outcome(item, "failed", card=card)  # its process ended, and could not say where it was
    ledger.record(Options(), [ITEM, item], [here, replace(here, item=item), there, gone])
    assert [len(ledger._book(p)["entries"]) for p in sorted(tmp_path.iterdir())] == [0, 1]
    other = replace(here, machine={**H200, "versions": {"torch": "2.10"}}, item=item)
    (tmp_path / "nvidia_h200.json").unlink()
    assert "recorded: 0" in ledger.record(Options(), [ITEM, item], [here, other]), "of which torch is it?"
    assert "no item ran on a GPU" in ledger.record(Options(), [ITEM], [Outcome(ITEM, "passed", records=RAN)])
    ledger.books.cache_clear()


def test_what_nodes_have_by_themselves_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "PLACE", GpuFiles(tmp_path))
    outcome = Outcome(ITEM, "passed", records=RAN, machine=H200)
    monkeypatch.setattr(ledger.elsewhere, "whose", lambda op, variant: True)
    assert "recorded: 0" in ledger.record(Options(elsewhere=True), [ITEM], [outcome])
    refused = replace(outcome, item=replace(ITEM, problem="no CuPy"), status="skipped")
    assert "recorded: 0" in ledger.record(Options(), [ITEM], [refused]) and not list(tmp_path.iterdir())


def test_the_ledger_knows_verified_from_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "PLACE", GpuFiles(tmp_path))
    ledger.books.cache_clear()
    assert ledger.status("softmax", "torch_ref", "exact") == ledger.status("softmax", "triton", "online")
    assert ledger.status("softmax", "triton", "online") == ("no record", ())
    entry: dict[str, str] = {
        "spec": catalog.spec("softmax").hash,
        "source": artifacts.source_hash("torch_ref", "softmax"),
    }
    for source, status in ((entry["source"], "verified"), ("other", "unknown")):
        book = {"gpu": "NVIDIA H200", "entries": {"softmax/torch_ref/exact": entry | {"source": source}}}
        (tmp_path / "nvidia_h200.json").write_text(json.dumps(book))
        ledger.books.cache_clear()
        assert ledger.status("softmax", "torch_ref", "exact") == (status, ("NVIDIA H200",))
    (tmp_path / "nvidia_h200.json").write_text('{"gpu": ')
    ledger.books.cache_clear()
    with pytest.raises(SpecError, match="the ledger is damaged"):
        ledger.books()
    ledger.books.cache_clear()


def test_only_a_complete_run_on_a_gpu_is_recorded() -> None:
    with pytest.raises(ArgumentError, match="not verified on a GPU"):
        ledger.check_recordable(Options())
    with pytest.raises(ArgumentError, match="all checks"):
        ledger.check_recordable(Options(device="cuda", checks=("accuracy",)))


def test_the_support_matrix_replaces_what_stands_between_its_markers(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text("before\n<!-- matrix -->\nold\n<!-- /matrix -->\nafter\n")
    assert ledger.command(str(path), (), Console()) == 0
    text = path.read_text()
    assert (
        text.startswith("before\n<!-- matrix -->\n| operator |")
        and "\nold\n" not in text
        and text.endswith("<!-- /matrix -->\nafter\n")
    )
