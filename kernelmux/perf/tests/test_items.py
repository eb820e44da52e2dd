"""What perf brings to the runner: items, their order on GPUs, their minutes; and whole runs, on GPUs that are none."""

from __future__ import annotations

import json
import math
import time
from argparse import Namespace
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kernelmux.perf.cli import command, main
from kernelmux.perf.planning import plan
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.perf.rows.row_result import FAILED, LATE, OK
from kernelmux.perf.session import items, run
from kernelmux.perf.session.items import Minutes
from kernelmux.perf.session.pytest_plugin import COMPILE, TIME
from kernelmux.perf.tests import synthetic
from kernelmux.registry.errors import ArgumentError
from kernelmux.runner import machine, results
from kernelmux.runner.item import Slot, WorkItem
from kernelmux.runner.plan import Plan

BACKEND = """
from kernelmux.registry.backend import Backend

BACKEND = Backend(name="theirs", summary="a test", priority=5, unavailable=lambda device: None)
"""
ADD = """
import os, time
from kernelmux.registry.backend import Implementation

def make(i):
    def add(x, y):
        if i == 0 and "HANGS" in os.environ:
            time.sleep(600)
        if i == 3:
            raise RuntimeError("cannot be compiled")
        with open(os.environ["CALLS"], "a") as file:
            print(i, os.getpid(), file=file)
        return x + y
    return add

VARIANTS = {f"v{i}": Implementation(fn=make(i), idea="") for i in range(13)}
"""
ROWS = [Row("add", "x=4099 y=4099", "fp32", "theirs", f"v{i}") for i in range(13)]
TORCH = Row("add", "x=4099 y=4099", "fp32", plan.BASELINE, "plain")
OTHERS = [replace(row, workload="x=17 y=17") for row in ROWS]
GPU = PerfOptions(ops=("add",), device="cuda", jobs=2)


def slots(gpus: int, compilers: int = 2, card: str = "nvidia_h100") -> list[Slot]:
    """Those of a machine with so many GPUs of a kind."""
    shared = [Slot(f"gpu{g}-{i}", "n", (f"{g}",), card, ends=True) for g in range(gpus) for i in range(compilers)]
    return [*shared, *(Slot(f"alone{g}", "n", (f"{g}",), card, alone=True) for g in range(gpus))]


# --- the items ---------------------------------------------------------------------------------------------------


def suite(rows: list[Row], options: PerfOptions = GPU, until: float = math.inf) -> run.PerfSuite:
    return run.PerfSuite(rows, options, Minutes(compile_until=until), lambda seen: None)


def test_what_has_code_of_its_own_is_compiled_before_its_group_is_timed() -> None:
    rows = [TORCH, *ROWS, replace(ROWS[0], again=True)]
    of = suite(rows)
    assert [item.id for item in of.items] == [f"{COMPILE}:{row.id}" for row in ROWS]
    assert all((item.gpus, item.alone, item.limit) == (1, False, items.LIMIT) for item in of.items)
    followed = [of.takes(item, {"compiled": 1.0}) for item in reversed(of.items)]
    assert not any(followed[:-1])
    assert [item.id for item in followed[-1]] == [row.id for row in rows]
    assert all(item.gpus and item.alone and item.together for item in followed[-1])
    assert min(item.rank for item in followed[-1]) > max(item.rank for item in of.items)


def test_each_card_of_a_cluster_times_what_it_has_compiled() -> None:
    of = suite(ROWS)
    for card in ("a", "b"):
        ended = [replace(item, id=f"{item.id}@{card}", card=card) for item in of.items]
        *before, last = [of.takes(item, {"compiled": 1.0}) for item in ended]
        assert not any(before) and [(item.id, item.card) for item in last] == [(f"{r.id}@{card}", card) for r in ROWS]


