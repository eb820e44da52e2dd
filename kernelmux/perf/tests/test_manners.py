"""The command line: wrong words, wrong files, Ctrl-C, narrow terminals, busy machines."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from kernelmux.perf import __main__ as program
from kernelmux.perf.cli import command, main
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.record import run_file
from kernelmux.perf.record.run_file import Overhead
from kernelmux.perf.report import compare, markdown, page, tables
from kernelmux.perf.rows import output_files
from kernelmux.perf.rows.codec import encode
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.perf.session import run as session
from kernelmux.perf.tests import synthetic
from kernelmux.perf.timing import measure
from kernelmux.perf.wording import wording
from kernelmux.registry.cli import terminal
from kernelmux.runner import local_pool, results

BACKEND = """
from kernelmux.registry.backend import Backend

BACKEND = Backend(name="theirs", summary="a test", priority=5, unavailable=lambda device: None)
"""
ADD = """
import time
from functools import partial
from kernelmux.registry.backend import Implementation

def right(x, y):
    return x + y

def hangs(x, y):
    time.sleep(600)

VARIANTS = {f.__name__: Implementation(fn=f, idea="") for f in (right, hangs)}
"""


def told(capsys, *arguments):
    """Exit status and the lines on stderr."""
    status: object
    try:
        status = main.main(list(arguments))
    except SystemExit as end:
        status = end.code
    return status, capsys.readouterr().err.splitlines()


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, and no GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--samples abc", "--samples: expected a whole number from 1 on, got 'abc'"),
        ("--samples 0", "--samples: expected a whole number from 1 on"),
        ("--samples 9999999999999", "--samples: expected a whole number from 1 on"),
        ("--jobs -2", "--jobs: expected a whole number from 0 on"),
        ("--limit 0", "--limit: expected seconds, more than 0, got '0'"),
        ("--limit nan", "--limit: expected seconds, more than 0"),
        ("--limit -1", "--limit: expected seconds, more than 0"),
        ("--limit inf", "--limit: expected seconds, more than 0"),
        ("--minutes 0", "--minutes: expected minutes, more than 0, got '0'"),
        ("--minutes nan", "--minutes: expected minutes, more than 0"),
        ("--op softmax --workload x=4xx5", "x: expected lengths such as 4x1000"),
        ("--op softmax --workload x=1e3:fp16", "x: expected lengths such as 4x1000"),
        ("--op softmax --workload x=4x5,x=5", "x is given twice"),
        ("--op softmax --workload y=4x5", 'unknown argument "y"'),
        ("--op softmax --workload x=4x5,z=3", 'unknown argument "z"'),
        ("--op softmax --workload x=99999999x99999999", "GiB of memory; this machine has"),
        ("--op softmax --workload x=999999999999x99999999999", "at most 2**58 elements"),
        ("--workload nope --list", "no workload fits --workload nope"),
        ("--op softmax --dtype int8 --list", "--dtype int8: expected one of fp32, fp16, bf16, which softmax takes"),
        ("--op add matvec --dtype i8 --list", "--dtype i8: expected one of fp32, fp16, bf16, which add takes"),
        ("--dtype fp64 bf16 --list", "--dtype fp64: expected one of fp32, fp16, bf16"),
        ("--backend cuda/nope --list", 'unknown variant of cuda "nope"'),
        (
            "--op softmax --out /dev/null",
            "--out /dev/null: expected a folder that can be written to",
        ),
        (
            "--op softmax --html /dev/null/x.html",
            "--html /dev/null: expected a folder that can be written to",
        ),
        ("--op softmax --html .", "--html: expected a file, got the folder ."),
        ("--update .", "--update: expected a file, got the folder ."),
        ("--update missing.md", "missing.md has no <!-- perf -->"),
        ("--compare .", "expected results of kernelmux.perf"),
        ("--render .", "--render: expected --html FILE"),
        ("--render . --html x.html", "expected results of kernelmux.perf"),
    ],
)
def test_wrong_words_take_one_line_and_end_with_2(arguments, says, here, capsys):
    status, lines = told(capsys, *arguments.split())
    assert (status, len(lines)) == (2, 1), lines
    assert says in lines[0]


HEAD = {"kind": "kernelmux.perf", "schema": 1, "date": "", "command": "", "machine": {}, "ceilings": None, "rows": []}
GOOD = encode(synthetic.row())
MALFORMED = {
    "empty": "",
    "cut off": json.dumps(HEAD)[:40],
    "bytes": b"\xff\xfe",
    "nested": "[" * 100_000,
    "a list": [],
    "another kind": {"benchmarks": []},
    "another schema": HEAD | {"schema": 99},
    "versions are a number": HEAD | {"machine": {"versions": 5, "name": "x"}},
    "a hash is missing": HEAD | {"rows": [{k: v for k, v in GOOD.items() if k != "source"}]},
    "half a point": HEAD | {"rows": [{k: v for k, v in GOOD.items() if k != "share"}]},
    "a time is infinite": HEAD | {"rows": [GOOD | {"held_us": float("inf")}]},
    "no rows": {k: v for k, v in HEAD.items() if k != "rows"},
    "rows are a number": HEAD | {"rows": 5},
    "a row is a number": HEAD | {"rows": [5]},
    "a row without names": HEAD | {"rows": [{"status": "ok"}]},
    "an unknown status": HEAD | {"rows": [GOOD | {"status": "fine"}]},
    "a time is text": HEAD | {"rows": [GOOD | {"median_us": "fast"}]},
    "a time is 0": HEAD | {"rows": [GOOD | {"median_us": 0}]},
    "a failure without a reason": HEAD | {"rows": [GOOD | {"status": "failed"}]},
    "ceilings are a list": HEAD | {"ceilings": [1]},
}


@pytest.mark.parametrize("kind", MALFORMED)
@pytest.mark.parametrize("option", ["--render", "--compare"])
def test_a_file_that_is_no_result_takes_one_line(kind, option, here, capsys):
    content = MALFORMED[kind]
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    (here / "x.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    status, lines = told(capsys, "--op", "add", option, "x.json", "--html", "x.html", "--out", "out")
    assert (status, len(lines)) == (2, 1), lines
    assert "x.json: expected" in lines[0]
    assert not (here / "x.html").exists()


@pytest.mark.parametrize(
    "damage",
    [
        {"rows": [GOOD | {"bytes": 0}]},
        {"rows": [GOOD | {"workload": "axis=0"}]},
        {"rows": [GOOD], "ceilings": encode(synthetic.H200) | {"copy": 0.0}},
    ],
)
def test_values_that_no_run_gives_take_one_line(damage, here, capsys):
    pytest.importorskip("matplotlib")  # only charts mind
    (here / "x.json").write_text(json.dumps(HEAD | {"ceilings": encode(synthetic.H200)} | damage))
    status, lines = told(capsys, "--render", "x.json", "--html", "x.html")
    assert (status, len(lines)) == (2, 1) and "x.json: expected results of a run" in lines[0]


def test_rows_of_a_backend_or_an_operator_that_is_not_here_are_rendered(here, capsys):
    rows = [GOOD | {"backend": "elsewhere", "variant": "<b>bold</b>"}, GOOD | {"op": "unheard_of"}, GOOD]
    (here / "x.json").write_text(json.dumps(HEAD | {"ceilings": encode(synthetic.H200), "rows": rows}))
    status, lines = told(capsys, "--render", "x.json", "--html", "x.html")
    assert (status, lines) == (0, [])
    assert "elsewhere/&lt;b&gt;bold" in (here / "x.html").read_text()


def test_a_missing_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(terminal.DISTRIBUTIONS, "xdist_is_gone", "pytest-xdist")
    monkeypatch.setattr(program, "NEEDED", ("pytest", "xdist_is_gone", "no_such_module_here"))
    assert program.main() == 2
    assert (
        capsys.readouterr().err
        == "perf: needs xdist_is_gone, no_such_module_here: pip install pytest-xdist no_such_module_here\n"
    )


# --- files ------------------------------------------------------------------------------------------------------


def test_a_run_into_a_users_folder_touches_no_file_of_theirs(here):
    (here / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (here / "precious").write_text("keep me")
    (here / "report.md").symlink_to("precious")
    assert main.main(["--op", "add", "--dtype", "fp32", "--quick", "--samples", "3", "--out", "."]) == 0
    assert (here / "pytest.ini").read_text() == "[pytest]\naddopts = --no-such-option\n"
    assert (here / "precious").read_text() == "keep me" and not (here / "report.md").is_symlink()
    written = {"results.json", "report.md", "report.html", "benchmark.json", "rows.jsonl", ".rows.jsonl.lock", "logs"}
    assert {path.name for path in here.iterdir()} == written | {"pytest.ini", "precious"}
    assert [path.name for path in (here / "logs").iterdir()] == ["worker-cpu0.log"]


def test_results_with_more_rows_are_kept_beside_those_of_a_smaller_run(tmp_path):
    path = tmp_path / "results.json"
    large, small = synthetic.results(synthetic.ladder()), synthetic.results(synthetic.ladder()[:1])
    for found in (large, small, large, small):
        run_file.keep(found, path)
        run_file.write(found, path)
    kept = [json.loads(p.read_text()) for p in sorted(tmp_path.glob("results-*.json"))]
    assert [len(k["rows"]) for k in kept] == [4, 4] and len(run_file.read(path).rows) == 1


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "x"
    output_files.write(path, "old")
    monkeypatch.setattr(output_files.os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(output_files.ArgumentError, match="cannot be written: No space left"):
        output_files.write(path, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["x"] and path.read_text() == "old"


# --- interruptions ----------------------------------------------------------------------------------------------


@pytest.fixture
def hanging(tmp_path):
    """A run whose first variant is timed, and whose second one hangs."""
    env = synthetic.backend_of_their_own(tmp_path, BACKEND, ADD)
    words = "--device cpu --op add --backend theirs --dtype fp32 --samples 3 --out out".split()
    with subprocess.Popen(
        [sys.executable, "-m", "kernelmux.perf", *words],
        cwd=tmp_path,
        env=env | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # What runs in the background inherits that the signal is ignored.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as process:
        while "theirs/right" not in (line := process.stdout.readline()):
            assert line, process.stderr.read()
        time.sleep(1)
        yield process
        process.kill()


def test_ctrl_c_keeps_the_rows_that_were_timed(hanging, tmp_path):
    os.killpg(hanging.pid, signal.SIGINT)
    _, errors = hanging.communicate(timeout=100)
    assert (hanging.returncode, errors) == (130, "perf: interrupted; the rows that were timed are kept\n")
    kept = {(r["backend"], r["variant"]) for r in json.loads((tmp_path / "out/results.json").read_text())["rows"]}
    assert kept == {("theirs", "right")}


def test_a_run_that_was_killed_leaves_rows_and_no_process(hanging, tmp_path):
    hanging.kill()
    hanging.communicate(timeout=60)
    told = results.read(tmp_path / "out/rows.jsonl").rows
    assert [line["item"].rpartition("-")[2] for line in told if "item" in line] == ["theirs/right"]
    (worker,) = (line["pid"] for line in told if "worker" in line)
    end = time.monotonic() + 20
    while Path(f"/proc/{worker}/exe").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}/exe").exists()


def test_ctrl_c_before_the_first_row_writes_nothing(here, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(local_pool.LocalPool, "events", interrupted)
    status, lines = told(capsys, "--op", "add", "--out", "out")
    assert (status, lines) == (130, ["perf: interrupted"])
    assert not {"results.json", "report.md"} & {path.name for path in (here / "out").iterdir()}


def test_ctrl_c_behind_the_rows_keeps_them(here, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command.overhead, "measure", interrupted)
    words = "--device cpu --op add --backend torch_ref --dtype fp32 --samples 3 --out out".split()
    status, lines = told(capsys, *words)
    assert (status, lines) == (130, ["perf: interrupted; the rows that were timed are kept"])
    assert json.loads((here / "out/results.json").read_text())["rows"]


def test_an_output_that_nothing_reads_ends_the_workers_quietly(here, monkeypatch):
    """As `| head` does: the pipe breaks while a row is reported."""

    def broken(event):
        raise BrokenPipeError

    row = Row("add", "x=4099 y=4099", "fp32", "torch_ref", "plain")
    with pytest.raises(BrokenPipeError):
        session.run([row], PerfOptions(out="out"), broken)
    (started,) = [line["pid"] for line in results.read(here / "out/rows.jsonl").rows if "worker" in line]
    end = time.monotonic() + 10
    while Path(f"/proc/{started}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{started}").exists()


def test_the_command_reports_its_end_as_a_shell_does(capfd):
    def ends(error):
        def command():
            raise error

        return terminal.run("perf", command)

    assert ends(KeyboardInterrupt()) == 130
    assert capfd.readouterr().err == "perf: interrupted\n"


# --- what is shown ----------------------------------------------------------------------------------------------


def printed(width, show, *arguments):
    file = StringIO()
    show(Console(file=file, width=width, highlight=False), *arguments)
    return file.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_number_is_cut_at_any_width(width):
    rows = [synthetic.row(us=1234567.0, variant="registers"), synthetic.row(us=41634.0, backend="torch_ref")]
    overhead = [Overhead("rms_norm_backward", "torch_ref/plain", 12345.67, 12349.0)]
    now = synthetic.results([synthetic.row(us=999999.0, variant="registers")])
    for text in (
        printed(width, tables.show, rows, True),
        printed(width, tables.show, rows, False),
        printed(width, tables.best, rows),
        printed(width, tables.overhead, overhead),
        printed(width, compare.show, synthetic.results(rows), now),
    ):
        assert "…" not in text
        assert all(len(line.rstrip()) <= width for line in text.splitlines() if not line.startswith("us: "))
    assert "1234567" in printed(width, tables.show, rows, True) and "12345.67" in printed(60, tables.overhead, overhead)
    assert "left out at this width: " in printed(60, tables.show, rows, True)


def test_a_busy_machine_is_reported_and_no_impossible_time_is_shown():
    wild = synthetic.row(spread=276.221)
    overhead = (Overhead("add", "torch_ref/plain", 1800.0, 59.0),)
    found = synthetic.results([wild], overhead=overhead)
    text = printed(120, tables.show, [wild], False) + printed(120, tables.overhead, overhead)
    text += printed(120, tables.busy, [wild], overhead) + markdown.whole(found, "") + page.html(found)
    assert "27622" not in text and "-1741" not in text
    assert "WARNING: the machine is busy: 2 times vary" in text
    assert text.count("the machine is busy") + text.count("The machine is busy") == 3
    assert wording.busy([synthetic.row()], [Overhead("add", "torch_ref/plain", 1800.0, 1801.0)]) is None


@pytest.mark.parametrize("precision", ["tf32", "ieee", None])
def test_rows_that_permit_tf32_are_timed_with_it_and_no_others(precision, monkeypatch):
    seen = []

    def timed(*_):
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        return synthetic.row()

    monkeypatch.setattr(measure, "_time_row", timed)
    arguments = {} if precision is None else {"precision": precision}
    nothing: Any = None
    shared: Any = SimpleNamespace(inputs=SimpleNamespace(call=SimpleNamespace(arguments=arguments)))
    before = torch.backends.cuda.matmul.allow_tf32
    measure.time_row(nothing, nothing, shared, nothing, nothing, PerfOptions(), None)
    assert seen == [precision == "tf32"] and torch.backends.cuda.matmul.allow_tf32 == before


def test_places_are_asked_about_before_the_work(here, monkeypatch, capsys):
    monkeypatch.setattr(session, "run", lambda *_: pytest.fail("the work has begun"))
    assert told(capsys, "--op", "add", "--out", "/dev/null")[0] == 2
