"""Sweeps: the words of the command line, the workloads made of them, their files, what is stale, their pictures."""

import io
import re
from argparse import Namespace
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from kernelmux.perf import peers
from kernelmux.perf.cli import main, sweep
from kernelmux.perf.pictures import curves, figures, themes
from kernelmux.perf.record.run_file import Results
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.perf.rows.row_result import NotTimed
from kernelmux.perf.session import run as session
from kernelmux.perf.sweeps import curve
from kernelmux.perf.sweeps.curve import Point
from kernelmux.perf.sweeps.grammar import LONGEST, Sweep, between, parse
from kernelmux.perf.sweeps.plan import planned
from kernelmux.perf.tests import synthetic
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.errors import ArgumentError, UnknownName


@pytest.mark.parametrize(
    ("text", "axes", "lengths"),
    [
        ("softmax:N=256..1024", ("N",), (256, 400, 512, 1000, 1024)),
        ("softmax:M=N=K=256..2000:x2", ("M", "N", "K"), (256, 512, 1024)),
        ("N=100..10000:3", ("N",), (100, 1000, 10000)),
        ("N=50257,1000,1000", ("N",), (1000, 50257)),
        ("...0=7..9", ("...0",), (7, 8, 9)),
        ("N=2..3:x1.5", ("N",), (2, 3)),
    ],
)
def test_words_give_axes_and_lengths(text, axes, lengths):
    assert parse(text, "softmax") == Sweep("softmax", axes, lengths)


def test_between_powers_of_two_lies_a_length_that_users_have():
    assert all(2**k < between(2**k) < 2 ** (k + 1) for k in range(1, LONGEST.bit_length()))
    assert [between(n) for n in (512, 4096, 32768, 65536, 1 << 20)] == [1000, 5120, 50257, 128256, 2000000]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("N", "expected [OP:]AXIS=FROM..TO"),
        ("N=1e3..2e3", "expected [OP:]AXIS=FROM..TO"),
        ("N=0..8", "expected 1 <= FROM <= TO"),
        ("N=9..8", "expected 1 <= FROM <= TO"),
        ("N=0,4", "expected lengths from 1"),
        ("N=1..8:x1", "expected a factor from 1.01 on, got x1"),
        ("N=1..8:1", "expected from 2 to 200 steps, or a factor such as x2, got 1"),
        ("N=1..8:2.5", "or a factor such as x2, got 2.5"),
        ("N=1..1000000:x1.01", "expected at most 200 lengths"),
        ("M=M=1..8", "expected each axis once"),
        ("N=1..99999999999999", "FROM <= TO"),
    ],
)
def test_wrong_words_say_what_is_expected(text, says):
    with pytest.raises(ArgumentError, match=re.escape(says)):
        parse(text, "softmax")


def test_a_sweep_without_an_operator_asks_for_one():
    with pytest.raises(ArgumentError, match=re.escape("as in softmax:N=1..8")):
        parse("N=1..8")


@pytest.mark.parametrize(
    ("text", "shape", "last"),
    [
        ("softmax:N=64,100", "x=4096xN", "x=4096x100"),
        ("add:N=64,100", "x=N y=N", "x=100 y=100"),  # of its workloads, the one of a single axis
        ("matmul:M=N=K=64,96", "a=MxM b=MxM", "a=96x96 b=96x96"),
        ("rms_norm:N=64,100", "x=4096xN weight=N", "x=4096x100 weight=100"),
        ("reduce_sum:N=64", "x=8192xN axis=1", "x=8192x64 axis=1"),
        ("conv2d:C=O=16", "x=32xCx56x56 weight=CxCx3x3 padding=1", "x=32x16x56x56 weight=16x16x3x3 padding=1"),
    ],
)
def test_workloads_are_the_operators_own_with_another_length(gpu, text, shape, last):
    made = planned(parse(text), PerfOptions(device="cuda", peers=True))
    assert (made.shape, list(made.workloads)[-1], made.dtype) == (shape, last, "bf16")
    assert {row.backend for row in made.rows} == {"torch_ref", "cuda", "triton", "peers"}
    assert len(made.rows) == 4 * len(made.workloads)
    assert {row.variant for row in made.rows if row.backend == peers.NAME} == {"torch_compile"}


@pytest.mark.parametrize(
    ("text", "workload", "last"),
    [
        (
            "conv2d:C=O=16,100",
            "x=2x8x7x7 weight=8x8x3x3 padding=1 channels-last",
            "x=2x100x7x7 weight=100x100x3x3 padding=1 channels-last",
        ),
        ("matvec:K=64,96", "weight=8x32:i8 x=1x32:bf16 scale=8", "weight=8x96:i8 x=1x96:bf16 scale=8"),
    ],
)
def test_the_order_in_memory_and_dtypes_of_a_workload_stay(gpu, text, workload, last):
    made = planned(parse(text), PerfOptions(device="cuda", workloads=(workload,)))
    assert list(made.workloads)[-1] == last and not any(row.problem for row in made.rows)


