"""The command line: what it refuses, what it runs, what it leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelmux.conformance import cli


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--op", "sofmax"], 'unknown operator "sofmax"'),
        (["--backend", "tritn"], 'did you mean "triton"?'),
        (["--backend", "torch_ref/eagre", "--op", "add"], 'did you mean "eager"?'),
        (["--check", "acuracy"], 'did you mean "accuracy"?'),
        (["--op", "softmax", "--case", "x4x101"], 'unknown case "x4x101"'),
        (["--dtype", "fp17"], "fp17"),
        (["--record"], "--device cuda"),
        (["--check", "accuracy", "--backend", "spec"], "nothing to run"),
    ],
)
def test_a_misspelt_selection_is_a_usage_error(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == cli.USAGE
    assert text in capsys.readouterr().err


def two_items(folder: Path, workers: int) -> list[str]:
    """The arguments of a run of two items that pass."""
    chosen = ["--op", "add", "--backend", "torch_ref", "--check", "accuracy", "exact"]
    return [*chosen, "--out", str(folder), "-n", str(workers)]


def test_a_run_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(two_items(tmp_path, workers=1)) == cli.OK
    assert capsys.readouterr().out.splitlines()[-1] == "2 passed, 0 failed, 0 skipped"
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines[:2]] == ["run", "item"] and lines[-1]["kind"] == "summary"
    assert lines[0]["schema"] == 1 and lines[0]["machine"] == "emulated on the CPU" and "torch" in lines[0]["versions"]
    assert (
        lines[1]["spec"]
        and lines[1]["source"]
        and all(line["budget"] <= 1 for line in lines if line["kind"] == "trial")
    )
    assert "| add | torch_ref/eager |" in (tmp_path / "matrix.md").read_text()


def test_worker_processes_give_the_same_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(two_items(tmp_path, workers=2)) == cli.OK
    assert capsys.readouterr().out.splitlines()[-1] == "2 passed, 0 failed, 0 skipped"


def test_a_failure_says_what_is_wrong_and_how_to_see_it_again(
    tmp_path: Path, mutants: None, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["--op", "transpose", "--backend", "mutants/no_edge", "--check", "shapes", "--out", str(tmp_path), "-n", "1"]
    assert cli.main(run) == cli.FAILED
    out = capsys.readouterr().out
    assert "transpose[mutants/no_edge] shapes" in out and "pattern:" in out and "0 passed, 1 failed, 0 skipped" in out
    command = next(line for line in out.splitlines() if "reproduce:" in line).split(" -- ")[1].split()
    assert cli.main([*command, "--out", str(tmp_path), "-n", "1"]) == cli.FAILED


def test_unwritten_elements_are_named_as_poison(
    tmp_path: Path, mutants: None, capsys: pytest.CaptureFixture[str]
) -> None:
    run = [
        "--op",
        "softmax",
        "--backend",
        "mutants/unwritten_tail",
        "--check",
        "memory",
        "--out",
        str(tmp_path),
        "-n",
        "1",
    ]
    assert cli.main(run) == cli.FAILED
    out = capsys.readouterr().out
    assert "they were never written" in out and "bound = " in out


def test_the_list_names_checks_and_items(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--op", "add", "--backend", "torch_ref", "--list"]) == cli.OK
    out = capsys.readouterr().out
    assert "special_values" in out and "add-torch_ref/eager-accuracy" in out
