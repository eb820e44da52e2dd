"""The flags of pytest: -k, -q, --lf, --co, --durations, --maxfail, --junitxml; and --dtype where few operators take it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from junitparser import JUnitXml

from kernelmux.conformance.cli import arguments, main
from kernelmux.conformance.options import Options
from kernelmux.conformance.report import artifacts, junit
from kernelmux.conformance.session import mutation, plan, tested_backends, time_budget
from kernelmux.conformance.session.execute import Outcome, execute
from kernelmux.conformance.session.plan import BROKEN, Item
from kernelmux.registry import catalog

ADD = ["--op", "add", "--backend", "torch_ref"]
WRONG = """
import torch

def softmax(x, axis, scale):
    return (torch.softmax(x.float() * scale, axis) * 1.02).to(x.dtype).contiguous()
"""


@pytest.fixture
def wrong(tmp_path: Path) -> list[str]:
    """The arguments of a run of three items that fail, in one process."""
    (tmp_path / "mine.py").write_text(WRONG)
    chosen = ["--impl", f"{tmp_path}/mine.py:softmax", "--op", "softmax", "--check", "accuracy", "parity", "shapes"]
    return [*chosen, "--tier", "smoke", "-n", "1", "--out", str(tmp_path / "out")]


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """The ids that --list prints."""
    assert main.main([*words, "--collect-only", "-q"]) == main.OK
    return capsys.readouterr().out.split()


# --- which items ------------------------------------------------------------------------------------------------


def test_k_takes_items_by_parts_of_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    every = listed(capsys, *ADD)
    assert len(every) > 10 and "add-torch_ref/plain-layout" in every
    assert listed(capsys, *ADD, "-k", "ADD and not (layout or spec)") == [
        name for name in every if "layout" not in name and "spec" not in name
    ]
    assert listed(capsys, *ADD, "-k", "torch_ref/plain-ex or plain-shapes") == [
        f"add-torch_ref/plain-{check}" for check in ("exact", "shapes")
    ]
    assert listed(capsys, *ADD, "-k", " ") == every
    assert listed(capsys, *ADD, "--seed", "1", "2", "-k", "exact and seed2") == ["add-torch_ref/plain-exact-seed2"]


def test_k_chooses_among_mutants(mutants: None) -> None:
    found = mutation.items(Options(("transpose",), mutants=True, keyword="square_in_place or shapes/sound-exact"))
    assert {item.id.partition("/")[2] for item in found} == {"sound-exact", "square_in_place-accuracy"}


def test_what_cannot_be_imported_is_in_every_run() -> None:
    items = [Item("add", "theirs", "", BROKEN, "gone"), Item("add", "cuda", "wide", "exact")]
    assert plan.matching(items, "softmax") == items[:1] and plan.matching(items, "exact") == items


def test_a_run_with_k_is_one_of_a_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = arguments.options_of(arguments.parser().parse_args(["-k", "add and exact", "--device", "cpu"]))
    assert not chosen.everything and not chosen.complete and not chosen.verified
    assert chosen.minutes == time_budget.usual(Options()), "it may be nearly everything"
    assert artifacts.names(chosen, chosen.everything)[0] == "results-partial.jsonl"
    assert main.main([*ADD, "-k", "add and exact", "--out", str(tmp_path)]) == main.OK
    head = (tmp_path / "matrix-partial.md").read_text().splitlines()[0]
    assert "only what fits -k 'add and exact'" in head and "only what fits -k" in capsys.readouterr().out


def test_the_names_of_pytest_are_other_names(capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for name in ("--list", "--co", "--collect-only"):
        assert main.main([*ADD, name]) == main.OK
        told.append(capsys.readouterr().out)
    assert told[0] == told[1] == told[2] and "within the error bound" in told[0]
    given = [["--junitxml", "x"], ["--junit-xml", "x"], ["--junit", "x"]]
    assert {arguments.parser().parse_args(words).junit for words in given} == {"x"}


# --- what is shown, and when it stops ---------------------------------------------------------------------------


def test_quiet_shows_failures_and_the_last_line(
    wrong: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main([*ADD, "-k", "exact", "-q", "--out", str(tmp_path)]) == main.OK
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("1 passed, 0 failed, 0 skipped in ")
    assert main.main([*wrong, "-q"]) == main.FAILED
    out = capsys.readouterr().out
    assert out.startswith("FAILED softmax-impl/softmax-accuracy\n") and "budget used" in out and "reproduce: " in out
    assert out.count("FAILED ") == 3 and "conformance: 3 items" not in out and "report:" not in out and "✗" not in out
    assert out.splitlines()[-1].startswith("0 passed, 3 failed, 0 skipped in ")
    assert (tmp_path / "out/report-partial.html").is_file()


def test_quiet_mutants_are_those_that_were_missed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["--mutants", "--op", "transpose", "-k", "view_of_one", "-q", "--out", str(tmp_path), "-n", "1"]
    assert main.main(run) == main.OK
    first, second = capsys.readouterr().out.splitlines()
    assert first == "mutation score: 1 of 1 broken kernels caught, 0 problems" and second.startswith("1 items in ")


@pytest.mark.parametrize(("words", "failed"), [(["-x"], 1), (["--maxfail", "2"], 2), (["--maxfail", "4"], 3)])
def test_a_number_of_failures_ends_a_run(
    words: list[str], failed: int, wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main([*wrong, "-q", *words]) == main.FAILED
    out = capsys.readouterr().out
    assert out.splitlines()[-1].startswith(f"0 passed, {failed} failed, 0 skipped") and "did not report" not in out


def test_lf_runs_what_failed(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([*wrong, "-q", "-x"]) == main.FAILED
    assert listed(capsys, *wrong, "--lf")[-1:] == ["softmax-impl/softmax-accuracy"]
    assert listed(capsys, *wrong, "--lf") == listed(capsys, *wrong, "--last-failed")


def test_durations_are_those_of_the_slowest_items(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = [*ADD, "-k", "exact or accuracy or shapes", "-q", "--out", str(tmp_path), "-n", "1", "--durations"]
    assert main.main([*run, "2"]) == main.OK
    blank, head, *lines, last = capsys.readouterr().out.splitlines()
    seconds = [float(line.partition("s ")[0]) for line in lines]
    assert (blank, head) == ("", "slowest 2 items") and len(lines) == 2 and seconds == sorted(seconds, reverse=True)
    assert all(" add-torch_ref/plain-" in line for line in lines) and last.startswith("3 passed")
    assert main.main([*run, "0"]) == main.OK and "slowest 3 items" in capsys.readouterr().out


# --- JUnit XML --------------------------------------------------------------------------------------------------

TESTS = """
import pytest

