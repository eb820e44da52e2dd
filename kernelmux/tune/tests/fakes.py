"""A product in plain Python with tiles to choose: one wrong, one that does not run, the wide ones faster; and GPUs for it.

`install` makes them up in a test, with workers that are no processes; `serve` does so in a worker process.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch

from kernelmux.registry.backend import Implementation, device_tables
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.search_space import Config, Key, Space
from kernelmux.registry.util import cards
from kernelmux.runner import run as of_runner
from kernelmux.runner.item import Slot, WorkItem
from kernelmux.runner.local_pool import READY, ROW, Event
from kernelmux.runner.machine import Workers
from kernelmux.runner.worker import version
from kernelmux.tune import timing, worker
from kernelmux.tune.job import Job

GPU, CARD = "Fake GPU 9000", "fake_gpu_9000"
WRONG, BROKEN, RULE = 32, 64, 2
TIMES = {1: 12.0, 2: 10.0, 4: 8.0, 8: 5.0, 16: 9.0, WRONG: 1.0, BROKEN: 0.5}  # microseconds
TABLE = """{"schema": 1, "gpu": "Fake GPU 9000", "entries": [
 {"op": "matmul", "backend": "triton", "variant": "persistent", "kind": "bf16 rr unit16", "sizes": [64, 64, 64, 1],
  "config": {"BLOCK_M": 64}, "us": 5.0, "rule": {"BLOCK_M": 128}, "rule_us": 9.0, "workload": "a=64x64 b=64x64",
  "dtype": "bf16", "spec": "000000000000", "source": "000000000000", "versions": {"torch": "1.0"}}]}"""
JOB = Job("matmul", "fake", "tiles", "a=8x8 b=8x8", "fp32")
OTHER = Job("matmul", "fake", "tiles", "a=16x16 b=16x16", "fp32")


class Problem(NamedTuple):
    device: int
    n: int


def refusal(config: Config, problem: Problem) -> str | None:
    return "odd" if config["BLOCK"] == 3 else None


SPACE = Space(
    "fake",
    "matmul",
    "tiles",
    {"BLOCK": (1, 2, 3, 4, 8, 16, WRONG, BROKEN)},
    lambda problem: {"BLOCK": RULE},
    lambda problem: Key("fp32", (problem.n,)),
    refusal,
)
ran: list[int] = []
dies: dict[int, Callable[[], object]] = {}  # what a tile does to its process


def matmul(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    block = SPACE.choice(Problem(-1, len(a)))["BLOCK"]
    ran.append(block)
    dies.get(block, bool)()
    if block == BROKEN:
        raise RuntimeError("out of registers")
    return torch.add(a @ b, float(block == WRONG))


class Stopwatch:
    """The time of the tile that ran."""

    def __init__(self, host_us: float = 0.0) -> None: ...

    def __call__(self, call: Any) -> tuple[float, Any]:
        result = call()
        return TIMES[ran[-1]] / 1e6, result


def slots(gpus: int) -> list[Slot]:
    """A worker that compiles; for each of so many GPUs one that times, and one beside it."""
    shared = [Slot(f"gpu{i}-0", "here", (f"g{i}",), CARD) for i in range(gpus)]
    return [Slot("cpu0", "here"), *shared, *(Slot(f"alone{i}", "here", (f"g{i}",), CARD, True) for i in range(gpus))]


class Pool:
    """The runner's pool (`LocalPool`), in this process."""

    renewed = 0

    def __init__(self, slots: list[Slot], *rest: object) -> None:
        self.steps = {slot.id: worker.Steps() for slot in slots}
        self.waiting = [Event(slot, READY, {"version": version()}) for slot in slots]
        self.slots = slots

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *details: object) -> None: ...

    kill = __exit__

    def send(self, slot: Slot, item: WorkItem, seconds: float) -> None:
        work = json.loads(json.dumps(item.work))
        row, lost = json.loads(json.dumps(self.steps[slot.id].row(work)))
        self.waiting.append(Event(slot, ROW, (row, lost)))
        if lost:
            Pool.renewed += 1
            self.waiting.append(Event(slot, READY, {"version": version()}))

    def events(self, timeout: float) -> list[Event]:
        told, self.waiting = self.waiting, []
        return told

    def cards(self) -> list[str]:
        return sorted({slot.card for slot in self.slots})

    def starting(self) -> bool:
        return any(event.kind == READY for event in self.waiting)


def patches() -> Iterator[tuple[object, str, Any]]:
    """The backend, whose GPU is made up: everything compiles, and the suite finds nothing."""
    real, inputs = registered.variants, timing.inputs.make
    mine = {"tiles": Implementation(matmul, "tiles", space=SPACE)}
    yield registered, "variants", lambda name, op: mine if name == "fake" else real(name, op)
    yield registered, "source_hash", lambda backend, op, variant="": f"{backend} as it is"
    yield device_tables, "gpu", lambda device: GPU
    yield device_tables, "card", lambda device: cards.named("rtx4090")
    yield torch.cuda, "get_device_name", lambda *device: GPU
    yield Job, "reasons", lambda self, device: []
    yield timing, "CudaStopwatch", Stopwatch
    yield timing.inputs, "make", lambda row, device: inputs(row, "cpu")
    yield timing, "lost", lambda: False
    yield worker, "compiled", lambda *task: 0
    yield worker, "problem_of", lambda job, device: Problem(-1, int(job.workload[2:].partition("x")[0]))
    yield worker, "refusal", lambda *asked: ""


def install(monkeypatch: pytest.MonkeyPatch, gpus: int = 1) -> None:
    """Make all that up, and workers that are no processes."""
    for owner, name, value in patches():
        monkeypatch.setattr(owner, name, value)
    install_pool(monkeypatch, gpus)
    ran.clear()


def install_pool(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    """Have items run in this process, with so many GPUs that are made up."""
    monkeypatch.setattr(Workers, "slots", lambda self: slots(gpus))
    monkeypatch.setattr(of_runner, "LocalPool", Pool)
    monkeypatch.setattr(Pool, "renewed", 0)


def serve(setup: Any, items: Any, tell: Any) -> None:
    """What a worker process of a test calls: 4 ends it, 16 never ends."""
    dies.update({4: os.abort, 16: lambda: time.sleep(600.0)})
    for owner, name, value in patches():
        setattr(owner, name, value)
    worker.serve(setup, items, tell)
