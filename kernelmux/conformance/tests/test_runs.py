"""Runs in worker processes: what is killed goes on, what dies or hangs is one failing item, several cards stand apart."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from kernelmux.candidate import limits
from kernelmux.conformance.cli import arguments, main, run
from kernelmux.conformance.cli.run import Ways
from kernelmux.conformance.cli.suite import ConformanceSuite, planned
from kernelmux.conformance.options import Options
from kernelmux.conformance.report import artifacts, board, junit, matrix
from kernelmux.conformance.report.progress import Reporter
from kernelmux.conformance.session import plan, pytest_plugin, tested_backends, time_budget
from kernelmux.conformance.session.execute import Outcome, execute
from kernelmux.conformance.session.plan import Item
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.errors import ArgumentError
from kernelmux.runner import results

RUN = ["--op", "add", "--backend", "torch_ref", "--tier", "smoke", "--seed", "1", "-n", "2", "-v", "--out"]
DYING = """
import os, time
import torch

def softmax(x, axis, scale):
    {what}
"""
EXACT, SHAPES = Item("add", "cuda", "wide", "exact"), Item("add", "triton", "plain", "shapes")


def dying(folder: Path, what: str) -> list[str]:
    """A run of two items of a function that does this, and of two of torch's own."""
    (folder / "mine.py").write_text(DYING.format(what=what))
    chosen = ["--impl", f"{folder}/mine.py:softmax", "--op", "softmax", "--backend", "impl", "torch_ref/plain"]
    return [*chosen, "--check", "accuracy", "exact", "--tier", "smoke", "-n", "2", "--out", str(folder / "out")]


def test_a_process_that_dies_is_one_failing_item(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(dying(tmp_path, "os.write(2, b'out of luck\\n'); os.abort()")) == main.FAILED
    out = capsys.readouterr().out
    assert "in the call: its process ended by SIGABRT; it printed:\n  out of luck\n  Fatal Python error: Aborted" in out
    assert "softmax[impl/softmax] accuracy, exact: in the call: its process ended by SIGABRT\n" in out
    assert f'File "{tmp_path}/mine.py", line 6 in softmax' in out
    assert out.splitlines()[-1].startswith("2 passed, 2 failed, 0 skipped")


def test_an_item_that_hangs_ends_at_its_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernelmux.conformance.session import scheduling

    monkeypatch.setattr(scheduling, "limit", lambda usual, tier: 20.0)
    given = dying(tmp_path, "time.sleep(3600)")
    assert main.main([*given, "-x"]) == main.FAILED
    assert "it took more than 20 s, and was ended" in capsys.readouterr().out


def test_a_killed_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "kernelmux.conformance", *RUN, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(5):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    done = [row["item"] for row in results.read(tmp_path / results.NAME).rows if "item" in row]
    assert main.main([*RUN, str(tmp_path), "--resume"]) == main.OK
    out = capsys.readouterr().out
    rows = [row["item"] for row in results.read(tmp_path / results.NAME).rows if "item" in row]
    assert 4 <= len(done) < len(rows) == len(set(rows)) and rows[: len(done)] == done
    assert f"going on with {len(done)} of {len(rows)} items" in out and f"[{len(rows)}/{len(rows)}]" in out
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "results-partial.jsonl").read_text().splitlines()]
    assert kinds.count("item") == len(rows)


def test_a_run_goes_on_with_the_same_items_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [*RUN, str(tmp_path), "--check", "exact"]
    assert main.main([*given, "--resume"]) == main.USAGE
    assert "holds no run to go on with" in capsys.readouterr().err
    assert main.main(given) == main.OK == main.main([*given, "--resume"])
    assert main.main([*given, "--dtype", "fp32", "--resume"]) == main.USAGE
    err = capsys.readouterr().err
    assert 'is of another run: dtypes was [], and is ["fp32"]; leave out --resume' in err and err.count("\n") == 1


def test_two_runs_do_not_write_into_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with results.opened(tmp_path, {}, resume=False):
        assert main.main([*RUN, str(tmp_path)]) == main.USAGE
    assert "another run writes there" in capsys.readouterr().err