def test_passes(record_testsuite_property): record_testsuite_property("tested", "here")
def test_fails(): assert 0
def test_is_skipped(): pytest.skip("no GPU")

@pytest.fixture
def broken(): raise ValueError

def test_without_its_fixture(broken): pass
"""


def forms(suite: ElementTree.Element) -> Iterator[tuple[str, str]]:
    """Where each element and attribute stands: testcase/failure, testcase@name."""
    for element in suite.iter():
        yield from ((element.tag, f"@{name}") for name in element.keys())
        yield from ((element.tag, child.tag) for child in element)


def test_junit_has_what_pytest_writes(tmp_path: Path) -> None:
    """An element or attribute that pytest's own file (xunit2) does not have is one that services may refuse."""
    (tmp_path / "test_few.py").write_text(TESTS)
    plain = ["-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(tmp_path), "--junitxml"]
    command = [sys.executable, "-m", "pytest", *plain, str(tmp_path / "theirs.xml"), str(tmp_path / "test_few.py")]
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    assert subprocess.run(command, capture_output=True, check=False, cwd=tmp_path, env=alone).returncode == 1
    told = tested_backends.Tested({"on the CPU": ["torch_ref"]}, {"theirs": ""}, {"theirs": "pip install theirs"})
    item = Item("add", "torch_ref", "plain", "exact")
    outcomes = [
        Outcome(item, "passed", seconds=1.5),
        Outcome(item, "failed", "a \x00\x1b[0m <&> \ud800\nsecond"),
        Outcome(item, "skipped", "no GPU"),
        Outcome(item, "expected", "expected failure: known"),
    ]
    junit.write(tmp_path / "ours.xml", outcomes, 12.3456, told, ["1 of 5 items did not report"])
    theirs, ours = (ElementTree.parse(tmp_path / f"{name}.xml").getroot() for name in ("theirs", "ours"))
    assert set(forms(ours)) <= set(forms(theirs))
    (suite,) = JUnitXml.fromfile(str(tmp_path / "ours.xml"))
    assert (suite.tests, suite.failures, suite.errors, suite.skipped, suite.time) == (6, 1, 2, 2, 12.346)
    passed, failed, *skipped, lacking, lost = suite
    assert (passed.classname, passed.name, passed.time) == ("add.torch_ref", "plain-exact", 1.5)
    assert failed.result[0].message == "a ??[0m <&> ?" and failed.result[0].text == "a ??[0m <&> ?\nsecond"
    assert [case.result[0].message for case in skipped] == ["no GPU", "expected failure: known"]
    assert lacking.result[0].message == told.failures[0] and lost.result[0].text == "1 of 5 items did not report"


def test_without_the_package_nothing_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "junitparser", None)
    assert main.main([*ADD, "--out", str(tmp_path / "out"), "--junitxml", "x.xml"]) == main.USAGE
    told = capsys.readouterr()
    assert told.err == "conformance: --junitxml: needs junitparser: pip install junitparser\n" and not told.out
    assert not (tmp_path / "out").exists()


