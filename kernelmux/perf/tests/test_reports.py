"""Tables, Markdown and the picture."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from kernelmux.perf.cli import command
from kernelmux.perf.pictures import roofline_picture, themes
from kernelmux.perf.record import history
from kernelmux.perf.report import fewer_bytes, markdown, tables
from kernelmux.perf.tests import synthetic
from kernelmux.perf.wording import wording
from kernelmux.perf.wording.groups import groups
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.util.files import GpuFiles


def printed(show, *arguments):
    file = StringIO()
    show(Console(file=file, width=120, highlight=False), *arguments)
    return file.getvalue()


def test_a_group_knows_its_best_row_torch_and_the_rung_below():
    (group,) = groups(synthetic.ladder())
    naive, registers = group.good[2:]
    assert group.best is registers
    assert group.times_torch(registers) == pytest.approx(300 / 130)
    assert group.times_previous(registers) == pytest.approx(600 / 130)
    assert group.times_previous(naive) is None
    assert group.best_of("triton") is group.good[1]


def test_the_terminal_table_fits_and_marks_the_best():
    text = printed(tables.show, [*synthetic.ladder(), synthetic.failed(variant="online")], True)
    assert all(len(line.rstrip()) <= 120 for line in text.splitlines())
    best = next(line for line in text.splitlines() if line.startswith("* "))
    assert best.split()[:8] == ["*", "cuda/registers", "130.0", "1%", "4130", "GB/s", "97%", "2.31x"]
    assert "FAILED softmax cuda/online: WrongOutput: y: wrong at [0, 3]" in text
    assert "floor 125.5 us by memory" in text


def test_the_summary_counts_and_gives_reasons():
    rows = [*synthetic.ladder(), synthetic.failed(), synthetic.skipped()]
    text = printed(tables.summary, rows, ["a worker died"], "timed: cuda on a GPU")
    assert "4 rows timed and right, 1 failed, 1 not applicable; timed: cuda on a GPU" in text
    assert "not run: cuda/online: N > 65536" in text
    assert "a worker died" in text


def test_the_report_has_a_ladder_with_advice():
    text = markdown.whole(synthetic.results([*synthetic.ladder(), synthetic.failed()]), "report.svg")
    assert text.startswith("# Performance on NVIDIA H200, 2026-11-20\n")
    assert "![roofline](report.svg)" in text
    times = "2.31x | 4.62x | 143.0 | 12.0 | 126.1"
    assert f"| **cuda/registers** | 130.0 | 1% | 4130 GB/s | 97% | {times} | memory | at the roof |" in text
    assert "| cuda/online | FAILED |" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.count("|") == 13 for line in lines if line.startswith(("| cuda", "| **cuda")))


def test_the_report_says_which_rows_did_not_rest():
    rows = synthetic.ladder()
    assert markdown.legend(rows) == markdown.LEGEND
    rows[0] = replace(rows[0], held_us=None)
    assert markdown.legend(rows).endswith(markdown.NOT_RESTED)


def test_the_table_of_the_best_has_a_column_per_backend():
    lines = markdown.best_table(synthetic.ladder()).splitlines()
    assert lines[0] == "| operator | workload | floor us | torch_ref | triton | cuda |"
    assert lines[2].endswith("| 125.5 | 300.0 us, 42% | 150.0 us, 84% | **130.0 us, 97%** |")


def test_the_picture_is_drawn(tmp_path):
    found = synthetic.results([*synthetic.ladder(), *_products()])
    assert roofline_picture.draw(found, tmp_path / "roofline")
    text = (tmp_path / "roofline.svg").read_text()
    assert "prefers-color-scheme:dark" in text and themes.variable(themes.BACKENDS["cuda"]) in text
    assert all(word in text for word in ("softmax", "matmul", "copy 4.28 TB/s", "fp32 51", "torch_ref"))
    assert "Matplotlib" not in text and "<dc:date>" not in text  # drawn again it is the same, by another version too
    assert (tmp_path / "roofline.png").stat().st_size > 10_000


def _products():
    more = {"op": "matmul", "workload": "a=8192x8192 b=8192x8192", "work": synthetic.PRODUCT}
    return [synthetic.row(backend=b, variant="v", us=u, **more) for b, u in (("torch_ref", 1500.0), ("cuda", 1420.0))]


def test_nothing_to_draw_is_no_picture(tmp_path):
    assert not roofline_picture.draw(synthetic.results([synthetic.failed()]), tmp_path / "roofline")


def test_a_document_is_updated_between_its_markers(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "PLACE", GpuFiles(tmp_path))
    history.recorded.cache_clear()
    stale = synthetic.row(backend="triton", variant="online", source="0" * 12)
    history.record(synthetic.results([*synthetic.ladder(), stale]))
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- perf -->\nold\n<!-- /perf -->\nafter\n")
    assert "updated" in printed(command.update, page)
    text = page.read_text()
    assert text.startswith("before\n<!-- perf -->\nRecorded on NVIDIA H200, 2026-11-20 (")
    assert text.endswith("<!-- /perf -->\nafter\n")
    assert "old\n" not in text
    assert "share of the floor. Stale: what it launches has changed since.\n" in text and text.count(", stale |") == 1
    history.recorded.cache_clear()


def test_products_in_fewer_bytes_stand_beside_those_in_bf16(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "PLACE", GpuFiles(tmp_path))
    history.recorded.cache_clear()
    wide = {"op": "matmul", "workload": "a=8192x8192 b=8192x8192", "backend": "triton", "us": 1400.0}
    narrow = {**wide, "op": "int8_matmul", "workload": "a=8192x8192 b=8192x8192.mT", "dtype": "i8", "us": 900.0}
    slower = synthetic.row(**{**wide, "variant": "slower", "us": 1500.0})
    current = {"source": registered.source_hash("triton", "matmul"), "bytes": 3 * 2 * 8192**2, "flops": 2 * 8192**3}
    made = [synthetic.row(**wide, **current), slower, synthetic.row(**narrow, source="0" * 12)]
    history.record(synthetic.results(made))
    text = fewer_bytes.tables()
    assert "| `matmul` | bf16 x bf16 = bf16 | 402.7 | 100% | 0.3% | 1400 triton/online | 1.00x |" in text
    assert "| `int8_matmul` | i8 x i8 = i32 | 402.7 | 100% | 1.3% | 900.0 triton/online (stale) | 1.56x |" in text
    assert "| `matvec` | bf16 x i8 = bf16 | 58.8 | 50% | 0.9% | not recorded |  |" in text
    assert "--op int8_matmul --dtype i8 --workload 'a=4096x4096 b=4096x4096.mT scale_a=" in text
    history.recorded.cache_clear()


@pytest.mark.parametrize(
    ("us", "text"), [(3.456, "3.46"), (34.56, "34.6"), (345.6, "345.6"), (3456.7, "3457"), (None, "")]
)
def test_microseconds(us, text):
    assert wording.microseconds(us) == text