def test_emulated_kernels_are_compiled_on_cpus_while_others_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = [replace(row, backend="cuda") for row in ROWS]
    of = suite(
        [TORCH, *ours, *(replace(row, workload="x=17 y=17") for row in ours), OTHERS[0]], replace(GPU, brief=True)
    )
    assert [(item.cpu, item.gpus) for item in of.items] == [(True, 0)] * 26 + [(False, 1)]
    monkeypatch.setattr(
        machine, "visible_gpus", lambda: [machine.VisibleGpu("GPU-1", "NVIDIA H100", 80 << 30, "", (9, 0))]
    )
    found = items.workers(GPU, of.items).slots(cores=9)
    assert [slot.id for slot in found] == ["cpu0", "gpu0-0", "alone0"]
    told = [name for name, _ in played(of, found)]
    begun = told.index(TORCH.id)
    assert any(name.startswith(COMPILE) for name in told[begun:]), "all was compiled before anything was timed"
    assert told.index(f"{COMPILE}:{OTHERS[0].id}") < begun, "it was called on the GPU beside what was timed"
    assert sorted(told) == sorted({item.id for item in of.items} | {row.id for row in of.rows})


def test_where_the_host_is_timed_too_nothing_is_before_all_is_compiled() -> None:
    rows = [TORCH, *(replace(row, backend="cuda") for row in ROWS), replace(TORCH, workload="x=17 y=17")]
    of = suite(rows)
    assert all(item.cpu for item in of.items) and len(of.items) == len(ROWS)
    *before, last = [of.takes(item, {"compiled": 1.0}) for item in of.items]
    assert not any(before) and [item.id for item in last] == [row.id for row in rows]


def test_only_what_is_compiled_on_a_gpu_has_to_end_before_the_minutes_do() -> None:
    of = suite([replace(row, backend="cuda") for row in ROWS], replace(GPU, until=time.monotonic() + 9))
    late, item = Minutes(time.monotonic() + 100, compile_until=time.monotonic() - 1), of.items[0]
    assert late.share(item, 1, 1) and late.most(item) == items.LIMIT
    assert of.lost(item, "SIGSEGV") == {"lost": "SIGSEGV", "stopped": False}
    assert Minutes(time.monotonic() - 1).share(item, 1, 1) is None


@pytest.mark.parametrize("options", [replace(GPU, device="cpu"), replace(GPU, jobs=0)])
def test_nothing_is_compiled_ahead_on_a_cpu_or_without_processes_for_it(options: PerfOptions) -> None:
    found = items.items(ROWS, options)
    assert [item.id for item in found] == [row.id for row in ROWS]
    assert {(item.gpus, item.alone) for item in found} == ({(0, False)} if options.device == "cpu" else {(1, True)})


def test_few_rows_are_not_worth_a_process() -> None:
    assert {item.work[0] for item in items.items(ROWS[: items.WORTH - 1], GPU)} == {TIME}


def test_a_run_on_a_cpu_has_one_worker_with_all_threads() -> None:
    (slot,) = items.workers(replace(GPU, device="cpu"), []).slots()
    assert not slot.alone and "OMP_NUM_THREADS" not in slot.environment


def test_those_that_compile_end_before_rows_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    card = machine.VisibleGpu("GPU-1", "NVIDIA H100", 80 << 30, "")
    monkeypatch.setattr(machine, "visible_gpus", lambda: [card])
    found = items.workers(GPU, items.items(ROWS, GPU)).slots(cores=9)
    assert [(slot.alone, slot.ends) for slot in found] == [(False, True)] * 2 + [(True, False)]
    assert [slot.environment.get("OMP_NUM_THREADS") for slot in found] == ["1", "1", None]
    assert [slot.alone for slot in items.workers(GPU, items.items(ROWS[:2], GPU)).slots()] == [True]


# --- their order -------------------------------------------------------------------------------------------------


