"""Ctrl-C, kill -9, and going on: a command line whose run is ended from outside."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from kernelmux.runner import results
from kernelmux.runner.tests import toy

# As a shell's command in the foreground: what runs in the background inherits that the signal is ignored.
HEARS_CTRL_C = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
PROGRAM = [sys.executable, "-m", "kernelmux.runner.tests.toy_program"]
TOP = Path(__file__).resolve().parents[3]


def start(home, *words, **more):
    environment = {**os.environ, "PYTHONPATH": str(TOP)}
    command = [*PROGRAM, "--out", str(home), *words]
    more |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "preexec_fn": HEARS_CTRL_C}
    return subprocess.Popen(command, text=True, cwd=TOP, env=environment, **more)


def run(home, *words):
    """The exit status and what is printed."""
    program = start(home, *words)
    out, err = program.communicate(timeout=60)
    return program.returncode, out + err


def some_rows(home, number=3):
    assert toy.wait_until(lambda: toy.written(home) >= number)


def none_left(pids):
    """Whether some seconds later none of the processes is there."""
    return toy.wait_until(lambda: not any(map(toy.alive, pids)), 10.0)


def test_ctrl_c_ends_with_a_report_of_what_there_is(tmp_path):
    with start(tmp_path, "--items", "200", "--seconds", "0.1") as program:
        some_rows(tmp_path)
        pids = toy.descendants(program.pid)
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=20)
    assert program.returncode == 130
    assert out == f"{len(toy.rows(tmp_path))} rows, resumed 0\n"
    assert err == ""
    assert len(pids) == 2
    assert none_left(pids)


def test_ctrl_c_in_a_terminal_is_not_the_workers(tmp_path):
    """A terminal sends it to all processes of its group; nothing is lost by that, and nothing printed."""
    with start(tmp_path, "--items", "200", "--seconds", "0.1", start_new_session=True) as program:
        some_rows(tmp_path)
        os.killpg(program.pid, signal.SIGINT)
        _out, err = program.communicate(timeout=20)
    assert program.returncode == 130
    assert {row["status"] for row in toy.rows(tmp_path).values()} == {"passed"}
    assert err == ""


def test_ctrl_c_twice_ends_at_once(tmp_path):
    """Though the first has not ended it: its suite does something that takes long."""
    code = (
        "import sys, time; from kernelmux.runner.tests import toy, toy_program\n"
        "toy.Toy.takes = lambda self, item, row: time.sleep(60)\n"
        "toy_program.main()"
    )
    environment = {**os.environ, "PYTHONPATH": str(TOP)}
    with subprocess.Popen(
        [sys.executable, "-c", code, "--out", str(tmp_path)],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=HEARS_CTRL_C,
    ) as program:
        some_rows(tmp_path, 1)
        pids = toy.descendants(program.pid)
        program.send_signal(signal.SIGINT)
        time.sleep(1.2)
        assert program.poll() is None
        program.send_signal(signal.SIGINT)
        assert program.wait(20) == 130
        assert program.stderr.read() == "toy: interrupted\n"
    assert len(pids) == 2
    assert none_left(pids)
    assert results.read(tmp_path / results.NAME).rows


@pytest.mark.parametrize("group", [True, False])
def test_kill_9_leaves_whole_rows_no_worker_and_a_run_to_go_on_with(tmp_path, group):
    with start(tmp_path, "--items", "60", "--seconds", "0.05", start_new_session=True) as program:
        some_rows(tmp_path, 5)
        pids = toy.descendants(program.pid)
        (os.killpg if group else os.kill)(program.pid, signal.SIGKILL)
        program.communicate(timeout=20)
    assert len(pids) == 2
    assert none_left(pids)
    before = toy.rows(tmp_path)
    assert 5 <= len(before) < 60
    status, text = run(tmp_path, "--items", "60", "--resume")
    assert (status, text) == (0, f"60 rows, resumed {len(before)}\n")
    after = toy.rows(tmp_path)
    assert len(after) == 60
    assert before.items() <= after.items()
    began = (tmp_path / "began").read_text(encoding="utf-8").splitlines()
    assert len(began) <= 60 + 2  # what ran when it was killed ran twice, nothing else


def test_killed_before_its_first_line_there_is_nothing_to_go_on_with(tmp_path):
    (tmp_path / results.NAME).write_text('{"kind": "ro', encoding="utf-8")
    status, text = run(tmp_path, "--resume")
    told = f"toy: {tmp_path / results.NAME}: expected a file of rows of schema 1: no line of it is whole\n"
    assert (status, text) == (2, told)
    (tmp_path / results.NAME).unlink()
    assert run(tmp_path, "--resume") == (2, f"toy: --resume: {tmp_path} holds no run to go on with\n")


def test_two_runs_into_one_folder(tmp_path):
    """The second is refused, and the first goes on; once that is killed the folder is free."""
    with start(tmp_path, "--items", "400", "--seconds", "0.5") as first:
        some_rows(tmp_path)
        for words in ((), ("--resume",)):
            status, text = run(tmp_path, "--items", "400", *words)
            assert status == 2
            assert text.startswith(f"toy: {tmp_path}: another run writes there: wait for its end")
        assert first.poll() is None
        first.kill()
    status, text = run(tmp_path, "--items", "4")
    assert (status, text) == (0, "4 rows, resumed 0\n")
    assert len(results.read(tmp_path / results.BEFORE).rows) >= 3


def test_a_run_that_has_ended_goes_on_with_nothing(tmp_path):
    assert run(tmp_path, "--items", "4")[0] == 0
    before = (tmp_path / results.NAME).read_bytes()
    assert run(tmp_path, "--items", "4", "--resume") == (0, "4 rows, resumed 4\n")
    assert (tmp_path / results.NAME).read_bytes() == before


def test_a_terminated_run_leaves_no_worker(tmp_path):
    with start(tmp_path, "--verb", "hangs") as program:
        assert toy.wait_until(lambda: (tmp_path / "began").exists())
        pids = toy.descendants(program.pid)
        program.terminate()
    assert pids
    assert none_left(pids)


def test_a_worker_that_has_begun_nothing_ends_with_its_parent(tmp_path):
    """Though execnet has not said a word to it yet."""
    sleeps = "import time; print(flush=True); time.sleep(60)"
    code = (
        "import os, subprocess, sys\n"
        "from kernelmux.runner import worker\n"
        "command = [sys.executable, worker.__file__, str(os.getpid()), '-c', sys.argv[1]]\n"
        "child = subprocess.Popen(command, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "PYTHONPATH": str(TOP)}
    ended = subprocess.run([sys.executable, "-c", code, sleeps], env=environment, stdout=subprocess.PIPE, text=True)
    assert none_left([int(ended.stdout)])
