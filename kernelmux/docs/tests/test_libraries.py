"""The run beside other libraries: its command asks for its calls, and record, table and picture say what it found."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernelmux.docs import libraries, speeds
from kernelmux.perf.cli import main
from kernelmux.perf.pictures import figures, themes
from kernelmux.perf.planning import plan
from kernelmux.perf.record import run_file
from kernelmux.perf.record.run_file import Results
from kernelmux.perf.rows.machine import MeasuringMachine
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.perf.rows.row_result import SecondTiming, Timed
from kernelmux.registry import catalog, dtypes
from kernelmux.registry.backend import lookup as backend
from kernelmux.registry.errors import ArgumentError

DOCS = Path(__file__).parents[3] / "docs"
PHONE = 358  # pixels that a page leaves a picture where the screen has 390


def row(op: str, label: str, us: float, again_us: float | None = None) -> Timed:
    name, variant = label.split("/")
    second = SecondTiming(again_us=again_us, apart=again_us / us - 1) if again_us else None
    dtype = "e4m3" if op == "fp8_matmul" else "bf16"
    return Timed(
        op=op,
        workload=libraries.CALLS[op],
        dtype=dtype,
        backend=name,
        variant=variant,
        spec="",
        source="",
        median_us=us,
        spread=0.0,
        least_us=us,
        rounds=9,
        bytes=1.0,
        flops=1.0,
        unit="fma",
        link="",
        budget=0.1,
        second=second,
    )


def run(*rows: Timed, triton: str = "3.6.0", gpu: str = "NVIDIA X1") -> Results:
    versions = {"torch": "2.11.0", "triton": triton, "liger-kernel": "0.8.5"}
    machine = MeasuringMachine(name=gpu, kind="cuda", versions=versions)
    return Results(date="2026-01-02", command="python", machine=machine, ceilings=None, rows=rows)


MEASURED = run(
    row("softmax", "cuda/online", 50.0),
    row("softmax", "cuda/registers", 40.0, again_us=41.0),
    row("softmax", "triton/resident", 80.0),
    row("softmax", "peers/liger", 60.0),
    row("softmax", "peers/quack", 70.0),
    row("softmax", "torch_ref/plain", 90.0),
    row("rope", "cuda/heads", 30.0),
    row("rope", "peers/torch_compile", 90.0),
    row("rope", "torch_ref/plain", 99.0),
    row("matmul", "triton/persistent", 120.0),
    row("matmul", "torch_ref/plain", 100.0),
    row("matmul", "peers/torch_compile", 101.0),
    row("swiglu", "cuda/vectorized", 10.0),
    row("swiglu", "torch_ref/plain", 20.0),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(libraries, "FOLDER", tmp_path / "records")
    return tmp_path


def link(path: Path) -> str:
    """From a page in docs/."""
    return f"../kernelmux/records/{path.parent.parent.name}/trials/{path.name}"


def keep(folder: Path, found: Results) -> Path:
    run_file.write(found, folder / "results.json")
    return libraries.keep(folder / "results.json")


def test_a_line_is_ours_beside_the_fastest_of_the_others() -> None:
    matmul, softmax, rope = libraries.lines(MEASURED)  # swiglu met no other library
    assert (matmul.library, softmax.library, rope.library) == ("cuBLAS", "Liger", "torch.compile")
    assert matmul.other.median_us == 100 and softmax.other.median_us == 60
    assert softmax.ours["cuda"].variant == "registers" and softmax.ahead("cuda") == 1.5
    assert softmax.ahead("triton") == 0.75 and "triton" not in rope.ours
    by_torch = run(row("rope", "cuda/heads", 9.0), row("rope", "torch_ref/plain", 5.0), row("rope", "peers/liger", 6.0))
    assert [line.library for line in libraries.lines(by_torch)] == ["torch"]


def test_the_command_asks_for_each_call_once_and_for_no_other() -> None:
    words = shlex.split(libraries.command())
    args = main.parser().parse_args(words[3:])
    options = PerfOptions(ops=tuple(args.op), workloads=tuple(args.workload), dtypes=tuple(args.dtype), device="cuda")
    found = {op: [case.text for case in plan.workloads(catalog.spec(op), options)] for op in args.op}
    assert words[:3] == ["python", "-m", "kernelmux.perf"] and args.peers
    assert found == {op: [text] for op, text in libraries.CALLS.items()}
    triton = main.parser().parse_args(shlex.split(libraries.command(triton=True))[3:])
    assert not triton.peers and {label.partition("/")[0] for label in triton.backend} == {"triton"}


@pytest.mark.parametrize("name", libraries.OURS)
@pytest.mark.parametrize("op", libraries.CALLS)
def test_the_command_times_what_a_gpu_of_the_h100s_capability_would_run(op: str, name: str) -> None:
    spec, dtype = catalog.spec(op), libraries.DTYPES[op == "fp8_matmul"]
    call = spec.hypothetical(spec.case(libraries.CALLS[op]), dtypes.parse(dtype), torch.device("cuda"), (9, 0))
    able = [f"{name}/{variant}" for variant, made in backend.variants(name, op).items() if not made.reasons(call)]
    assert able and able[-1] in libraries.RUNGS, able


def test_a_call_is_written_short() -> None:
    assert libraries.call("q=4x8 k=4x8 mask=7 causal=True") == "q, k 4x8, mask 7, causal=True"
    assert libraries.call(libraries.CALLS["conv2d"]).endswith("weight 256x256x3x3, padding=1, channels-last")
    assert libraries.call(libraries.CALLS["fp8_matmul"]) == "a 8192x8192, b 8192x8192.mT"


def test_the_table_has_the_times_and_says_what_they_are_of(folder: Path) -> None:
    path = keep(folder, MEASURED)
    text = libraries.filled("a\n<!-- libraries -->\nold\n<!-- /libraries -->\nb\n")
    assert path.parent.parent.name == "nvidia_x1" and link(path) in text and "old" not in text
    assert "NVIDIA X1" in text and "2026-01-02" in text and "Liger 0.8.5" in text and "differ by 2.5% at most" in text
    assert "| [`softmax`](operators/softmax.md) | 40.0 (1.50x) | 80.0 (0.75x) | 60.0 Liger | x 16384x8192 |" in text
    assert "| 30.0 (3.00x) |  | 90.0 torch.compile |" in text and "other versions of Triton" not in text


def test_a_run_under_another_triton_has_a_column(folder: Path) -> None:
    later = run(row("softmax", "triton/resident", 77.0), row("softmax", "torch_ref/plain", 90.0), triton="3.10.1")
    names = [link(keep(folder, found)) for found in (MEASURED, later)]
    text = libraries.section()  # 3.10 is later than 3.6
    assert f"| operator | [Triton 3.6.0]({names[0]}), us | [Triton 3.10.1]({names[1]}), us |" in text
    assert "| `softmax` | 80.0 | 77.0 |" in text and "| `matmul` | 120.0 |  |" in text
    assert ">0.75x<" in speeds.picture()  # of the run beside other libraries


def test_a_record_replaces_that_of_another_gpu(folder: Path) -> None:
    earlier = keep(folder, replace(MEASURED, machine=replace(MEASURED.machine, name="NVIDIA X0")))
    later = keep(folder, MEASURED)
    assert not earlier.exists() and [*later.parent.iterdir()] == [later]
    assert {found["op"] for found in json.loads(later.read_text())["rows"]} == {"softmax", "rope", "matmul", "swiglu"}


def test_a_run_of_other_calls_or_of_a_processor_is_refused(folder: Path) -> None:
    other = run(replace(row("softmax", "cuda/online", 5.0), workload="x=2x2"))
    for found in (other, replace(MEASURED, machine=replace(MEASURED.machine, kind="cpu"))):
        with pytest.raises(ArgumentError, match=r"expected times of matmul, .* on a GPU; the command is\npython -m"):
            keep(folder, found)


def test_without_a_record_the_page_says_how_to_get_one(folder: Path) -> None:
    assert "No run" in speeds.picture() and f"```console\n{libraries.command()}\n```" in libraries.section()


@pytest.mark.parametrize("columns", [1, 2])
def test_the_bars_are_as_long_as_the_speeds(folder: Path, columns: int) -> None:
    keep(folder, MEASURED)
    drawn = speeds.picture(columns)
    found = libraries.lines(MEASURED)
    with figures.blank(4, 4) as figure:
        axes = figure.subplots()
        speeds.column(axes, found, len(found))
    bars = {(backend, bar.get_width()) for backend, c in zip(libraries.OURS, axes.containers, strict=True) for bar in c}
    assert bars == {(backend, line.ahead(backend)) for line in found for backend in line.ours} and len(bars) == 4
    assert axes.get_xlim() == (0, speeds.LONGEST)
    assert len(re.findall(r">\d\.\d\dx<", drawn)) == 4
    assert all(f">{speed}<" in drawn for speed in ("1.50x", "0.75x", "3.00x"))
    cut = [line for line in axes.lines if line.get_color() == themes.PAPER]
    assert len(cut) == 1  # the one bar that is longer has a gap
    assert ">Liger 60.0 us<" in drawn and ">cuBLAS 100.0 us<" in drawn and ">NVIDIA X1, " in drawn


@pytest.mark.parametrize(("file", "columns"), [("speeds", 1), ("speeds_wide", 2)])
def test_the_pictures_are_legible_light_and_dark(file: str, columns: int) -> None:
    drawn = (DOCS / f"images/{file}.svg").read_text(encoding="utf-8")
    width = float(re.findall(r'<svg[^>]* width="([\d.]+)pt"', drawn)[0])
    sizes = [float(size) for size in re.findall(r"font(?:-size)?: (?:bold |700 )?([\d.]+)px", drawn)]
    assert "prefers-color-scheme:dark" in drawn and "rotate" not in drawn.replace("rotate(-0 ", "")
    assert min(sizes) * (PHONE / width if columns == 1 else 96 / 72) >= 11
    assert width * 96 / 72 == columns * (speeds.COLUMN + speeds.GAP) - speeds.GAP


@pytest.mark.parametrize("page", [DOCS.parent / "README.md", DOCS / "performance.md"], ids=lambda path: path.stem)
def test_a_page_shows_the_wide_picture_where_it_fits_and_the_narrow_one_elsewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    (least, wide), (narrow,) = (
        re.findall(r'<source media="\(min-width: (\d+)px\)" srcset="([^"]+)">', text)[0],
        re.findall(r'<img src="([^"]+)" alt="[^"]{20,}">', text),
    )
    assert (page.parent / wide).name == "speeds_wide.svg" and (page.parent / narrow).name == "speeds.svg"
    assert (page.parent / wide).exists() and (page.parent / narrow).exists() and int(least) >= 1200