def test_each_sweep_takes_the_workload_that_fits_its_operator(gpu):
    given = ("x=2x8x7x7 weight=8x8x3x3 channels-last", "grad_out=2x8x7x7 weight=8x8x3x3")
    for op, shape in (("conv2d", "x=2xCx7x7 weight=8xCx3x3 channels-last"), ("conv2d_backward_input", None)):
        made = planned(parse(f"{op}:C=8,16"), PerfOptions(device="cuda", workloads=given))
        assert made.shape == (shape or "grad_out=2x8x7x7 weight=8xCx3x3") and len(made.workloads) == 2


def test_a_sweep_of_channels_last_tensors_has_a_file_of_its_own():
    made = synthetic.curve(shape="x=32xCx56x56 channels-last")
    assert made.stem == "softmax-N-channels-last" and synthetic.curve().stem == "softmax-N"


def test_a_backend_is_what_a_call_runs_and_named_variants_are_lines_of_their_own(gpu):
    sweep = parse("matmul:M=N=K=100,4096")
    spec, made = catalog.spec("matmul"), planned(sweep, PerfOptions(device="cuda", backends=("triton", "cuda/tiled")))
    picked = {row.workload: row.variant for row in made.rows if row.backend == "triton"}
    for text, variant in picked.items():
        call = spec.hypothetical(spec.case(text), torch.bfloat16, torch.device("cuda"), (9, 0))
        assert variant == [n for n, i in registered.variants("triton", "matmul").items() if not i.reasons(call)][-1]
    assert {row.variant for row in made.rows if row.backend == "cuda"} == {"tiled"}


def test_a_variant_that_does_not_pay_is_not_what_a_call_runs(gpu):
    """A small product in fp32 is not split for tensor cores, which could run it: a plain call does not go there."""
    made = planned(parse("matmul:M=N=K=96,2048"), PerfOptions(device="cuda", backends=("cuda",), dtypes=("fp32",)))
    assert [row.variant for row in made.rows if row.backend == "cuda"] == ["register_tiled", "bf16x6"]
    named = PerfOptions(device="cuda", backends=("cuda/bf16x6",), dtypes=("fp32",))
    assert {r.variant for r in planned(parse("matmul:M=N=K=96,128"), named).rows if r.backend == "cuda"} == {"bf16x6"}


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("softmax:Q=1..8", {}, "softmax has no axis Q in 'x=37x1000'; expected one of ...0, ...1, N"),
        ("add:N=1..8", {"workloads": ("x=3x4 y=3x4",)}, "name a workload in which it is one"),
        ("softmax:N=1..8", {"dtypes": ("bf16", "fp32")}, "expected a single --dtype"),
        ("softmax:N=1..8", {"dtypes": ("i8",)}, "--dtype i8: expected one of fp32, fp16, bf16, which softmax takes"),
        ("rope:D=6,8", {}, "--sweep rope:D, at 6: rope: expected D = 2 * E"),
        ("softmax:N=1..99999999999:x10000000", {"workloads": ("x=99999x8",)}, "GiB of memory; this machine has"),
    ],
)
def test_what_the_operator_does_not_have_is_said(text, options, says):
    with pytest.raises(ArgumentError, match=re.escape(says)):
        planned(parse(text), PerfOptions(**options))


