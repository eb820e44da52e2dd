"""Verdicts: what is good, what is not, and what a verdict says of itself."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from rich.console import Console

from kernelmux.candidate.pool import WarmPool
from kernelmux.conformance.judging.trial_outcome import Record
from kernelmux.conformance.session.execute import Outcome
from kernelmux.conformance.session.plan import Item
from kernelmux.judge import attack, cli, collection, remarks
from kernelmux.judge.verdict import KernelVerdict, verdict
from kernelmux.registry.errors import ArgumentError

RIGHT = "import torch\n\ndef add(x, y):\n    return torch.add(x, y).contiguous()\n"
WRONG = RIGHT.replace("torch.add(x, y)", "((x + y) * 1.01)")
FORGES = """
import gc, os, sys
import torch

try:  # the first reproduction: the judge itself, replaced where the function is loaded
    from kernelmux.conformance.session import execute
    execute._judge.__code__ = (lambda item, probe: execute.Outcome(item, "passed")).__code__
except ImportError:
    pass

def add(x, y):
    return torch.zeros_like(x + y)
"""
FEW = ["--check", "accuracy", "--allow", "torch", "--age", "0"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(RIGHT)
    return tmp_path / "mine.py"


def judged(path: Path, *words: str) -> int:
    return cli.main([f"{path}:add", "--op", "add", "--device", "cpu", *FEW, *words])


def test_a_right_function_is_good_where_torch_is_allowed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert judged(file) == cli.GOOD
    out = capsys.readouterr().out
    assert "✓ accuracy" in out and "no kernel of its own was launched: torch computed aten::add" in out
    assert out.splitlines()[-1].startswith("passed: mine.py:add as add, tier smoke, cpu")
    assert cli.main([f"{file}:add", "--op", "add", "--device", "cpu", "--check", "accuracy"]) == cli.REFUSED
    assert "not acceptable: torch computed it (--allow torch)" in capsys.readouterr().out


def test_a_line_tells_of_trials_that_were_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    passed, skipped = (Record("x=7", "fp32", "", 0, status, text="no room") for status in ("passed", "skipped"))
    for records in ([passed, skipped], [passed]):
        cli._tell(Outcome(Item("add", "impl", "add", "offsets"), "passed", records=records), Console(width=200))
    first, second = capsys.readouterr().out.splitlines()
    assert "1 trials  (1 skipped: no room)" in first and "skipped" not in second


def test_a_refusal_is_shown_with_its_reason() -> None:
    said = "✓ exact 3 trials\n✗ offsets             1 trials\nadd fp32: raised OutOfMemoryError\nfailed: mine.py"
    assert attack._last(said) == "✗ offsets 1 trials | add fp32: raised OutOfMemoryError"
    assert attack._last("usage\n\nwrong words") == "wrong words" and not attack._last("")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (WRONG, "budget used"),
        (FORGES, "all outputs are 0"),
        ("import os\nos._exit(0)\n", "its process ended with status 0"),
        (RIGHT.replace("return", "import os; os.abort(); return"), "its process ended by SIGABRT"),
        (RIGHT.replace("return", "while True: pass\n    return"), "no answer within the limit of time"),
        (f"print('18 passed, 0 failed')\nraise SystemExit(0)\n{RIGHT}", "raised SystemExit|cannot be imported"),
    ],
)
def test_what_is_not_right_is_refused_with_a_line(
    file: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    file.write_text(text)
    assert judged(file, "--seconds", "3", "-x") == cli.REFUSED
    out = capsys.readouterr().out
    assert any(one in out for one in told.split("|")), out
    assert out.splitlines()[-1].startswith("failed: ")


@pytest.mark.parametrize("work", ["raise ValueError('second')", "x.mul_(2)", "import os; os._exit(0)"])
def test_what_goes_wrong_once_among_calls_in_a_row_is_refused(tmp_path: Path, work: str) -> None:
    text = f"{RIGHT.replace('def', 'calls = 0{0}def', 1)}".format("\n\n").replace(
        "    return", f"    global calls\n    calls += 1\n    if calls == 2:\n        {work}\n    return"
    )
    (tmp_path / "mine.py").write_text(text)
    found = verdict(tmp_path / "mine.py", "add", checks=("accuracy",))
    assert not found.passed and [item["trials"]["failed"] for item in found.items] == [1]


def test_a_file_without_the_function_is_a_verdict() -> None:
    found = verdict("def mine(x, y):\n    return x + y\n", "add", checks=("accuracy",), allow="torch")
    assert not found.good and found.allow == ["torch"]
    assert [item["check"] for item in found.items] == ["import"] and "known: mine" in found.items[0]["text"]


def test_a_gpu_that_is_not_there_and_no_time_are_no_questions(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for given, line in (
        (["--device", "cuda"], "expected a GPU that torch can use"),
        (["--seconds", "0"], "more than 0"),
    ):
        assert cli.main([f"{file}:add", "--op", "add", *given]) == 2
        assert line in capsys.readouterr().err


def test_a_verdict_is_verified_by_its_seed_and_its_key(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key, out = file.with_name("key"), file.with_name("verdict.json")
    key.write_text("0123456789abcdef")
    assert judged(file, "--json", str(out), "--key", str(key)) == cli.GOOD
    again = ["--verify", str(out), f"{file}:add", "--device", "cpu"]
    assert cli.main([*again, "--key", str(key)]) == cli.GOOD
    assert 'verified: the verdict "passed" holds; 1 of 1 items asked again: accuracy' in capsys.readouterr().out
    assert cli.main(again) == cli.GOOD and "signature: not looked at without --key" in capsys.readouterr().out
    told = json.loads(out.read_text())
    out.write_text(json.dumps({**told, "good": False}))
    assert cli.main(again) == cli.REFUSED and "good is False, and True by its items" in capsys.readouterr().out
    for change, line in (
        ({"good": False}, "the signature is not that of this key"),
        ({"seed": {**told["seed"], "seed": "7"}}, "the seed is not the one that was promised"),
        ({"suite": "other"}, "the suite is not the one that judged"),
        ({"schema": 0}, "schema: expected 1, got 0"),
    ):
        out.write_text(json.dumps({**told, **change}))
        assert cli.main([*again, "--key", str(key)]) == cli.REFUSED
        assert line in capsys.readouterr().out
    out.write_text(json.dumps(told))
    file.write_text(RIGHT + "\n")
    assert cli.main(again) == cli.REFUSED
    assert "mine.py is not the file that was judged" in capsys.readouterr().out


def test_a_text_is_judged_by_a_process_that_waits() -> None:
    with WarmPool() as pool:
        first = verdict(RIGHT, "add", checks=("accuracy", "memory"), allow=("torch",), pool=pool)
        second = verdict(WRONG, "add", checks=("accuracy", "memory"), allow=("torch",), pool=pool, at_once=True)
    assert first.good and [item["check"] for item in first.items] == ["accuracy", "memory"]
    assert not second.good and not second.whole and first.seed["seed"] != second.seed["seed"]


def test_torch_computes_with_one_thread_inside_of_a_verdict() -> None:
    before, seen = torch.get_num_threads(), list[int]()
    try:
        torch.set_num_threads(2)
        verdict(RIGHT, "add", checks=("accuracy",), tell=lambda outcome: seen.append(torch.get_num_threads()))
        assert seen == [1] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_function_that_is_right_for_a_while_is_asked_when_it_is_old(file: Path) -> None:
    file.write_text(
        RIGHT.replace("import torch\n", "import time, torch\nborn = time.monotonic()\n").replace(
            "return torch.add(x, y)", "return (torch.add(x, y) * (1 if time.monotonic() - born < 4 else 1.01))"
        )
    )
    assert judged(file) == cli.GOOD
    assert judged(file, "--age", "4.5") == cli.REFUSED


def test_what_is_no_question(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ArgumentError, match="allow: expected of torch, cublas, got numpy"):
        verdict(RIGHT, "add", allow=("numpy",))
    assert cli.main([f"{file}:add", "--op", "ad"]) == cli.USAGE
    assert cli.main(["--op", "add"]) == cli.USAGE
    assert cli.main([f"{file}:add", "--op", "add", "--key", str(file.with_name("none"))]) == cli.USAGE
    assert "judge: --key" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("statuses", "whole", "passed"),
    [
        ([], True, False),
        (["skipped"], True, False),
        (["skipped", "passed"], True, True),
        (["skipped", "passed"], False, False),
        (["passed", "failed"], True, False),
        (["passed", "expected"], True, False),
    ],
)
def test_nothing_but_passes_passes(statuses: list[str], whole: bool, passed: bool) -> None:
    items = [{"status": status} for status in statuses]
    made = KernelVerdict("add", {}, "smoke", "cpu", {}, {}, [], "", {}, items=items, whole=whole)
    assert (made.passed, made.good) == (passed, passed)


def test_remarks() -> None:
    assert remarks.of({}, [], "cpu") == (
        ["torch"],
        ["no kernel of its own was launched, and no operator of torch was heard"],
    )
    assert remarks.of({"k": 3}, [], "cpu") == ([], ["launched k (3 times)"])
    used, told = remarks.of({"k": 1}, {f"aten::op{i}" for i in range(8)}, "cpu")
    assert used == ["torch"] and told[1].endswith("aten::op5 and 2 more")


NATIVE = "void at::native::vectorized_elementwise_kernel<4, at::native::{}<float>, std::array<char*, 1ul>>(int, ...)"
NVJET = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NNT"


@pytest.mark.parametrize(
    ("launched", "heard", "uses", "told"),
    [
        ({"_softmax": 2, NATIVE.format("FillFunctor"): 1}, [], [], "launched _softmax (2 times)"),
        ({"void softmax<float>(float const*)": 1}, [], [], "launched softmax (once)"),
        ({"_softmax": 1, NATIVE.format("AddFunctor"): 1}, [], ["torch"], "launched _softmax (once)"),
        ({NVJET: 1}, ["aten::mm"], ["torch"], "launched kernels of a library: nvjet_sm90"),
        ({NVJET: 1}, [], ["cublas"], "launched kernels of a library: nvjet_sm90"),
        ({}, [], ["torch"], "no kernel of its own was launched, and no operator of torch was heard"),
    ],
)
def test_remarks_of_kernels_of_a_gpu(launched: dict[str, int], heard: list[str], uses: list[str], told: str) -> None:
    found, lines = remarks.of(launched, heard, "cuda")
    assert found == uses and lines[0].startswith(told)


def test_what_the_emulator_says_of_a_kernel_is_one_remark_and_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    """Calls that are made ahead, several in a message, warn of it too, and with this seed those that are made at once."""
    entry = next(e for e in collection.honest() if e.name == "triton_atomics")
    asked = ("accuracy", "shapes", "state")
    found = verdict(entry.path, entry.op, entry.function, checks=asked, seed=938_071_266)
    assert found.good and not list(recwarn)
    [said] = [one for one in found.remarks if "redundant store" in one]
    assert re.match(r"(accuracy, )?(shapes, )?state: ", said)


@pytest.mark.parametrize(("name", "outcome"), [("zeros", attack.CAUGHT), ("judge_code", attack.CAUGHT)])
def test_an_attack_is_caught_by_name(name: str, outcome: str) -> None:
    entry = next(e for e in collection.attacks() if e.name == name)
    assert attack.attempt(entry, "cpu").outcome == outcome
