"""The command line: what it refuses, what it runs, what it leaves behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernelmux.conformance.cli import arguments, main
from kernelmux.conformance.options import Options
from kernelmux.conformance.report import artifacts
from kernelmux.conformance.session import mutation
from kernelmux.registry.cli import terminal

ADD = ["--op", "add", "--backend", "torch_ref", "--check", "accuracy"]
COMMAND = [sys.executable, "-m", "kernelmux.conformance"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--op", "sofmax"], 'unknown operator "sofmax"'),
        (["--op"], "expected at least one argument"),
        (["--backend", "tritn"], 'did you mean "triton"?'),
        (["--backend", "torch_ref/plian", "--op", "add"], 'did you mean "plain"?'),
        (["--check", "acuracy"], 'did you mean "accuracy"?'),
        (["--op", "softmax", "--case", "x4x101"], 'unknown case "x4x101"'),
        (["--op", "softmax", "--case", "x4x100", "zzz"], 'unknown case "zzz"'),
        (["--dtype", "fp17"], "fp17"),
        (["--dtype", "fp64", "--op", "add"], "--dtype fp64: expected one of fp32, fp16, bf16"),
        (["--dtype", "fp64", "bf16"], "--dtype fp64: expected one of fp32, fp16, bf16"),
        (["--dtype", "i8", "--op", "matvec", "add", "softmax"], "fp32, fp16, bf16, which add, softmax take"),
        (["--dtype", "int8", "bf16", "--op", "add"], "--dtype int8: expected one of fp32, fp16, bf16, which add takes"),
        (["--dtype", "bf16", "--op", "fp8_matmul"], "expected one of e4m3, e5m2, which fp8_matmul takes"),
        (["-k", "softmax and"], "-k 'softmax and': expected"),
        (["-k", "softmax)"], "-k 'softmax)': expected"),
        (["-k", "softmax & exact"], 'unexpected character "&"'),
        (["-k", "softmax(axis=1)"], "-k 'softmax(axis=1)': "),
        (["-k", "sofmax"], "nothing to run: no item fits this selection and -k sofmax (--list shows what there is)"),
        (["-k"], "expected one argument"),
        (["-k", "exact", "--matrix"], "expected no selection but --op, got -k"),
        (["-k", "exact", "--fuzz", "1"], "expected no selection but --op, got -k"),
        (["-q", "-v"], "not allowed with"),
        (["--maxfail", "0"], "expected a whole number from 1 on"),
        (["--durations", "-1"], "expected"),
        (["--lf", "--out", "no/such/folder"], "--last-failed: nothing is known to fail"),
        (["--record"], "--device cuda"),
        (["--check", "accuracy", "--backend", "spec"], "nothing to run"),
        (["--tier", "tiny"], "invalid choice: 'tiny'"),
        (["--seed", "abc"], "expected a whole number, got 'abc'"),
        (["--seed", "1.5"], "expected a whole number"),
        (["--seed"], "expected at least one argument"),
        (["--device", "tpu"], "invalid choice"),
        (["-n", "abc"], "got 'abc'"),
        (["-n", "0"], "expected auto or a number from 1"),
        (["-n", "-1"], "-n"),
        (["-n", "1e3"], "got '1e3'"),
        (["-n", "²"], "expected auto"),
        (["-n", "100000"], "from 1 to 256"),
        (["-n"], "expected one argument"),
        (["--operator", "add"], "unrecognized arguments"),
        (["--tire", "smoke"], 'unrecognized arguments: --tire smoke; did you mean "--tier"?'),
        (["add"], "unrecognized arguments: add"),
        (["--matrix", "--mutants"], "not allowed with"),
        (["--list", "--mutants"], "not allowed with"),
        (["--list", "--record"], "not allowed with"),
        (["--matrix", "."], "cannot be read: Is a directory"),
        (["--matrix", "no/such/file.md"], "cannot be read: No such file"),
        (["--matrix", "/dev/null"], "<!-- matrix -->"),
        (["--matrix", "--backend", "cuda"], "expected no selection but --op, got --backend"),
        (["--matrix", "--op", "sofmax"], 'unknown operator "sofmax"'),
        (["--matrix", "/dev/null", "--op", "add"], "a file holds all operators, got --op add"),
        (["--mutants", "--case", "x4x100"], "--case cannot be combined"),
        (["--mutants", "--backend", "cuda"], "--backend cannot be combined"),
        (["--mutants", "--op", "sofmax"], 'unknown operator "sofmax"'),
        (["--op", "softmax", "--case", "x=4xx5"], "--case x=4xx5"),
        (["--op", "softmax", "--case", "x=1e3:fp16"], "--case x=1e3:fp16"),
        (["--op", "softmax", "--case", "x=4x5:fp99"], "fp99"),
        (["--op", "softmax", "--case", "x=4x5,axis=7"], "axis"),
        (["--op", "softmax", "--case", "x=4x5,axis=-3"], "axis"),
        (
            ["--op", "softmax", "--case", "y=4x5"],
            'unknown argument "y" in the shapes of softmax; known: x, axis, scale',
        ),
        (["--op", "matmul", "--case", "a=4x5"], "expected a shape such as 4x100 for each of a, b, got shapes for a"),
        (["--op", "softmax", "--case", "x=4x5,scael=0.5"], 'did you mean "scale"? known: x, axis, scale'),
        (["--op", "softmax", "--case", "x=4x5,scale=abc"], "scale"),
        (["--op", "softmax", "--case", "x=1099511627776x2"], "GiB"),
        (
            ["--op", "softmax", "--case", "x=99999999999999999999x99999999999999999999"],
            "expected at most 2**58 elements",
        ),
        (["--op", "matmul", "--case", "a=4x5,b=6x7"], "matmul"),
        (["--op", "copy_column", "--case", "x=4x5"], "column"),
        (["--case", "=4"], "--case =4"),
        (
            [*ADD, "--out", "/dev/null"],
            "--out /dev/null: expected a folder that can be written to: a file is in its place",
        ),
        ([*ADD, "--out", "/dev/null/below"], "a file is in its place"),
        ([*ADD, "--out", "/proc/no/such/folder"], "--out /proc/no/such/folder"),
        ([*ADD, "--expected", "no/such/file.toml"], "no/such/file.toml"),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(arguments) == main.USAGE
    shown = capsys.readouterr()
    assert text in shown.err and shown.err.startswith("conformance: ") and shown.err.count("\n") == 1
    assert shown.out == ""


def test_help_and_reproduce_name_the_command_that_was_started() -> None:
    plain = arguments.parser()
    assert plain.prog == plain.parse_args([]).program == "python -m kernelmux.conformance"
    with terminal.started_as("kernelmux conformance"):
        made = arguments.parser()
    assert made.prog == made.parse_args([]).program == "kernelmux conformance"
    assert "  kernelmux conformance --tier smoke " in made.format_help() and "python -m" not in made.format_help()


def two_items(folder: Path) -> list[str]:
    """The arguments of a run of two items that pass."""
    return [*ADD, "exact", "--out", str(folder), "-n", "1"]


def last(text: str) -> str:
    """The last line without its time."""
    return text.splitlines()[-1].partition(" in ")[0]


def test_a_run_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(two_items(tmp_path)) == main.OK
    out = capsys.readouterr().out
    assert last(out) == "2 passed, 0 failed, 0 skipped" and out.startswith("conformance: 2 items of 1 operator")
    assert out.splitlines()[-1].endswith(": torch_ref on the CPU; not tested: cuda, triton") and "[2/2]" not in out
    lines = [json.loads(line) for line in (tmp_path / "results-partial.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines[:2]] == ["run", "item"] and lines[-1]["kind"] == "summary"
    assert (
        lines[0]["schema"] == 1
        and lines[0]["tested"] == {"on the CPU": ["torch_ref"]}
        and "torch" in lines[0]["versions"]
    )
    trials = [line for line in lines if line["kind"] == "trial"]
    assert lines[1]["spec"] and lines[1]["source"] and all(t["budget"] <= 1 and t["axes"] for t in trials)
    table = (tmp_path / "matrix-partial.md").read_text()
    assert "| add | torch_ref/plain |" in table and "| add | ✓ |" in table and "torch_ref on the CPU" in table


def test_several_seeds_run_every_item_for_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([*two_items(tmp_path), "--seed", "3", "0x11", "-v"]) == main.OK
    out = capsys.readouterr().out
    assert last(out) == "4 passed, 0 failed, 0 skipped" and "seeds 3, 17" in out
    assert "passed add-torch_ref/plain-accuracy-seed17" in out
    lines = [json.loads(line) for line in (tmp_path / "results-partial.jsonl").read_text().splitlines()]
    seeds = {(line["check"], line["seed"]) for line in lines if line["kind"] == "trial"}
    assert seeds == {(check, seed) for check in ("accuracy", "exact") for seed in (3, 17)}


def test_the_folder_of_the_reports_keeps_what_is_not_ours(tmp_path: Path) -> None:
    """A configuration of pytest, a link in place of a report, the results of a whole run."""
    other = tmp_path / "other"
    folder = tmp_path / "out"
    folder.mkdir()
    other.write_text("mine")
    for name in ("pytest.ini", "plan.json", "results.jsonl", "matrix.md"):
        (folder / name).write_text("mine")
    (folder / "matrix-partial.md").symlink_to(other)
    assert main.main(two_items(folder)) == main.OK
    assert {(folder / n).read_text() for n in ("pytest.ini", "plan.json", "results.jsonl", "matrix.md")} == {"mine"}
    assert other.read_text() == "mine" and "add" in (folder / "matrix-partial.md").read_text()
    written = {
        "durations.json",
        "last_failed.json",
        "matrix-partial.md",
        "report-partial.html",
        "results-partial.jsonl",
    }
    written |= {"rows.jsonl", ".rows.jsonl.lock"}  # those of the runner, with which --resume goes on
    assert {p.name for p in folder.iterdir()} - written == {"pytest.ini", "plan.json", "results.jsonl", "matrix.md"}


def test_a_whole_run_has_files_of_its_own() -> None:
    assert artifacts.names(Options(), True) == ("results.jsonl", "matrix.md", "report.html")
    smoke = ("results-smoke.jsonl", "matrix-smoke.md", "report-smoke.html")
    assert artifacts.names(Options(tier="smoke"), True) == smoke
    partial = ("results-partial.jsonl", "matrix-partial.md", "report-partial.html")
    assert artifacts.names(Options(tier="full"), False) == partial


DAMAGED = ["[" * 100_000, '{"a": "b"}', "\0", "null", "[1, 2]", '{"a": NaN}']


@pytest.mark.parametrize("damaged", DAMAGED)
def test_a_damaged_state_is_none(damaged: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "durations.json").write_text(damaged)
    (tmp_path / "last_failed.json").write_text(damaged)
    assert artifacts.durations(tmp_path) == {} and artifacts.last_failed(tmp_path) == ()
    told = capsys.readouterr().err
    assert told.count("durations.json is damaged") == 1 and told.count("last_failed.json is damaged: ignored") == 1


def test_a_damaged_state_does_not_stop_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "durations.json").write_text('{"add-torch_ref/plain-exact": 1.')
    assert main.main(two_items(tmp_path)) == main.OK
    assert capsys.readouterr().err.count("durations.json is damaged") == 1
    assert len(json.loads((tmp_path / "durations.json").read_text())) == 2
    assert json.loads((tmp_path / "last_failed.json").read_text()) == []


@pytest.mark.parametrize("damaged", [*DAMAGED, "\ufeff[]", '["cut sh'])
def test_what_failed_last_may_be_damaged(damaged: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "last_failed.json").write_text(damaged)
    assert main.main([*two_items(tmp_path), "--last-failed"]) == main.USAGE
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("last_failed.json is damaged: ignored, and written anew at the end")
    assert second.startswith("conformance: --last-failed: nothing is known to fail")


def test_the_folder_may_lie_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main.main([*two_items(Path("../there"))]) == main.OK
    assert (tmp_path / "there/report-partial.html").is_file() and not list((tmp_path / "here").iterdir())


def test_a_failure_says_what_is_wrong_and_how_to_see_it_again(
    tmp_path: Path, mutants: None, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ["--op", "matmul", "--backend", mutant("silent_tf32"), "--check", "accuracy"]
    run = [*chosen, "--out", str(tmp_path), "-n", "1", "--program", "their command"]
    run += ["--dtype", "fp32", "fp16", "bf16"]  # each in every case, so that dtypes alone set the failures apart
    assert main.main(run) == main.FAILED
    out = capsys.readouterr().out
    assert f"matmul[{chosen[3]}] accuracy" in out and "pattern:" in out
    assert last(out) == "0 passed, 1 failed, 0 skipped" and "across the trials: fails only for fp32" in out
    command = next(line for line in out.splitlines() if "reproduce:" in line).split("their command ")[1].split()
    assert main.main([*command, "--out", str(tmp_path), "-n", "1"]) == main.FAILED


def mutant(name: str) -> str:
    """A broken variant as --backend takes it."""
    return next(f"{m.backend}/{m.variant}" for m in mutation.population("cpu") if m.variant == name)


def test_unwritten_elements_are_named_as_poison(
    tmp_path: Path, mutants: None, capsys: pytest.CaptureFixture[str]
) -> None:
    run = [
        "--op",
        "softmax",
        "--backend",
        mutant("unwritten_tail"),
        "--check",
        "memory",
        "--out",
        str(tmp_path),
        "-n",
        "1",
    ]
    assert main.main(run) == main.FAILED
    out = capsys.readouterr().out
    assert "they were never written" in out and "bound = " in out


def test_the_list_names_checks_and_items(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--op", "add", "--backend", "torch_ref", "--list"]) == main.OK
    out = capsys.readouterr().out
    assert "special_values" in out and "add-torch_ref/plain-accuracy" in out


def test_worker_processes_bring_all_results_those_of_mutants_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["--mutants", "--op", "transpose", "--check", "shapes", "-n", "2", "--out", str(tmp_path), "-v"]
    assert main.main(run) == main.OK
    out = capsys.readouterr().out
    assert "caught shapes" in out and "broken kernels caught, 0 problems" in out and "left]" in out
    assert re.search(r"^\[(\d+)/\1\] ", out, re.MULTILINE), "the last result makes them all"


def started(*arguments: str) -> subprocess.Popen[str]:
    """The command as a process group of its own that hears Ctrl-C, as a shell starts it."""
    pipe, command = subprocess.PIPE, [*COMMAND, *arguments]
    heard = signal.signal(signal.SIGINT, signal.SIG_DFL)  # what runs in the background inherits that it is ignored
    try:
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    finally:
        signal.signal(signal.SIGINT, heard)


LONG = ("--op", "transpose", "softmax", "reduce_sum", "matmul", "rope", "--backend", "torch_ref")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_keeps_what_was_found(workers: str, tmp_path: Path) -> None:
    process = started(*LONG, "-n", workers, "--out", str(tmp_path), "-v")
    assert process.stdout is not None
    process.stdout.readline()  # how many items there are
    process.stdout.readline()  # the first of them
    for _ in range(3):  # `timeout -s INT` sends two
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.02)
    out, err = process.communicate(timeout=600)
    assert process.returncode == main.INTERRUPTED, err
    done, planned = map(int, re.findall(r"interrupted after (\d+) of (\d+) items", err)[0])
    assert done < planned / 2
    assert "Traceback" not in out + err and "was lost" not in out + err
    assert err.count("\n") == 1 and " passed, " in out.splitlines()[-1]
    told = json.loads((tmp_path / "results-partial.jsonl").read_text().splitlines()[-1])
    assert told["passed"] + told["skipped"] >= 1


def used(process: subprocess.Popen[str]) -> float:
    """Seconds of a processor that a process has had."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("seconds", [0.3, 1.2])
def test_ctrl_c_at_the_start_is_one_line(seconds: float, tmp_path: Path) -> None:
    """While it imports, which it has begun to do after 0.1 s of a processor."""
    process = started(*LONG, "-n", "2", "--out", str(tmp_path))
    while process.poll() is None and used(process) < seconds:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode == main.INTERRUPTED and "interrupted" in err and "Traceback" not in out + err, err


@pytest.mark.parametrize("arguments", [("--help",), ("--list",), (*LONG, "-n", "2", "-v")], ids=lambda a: a[-1])
def test_a_reader_that_goes_away_ends_the_run_quietly(arguments: tuple[str, ...], tmp_path: Path) -> None:
    with started(*arguments, "--out", str(tmp_path)) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=600) in (main.CLOSED, main.OK)
        assert process.stderr.read() == ""


def test_a_missing_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "pytest.py").write_text("raise ModuleNotFoundError(\"No module named 'pytest'\", name='pytest')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", str(Path(__file__).parents[3]))])
    done = subprocess.run(COMMAND, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == main.USAGE
    install = "pip install pytest execnet hypothesis Jinja2 filelock junitparser nvidia-ml-py"
    assert done.stderr == f"conformance: pytest is not installed: {install}\n"
