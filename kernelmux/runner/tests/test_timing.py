"""What timings need of the runner: groups that stay together, workers that end and leave the GPU, trees of their own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from kernelmux.runner import machine, results, worker
from kernelmux.runner.item import Slot, WorkItem
from kernelmux.runner.local_pool import READY, ROW, Event, LocalPool
from kernelmux.runner.machine import Workers
from kernelmux.runner.plan import Plan
from kernelmux.runner.run import RunState, TimeLimit

FIRST, SECOND = (Slot(f"alone{g}", "n", (f"{g}",), "h100", alone=True) for g in range(2))
SHARED = Slot("gpu0", "n", ("0",), "h100", ends=True)
SERVE = """
import sys

def serve(setup, items, tell):
    import named
    for work, seconds in items:
        tell([named.NAME, named.__file__])
"""


def timed(group: str, count: int, rank: int = 1, together: bool = True) -> list[WorkItem]:
    named = [f"{group}{i}" for i in range(count)]
    return [WorkItem(name, rank=rank, group=group, together=together, gpus=1, alone=True) for name in named]


def test_nobody_takes_from_a_group_that_stays_together() -> None:
    for together in (True, False):
        plan = Plan(timed("a", 3, together=together))
        assert plan.next(FIRST)
        assert (plan.next(SECOND) is None) is together


def test_a_group_that_stays_together_is_timed_to_its_end() -> None:
    plan = Plan(timed("a", 2))
    assert plan.next(FIRST)
    plan.end(FIRST)
    plan.add(timed("b", 1, rank=0))
    assert [item.id for item in (plan.next(FIRST), plan.next(SECOND)) if item] == ["a1", "b0"]


class Engine:
    """Slots that answer at once. closed: those that were ended, with the number of rows before."""

    def __init__(self, slots: list[Slot]) -> None:
        self.waiting = [Event(slot, READY, {"version": worker.version()}) for slot in slots]
        self.closed: dict[str, int] = {}
        self.sent: list[tuple[str, str, float]] = []

    def send(self, slot: Slot, item: WorkItem, seconds: float) -> None:
        self.sent.append((slot.id, item.id, item.limit))
        self.waiting.append(Event(slot, ROW, (item.id, False)))

    def close(self, slot: Slot) -> None:
        self.closed[slot.id] = len(self.sent)

    def events(self, timeout: float) -> list[Event]:
        found, self.waiting = self.waiting, []
        return found

    def cards(self) -> list[str]:
        raise AssertionError

    def starting(self) -> bool:
        return bool(self.waiting)


class Suite:
    """Each item that is compiled is timed."""

    name, serve, setup = "toy", "", None

    def begins(self, item: WorkItem) -> None: ...

    def takes(self, item: WorkItem, row: Any) -> list[WorkItem]:
        return timed(f"time{item.id[-1]}", 1) if item.id.startswith("compile") else []

    def lost(self, item: WorkItem, reason: str) -> Any: ...

    def late(self, item: WorkItem) -> Any: ...

    def failed(self, row: Any) -> bool:
        return False


class Short(TimeLimit):
    def most(self, item: WorkItem) -> float:
        return min(item.limit, 7.0)


def test_those_that_share_a_gpu_end_once_nothing_is_left_for_them(tmp_path: Path) -> None:
    engine = Engine([SHARED, FIRST])
    with results.opened(tmp_path, {}, resume=False) as (file, _):
        made = RunState(Suite(), [WorkItem(f"compile{i}", gpus=1) for i in range(3)], file, limit=Short())
        found = made.run(engine).rows
    assert sorted(found) == ["compile0", "compile1", "compile2", "time00", "time10", "time20"]
    compiled = [place for place, (slot, _, _) in enumerate(engine.sent) if slot == "gpu0"]
    assert len(compiled) == 3 and engine.closed.keys() == {"gpu0"} and engine.closed["gpu0"] > compiled[-1]
    assert {limit for _, _, limit in engine.sent} == {7.0}


def test_workers_for_timings_have_all_cores_and_the_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "visible_gpus", lambda: [machine.VisibleGpu("GPU-1", "NVIDIA H100", 80 << 30, "")])
    for timing in (True, False):
        found = Workers(cpu=True, gpu=1 << 30, alone=True, most=1, timing=timing).slots()
        assert [slot.ends for slot in found] == [timing, timing, False]
        assert ["OMP_NUM_THREADS" in slot.environment for slot in found] == [True, True, not timing]


def test_workers_without_a_gpu_stand_for_each_kind_that_is_timed_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"NVIDIA H200": (9, 0), "NVIDIA L4": (8, 9), "NVIDIA GH100 of ours": (9, 0), "NVIDIA X": (99, 0)}
    found = [machine.VisibleGpu(name, name, 80 << 30, "", number) for name, number in told.items()]
    monkeypatch.setattr(machine, "visible_gpus", lambda: found)
    for most, count in ((1, 4), (6, 6)):
        slots = [slot for slot in Workers(cpu=True, alone=True, most=most, timing=True).slots() if not slot.gpus]
        names = [slot.environment.get("KERNELMUX_EMULATED_GPU") for slot in slots]
        assert names == ["NVIDIA H200", "NVIDIA L4", "9.0", None, "NVIDIA H200", "NVIDIA L4"][:count]
        assert [slot.card for slot in slots] == [found[i % 4].card for i in range(count)]
    (slot,) = (
        slot for slot in Workers(cpu=True, alone=True, most=1).slots() if slot.card == "nvidia_l4" and not slot.gpus
    )
    assert "KERNELMUX_EMULATED_GPU" not in slot.environment and not slot.ends


def test_slots_import_from_trees_of_their_own_and_a_closed_one_is_silent(tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text(SERVE)
    slots = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "named.py").write_text(f"NAME = {name!r}\n")
        slots.append(Slot(name, path=(str(tmp_path / name), *worker.sys.path)))
    told: dict[str, Any] = {}
    with LocalPool(slots, f"{tmp_path / 'serve.py'}:serve", None, tmp_path) as pool:
        end = time.monotonic() + 60
        while len(told) < 2 and time.monotonic() < end:
            for event in pool.events(0.5):
                if event.kind == READY:
                    pool.send(event.slot, WorkItem("x", 1), 1.0)
                else:
                    told[event.slot.id] = event.value[0]
        pid = pool._processes["one"].popen.pid
        pool.close(slots[0])
        assert not Path(f"/proc/{pid}").exists() and not pool.events(0.5)
        pool.send(slots[0], WorkItem("x", 1), 1.0)
    assert told == {name: [name, str(tmp_path / name / "named.py")] for name in ("one", "two")}


def test_a_version_is_of_the_sources_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    before = worker.version_of([tmp_path])
    (tmp_path / "a.py").write_text("2")
    assert before and worker.version_of([tmp_path]) != before and worker.version_of([]) == ""
