"""The HTML page: complete, self-contained, honest about what was not measured, and the same for runs and records."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from kernelmux.perf.cli import main
from kernelmux.perf.pictures import figures, themes
from kernelmux.perf.record import history, run_file
from kernelmux.perf.record.run_file import KernelNeed
from kernelmux.perf.report import page
from kernelmux.perf.rows.machine import MeasuringMachine
from kernelmux.perf.tests import synthetic
from kernelmux.perf.timing import noise_floor

VOID = {"meta", "br", "use", "path", "rect", "img"}
RECORD = history.PLACE.of("NVIDIA H200")


class Checker(HTMLParser):
    """Every tag is closed in order; identifiers and references are collected."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.links, self.text = [], [], [], ""

    def handle_starttag(self, tag, attributes):
        told = dict(attributes)
        self.ids += [told["id"]] if "id" in told else []
        self.links += [told[k] for k in ("href", "src", "xlink:href") if k in told]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def read(text):
    checker = Checker()
    checker.feed(text)
    assert not checker.open
    checker.text = re.sub(r"\s+", " ", checker.text)
    return checker


def test_the_page_stands_alone():
    found = read(page.html(synthetic.results([*synthetic.with_aa(), synthetic.failed()])))
    assert all(link.startswith("#") for link in found.links)
    assert {link[1:] for link in found.links} <= set(found.ids)
    assert len(found.ids) == len(set(found.ids))


def test_the_page_says_what_was_measured_and_where():
    found = read(page.html(synthetic.results(synthetic.with_aa())))
    for text in (
        "Performance on NVIDIA H200",
        "580.1",
        "2.11.0",
        "4278 GB/s",
        "792 TFLOP/s",
        "share of the floor, %",
        "arithmetic intensity, flop per byte",
        "floor 125.5 µs by memory; the same variant again: up to 2.0 % apart",
        "A/A: the same variant timed twice lies 2.0% apart",
        "“held” is the time per call",
    ):
        assert text in found.text


def test_without_a_second_time_or_a_rest_the_page_says_so():
    old = [replace(row, held_us=None, held_mhz=None, mhz=None) for row in synthetic.ladder()]
    text = read(page.html(synthetic.results(old))).text
    assert "This run timed every variant once (no --aa)" in text
    assert "bold marks everything within 3 % of the fastest" in text
    assert "4 rows were timed straight after calls back to back" in text


def test_failures_and_reasons_are_on_the_page_as_text():
    rows = [*synthetic.ladder(), synthetic.failed(error="<b>& wrong</b>")]
    rows.append(synthetic.skipped(backend="triton"))
    page_ = page.html(synthetic.results(rows, errors=("a worker died",)))
    assert "&lt;b&gt;&amp; wrong&lt;/b&gt;" in page_
    assert "triton/online: N &gt; 65536" in page_
    assert "a worker died" in page_


def test_a_row_that_differs_from_itself_is_reported():
    rows = noise_floor.fold(synthetic.pair(100.0, 120.0))
    assert "100.0 us, then 120.0 us (20.0% apart)" in page.html(synthetic.results(rows))


def test_a_comparison_names_what_changed():
    before = synthetic.results([synthetic.row(us=100.0), synthetic.row(variant="naive", us=600.0)], date="2026-11-01")
    now = synthetic.results([synthetic.row(us=120.0), synthetic.row(variant="naive", us=601.0)])
    text = read(page.html(now, before)).text
    assert "Against 2026-11-01" in text
    assert "2 rows compared, 1 changed by more than noise" in text
    assert "1.200" in text
    assert "slower" in text


def test_without_a_gpu_the_page_has_times_of_the_cpu_and_kernels_as_compiled():
    row = synthetic.row(backend="torch_ref", variant="plain", point=None, held_us=None, graph_us=None, host_us=None)
    need = KernelNeed(
        "softmax", "cuda/online", "x=64x64", "bf16", "softmax_online", 40, 0, 64, 0, 256, 6, 0.75, "registers"
    )
    machine = MeasuringMachine(name="a CPU", kind="cpu", threads=2)
    found = synthetic.results([row], resources=(need,), ceilings=None, machine=machine)
    text = read(page.html(found)).text
    assert "emulated kernels are never timed" in text
    assert "a CPU, 2 threads" in text
    assert "softmax_online" in text
    assert "Ceilings" not in text


def test_without_matplotlib_there_are_tables(monkeypatch):
    monkeypatch.setattr(figures, "available", lambda: False)
    text = page.html(synthetic.results(synthetic.with_aa()))
    assert "<svg" not in text
    assert "cuda/registers" in text


@pytest.mark.parametrize("name", ["a", "b2"])
def test_identifiers_in_a_chart_become_its_own(name):
    svg = '<g id="x"/><use href="#x"/><rect style="clip-path: url(#x)"/>'
    assert (
        figures.scoped(svg, name)
        == f'<g id="{name}-x"/><use href="#{name}-x"/><rect style="clip-path: url(#{name}-x)"/>'
    )


def test_a_record_is_rendered_without_a_gpu(tmp_path, capsys):
    """Two operators of it in one dtype: each chart takes long to draw, and they are alike."""
    told = json.loads(RECORD.read_text(encoding="utf-8"))
    op, dtype = told["columns"].index("op"), told["columns"].index("dtype")
    told["rows"] = [row for row in told["rows"] if row[op] in ("softmax", "matmul") and row[dtype] == "fp32"]
    assert {row[op] for row in told["rows"]} == {"softmax", "matmul"}
    few, target = tmp_path / "few.json", tmp_path / "pages" / "report.html"
    few.write_text(json.dumps(told), encoding="utf-8")
    assert main.main(["--render", str(few), "--html", str(target)]) == 0
    assert f"wrote {target}" in capsys.readouterr().out.replace("\n", "")
    found = read(target.read_text(encoding="utf-8"))
    assert all(row.label in found.text for row in run_file.read(few).rows)


def test_a_page_needs_a_name(capsys):
    assert main.main(["--render", str(RECORD)]) == 2
    assert "--html FILE" in capsys.readouterr().err


def test_a_picture_has_a_mark_a_line_and_says_what_matplotlib_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    def parsed(element: ElementTree.Element) -> object:
        told = {name: value.split() for name, value in element.attrib.items()}
        return element.tag, told, (element.text or "").split(), [parsed(child) for child in element]

    def themed(svg: str, themed: Callable[[str], str] = themes.themed) -> str:
        written.append(themed(svg))
        return written[0]

    written: list[str] = []
    monkeypatch.setattr(themes, "themed", themed)
    with figures.blank(4, 3) as figure:
        figure.subplots().plot(range(40), [x * x for x in range(40)])
        text = figures.svg(figure)
    (plain,) = written
    assert text.count("\n") < plain.count("\n") / 3
    assert parsed(ElementTree.fromstring(text)) == parsed(ElementTree.fromstring(plain))