# --- dtypes -----------------------------------------------------------------------------------------------------


def test_operators_that_take_none_of_the_dtypes_are_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taking = {"int8_matmul", "matvec", "transpose"}
    assert {item.op for item in plan.items(Options(dtypes=("i8",), backends=("torch_ref", "spec")))} == taking
    assert not artifacts.omissions(Options(("matvec",), dtypes=("i8",)), []), "the others were not asked for"
    run = ["--backend", "torch_ref", "--dtype", "i8", "-k", "exact-accuracy or mul-torch_ref/plain-accuracy"]
    assert main.main([*run, "--out", str(tmp_path)]) == main.OK
    line = f"int8_matmul, matvec, transpose alone take i8: the other {len(catalog.names()) - 3} operators are left out"
    assert (
        line in (tmp_path / "matrix-partial.md").read_text() and line in (tmp_path / "report-partial.html").read_text()
    )
    assert line in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("item", "dtype"),
    [
        (Item("matvec", "torch_ref", "exact", "state"), "i8"),  # its empty cases of weights are of other dtypes
        (Item("transpose", "torch_ref", "plain", "torch"), "i8"),  # integers have no gradient
        (Item("matvec", "torch_ref", "plain", "gradients"), "i8"),
        (Item("int8_matmul", "torch_ref", "exact", "special_values"), "i8"),
        (Item("fp8_matmul", "torch_ref", "exact", "state"), "e5m2"),
        (Item("matvec", "torch_ref", "plain", "shapes"), "fp16"),  # some of its drawn shapes are of weights in i8
        (
            Item("matvec", "torch_ref", "plain", "state"),
            "fp32",
        ),  # for which cases are made, as it takes none of the spec's
        (Item("add_rms_norm", "torch_ref", "plain", "integration"), "fp16"),  # whose formula rounds between its steps
    ],
    ids=lambda value: value if isinstance(value, str) else value.id,
)
def test_a_check_of_a_dtype_passes_or_says_why_not(item: Item, dtype: str) -> None:
    outcome = execute(item, Options((item.op,), dtypes=(dtype,), tier="smoke"))
    assert outcome.status in ("passed", "skipped"), outcome.text
    assert {r.dtype for r in outcome.records} <= {dtype, ""} and (outcome.status == "passed" or outcome.text)