def played(of: run.PerfSuite, machine: list[Slot]) -> list[tuple[str, str]]:
    """Items with their slots, in the order in which they begin; each ends before the next round begins."""
    made, told = Plan(of.items), list[tuple[str, str]]()
    while made.left:
        begun = [(slot, item) for slot in machine if (item := made.next(slot))]
        assert begun, "nothing begins"
        for slot, item in begun:
            alone = [s for s, i in begun if i.alone]
            assert all(s.gpu != slot.gpu or s is slot for s in alone), "something runs beside what is timed"
            told.append((item.id, slot.id))
            made.end(slot)
            row = {"compiled": 1.0} if item.work[0] == COMPILE else {"result": run.encode(timed(item))}
            made.add(of.takes(item, row))
    return told


def timed(item: WorkItem) -> Any:
    planned = ("problem", "broken", "pays")  # what a row has that is not timed yet
    return replace(synthetic.row(), **{k: v for k, v in item.work[1].items() if k not in planned})


def test_rows_are_timed_in_their_order_once_all_is_compiled() -> None:
    told = [name for name, _ in played(suite([TORCH, *ROWS, *OTHERS]), slots(1))]
    assert all(name.startswith(COMPILE) for name in told[:26])
    assert told[26:] == [row.id for row in (TORCH, *ROWS, *OTHERS)]


def test_rows_of_one_group_are_timed_on_one_of_several_gpus() -> None:
    told = dict(played(suite([TORCH, *ROWS, *OTHERS]), slots(4)))
    for group in ([TORCH, *ROWS], OTHERS):
        assert len({told[row.id] for row in group}) == 1
    assert told[ROWS[0].id] != told[OTHERS[0].id]


def test_a_gpu_that_goes_leaves_its_group_to_one_other() -> None:
    made, (first, second, third) = Plan(items.items(ROWS, replace(GPU, jobs=0))), slots(3, compilers=0)
    assert made.next(first)
    made.end(first)
    made.drop(first)
    assert [(item.id, made.next(third)) for _ in ROWS[1:] if (item := made.next(second)) and made.end(second)] == [
        (row.id, None) for row in ROWS[1:]
    ]


def test_a_worker_that_compiles_is_needed_until_all_is_compiled() -> None:
    made, (compiler, _) = Plan(items.items(ROWS, GPU)), slots(1, compilers=1)
    for _row in ROWS:
        assert any(map(compiler.admits, made.rest()))
        assert made.next(compiler)
        made.end(compiler)
    assert not any(map(compiler.admits, made.rest()))


# --- their minutes -----------------------------------------------------------------------------------------------


def test_compiling_ends_before_the_minutes_do() -> None:
    compiled, timed = items.items(ROWS, GPU)[0], items.timing(ROWS, ROWS, GPU)[-1]
    now = time.monotonic()
    early = Minutes(now + 100, compile_until=now + 10)
    assert early.most(compiled) == pytest.approx(10, abs=1) and early.most(timed) == timed.limit
    assert early.share(compiled, 1, 1) is not None and early.share(timed, 1, 1) is not None
    later = Minutes(now + 100, compile_until=now - 1)
    assert later.share(compiled, 1, 1) is None and later.share(timed, 1, 1) is not None
    assert Minutes(now - 1).share(timed, 1, 1) is None


def test_what_the_compilers_were_stopped_on_is_late_and_what_they_died_on_is_not() -> None:
    for until, late in ((0.0, set()), (time.monotonic() + 9, {ROWS[0].id})):
        of = suite(ROWS, replace(GPU, until=until), time.monotonic() - 1)
        first, second = of.items[:2]
        of.takes(first, of.lost(first, "it took more than 9 s"))
        of.takes(second, {"lost": "the process ended by SIGSEGV", "stopped": False})
        assert of.limit.late == late


# --- whole runs --------------------------------------------------------------------------------------------------


@dataclass
class Pretended:
    """The slots of a machine with one GPU; what they run is on the CPU."""

    def slots(self) -> list[Slot]:
        return slots(1)


