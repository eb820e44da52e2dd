"""What the program finds that kills runs at random: nothing in ours, and each fault that is made."""

import json
import os

import pytest

from kernelmux.runner import results
from kernelmux.runner.tests import kill_at_random as killing
from kernelmux.runner.tests.kill_at_random import PROGRAMS, Program, Trial

ALL = "KERNELMUX_KILL_TESTS"  # set it to kill the slow ones, too: minutes


@pytest.mark.parametrize("name", PROGRAMS)
def test_five_kills(name):
    if name != "toy" and not os.environ.get(ALL):
        pytest.skip(f"takes minutes: set {ALL}=1")
    lines: list[str] = []
    assert not killing.kills(name, 5, seed=2, tell=lines.append).faults
    assert len(lines) == 6


def made(tmp_path, rows="", **files):
    trial = Trial(Program(("json.tool", "{out}")), tmp_path)
    trial.out.mkdir()
    trial.home.mkdir()
    head = json.dumps({"kind": "rows", "schema": results.SCHEMA})
    (trial.out / results.NAME).write_text(f"{head}\n{rows}", encoding="utf-8")
    for name, text in files.items():
        (trial.home / name.replace("_", ".")).write_text(text, encoding="utf-8")
    return trial


def test_files_that_are_not_whole_are_named(tmp_path):
    trial = made(
        tmp_path, '{"item": "a", "row": 1}\n{"item', good_json="{}", bad_json="{", ledger_jsonl='{"a": 1}\n{"b'
    )
    assert trial.damaged() == [f"{trial.home}/bad.json: no whole JSON", f"{trial.home}/ledger.jsonl: torn"]


def test_rows_that_stand_twice_are_counted(tmp_path):
    trial = made(tmp_path, '{"item": "a", "row": 1}\n{"item": "a", "row": 1}\n{"worker": "w"}\n')
    assert trial.rows() == ({"a": 1}, {"a": 2})


def test_what_differs_from_run_to_run_is_left_out():
    row = {
        "status": "passed",
        "seconds": 0.1,
        "error": 1e-7,
        "why": "took 0.25 s, 3e-7 off",
        "cases": [{"pid": 1, "n": 3}],
    }
    assert killing.same(row) == {"status": "passed", "error": "#", "why": "took # s, # off", "cases": [{"n": 3}]}


@pytest.mark.parametrize(
    ("wanted", "told"), [({"item0": 1}, "differs: item0"), ({"x": None}, "missing: x"), ({}, "too much: item0")]
)
def test_rows_that_are_missing_too_many_or_others_are_told(tmp_path, wanted, told):
    words = ("kernelmux.runner.tests.toy_program", "--out", "{out}", "--items", "1", "-n", "1", "--seconds", "0.8")
    within, _, wrong = killing.kill(Program(words), tmp_path, 0.3, True, wanted, 0)
    assert within
    assert any(fault.startswith(told) for fault in wrong)


LEAVES = """
import os, time
if os.fork() == 0:
    os.setsid()
time.sleep(60)
"""


def test_a_process_that_is_left_is_told(tmp_path, monkeypatch):
    """One that leaves its group, and does not end with its parent."""
    (tmp_path / "leaves.py").write_text(LEAVES, encoding="utf-8")
    monkeypatch.setattr(killing, "SURVIVES", 0.2)
    monkeypatch.setattr(killing, "TOP", tmp_path)
    trial = Program(("leaves", "{out}"), resume=())
    monkeypatch.setattr(
        Trial, "start", lambda self, *more, start=Trial.start: start(self) if not self.text.exists() else Ended()
    )
    _, _, wrong = killing.kill(trial, tmp_path, 0.5, True, {}, 0)
    assert "1 processes are left" in wrong


class Ended:
    """A run that goes on and ends well."""

    def wait(self):
        return 0
