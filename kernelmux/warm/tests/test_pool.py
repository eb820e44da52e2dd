"""Calls in files, the variants that run them on a card, and processes that compile them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernelmux.emulator import nvrtc
from kernelmux.registry import catalog
from kernelmux.registry.backend import device_tables, source_hash, timings
from kernelmux.registry.choice import decide, precedence
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.errors import ArgumentError, UnknownName
from kernelmux.registry.observe import recorded_calls
from kernelmux.registry.observe.recorded_calls import RecordedCall
from kernelmux.registry.util import cards
from kernelmux.registry.util.files import GpuFiles
from kernelmux.runner.machine import VISIBLE
from kernelmux.warm import cli, pool
from kernelmux.warm.tests import ending

needs_compilers = pytest.mark.skipif(bool(nvrtc.unavailable()), reason=str(nvrtc.unavailable()))
NAME = "NVIDIA H100 80GB HBM3"


def recorded(op: str, text: str, dtype: torch.dtype = torch.float32, backend: str = "auto") -> RecordedCall:
    spec = catalog.spec(op)
    call = RecordedCall.of(op, list(spec.hypothetical(spec.case(text), dtype).arguments.values()), backend)
    assert call
    return call


def workloads() -> list[RecordedCall]:
    return [
        recorded(op, spec.workloads[0].text, (spec.workloads[0].dtypes or spec.dtypes)[0])
        for op in catalog.usable()
        for spec in [catalog.spec(op)]
    ]


def test_a_file_holds_a_call_of_every_operator_and_each_once(tmp_path: Path) -> None:
    x = torch.empty(40, dtype=torch.bfloat16).as_strided((4, 5), (9, 1), 3)
    odd = RecordedCall.of("softmax", (x, -1, 0.3), "cuda,triton")
    assert odd and repr(odd.bound((9, 0)).arguments["x"].stride()) == "(9, 1)"
    assert odd.bound((9, 0)).arguments["x"].data_ptr() % 16 == 6  # what is not aligned stays so
    given = [*workloads(), odd]
    path = tmp_path / "calls.json"
    recorded_calls.write(path, [*given, *given])
    assert recorded_calls.read(path, "calls") == given


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[1]", "expected a file of calls"),
        ("{", "JSONDecodeError"),
        ('{"kernelmux_calls": 1}', "got {'kernelmux_calls': 1}"),
        ('{"kernelmux_calls": 1, "calls": [{"op": "softmax"}]}', "got the call {'op': 'softmax'}: KeyError"),
    ],
)
def test_what_is_no_file_of_calls_is_refused(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "calls.json"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=re.escape(told)) as raised:
        recorded_calls.read(path, "warm")
    assert str(raised.value).startswith(f"warm: {path}: expected")


def test_an_operator_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "calls.json"
    recorded_calls.write(path, [RecordedCall("sofmax", "auto", ())])
    with pytest.raises(UnknownName, match="softmax"):
        recorded_calls.read(path, "warm")


@pytest.fixture
def times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A card on which addition is faster by Triton, of which nothing else is known."""
    spec, tables = catalog.spec("add"), replace(timings.TABLES, place=GpuFiles(tmp_path))
    text, dtype = spec.workloads[0].text, (spec.workloads[0].dtypes or spec.dtypes)[0]
    cost = spec.hypothetical(spec.case(text), dtype).cost
    rows = tuple(
        timings.Time(
            "add", text, SHORT[dtype], backend, variant, us, source_hash(backend, "add"), cost.bytes, cost.flops
        )
        for backend, variant, us in (("cuda", "vectorized", 9.0), ("triton", "blocked", 1.0))
    )
    tables.path(NAME).write_text(tables.text(device_tables.Table(NAME, rows, "9.0", 132)))
    monkeypatch.setattr(timings, "TABLES", tables)
    timings.forget()
    yield
    monkeypatch.undo()
    timings.forget()