def test_an_unknown_operator_is_named():
    with pytest.raises(UnknownName, match="did you mean"):
        planned(parse("sofmax:N=1..8"), PerfOptions())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--sweep N=1..8", "expected an operator, as in softmax:N=1..8"),
        ("--sweep softmax:N=1..8 --aa", "expected no --aa"),
        ("--sweep softmax:N=1..8 add:N=1..8 --workload x=3x8 a=2x3", "0 of add fit --workload x=3x8 a=2x3"),
        ("--sweep softmax:N=1..8 --workload a=2x3", 'unknown argument "a" in the shapes of softmax'),
        ("--sweep softmax:N=1..8 softmax:N=9", "expected each operator and axis once"),
        ("--sweep add:N=1..8 --op softmax", "expected operators of --op softmax, got add"),
        ("--sweep sofmax:N=1..8", 'did you mean "softmax"?'),
        ("--op softmax --plot", "expected --sweep or --show-sweeps beside it"),
        ("--sweep softmax:N=1..8 --record", "only times of a real GPU are recorded"),
        ("--show-sweeps nothing-of-it", "no recorded sweeps of nothing-of-it"),
    ],
)
def test_options_that_do_not_go_together(arguments, says, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main.main([*arguments.split(), "--out", str(tmp_path)]) == 2
    assert says in capsys.readouterr().err


def test_a_missing_matplotlib_is_told_before_the_work(monkeypatch, capsys):
    monkeypatch.setattr(figures, "available", lambda: False)
    assert main.main(["--show-sweeps", "--plot"]) == 2
    assert "matplotlib is not installed" in capsys.readouterr().err


def test_a_file_gives_the_sweep_again(tmp_path):
    made = synthetic.curve()
    path = curve.record(made, tmp_path)
    assert path.name == "nvidia_h200-softmax-N.csv"
    again = curve.read(path)
    assert curve.text(again) == path.read_text() and again.lengths == made.lengths
    assert (again.machine, again.ceilings, again.command) == (made.machine, made.ceilings, made.command)
    assert list(again.lines) == ["torch_ref/plain", "peers/torch_compile", "triton/resident", "cuda/registers"]
    assert again.points[0].row.point.floor_us == pytest.approx(made.points[0].row.point.floor_us, rel=1e-5)


def test_a_file_of_a_cpu_has_no_ceilings(tmp_path):
    first, *_ = synthetic.curve(lines=(("torch_ref", "plain"),)).points
    made = synthetic.curve(ceilings=None, points=(Point(256, replace(first.row, point=None, mhz=None)),))
    again = curve.read(curve.record(made, tmp_path))
    assert again.ceilings is None and again.points[0].row.point is None and again.points[0].row.mhz is None


def test_variants_that_change_with_the_length_are_one_line_and_rivals_are_two():
    first, *rest = [point for point in synthetic.curve(lines=(("cuda", "registers"),)).points]
    other = Point(first.length, replace(first.row, variant="online"))
    assert list(synthetic.curve(points=(other, *rest)).lines) == ["cuda"]
    assert list(synthetic.curve(points=(first, other, *rest)).lines) == ["cuda/registers", "cuda/online"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: "", "in the first line, got 'nothing'"),
        (lambda text: text.replace("sweep 1", "sweep 9"), "expected 'kernelmux.perf sweep 1'"),
        (lambda text: text[: text.index("length,")], "it has no rows"),
        (lambda text: text.replace("# machine", "# mashine"), "no 'machine'"),
        (lambda text: text.replace("median_us", "median"), "no 'median_us'"),
        (lambda text: text.replace("256,softmax", "256,softmax,softmax"), "could not convert"),
    ],
)
def test_a_damaged_file_is_refused_with_the_reason(change, says, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(change(curve.text(synthetic.curve())))
    with pytest.raises(ArgumentError, match=re.escape(says)):
        curve.read(path)


def test_lines_whose_source_has_changed_are_named(tmp_path):
    made = synthetic.curve()
    assert made.stale == ()
    changed = tuple(Point(p.length, replace(p.row, source="0" * 12)) for p in made.points if p.row.backend != "triton")
    path = curve.record(replace(made, points=changed), tmp_path)
    assert curve.read(path).stale == ("torch_ref/plain", "cuda/registers")  # other libraries do not change here
    out = io.StringIO()
    curves.show(Console(file=out, width=200), curve.read(path))
    assert "stale, what they launch has changed since: torch, cuda/registers" in out.getvalue()


def test_a_recorded_file_is_drawn_for_light_and_dark(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(curve, "FOLDER", tmp_path / "records")
    curve.record(synthetic.curve())
    assert main.main(["--show-sweeps", "h200", "--plot", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "softmax x=4096xN bf16, us" in told and "50257" in told
    light, dark = ((tmp_path / f"nvidia_h200-softmax-N{end}.png").read_bytes() for end in ("", "-dark"))
    assert light.startswith(b"\x89PNG") and dark.startswith(b"\x89PNG") and light != dark
    svg = (tmp_path / "nvidia_h200-softmax-N.svg").read_text()
    body = re.sub(r"<style>.*?</style>", "", svg)
    assert "@media(prefers-color-scheme:dark){:root{--c" in svg and not re.search(r"#[0-9a-f]{6}\b", body)
    assert {"torch", "torch.compile", "triton/resident", "cuda/registers"} <= set(re.findall(r">([^<>]+)</text>", svg))
    assert themes.variable(themes.BACKENDS["cuda"]) in body


@pytest.mark.parametrize(("us", "unit"), [(100.0, "TFLOP/s"), (1e9, "GFLOP/s")])
def test_the_rate_is_that_of_what_binds_the_longest_point(us, unit):
    assert curves.rate_of(synthetic.curve()).unit == "GB/s"
    row = synthetic.row(op="matmul", variant="wgmma", us=us * 100, work=synthetic.PRODUCT)
    assert curves.rate_of(synthetic.curve(points=(Point(8192, row),))).unit == unit


def test_no_two_of_some_lines_have_one_colour():
    lines = [
        "torch_ref/plain",
        "torch_ref/materialised",
        "cuda/a",
        "cuda/b",
        "triton/c",
        "peers/torch_compile",
        "peers/liger",
    ]
    found = curves.colour_of(lines)
    assert len(set(found.values())) == len(lines) and found["cuda/a"] == themes.BACKENDS["cuda"]


def test_an_interrupted_sweep_is_written_but_not_recorded(tmp_path, monkeypatch, capsys):
    made = planned(parse("softmax:N=256,512"), PerfOptions())
    rows = [replace(synthetic.row(), **made.rows[0].identity)]
    outcome = session.WorkerReports(rows=list(rows), machine=synthetic.GPU, ceilings=synthetic.H200, interrupted=True)
    monkeypatch.setattr(session, "run", lambda *args: [outcome])
    monkeypatch.setattr(curve, "FOLDER", tmp_path / "records")
    args = Namespace(out=str(tmp_path), plot=None, record=True, resume=False)
    assert sweep.run(Console(), [made], PerfOptions(device="cuda"), args, "told") == 130
    assert "not recorded: it is not complete" in capsys.readouterr().out
    assert curve.read(tmp_path / "sweep-softmax-N.csv").lengths == (256,) and not (tmp_path / "records").exists()


def test_a_sweep_of_several_lines_is_told_and_recorded(tmp_path, monkeypatch, capsys):
    """With a library that is wrong at one length, which has no point there and fails nothing."""
    rows = [point.row for point in synthetic.curve(lengths=(256, 512)).points]
    made = planned(parse("softmax:N=256,512"), PerfOptions())
    told = replace(made, rows=tuple(rows), workloads={"x=4096x256": 256, "x=4096x512": 512}, shape="x=4096xN")
    rows = [NotTimed(**rows[3].identity, status="wrong", error="WrongOutput: y"), *rows[:3], *rows[4:]]
    outcome = session.WorkerReports(rows=list(rows), machine=synthetic.GPU, ceilings=synthetic.H200)
    monkeypatch.setattr(session, "run", lambda *args: [outcome])
    monkeypatch.setattr(curve, "FOLDER", tmp_path / "records")
    monkeypatch.setattr(sweep, "rows_of", lambda sweeps: [])
    args = Namespace(out=str(tmp_path), plot=None, record=True, into_checkout=True, resume=False)
    assert (
        sweep.run(Console(width=160), [told], PerfOptions(device="cuda"), args, "python -m kernelmux.perf --record")
        == 0
    )
    assert "WRONG softmax x=4096x256 bf16 peers/torch_compile: WrongOutput: y" in capsys.readouterr().out
    kept = curve.read(tmp_path / "records/nvidia_h200/sweeps/softmax-N.csv")
    assert kept.command == "python -m kernelmux.perf --record --sweep softmax:N=256,512"
    assert {line: list(rows) for line, rows in kept.lines.items()}["cuda/registers"] == [256, 512]
    assert kept.lines[f"{peers.NAME}/torch_compile"].keys() == {512}
    monkeypatch.setenv("KERNELMUX_HOME", str(tmp_path / "home"))
    args.into_checkout = False
    sweep.run(Console(quiet=True), [told], PerfOptions(device="cuda"), args, "python -m kernelmux.perf --record")
    assert [path.name for path in (tmp_path / "home/results").rglob("*.csv")] == ["nvidia_h200-softmax-N.csv"]
    (tmp_path / "records/nvidia_h200/sweeps/softmax-N.csv").unlink()
    capsys.readouterr()
    assert main.main(["--show-sweeps", "h200"]) == 0
    assert "--record --sweep softmax:N=256,512" in capsys.readouterr().out


def test_a_sweep_without_a_point_has_no_curve():
    made = planned(parse("softmax:N=256"), PerfOptions())
    results = Results(date="", command="", machine=synthetic.GPU, ceilings=None, rows=())
    assert sweep.curve_of(made, results) is None


def test_a_page_has_each_recorded_sweep_and_pictures_of_some(tmp_path, monkeypatch):
    monkeypatch.setattr(curve, "FOLDER", tmp_path / "records")
    assert curves.section() == "No sweep is on record."
    curve.record(synthetic.curve())
    told = curves.section()
    assert "![softmax x=4096xN bf16: time and rate over N](images/curves/nvidia_h200-softmax-N.svg)" in told
    assert "NVIDIA H200, driver 580.1" in told and "$ python -m kernelmux.perf --sweep softmax:N=" in told
    assert "(../kernelmux/records/nvidia_h200/sweeps/softmax-N.csv)." in told
