"""`kernelmux ledger`: per GPU what is verified, what is stale and why, what has no record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from kernelmux.conformance.cli import ledger_command
from kernelmux.conformance.report import artifacts
from kernelmux.conformance.verified import ledger, meaning
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.errors import BackendUnavailable

HERE, GONE = "NVIDIA H200", "NVIDIA A100-SXM4-40GB"


def entry(backend: str, **changed: str) -> dict[str, Any]:
    """What is on record of a variant of `add`, but for what has changed since."""
    known = {"date": "2026-11-20", "tier": "ci", "passed": 3, "budget": 0.5, "versions": {"torch": "2.11.0"}}
    asked = {"oracle": meaning.oracle(catalog.spec("add")), "judge": meaning.judge(), "asked": ""}
    return {**asked, "source": artifacts.source_hash(backend, "add"), **known, **changed}


@pytest.fixture(autouse=True)
def books(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs: one on which variants of add stand in every way, one with nothing on record."""
    entries = {
        "add/torch_ref/plain": entry("torch_ref"),
        "add/cuda/scalar": entry("cuda", oracle="0" * 12),
        "add/cuda/vectorized": entry("cuda", source="1" * 12),
    }
    known = ({"gpu": HERE, "capability": "sm_90", "entries": entries}, {"gpu": GONE, "entries": {}})
    monkeypatch.setattr(ledger, "books", lambda: known)


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert ledger_command.main(list(words)) == 0
    return capsys.readouterr().out


def rows(text: str) -> dict[str, list[str]]:
    """The cells of the lines of a table, by the first of them."""
    lines = [line.split("  ") for line in text.splitlines() if "  " in line]
    return {line[0]: [cell.strip() for cell in line[1:] if cell.strip()] for line in lines}


def test_the_counts_of_each_gpu_and_of_each_operator(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(shown(capsys))
    every = sum(len(registered.variants(b, op)) for b in registered.backends() for op in catalog.names())
    assert found[HERE] == ["1", "1", "1", str(every - 3)] and found[GONE] == ["0", "0", "0", str(every)]
    assert found["add"] == ["1 of 4, 1 stale, 1 unknown", "-"] and found["softmax"] == ["-", "-"]


def test_the_variants_of_an_operator_with_what_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "add")
    found = rows(text)
    assert found["add torch_ref/plain"] == ["verified, 2026-11-20, ci", "-"]
    assert found["add cuda/scalar"] == ["stale (oracle), 2026-11-20, ci", "-"]
    assert found["add cuda/vectorized"] == ["unknown, 2026-11-20, ci", "-"]
    assert found["add triton/blocked"] == ["-", "-"] and "softmax" not in text
    assert f"{HERE}: 3 variants recorded with torch 2.11.0" in text and "here: python 3." in text


def test_the_stale_ones_of_a_gpu_by_a_part_of_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(shown(capsys, "--stale", "--gpu", "h200"))
    assert {name for name in found if name.startswith("add ")} == {"add cuda/scalar", "add cuda/vectorized"}
    assert GONE not in found and "add cuda/scalar" not in rows(shown(capsys, "--stale", "--gpu", "A100-sxm4"))


def test_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(shown(capsys, "add", "--json"))
    assert [(g["name"], g["capability"]) for g in found["gpus"]] == [(HERE, "sm_90"), (GONE, None)]
    assert [(g["verified"], g["stale"], g["unknown"], g["no_record"]) for g in found["gpus"]] == [
        (1, 1, 1, 1),
        (0, 0, 0, 4),
    ]
    assert len(found["variants"]) == 8 and "torch" in found["versions_here"]
    (scalar,) = [v for v in found["variants"] if (v["gpu"], v["backend"], v["variant"]) == (HERE, "cuda", "scalar")]
    assert (scalar["status"], scalar["changed"], scalar["date"]) == ("stale", ["oracle"], "2026-11-20")
    stale = json.loads(shown(capsys, "add", "--json", "--stale"))
    assert [v["variant"] for v in stale["variants"]] == ["scalar", "vectorized"] and stale["gpus"] == found["gpus"]


def test_a_backend_that_cannot_be_loaded_here_has_its_records(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = registered.variants

    def variants(name: str, op: str) -> Any:
        if name == "cuda":
            raise BackendUnavailable("no headers")
        return known(name, op)

    monkeypatch.setattr(registered, "variants", variants)
    assert rows(shown(capsys, "add"))["add cuda/scalar"] == ["stale (oracle), 2026-11-20, ci", "-"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["sofmax"], 'unknown operator "sofmax"; did you mean "softmax"?'),
        (["--gpu", "h300"], f"a part of the name of a GPU with a ledger, {HERE}, {GONE}, got 'h300'"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ledger_command.main(words) == 2
    shown = capsys.readouterr()
    assert told in shown.err and shown.err.count("\n") == 1 and not shown.out


def test_the_real_ledgers_say_what_the_matrix_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    found = json.loads(shown(capsys, "--json"))
    good = {f"{v['operator']}/{v['backend']}/{v['variant']}" for v in found["variants"] if v["status"] == "verified"}
    assert good == set(ledger.verified())


WITHOUT = """
import sys

sys.modules |= dict.fromkeys(("pytest", "execnet", "hypothesis", "jinja2", "filelock", "pynvml"))
from kernelmux.registry.cli import main as cli

assert cli.main(["ledger", "add"]) == 0
"""


def test_it_needs_nothing_that_the_suite_needs() -> None:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", WITHOUT], env=env, capture_output=True, text=True, check=False)
    assert not done.returncode and "add cuda/scalar" in done.stdout, done.stderr