@pytest.fixture
def on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs are planned as on a GPU, and run on the CPU; the file in which the backend "theirs" notes its calls."""
    synthetic.backend_of_their_own(tmp_path, BACKEND, ADD)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    first, then = items.items, items.timing
    monkeypatch.setattr(run, "items", lambda rows, options: first(rows, replace(options, device="cuda")))
    monkeypatch.setattr(run, "timing", lambda some, rows, options: then(some, rows, replace(options, device="cuda")))
    monkeypatch.setattr(run, "workers", lambda *_: Pretended())
    return tmp_path / "calls"


def test_compilers_and_a_timing_worker_share_a_gpu_in_turns(on_a_gpu: Path, tmp_path: Path) -> None:
    options = PerfOptions(ops=("add",), jobs=2, samples=3, out=str(tmp_path / "out"))
    (found,) = run.run([TORCH, *ROWS], options, lambda seen: None)
    expected = {row.id: OK for row in (TORCH, *ROWS)} | {ROWS[3].id: FAILED}
    assert {row.id: row.status for row in found.rows} == expected and not found.errors
    assert [row.id for row in found.rows] == [row.id for row in (TORCH, *ROWS)]
    assert found.compiled.keys() == {row.id for row in ROWS}
    assert "compiling ahead" in found.seconds and "3 workers were busy" in found.usage
    told = [line.split() for line in on_a_gpu.read_text().splitlines()]
    timer = told[-1][1]
    ahead = [i for i, pid in told if pid != timer]
    assert sorted(map(int, ahead)) == [i for i in range(13) if i != 3]  # each once, and the other one said what it has
    assert all(pid == timer for _, pid in told[len(ahead) :]), "something was compiled beside what was timed"
    names = [b["name"] for b in json.loads((tmp_path / "out/benchmark.json").read_text())["benchmarks"]]
    assert names == [f"test_row[{row.id}]" for row in (TORCH, *ROWS) if row is not ROWS[3]]


def test_a_worker_without_a_gpu_compiles_for_the_one_beside_it(
    on_a_gpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "caches"
    environment = {
        "CUDA_VISIBLE_DEVICES": "",
        "KERNELMUX_EMULATED_GPU": "NVIDIA A100-SXM4-80GB",
        "KERNELMUX_CACHE_DIR": str(home),
    }
    compiler = Slot("cpu0", "n", environment=environment, ends=True)
    monkeypatch.setattr(Pretended, "slots", lambda self: [compiler, *slots(1, compilers=0)])
    monkeypatch.setattr(items, "WORTH", 1)
    rows = [replace(TORCH, workload="x=17 y=17", backend="cuda", variant=name) for name in ("scalar", "vectorized")]
    options = PerfOptions(ops=("add",), jobs=1, samples=3, brief=True, out=str(tmp_path / "out"))
    (found,) = run.run(rows, options, lambda seen: None)
    assert [row.status for row in found.rows] == [OK, OK] and found.compiled.keys() == {row.id for row in rows}
    assert not (tmp_path / "out/logs/worker-cpu0.log").read_text().count("Error")
    made = [path.read_bytes() for path in (home / "ptx").iterdir()]
    assert sum(b"\x7fELF" in code for code in made) == len(rows), "machine code of each, by the worker that compiles"


class FromTheFirst(Minutes):
    """Compiling ends some seconds after it has begun, however long the processes took to start."""

    def share(self, item: WorkItem, remaining: int, workers: int) -> float | None:
        if self.compile_until == math.inf:
            object.__setattr__(self, "compile_until", time.monotonic() + 5)
        return super().share(item, remaining, workers)


def test_a_row_that_compiles_too_long_is_late(on_a_gpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANGS", "1")
    monkeypatch.setattr(run, "minutes", lambda options: FromTheFirst())
    until = time.monotonic() + 600
    options = PerfOptions(ops=("add",), jobs=2, samples=3, out=str(tmp_path / "out"), until=until)
    (found,) = run.run(ROWS, options, lambda seen: None)
    assert OK in {row.status for row in found.rows[1:]}  # on a busy machine another one may be late too
    assert found.rows[0].status == LATE and "compiling it ahead took more than" in found.rows[0].error


def test_a_run_that_was_ended_goes_on_where_it_was(on_a_gpu: Path, tmp_path: Path) -> None:
    options = PerfOptions(ops=("add",), samples=3, out=str(tmp_path))
    rows = [TORCH, ROWS[1], ROWS[2]]
    (whole,) = run.run(rows, options, lambda seen: None)
    path = tmp_path / results.NAME
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])  # as a power cut leaves it
    on_a_gpu.write_text("")
    (found,) = run.run(rows, options, lambda seen: None, run.RunPlace(resume=True))
    assert [row.id for row in found.rows] == [row.id for row in rows] and found.machine == whole.machine
    assert found.rows[:2] == whole.rows[:2] and {line.split()[0] for line in on_a_gpu.read_text().splitlines()} == {"2"}
    assert len(found.benchmark["benchmarks"]) == 3
    (again,) = run.run(rows, options, lambda seen: None, run.RunPlace(resume=True))
    assert again.rows == found.rows and not again.usage
    with pytest.raises(ArgumentError, match="is of another run"):
        run.run(rows[:2], options, lambda seen: None, run.RunPlace(resume=True))


def test_a_machine_whose_gpu_nvml_does_not_name_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "visible_gpus", list)
    with pytest.raises(ArgumentError, match="NVML names no GPU"):
        run.run([TORCH], replace(GPU, out=str(tmp_path)), lambda seen: None)


# --- several kinds of cards --------------------------------------------------------------------------------------


def test_rows_of_several_cards_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a cluster gives them: every item once for each kind of card, whose name its id ends with."""

    def executed(suite: Any, plan: list[WorkItem], *_: Any) -> Any:
        for card, us in (("nvidia_h100", 20.0), ("nvidia_h200", 10.0)):
            machine = {"name": card.replace("_", " "), "versions": {}}
            for item in plan:
                made = replace(synthetic.row(us=us), **ROWS[1].identity)
                told = {"result": run.encode(made), "machine": machine}
                suite.takes(replace(item, id=f"{item.id}@{card}", card=card), told)
        return run.RunReport()

    monkeypatch.setattr(run, "execute", executed)
    where = run.RunPlace(cluster="auto")
    found = run.run([ROWS[1]], replace(GPU, out=str(tmp_path)), lambda seen: None, where)
    assert [(one.card, one.machine.name, [row.id for row in one.rows]) for one in found] == [
        ("nvidia_h100", "nvidia h100", [ROWS[1].id]),
        ("nvidia_h200", "nvidia h200", [ROWS[1].id]),
    ]
    told: list[tuple[str, str]] = []
    args = Namespace(compare=None, out=str(tmp_path), html=None, record=False, resume=False, cluster="auto", on=[])

    def report(one: run.WorkerReports, given: Namespace) -> int:
        told.append((one.card, given.out))
        return int(one.card == "nvidia_h100")

    options = replace(GPU, out=str(tmp_path))
    assert command.reported(Console(quiet=True), [ROWS[1]], options, args, True, report) == 1
    assert told == [(card, str(tmp_path / card)) for card in ("nvidia_h100", "nvidia_h200")]


def test_a_cluster_needs_no_gpu_here_and_takes_rows_alone() -> None:
    def options(words: str) -> PerfOptions:
        return main.options_of(main.parser().parse_args(words.split()), began=1e9)

    made = options("--cluster --op add --backend cuda torch_ref --dtype fp32 --workload large")
    assert (made.device, made.elsewhere) == ("cuda", True)
    assert {row.problem for row in plan.rows(made) if row.backend == "cuda"} == {""}
    with pytest.raises(ArgumentError, match="leave out --against"):
        options("--cluster --against x")