def test_choices_follow_the_times_of_the_card(times: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cards.VARIABLE, NAME)
    given = workloads()
    chosen = pool.choices(given)
    assert not any(one.problem for one in chosen)

    def by_priority(call: RecordedCall) -> str:
        bound = call.bound((9, 0))
        found = decide.decide(bound, precedence.requested(call.op, "auto", bound), elsewhere=True).chosen
        return found.name if found else ""

    differ = [one.variant for one in chosen if one.variant != by_priority(one.call)]
    assert differ == ["triton/blocked"]
    named = pool.choices([replace(given[0], backend="triton"), replace(given[0], backend="cuda/none")])
    assert named[0].variant.startswith("triton/") and 'unknown variant of cuda for add "none"' in named[1].problem


def test_where_a_process_ends_the_others_calls_are_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "compile_one", ending.compile_one)
    calls = [recorded("gelu", f"x={text}") for text in ("3", "3x4", "5", "4x5", "6")]
    ended = list(pool.compile_all([pool.Compilation(call, "cuda/vectorized") for call in calls], 2))
    assert {str(one.call): one.problem for one in ended} == {
        str(call): pool.ENDED if "x" in str(call).split()[1] else "" for call in calls
    }
    assert len(ended) == 5 and os.environ.get(VISIBLE) != ""


PROGRAM = """
import torch, kernelmux as kx
x = torch.randn(37, 1000, device="cuda" if torch.cuda.is_available() else "cpu")
kx.softmax(x, -1, backend="cuda")
kx.softmax(x[:, ::2], -1, backend="cuda")
kx.gelu(x, backend="torch_ref")
"""


@needs_compilers
def test_the_command_compiles_into_the_caches_and_says_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KERNELMUX_CACHE_DIR", str(tmp_path / "ours"))
    path, calls = tmp_path / "program.py", tmp_path / "calls.json"
    path.write_text(PROGRAM)
    assert cli.main(["--card", NAME, "-n", "1", "--keep", str(calls), str(path)]) == 0
    told = capsys.readouterr().out
    assert re.search(r"softmax +cuda/\w+ +[12] ", told)
    assert re.search(rf"{NAME}: 2 kinds of calls compiled in [\d.]+ s, 1 at a time\n", told)
    kept = json.loads(calls.read_text())["calls"]
    assert [call["op"] for call in kept] == ["softmax", "softmax"]
    filled = sorted(file.name for file in (tmp_path / "ours").rglob("*") if file.is_file())
    assert len(filled) >= 2
    assert cli.main(["--card", NAME, "-n", "1", str(calls)]) == 0
    assert sorted(file.name for file in (tmp_path / "ours").rglob("*") if file.is_file()) == filled


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--card", "h1000", "{program}"], 'unknown card "h1000"'),
        (["--card", "h100", "none.py"], "which is no file"),
        (["--card", "h100", "{calls}", "-n", "2"], "expected no arguments behind a file of calls, got -n 2"),
        (["{program}", "--card", "h100"], "got none before the program, and torch sees no GPU here"),
        (["--card", "h100", "{program}"], "expected a call of an operator of kernelmux, got none"),
        (
            ["--card", "h100", "--keep", "{calls}/there.json", "{program}"],
            "--keep: expected a file that can be written, got",
        ),
        (
            ["--card", "h100", "--keep", "{calls}.new", "{program}"],
            "expected a call of an operator of kernelmux, got none",
        ),
    ],
)
def test_what_cannot_be_compiled_for_is_a_usage_error(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    path, calls = tmp_path / "program.py", tmp_path / "calls.json"
    path.write_text("print(1)\n")
    calls.touch()
    assert cli.main([word.format(program=path, calls=calls) for word in words]) == 2
    assert told in capsys.readouterr().err
    assert sorted(file.name for file in tmp_path.iterdir()) == [calls.name, path.name]


def test_a_program_that_raises_is_a_failure_that_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "program.py"
    path.write_text("import torch, kernelmux as kx\nkx.gelu(torch.ones(3), backend='torch_ref')\nassert not 'here'\n")
    assert cli.main(["--card", "h100", str(path)]) == 2  # and there is nothing to compile
    told = capsys.readouterr().err
    assert "assert not 'here'" in told and "runpy" not in told
    path.write_text("import torch, kernelmux as kx\nx = torch.randn(3)\nkx.gelu(x)\nx[x > 0]\n")
    assert cli.main(["--card", "h100", "-n", "1", str(path)]) == 1
    told = capsys.readouterr().err
    assert "x[x > 0]" in told and len(told.splitlines()) < 9 and "it needs values" in told
