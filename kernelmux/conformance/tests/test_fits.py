"""Whether calls compile for a card and fit on it: what is asked, who would run it, what is judged, what stays on record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelmux.conformance.cli.main import main
from kernelmux.conformance.fits import calls, choices, judge, record, sweep, table, worker
from kernelmux.conformance.fits.judge import COMPILE, FITS, OUTCOMES, REFUSED, ROOM, TORCH
from kernelmux.emulator import nvrtc
from kernelmux.registry import catalog
from kernelmux.registry.cli import main as program
from kernelmux.registry.cli import terminal
from kernelmux.registry.util import cards

COMPILES = pytest.mark.skipif(nvrtc.unavailable() is not None, reason="needs NVRTC")
SQUARE = catalog.spec("square")


# --- what is asked ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["attention", "conv2d", "fp8_matmul", "softmax", "paged_attention"])
def test_drawn_calls_are_calls_of_the_spec_and_the_same_for_every_card(op: str) -> None:
    spec = catalog.spec(op)
    made = [(case.text, dtype) for case, dtype in calls.drawn(spec, 12, seed=3)]
    assert made == [(case.text, dtype) for case, dtype in calls.drawn(spec, 12, seed=3)]
    assert len(made) == 12 and len(set(made)) > 9
    assert made != [(case.text, dtype) for case, dtype in calls.drawn(spec, 12, seed=4)]
    for text, dtype in made:
        call = spec.hypothetical(spec.case(text), dtype)
        assert calls._bytes(call) <= calls.MOST


def test_every_workload_is_asked_in_every_dtype_and_some_cards_are_asked_drawn_calls() -> None:
    spec = catalog.spec("matmul")
    few, many = list(calls.calls_of(spec, "gb10")), list(calls.calls_of(spec, "t4"))
    assert {(c.text, d) for c in spec.workloads for d in c.dtypes or spec.dtypes} == {(c.text, d) for c, d in few}
    assert many[: len(few)] == few and len(many) > len(few) + calls.SHAPES / 2
    assert {cards.table()[key].capability for key in calls.CARDS} == {c.capability for c in cards.table().values()}


# --- who would run it ---------------------------------------------------------------------------------------


def choice(op: str, text: str, dtype: torch.dtype, asked: str, card: str) -> choices.VariantChoice:
    spec = catalog.spec(op)
    with cards.standing_for(card) as found:
        return choices.chosen(spec, spec.case(text), dtype, asked, found)


def test_a_card_refuses_what_it_lacks_and_auto_takes_torch_where_that_can() -> None:
    product = ("fp8_matmul", "a=64x64 b=64x64 scale_a=scalar scale_b=scalar", torch.float8_e4m3fn)
    refused = choice(*product, "cuda", "t4")
    assert not refused.variant and "sm_75" in refused.why
    assert not choice(*product, "auto", "t4").variant and "e4m3" in choice(*product, "auto", "t4").why
    long = ("attention", "q=1x1x8x304 k=1x1x5x304 v=1x1x5x304", torch.float16)
    assert choice(*long, "auto", "t4").variant.startswith("torch_ref/")
    assert choice(*product, "cuda", "h100").variant.startswith("cuda/")


def test_what_no_card_takes_is_not_the_cards_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    real = choices._decided

    def none(spec: Any, case: Any, dtype: Any, asked: str, card: Any) -> Any:
        found = real(spec, case, dtype, asked, card)
        return type(found)(found.call, found.request, None, found.verdicts)

    monkeypatch.setattr(choices, "_decided", none)
    assert choice("softmax", "x=4x4", torch.float32, "cuda", "t4") == choices.VariantChoice()


# --- what is judged -----------------------------------------------------------------------------------------


def judged(variant: str, card: str) -> tuple[str, str]:
    with cards.standing_for(card) as found, judge.noting():
        return judge.judged(SQUARE, SQUARE.case("x=1000"), torch.float32, variant, found)


@COMPILES
def test_broken_launchers_are_found_where_they_are_broken(mutants: None) -> None:
    assert judged("mutants_cards/large", "h100") == (FITS, "")
    outcome, why = judged("mutants_cards/large", "rtx4090")
    assert outcome == ROOM and "122880 bytes of shared memory, of 101376" in why
    assert judged("mutants_cards/newer", "b200") == (FITS, "")
    outcome, why = judged("mutants_cards/newer", "a100")
    assert outcome == COMPILE and "requires .target sm_90" in why
    for variant in ("asks", "leaves_out"):
        assert {judged(f"mutants_cards/{variant}", card)[0] for card in ("t4", "rtx4090", "h100")} == {FITS}


@COMPILES
@pytest.mark.parametrize("backend", ["cuda", "triton"])
def test_what_ships_fits_and_torch_needs_nothing(backend: str) -> None:
    found = choice("square", "x=1000", torch.float32, backend, "rtx5090")
    assert judged(found.variant, "rtx5090") == (FITS, "")
    assert judged("torch_ref/plain", "rtx5090") == (TORCH, "")


@COMPILES
@pytest.mark.parametrize(("op", "columns", "card"), [("layer_norm", 4294, "rtx4090"), ("rms_norm", 8198, "a100")])
def test_rows_ahead_leave_room_for_what_threads_exchange(op: str, columns: int, card: str) -> None:
    """Rows of fp32 at odd multiples of 8 bytes need a chunk of shared memory beside those that are on their way."""
    spec = catalog.spec(f"{op}_backward")
    case = spec.case(f"grad_out=64x{columns} x=64x{columns} weight={columns}")
    with cards.standing_for(card) as found, judge.noting():
        assert judge.judged(spec, case, torch.float32, "triton/fused", found) == (FITS, "")


# --- the log ------------------------------------------------------------------------------------------------


def asked(path: Path, run: str, call: str, source: str, answer: tuple[str, str]) -> tuple[tuple[str, str], bool]:
    """The answer of a new process, and whether it had to ask."""
    did: list[str] = []

    def ask() -> tuple[str, str]:
        did.append(call)
        return answer

    with worker.FitsLog(path, run) as log:
        return log.answer(call, source, ask), bool(did)


def test_what_fitted_is_not_asked_again_while_its_sources_stay(tmp_path: Path) -> None:
    path, good, bad = tmp_path / "t4.jsonl", (FITS, ""), (ROOM, "why")
    assert asked(path, "1", "a", "s", good) == (good, True)
    assert asked(path, "1", "b", "s", bad) == (bad, True)
    assert asked(path, "2", "a", "s", bad) == (good, False)
    assert asked(path, "2", "a", "t", bad) == (bad, True)
    assert asked(path, "1", "b", "s", good) == (bad, False), "the same run has asked it"
    assert asked(path, "2", "b", "s", good) == (good, True), "another run asks again what did not fit"


def test_a_call_in_which_the_process_ended_does_not_compile(tmp_path: Path) -> None:
    path = tmp_path / "t4.jsonl"
    path.write_text('["1", "a"]\n["1", "a", "s", "fits", ""]\n["1", "b"]\n["1", "c", "s"')
    (outcome, why), did = asked(path, "1", "b", "s", (FITS, ""))
    assert (outcome, did) == (COMPILE, False) and "ended its process" in why
    path.write_text('["1", "b"]\n')
    assert asked(path, "2", "b", "s", (FITS, "")) == ((FITS, ""), True), "another run tries it again"


def test_a_process_that_a_compiler_ends_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "WORKER", ["-c", DYING])
    said: list[str] = []
    run = sweep.FitsSweep(("add", "square"), (), 0, tmp_path, said.append)
    assert run.of("t4") == {"add/cuda": {"n": 1}, "square/cuda": {"n": 1}}
    assert said == ["t4", "t4"]


DYING = """
import json, os, signal, sys
question = json.loads(sys.stdin.readline())
print(json.dumps([question["ops"][0], {"cuda": {"n": 1}}]), flush=True)
os.kill(os.getpid(), signal.SIGABRT)
"""


def test_an_exception_in_a_process_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "WORKER", ["-c", "raise ValueError('odd')"])
    with pytest.raises(RuntimeError, match="t4: the process that asks ended: ValueError: odd"):
        sweep.FitsSweep(("add",), (), 0, tmp_path, lambda card: None).of("t4")


# --- the record ---------------------------------------------------------------------------------------------


def entry(op: str, backend: str, why: dict[str, str] | None = None, **counts: int) -> dict[str, Any]:
    row = [counts.get(o.replace(" ", "_"), 0) for o in OUTCOMES]
    return {"source": record.source(op, backend), "calls": {"fp32": row}, **({"why": why} if why else {})}


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A record of two cards."""
    path = tmp_path / "cards.json"
    monkeypatch.setattr(record, "FILE", path)
    why = {f"{ROOM}: too much": "x=3 fp32"}
    t4 = {"add/auto": entry("add", "auto", torch=2), "add/cuda": entry("add", "cuda", refused=2)}
    t4["add/triton"] = entry("add", "triton", fits=2)
    a100 = {"add/auto": entry("add", "auto", fits=3), "add/cuda": entry("add", "cuda", why, fits=1, does_not_fit=2)}
    record.merge({"t4": t4, "a100": a100}, {"NVRTC": "13.5"})
    return path


