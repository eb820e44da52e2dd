"""Bytes of small calls: counted, kept with what they were counted from, shown; the record is of the tree as it is."""

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kernelmux.emulator import nvrtc
from kernelmux.perf.emulated import moved
from kernelmux.perf.record.run_file import Moved
from kernelmux.perf.report import page
from kernelmux.perf.rows.machine import MeasuringMachine
from kernelmux.perf.tests import synthetic

ROW = Moved("add", "cuda/vectorized", "x=4099 y=4099", "bf16", 49180, 24594, 1, "spec", "source")


@pytest.mark.skipif(nvrtc.unavailable() is not None, reason="counts compiled kernels")
def test_a_call_is_counted_and_what_is_current_is_not_counted_again(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(moved, "RECORD", tmp_path / "moved.json")
    question = next(q for q in moved.questions(["add"]) if q.backend == "cuda")
    monkeypatch.setattr(moved, "questions", lambda ops=(): iter([question]))
    assert moved.main([]) == 0 and "1.00 times" in capsys.readouterr().out
    (row,) = moved.known()
    assert row.needed == 3 * 2 * 4099 and 1.0 <= row.times < 1.01 and row.launches == 1 and not row.stale
    monkeypatch.setattr(moved, "count", lambda question: pytest.fail("counted again"))
    assert moved.main([]) == 0
    moved.write([replace(row, source="of another kernel")])
    (row,) = moved.known()
    assert row.stale


def test_every_operator_and_backend_with_kernels_is_on_record() -> None:
    assert {(q.op, q.backend) for q in moved.questions()} == {
        (row.op, row.label.partition("/")[0]) for row in moved.known()
    }


def test_the_page_without_a_gpu_shows_the_counts_and_what_is_on_record() -> None:
    there = MeasuringMachine(name="a CPU", kind="cpu", threads=2)
    told = synthetic.results([synthetic.row(backend="torch_ref", variant="eager")], machine=there, ceilings=None)
    told = replace(told, moved=(ROW, replace(ROW, label="triton/blocked", stale=True)))
    text = page.html(told)
    assert "<td>add cuda/vectorized</td>" in text and "<td>48.0 KiB</td><td>24.0 KiB</td><td>2.00</td>" in text
    assert "add triton/blocked (stale)" in text and 'href="#moved"' in text
    assert '<h2 id="recorded">Recorded on NVIDIA H200' in text and 'href="#recorded"' in text


def test_the_table_names_what_is_stale() -> None:
    file = StringIO()
    moved.show(Console(file=file, width=80), [replace(ROW, stale=True)])
    assert "add cuda/vectorized (stale)" in file.getvalue() and "2.00" in file.getvalue()