def test_a_jump_of_the_clock_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day passes by the wall clock with each look at it."""
    days = iter(range(1_000_000))
    monkeypatch.setattr(time, "time", lambda: 86400.0 * next(days))
    items = [Item("add", "torch_ref", "plain", check) for check in ("accuracy", "exact", "claims")]
    chosen = Options(ops=("add",), tier="smoke", minutes=5.0, out=str(tmp_path))
    found = run.run(chosen, items, Ways(), Console(quiet=True))
    assert [o.asked for o in found.outcomes] == ["whole"] * 3 and not found.errors


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--pdb", "--cluster"], "--pdb: expected no --cluster beside it"),
        (["--pdb", "--on", "nvidia_h200"], "--pdb: expected no --on beside it"),
        (["--fuzz", "1", "--resume"], "--fuzz: expected no --resume beside it"),
        (["--fits", "--cluster"], "--fits: expected no --cluster beside it"),
    ],
)
def test_what_cannot_be_together(words: list[str], text: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(text)):
        arguments.options_of(arguments.parser().parse_args([*words, "--device", "cpu"]))


# --- the rows ---------------------------------------------------------------------------------------------------


def reported(*rows: tuple[Item, str, str]) -> tuple[Reporter, ConformanceSuite]:
    """What a suite makes of the rows of items, each with its status and card."""
    items = list(dict.fromkeys(item for item, _, _ in rows))
    reporter = Reporter(items, Console(quiet=True))
    suite = ConformanceSuite(Options(), reporter, 0, None)
    plan = {item.id: item for item in planned(Options(), items, {}, 1)[0]}
    for item, status, card in rows:
        given: Any = plan[item.id].__class__(**{**vars(plan[item.id]), "id": f"{item.id}@{card}", "card": card})
        suite.takes(given, Outcome(item, status).as_dict())
    return reporter, suite


def test_several_cards_have_columns_rows_and_classes_of_their_own(tmp_path: Path) -> None:
    told = [
        (EXACT, "passed", "h200"),
        (EXACT, "failed", "b200"),
        (SHAPES, "passed", "h200"),
        (SHAPES, "passed", "b200"),
    ]
    reporter, _ = reported(*told)
    assert reporter.total == len(reporter.outcomes) == 4 and reporter.failed == 1
    outcomes = list(reporter.outcomes.values())
    table = board.of(outcomes)
    assert table.backends == ["cuda on b200", "cuda on h200", "triton on b200", "triton on h200"]
    assert table.marks["add"]["cuda on b200"] == board.FAILED and table.marks["add"]["cuda on h200"] == board.PASSED
    assert [row.label for row in matrix.rows(outcomes)][:2] == ["cuda/wide on h200", "cuda/wide on b200"]
    told_of = tested_backends.of(Options(), outcomes)
    assert str(told_of).startswith("cuda, triton on b200, h200")
    junit.write(tmp_path / "x.xml", outcomes, 1.0, told_of, [])
    assert 'classname="add.cuda.b200"' in (tmp_path / "x.xml").read_text()
    lines = [line for o in outcomes for line in artifacts._lines(o)]
    assert [line["card"] for line in lines] == ["h200", "b200", "h200", "b200"]


def test_one_card_is_not_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reporter, _ = reported((EXACT, "passed", "h200"), (SHAPES, "passed", "h200"))
    chosen = Options(out=str(tmp_path))
    found = run._outcome(chosen, [EXACT, SHAPES], Ways(), reporter, run.RunReport(), 1.0)
    assert found.whole and board.of(found.outcomes).backends == ["cuda", "triton"]


def test_items_without_a_worker_are_an_error_of_the_run() -> None:
    reporter, _ = reported((EXACT, "passed", ""), (SHAPES, "passed", ""))
    reporter.outcomes.popitem()
    found = run._outcome(Options(), [EXACT, SHAPES], Ways(), reporter, run.RunReport(errors=["worker a: x"]), 1.0)
    assert found.errors[0] == "worker a: x" and not found.whole
    assert found.errors[-1] == "1 of 2 items did not report: no worker process was left for them"


# --- in a worker ------------------------------------------------------------------------------------------------


def served(
    monkeypatch: pytest.MonkeyPatch, *items: Item, room: float = float("inf")
) -> list[tuple[dict[str, Any], bool]]:
    """What a worker tells of items: rows, and whether it is lost. room: bytes that it may keep, also of earlier tests."""
    monkeypatch.setattr(pytest_plugin, "room", lambda: room)
    told: list[tuple[dict[str, Any], bool]] = []
    given = ((pytest_plugin.work(item), float("inf")) for item in items)
    setup = pytest_plugin.setup(Options(tier="smoke"))
    pytest_plugin.serve(setup, given, lambda row, lost=False: told.append((row, lost)))
    return told


def test_a_worker_runs_pytest_once_for_all_items(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    real = pytest_plugin.pytest.main

    def main(*given: object, **more: object) -> object:
        calls.append(given)
        return real(*given, **more)

    monkeypatch.setattr(pytest_plugin.pytest, "main", main)
    items = [Item("add", "torch_ref", "plain", check) for check in ("claims", "exact", "signature")]
    told = served(monkeypatch, *items)
    assert [row["item"]["check"] for row, _ in told] == ["claims", "exact", "signature"] and len(calls) == 1
    assert [row["status"] for row, _ in told] == ["skipped", "passed", "passed"] and not any(lost for _, lost in told)


def test_an_error_of_pytest_is_a_failing_item(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*given: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(pytest_plugin, "execute", wrong)
    ((row, lost),) = served(monkeypatch, EXACT)
    assert row["status"] == "failed" and "out of order" in row["text"] and not lost


@pytest.mark.parametrize(
    ("status", "answers", "lost"), [("failed", False, True), ("failed", True, False), ("passed", True, False)]
)
def test_a_lost_context_is_told(status: str, answers: bool, lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> None:
        if not answers:
            raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(pytest_plugin.torch.cuda, "synchronize", asked)
    monkeypatch.setattr(pytest_plugin.torch.cuda, "empty_cache", lambda: None)
    loop = pytest_plugin.ItemLoop(Options(device="cuda"), iter(()), lambda row, lost: None)
    assert loop._lost(Outcome(EXACT, status)) is lost


def test_a_process_that_keeps_too_much_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [Item("add", "torch_ref", "plain", check) for check in ("claims", "signature")]
    assert pytest_plugin.LEAST_ROOM <= pytest_plugin.room() <= pytest_plugin.MOST_ROOM
    assert 0 < limits.in_use(os.getpid()).memory
    assert [lost for _, lost in served(monkeypatch, *items)] == [False, False]
    assert [lost for _, lost in served(monkeypatch, *items, room=0)] == [True, True]


def test_ctrl_c_in_an_item_is_not_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pytest_plugin, "execute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        served(monkeypatch, EXACT)
    assert pytest_plugin.ALONE not in os.environ


# --- on GPUs that other machines have -------------------------------------------------------------------------------


def test_a_run_on_the_gpus_of_a_cluster_is_planned_without_one() -> None:
    """Every backend that can be imported and every variant has its items, for whichever card; where it runs decides."""
    given = ["--op", "matmul", "--device", "cuda", "--minutes", "1"]
    chosen = arguments.options_of(arguments.parser().parse_args([*given, "--cluster"]))
    assert chosen.elsewhere and not chosen.verified
    items = plan.items(chosen)
    assert not any(item.problem for item in items)
    every = {(b, v) for b in registered.backends() for v in registered.variants(b, "matmul")}
    assert {(i.backend, i.variant) for i in items if i.variant} == every
    made, required = planned(chosen, items, {}, 2, 1)
    asked = {
        i.label for i in items if i.check == "accuracy" and i.id in time_budget.required(items, {}, elsewhere=True)
    }
    assert {"cuda/wgmma", "cuda/tensor_cores"} < asked and len(made) == len(items) > required > 0
    with pytest.raises(ArgumentError, match="--device cuda: torch sees no GPU here"):
        arguments.options_of(arguments.parser().parse_args(given))


def test_a_worker_without_a_gpu_says_so_before_it_takes_an_item(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    setup = pytest_plugin.setup(Options(device="cuda", elsewhere=True))
    with pytest.raises(ArgumentError, match=r"--device cuda: torch .* sees no GPU in this process"):
        pytest_plugin.serve(setup, iter(()), lambda row, lost=False: None)


def test_a_backend_that_a_node_lacks_is_skipped_there_or_fails_where_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registered, "unavailable", lambda name, device: "no CuPy")
    item, chosen = Item("add", "cuda", "scalar", "exact"), Options(elsewhere=True)
    skipped = execute(item, chosen)
    assert (skipped.status, skipped.text, skipped.item.problem) == ("skipped", "no CuPy", "no CuPy")
    failed = execute(item, replace(chosen, backends=("cuda/scalar",)))
    assert failed.status == "failed" and "was asked for and cannot work here: no CuPy" in failed.text


def test_only_a_gpu_makes_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--record", "--cluster", "--device", "cpu"]) == main.USAGE
    assert "what the emulator passes is not verified on a GPU" in capsys.readouterr().err