def test_entries_replace_one_another_and_the_others_stay(book: Path) -> None:
    record.merge({"t4": {"add/cuda": entry("add", "cuda", fits=7)}}, {"NVRTC": "13.6"})
    found = {(e.card, e.backend): e for e in record.entries()}
    assert len(found) == 5 and found["t4", "cuda"].count(FITS) == found["t4", "cuda"].count() == 7
    assert record.read()["versions"] == {"NVRTC": "13.6"}
    assert all(len(line) < 200 for line in book.read_text().splitlines())


def test_an_entry_of_other_sources_is_stale(book: Path) -> None:
    assert not any(e.stale for e in record.entries())
    text = json.loads(book.read_text())
    text["cards"]["t4"]["add/cuda"]["source"] = "0" * 12
    book.write_text(json.dumps(text))
    assert [(e.card, e.operator, e.backend) for e in record.entries() if e.stale] == [("t4", "add", "cuda")]
    assert "stale" in table.cell(list(record.entries()), "add", "t4")


def test_a_damaged_record_is_told(book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book.write_text("{")
    assert program.main(["support", "--cards"]) == terminal.USAGE
    assert "the record of cards is damaged" in capsys.readouterr().err


def test_the_table_says_what_is_refused_and_what_is_wrong(book: Path) -> None:
    found = list(record.entries())
    assert table.cell(found, "add", "t4") == "cuda: no fp32"
    assert table.cell(found, "add", "a100") == "2 do not fit"
    assert table.cell(found, "softmax", "t4") == table.NOT_ASKED
    (line,) = table.problems(found, 200)
    assert line == "add cuda on a100: does not fit: too much (x=3 fp32)"
    totals = [line.split() for line in table.totals(found).splitlines()]
    assert ["t4", "sm_75", "6", "2", "2", "2", "0", "0", "0"] in totals


def test_spills_are_told_but_are_no_failure() -> None:
    found = [record.entry("gb10", "add/cuda", entry("add", "cuda", fits=1) | {"spills": [8, "x=3 fp32"]}, stale=False)]
    assert list(table.spills(found)) == ["add cuda spills 8 bytes on gb10 (x=3 fp32)"]
    assert table.cell(found, "add", "gb10") == table.YES


def test_support_shows_the_record_as_text_and_as_json(book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["support", "add", "--cards"]) == 0
    out = capsys.readouterr().out
    assert "cuda: no fp32" in out and "2 do not fit" in out and "l4 as rtx4090" in out
    assert program.main(["support", "--cards", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["entries"]) == 5 and document["stands_for"]["gh200"] == "h100"
    refused = next(e for e in document["entries"] if e["calls"]["fp32"][REFUSED])
    assert (refused["card"], refused["backend"], refused["capability"]) == ("t4", "cuda", "sm_75")


# --- the command --------------------------------------------------------------------------------------------


@COMPILES
def test_a_sweep_asks_records_and_ends_with_its_verdict(
    tmp_path: Path, book: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--fits", "gb10", "--op", "square", "--backend", "cuda", "auto", "--out", str(tmp_path), "--record"]
    assert main([*words, "-n", "1"]) == 0
    out = capsys.readouterr().out
    assert "gb10" in out and "sm_121" in out and "does not compile" in out
    found = [e for e in record.entries() if e.card == "gb10"]
    assert {(e.operator, e.backend) for e in found} == {("square", "cuda"), ("square", "auto")}
    assert all(e.count(FITS) == e.count() == len(SQUARE.workloads) * len(SQUARE.dtypes) for e in found)
    lines = (tmp_path / "fits" / "gb10.jsonl").read_text().splitlines()
    assert main([*words, "-n", "1"]) == 0
    assert (tmp_path / "fits" / "gb10.jsonl").read_text().splitlines() == lines, "nothing is asked twice"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--fits", "rtx4909"], 'unknown card "rtx4909" in --fits; did you mean "rtx4090"?'),
        (["--fits", "--tier", "full"], "--fits: expected no selection but --op, --backend and --seed, got --tier"),
        (["--fits", "--mutants"], "got --mutants"),
        (["--fits", "--card", "t4"], "got --card"),
        (["--fits", "--backend", "torch_ref"], "--fits: expected --backend auto, cuda, triton, got torch_ref"),
        (["--card", "rtx4909"], 'unknown card "rtx4909" in --card; did you mean "rtx4090"?'),
        (["--card", "sm_99"], "--card: expected a compute capability of 7.5, 8.0"),
    ],
)
def test_wrong_words_are_told(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == terminal.USAGE
    assert text in " ".join(capsys.readouterr().err.split())
