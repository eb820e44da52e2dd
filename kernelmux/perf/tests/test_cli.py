"""The command line, and whole runs of a backend from outside that is wrong in every way."""

import json
import os
import subprocess
import sys

import pytest
import torch

from kernelmux.perf.cli import main
from kernelmux.perf.tests import synthetic
from kernelmux.registry.util import cards

BACKEND = """
from kernelmux.registry.backend import Backend

BACKEND = Backend(name="theirs", summary="a test", priority=5, unavailable=lambda device: None)
"""
ADD = """
import os, time
import torch
from kernelmux.registry.backend import Implementation

def right(x, y):
    return x + y

def wrong(x, y):
    z = x + y
    z[-1] += 1
    return z

def raises(x, y):
    raise RuntimeError("no such kernel")

def aliases(x, y):
    return x

def dies(x, y):
    os._exit(7)

def hangs(x, y):
    time.sleep(60)

VARIANTS = {f.__name__: Implementation(fn=f, idea="") for f in (wrong, raises, aliases, dies, hangs, right)}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The outcome of one run over all of them: exit status, printed text, results, pytest-benchmark's file."""
    folder = tmp_path_factory.mktemp("theirs")
    env = synthetic.backend_of_their_own(folder, BACKEND, ADD)
    command = [sys.executable, "-m", "kernelmux.perf", "--device", "cpu", "--op", "add", "--backend", "theirs"]
    command += ["--dtype", "fp32", "--limit", "10", "--samples", "5", "--out", "out"]
    found = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    read = {name: json.loads((folder / "out" / name).read_text()) for name in ("results.json", "benchmark.json")}
    return found.returncode, found.stdout + found.stderr, read["results.json"], read["benchmark.json"]


def rows_of(run):
    return {f"{r['backend']}/{r['variant']}": r for r in run[2]["rows"]}


def test_one_bad_variant_fails_the_run_but_stops_nothing(run):
    status, text, _, _ = run
    assert status == 1, text
    found = {label: row["status"] for label, row in rows_of(run).items()}
    good = {"torch_ref/plain": "ok", "theirs/right": "ok"}
    assert found == good | {f"theirs/{v}": "failed" for v in ("wrong", "raises", "aliases", "dies", "hangs")}


@pytest.mark.parametrize(
    ("variant", "reason"),
    [
        ("wrong", "wrong at [4098]"),
        ("raises", "RuntimeError: no such kernel"),
        ("aliases", "shares memory with an input"),
        ("dies", "ended with status 7"),
        ("hangs", "took more than 10 s"),
    ],
)
def test_the_error_of_a_row_says_what_happened(run, variant, reason):
    assert reason in rows_of(run)[f"theirs/{variant}"]["error"]
    assert reason in run[1]


def test_a_good_row_says_what_it_is(run):
    row = rows_of(run)["theirs/right"]
    assert row["median_us"] > 0
    assert row["rounds"] == 5
    assert 0 < row["budget"] <= 1
    assert len(row["spec"]) == len(row["source"]) == 12


def test_pytest_benchmark_can_read_the_run(run):
    names = {b["extra_info"]["variant"]: b for b in run[3]["benchmarks"] if b["extra_info"]}
    assert names["right"]["stats"]["median"] * 1e6 == pytest.approx(rows_of(run)["theirs/right"]["median_us"])
    assert names["right"]["group"].startswith("add x=")
    assert run[3]["machine_info"]["kernelmux"] == run[2]["machine"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--op", "sofmax"], 'did you mean "softmax"?'),
        (["--backend", "cudaa"], 'did you mean "cuda"?'),
        (["--dtype", "bf17"], "expected one of"),
        (["--device", "cuda"], "torch sees no GPU"),
        (["--record", "--device", "cpu"], "real GPU"),
        (["--card", "rtx4909"], 'unknown card "rtx4909" in --card; did you mean "rtx4090"?'),
        (["--stale"], "--stale: the rows on record are of a GPU"),
        (["--stale", "--list", "--peers"], "--stale: the rows on record alone"),
        (["--op", "softmax", "--workload", "nothing*"], "no workload fits --op softmax, --workload nothing*"),
        (["--compare", "/nonexistent.json"], "expected results of kernelmux.perf"),
    ],
)
def test_a_usage_error_is_printed_and_exits_with_2(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main.main([*arguments, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_a_gpu_that_stands_for_a_lesser_card_records_nothing(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(cards, "stands_in", lambda index: cards.AS_VARIABLE in os.environ)
    assert main.main(["--op", "softmax", "--record", "--card", "a100"]) == 2
    assert "--record: the GPU stands for a lesser card" in capsys.readouterr().err
    assert cards.AS_VARIABLE not in os.environ


@pytest.mark.parametrize("name", ["--list", "--co", "--collect-only"])
def test_the_list_names_rows_and_runs_nothing(name, capsys):
    assert main.main([name, "--op", "softmax", "--dtype", "bf16", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.split() == [f"softmax-x37x1000-bf16-torch_ref/{v}" for v in ("plain", "exact")]
