"""The default report: which rows, in how much time, on how many lines, and what it says of what is left out."""

from __future__ import annotations

import time
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from kernelmux.perf import peers
from kernelmux.perf.cli import command, front, main
from kernelmux.perf.emulated import resources
from kernelmux.perf.planning import brief, plan, time_budget
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.planning.time_budget import TimeBudget
from kernelmux.perf.record import history, run_file
from kernelmux.perf.record.run_file import KernelNeed, Overhead
from kernelmux.perf.report import markdown, page, screen
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.perf.rows.row_result import LATE, NotTimed
from kernelmux.perf.session import run as session
from kernelmux.perf.session.run import TIME_UP
from kernelmux.perf.tests import synthetic
from kernelmux.perf.timing import inputs
from kernelmux.perf.wording import wording
from kernelmux.perf.wording.groups import baseline
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend import package_versions
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.util import cards

GPU = PerfOptions(device="cuda", brief=True, until_known=True, peers=True)
LINES, WIDTH = 60, 120


@pytest.fixture
def gpu(monkeypatch, joined):
    """Plan as for a GPU: nothing is run."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    card = SimpleNamespace(total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: card)
    monkeypatch.setattr(registered, "unavailable", lambda name, device: None)


def lines_of(show, *arguments):
    """What is printed, as a terminal of 120 columns breaks it."""
    file = StringIO()
    show(Console(file=file, width=WIDTH, highlight=False), *arguments)
    lines = file.getvalue().splitlines()
    return [line[i : i + WIDTH] for line in lines for i in range(0, max(len(line.rstrip()), 1), WIDTH)]


def test_a_row_per_operator_and_backend(gpu):
    rows = brief.report(GPU)
    ops = list(dict.fromkeys(row.op for row in rows))
    assert sorted(ops) == sorted(catalog.names()) and tuple(ops[: len(brief.KNOWN)]) == brief.KNOWN
    for op in ops:
        found = [row for row in rows if row.op == op]
        assert len({row.group for row in found}) == 1
        ours = [row.backend for row in found if row.backend != peers.NAME]
        assert len(set(ours)) == len(ours) and ours[0] == plan.BASELINE
        assert {row.variant for row in found if row.backend == peers.NAME} <= {brief.COMPILED}
    last = [name for name, one in registered.variants("cuda", "matmul").items() if not _refused("matmul", one)][-1]
    assert [row.variant for row in rows if row.op == "matmul" and row.backend == "cuda"] == [last]


def test_the_workload_is_one_that_torch_takes_as_its_users_write_it(gpu):
    """fp8_matmul's largest has a scale for each line, which is exact's alone: 25 times a product in fp64 says nothing."""
    rows = {row.op: row for row in brief.report(GPU) if row.backend == plan.BASELINE}
    assert {op for op, row in rows.items() if row.variant != plan.PLAIN} == set()
    assert rows["fp8_matmul"].workload.endswith("scale_a=scalar scale_b=scalar")


def _refused(op, implementation):
    spec = catalog.spec(op)
    return implementation.reasons(spec.hypothetical(plan.large(spec), torch.bfloat16, torch.device("cuda"), (9, 0)))


def test_the_variant_of_a_backend_is_the_last_that_can_run():
    ladder = [Row("softmax", "x=4x4", "bf16", "cuda", name) for name in ("naive", "better", "best")]
    assert brief.representative(ladder) == ladder[-1]
    assert brief.representative([*ladder[:2], replace(ladder[2], problem="N > 4")]) == ladder[1]
    of_torch = [replace(row, backend=plan.BASELINE) for row in ladder]
    assert brief.representative(of_torch) == of_torch[-1]
    assert brief.representative([replace(of_torch[0], variant=plan.PLAIN), *of_torch]).variant == plan.PLAIN
    refused = replace(of_torch[0], variant=plan.PLAIN, problem="16 bits only")
    assert brief.representative([refused, *of_torch]) == of_torch[-1]


def test_a_backend_that_is_left_out_has_no_rows(gpu):
    assert {row.backend for row in brief.report(replace(GPU, backends=("triton",), peers=False))} == {
        plan.BASELINE,
        "triton",
    }


def test_a_workload_fits_the_memory_of_the_gpu():
    spec = catalog.spec("cross_entropy_with_gradient")
    assert plan.large(spec) not in brief.fitting(spec, 80 * 2**30)  # it ran out of memory there
    assert brief.fitting(spec, 10 * 80 * 2**30) == spec.workloads
    (least,) = brief.fitting(spec, 0)
    assert brief._bytes(spec, least) == min(brief._bytes(spec, case) for case in spec.workloads)


def test_few_operators_are_not_compiled_ahead(gpu):
    jobs = [
        main.options_of(main.parser().parse_args(words.split()), began=1e9).jobs
        for words in ("--op add", "", "--op add --every-row")
    ]
    assert jobs[0] == 0 < jobs[1] == jobs[2]


def test_what_ships_has_all_columns_and_is_recorded(gpu):
    for words, told in ((["--record", "--brief"], "leave out --brief"), ([], "expected --record beside it")):
        with pytest.raises(ArgumentError, match=told):
            main.options_of(main.parser().parse_args(["--into-checkout", *words]), began=1e9)


def test_of_one_operator_the_largest_workload_comes_first(gpu):
    rows = brief.by_importance(plan.rows(PerfOptions(ops=("softmax",), device="cuda")))
    first = list(dict.fromkeys((row.workload, row.dtype) for row in rows))
    largest = plan.large(catalog.spec("softmax")).text
    assert [workload for workload, _ in first[:2]] == [largest] * 2 and len(first) > 2
    assert sorted(row.id for row in rows) == sorted(
        row.id for row in plan.rows(PerfOptions(ops=("softmax",), device="cuda"))
    )


@pytest.mark.parametrize(
    ("words", "device", "minutes"),
    [
        ("", "cuda", 5.0),
        ("", "cpu", 2.0),
        ("--minutes 3", "cuda", 3.0),
        ("--op softmax", "cuda", 0.7),
        ("--op softmax matmul --backend cuda", "cuda", 1.4),
        ("--op softmax", "cpu", 0.0),
        ("--every-row", "cuda", 0.0),
        ("--every-row --minutes 9", "cuda", 9.0),
        ("--record", "cuda", 5.0),
        ("--op softmax --record", "cuda", 0.7),
        ("--op softmax --record --into-checkout", "cuda", 0.0),
        ("--op softmax --samples 50", "cuda", 0.0),
        ("--op softmax --dtype all", "cuda", 0.0),
        ("--workload large", "cuda", 0.0),
        ("--stale --record", "cuda", 0.0),
        ("--aa", "cuda", 0.0),
    ],
)
def test_only_what_is_not_asked_for_in_detail_has_few_minutes(words, device, minutes, gpu):
    args = main.parser().parse_args([*words.split(), "--device", device])
    options = main.options_of(args, began=1e9)
    assert main.limit_of(args, device, 1e9).minutes == minutes
    quick = minutes > 0 and "--every-row" not in words
    assert (options.until_known, options.brief) == (quick, quick)
    assert bool(options.until) == bool(minutes)
    assert 1e9 <= options.until <= 1e9 + 60 * minutes or not minutes


def test_the_reports_have_their_share_of_the_minutes():
    assert (
        TimeBudget(5.0, "cuda", 1e9).rows_until
        == TimeBudget(5.0, "cuda", 1e9).end
        == 1e9 + 300 - time_budget.WRITING["cuda"]
    )
    assert TimeBudget(2.0, "cpu", 1e9).rows_until < TimeBudget(2.0, "cpu", 1e9).end < 1e9 + 120
    assert TimeBudget(0.1, "cuda", 1e9).end == pytest.approx(1e9 + 6 * time_budget.SHORT)
    assert time_budget.compiling_seconds(time.monotonic() + 100, 150.0) == pytest.approx(40, abs=1)
    assert time_budget.compiling_seconds(0.0, 150.0) == 150.0


def test_rows_after_the_minutes_are_named_and_do_not_fail(tmp_path):
    rows = [Row("add", "x=4099 y=4099", "fp32", plan.BASELINE, "plain")]
    options = PerfOptions(out=str(tmp_path), until=time.monotonic() - 1)
    (outcome,) = session.run(rows, options, lambda seen: None)
    (row,) = outcome.rows
    assert (row.status, row.error) == (LATE, TIME_UP)
    found = synthetic.results([*synthetic.ladder(), row])
    for text in (next(wording.left_out(found)), markdown.whole(found, ""), page.html(found)):
        assert f"ot timed, 1 rows, because {TIME_UP}: add fp32 torch_ref/plain" in text


def test_operators_that_a_run_was_not_about_are_named(monkeypatch, tmp_path):
    """Those that take none of its dtypes, unless --op has said so."""
    done = session.WorkerReports(rows=synthetic.ladder(), machine=synthetic.results([]).machine, ceilings=None)
    monkeypatch.setattr(session, "run", lambda *_: [done])
    for words, left in (("", True), ("--op int8_matmul", False)):
        given = f"{words} --dtype i8 --device cpu --quick --out {tmp_path}".split()
        args, console = main.parser().parse_args(given), Console(record=True, width=200)
        command.run(console, [], replace(main.options_of(args), brief=True, device="cuda"), args, "")
        told = [console.export_text(), (tmp_path / "report.md").read_text(), (tmp_path / "report.html").read_text()]
        assert [("the other" in text and "operators are left out" in text) for text in told] == [left] * 3
        assert ("alone take i8" in run_file.read(tmp_path / "results.json").left) == left


def test_what_was_timed_is_in_the_head_of_every_report():
    found = synthetic.results([*synthetic.ladder(), contestant(peers.NAME, brief.COMPILED, 200.0)])
    assert wording.tested(found) == "timed: torch_ref, triton, cuda, other libraries on NVIDIA H200"
    told = "Timed: torch_ref, triton, cuda, other libraries on NVIDIA H200."
    assert told in markdown.whole(found, "") and told in page.html(found)


def test_a_backend_without_its_package_fails_the_run_unless_it_is_left_out(monkeypatch):
    lack = package_versions.NotInstalled("the package cupy is not installed: pip install cupy-cuda13x")
    real = registered.unavailable
    monkeypatch.setattr(registered, "unavailable", lambda name, device: lack if name == "cuda" else real(name, device))
    (told,) = command.lacking(PerfOptions())
    assert "backend cuda could run here" in told and "pip install cupy-cuda13x" in told
    assert "--backend torch_ref triton" in told
    assert not list(command.lacking(PerfOptions(backends=("torch_ref", "triton"))))
    assert list(command.lacking(PerfOptions(backends=("all",)))) == [told]
    assert command.results_of(session.WorkerReports(), "", PerfOptions()).errors == (told,)
    found = synthetic.results(synthetic.ladder(), errors=(told,))
    assert "pip install cupy-cuda13x" in markdown.whole(found, "") and "pip install cupy-cuda13x" in page.html(found)
    assert command.conclude(Console(quiet=True), found, None, False, False) == 1
    assert command.conclude(Console(quiet=True), replace(found, errors=()), None, False, False) == 0


# --- what torch's time is --------------------------------------------------------------------------------------------


def test_times_of_torch_are_those_of_its_plain_form():
    made = {v: synthetic.row(backend=plan.BASELINE, variant=v) for v in ("eager", "exact", plan.PLAIN)}
    eager, exact, plain_one = made["eager"], made["exact"], made[plan.PLAIN]
    assert baseline([eager, synthetic.row()]) == eager  # as older records have it
    assert baseline([plain_one, exact]) == plain_one and baseline([eager, plain_one, exact]) == plain_one
    assert baseline([eager, exact]) == exact and baseline([synthetic.row()]) is None


# --- on one screen ---------------------------------------------------------------------------------------------------


def contestant(backend, variant, us, op="softmax", **more):
    return replace(synthetic.row(op=op, us=us, **more), backend=backend, variant=variant)


def every(*contestants, **more):
    return [contestant(**fields, op=op, **more) for op in brief.order(catalog.names()) for fields in contestants]


CONTESTANTS = (
    {"backend": "torch_ref", "variant": "plain", "us": 300.0},
    {"backend": "triton", "variant": "resident", "us": 151.0},
    {"backend": "cuda", "variant": "registers", "us": 150.0},
    {"backend": "peers", "variant": "torch_compile", "us": 180.0},
)


def test_a_gpu_takes_one_screen():
    late = synthetic.failed(error=TIME_UP, op="transpose", variant="tiled")
    rows = [*every(*CONTESTANTS), *(replace(late, status=LATE, dtype=f"t{i}") for i in range(50))]
    found = synthetic.results(rows)

    def whole(console):
        front._introduce(console, found)
        screen.on_gpu(console, synthetic.results(every(*CONTESTANTS)))
        front._say(console, wording.left_out(found))
        command.conclude(console, found, None, False, False)

    lines = lines_of(whole)
    assert len(lines) <= LINES - 3, "the line with the files comes on top"
    softmax = next(line for line in lines if line.startswith("softmax "))
    assert softmax.split() == ["softmax", "16384x8192", "bf16", "300.0", "180.0", "*151.0", "*150.0", "84%", "2.00x"]
    assert "because the minutes of this run were over: transpose t0 cuda/tiled" in "".join(lines)


def test_what_failed_or_is_left_out_is_marked_in_its_place():
    rows = [contestant(**CONTESTANTS[0]), synthetic.failed(backend="triton"), synthetic.row()]
    rows.append(NotTimed(**contestant(**CONTESTANTS[3]).identity, status=LATE, error="x"))
    lines = lines_of(screen.on_gpu, synthetic.results(rows))
    assert lines[1].split() == [
        "softmax",
        "16384x8192",
        "bf16",
        "300.0",
        "left",
        "out",
        "FAILED",
        "*150.0",
        "84%",
        "2.00x",
    ]
    assert any("FAILED softmax triton/online: WrongOutput" in line for line in lines)


def test_a_cpu_takes_one_screen(monkeypatch):
    rows = every({"backend": "torch_ref", "variant": "plain", "us": 30.0}, point=None)
    found = synthetic.results(rows, ceilings=None)
    costs = tuple(Overhead(op, "torch_ref/plain", 5.0, 5.0 + i, 5.5) for i, op in enumerate(front.HANDFUL))
    needs = tuple(
        KernelNeed("softmax", "cuda/online", kernel=str(i), registers=i, spills=8 * (i == 3)) for i in range(9)
    )

    monkeypatch.setattr(front.overhead, "measure", lambda *_: costs)
    monkeypatch.setattr(resources, "until", lambda *_: (needs, tuple(f"op{i} triton/resident" for i in range(70))))

    def whole(console):
        front._introduce(console, found)
        told = front._on_cpu(console, found, PerfOptions(), TimeBudget(2.0, "cpu", time.monotonic()))
        assert told.resources == needs and told.overhead == costs and told.moved
        front._say(console, wording.left_out(found))
        command.conclude(console, found, None, False, False)

    lines = lines_of(whole)
    text, joined = "\n".join(lines), "".join(lines)
    assert len(lines) <= LINES - 3, text
    assert f"there: {front.largest(history.recorded()).title}" in " ".join(text.split())
    assert "host time of a call, us, median (range) of 6 kernels: kx.op adds 2.50 (0.00 to 5.00)" in text
    assert "most registers: 8 (softmax cuda/online); 1 of them spill; most spilled bytes: 8" in joined
    assert "not compiled, as the minutes were over: op0 triton/resident" in joined and "and 65 more" in joined
    recorded = next(line for line in lines if line.startswith("softmax "))
    assert len(recorded.split()) == 10 and recorded.split()[-1].endswith("%")


def test_kernels_are_compiled_until_the_time_is_over(monkeypatch):
    console = Console(quiet=True)
    todo = [resources.InspectedVariant("add", "cuda", name) for name in ("quick", "slow", "never")]
    monkeypatch.setattr(resources, "defaults", lambda options: todo)
    monkeypatch.setattr(resources, "PROCESSES", 1)
    monkeypatch.setattr(resources, "needs", planted_needs)
    began = time.monotonic()
    needs, left = resources.until(console, PerfOptions(), time.monotonic() + 3)
    assert [need.label for need in needs] == ["cuda/quick"] and left == ("add cuda/slow", "add cuda/never")
    assert time.monotonic() - began < 30


def planted_needs(candidate, options):
    time.sleep(0 if candidate.variant == "quick" else 60)
    return [KernelNeed(candidate.op, candidate.label)]


def test_the_default_variant_of_each_backend_is_compiled():
    found = resources.defaults(PerfOptions(ops=("softmax", "matmul")))
    assert sorted((c.op, c.backend) for c in found) == [
        (op, b) for op in ("matmul", "softmax") for b in ("cuda", "triton")
    ]
    assert found[0].op == "matmul"  # what is well known comes first
    (taken,) = (c for c in found if c.backend == "cuda" and c.op == "matmul")
    ladder = list(registered.variants("cuda", "matmul"))
    assert all(resources._refused(replace(taken, variant=v)) for v in ladder[ladder.index(taken.variant) + 1 :])


def test_for_another_card_its_own_variants_are_compiled():
    options = PerfOptions(ops=("matmul",))
    with cards.standing_for("rtx4090"):
        found = {c.label: resources.needs(c, options) for c in resources.defaults(options)}
    assert "cuda/tensor_cores" in found and not any("specialised" in label for label in found)  # no wgmma, no TMA
    assert all(need.kernel and not need.error for of in found.values() for need in of)


def test_rows_of_minutes_are_not_called_hot():
    rested = synthetic.row(held_us=None, parts={"rest and samples": 0.5})
    old = replace(rested, parts={})
    for row, told in ((rested, False), (old, True)):
        found = synthetic.results([row])
        assert ("straight after calls back to back" in page.html(found)) is told
        assert ("straight after calls back to back" in markdown.whole(found, "")) is told


def test_only_the_ceilings_that_the_rows_need_are_measured(gpu):
    formats = {name for row in brief.report(GPU) for name in inputs.planned(row).products_of}
    assert {"bf16", "fp32", "e4m3", "i8"} <= formats and not formats & {"fp16", "e5m2"}
