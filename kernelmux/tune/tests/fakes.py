"""A product in plain Python with tiles to choose: one wrong, one that does not run, the wide ones faster."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from kernelmux.registry.backend import Implementation, device_tables
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.search_space import Config, Key, Space
from kernelmux.registry.util import cards
from kernelmux.tune import ahead, check, timing
from kernelmux.tune.job import Job

GPU = "Fake GPU 9000"
WRONG, BROKEN, RULE = 32, 64, 2
TIMES = {1: 12.0, 2: 10.0, 4: 8.0, 8: 5.0, 16: 9.0, WRONG: 1.0, BROKEN: 0.5}  # microseconds
TABLE = """{"schema": 1, "gpu": "Fake GPU 9000", "entries": [
 {"op": "matmul", "backend": "triton", "variant": "persistent", "kind": "bf16 rr unit16", "sizes": [64, 64, 64, 1],
  "config": {"BLOCK_M": 64}, "us": 5.0, "rule": {"BLOCK_M": 128}, "rule_us": 9.0, "workload": "a=64x64 b=64x64",
  "dtype": "bf16", "spec": "000000000000", "source": "000000000000", "versions": {"torch": "1.0"}}]}"""
JOB = Job("matmul", "fake", "tiles", "a=8x8 b=8x8", "fp32")


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


def matmul(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    block = SPACE.choice(Problem(-1, len(a)))["BLOCK"]
    ran.append(block)
    if block == BROKEN:
        raise RuntimeError("out of registers")
    return torch.add(a @ b, float(block == WRONG))


class Stopwatch:
    """The time of the tile that ran."""

    def __init__(self, host_us: float = 0.0) -> None: ...

    def __call__(self, call: Any) -> tuple[float, Any]:
        result = call()
        return TIMES[ran[-1]] / 1e6, result


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make it a backend whose GPU is made up: everything compiles, and the suite finds nothing."""
    real, inputs = registered.variants, timing.inputs.make
    mine = {"tiles": Implementation(matmul, "tiles", space=SPACE)}
    monkeypatch.setattr(registered, "variants", lambda name, op: mine if name == "fake" else real(name, op))
    monkeypatch.setattr(registered, "source_hash", lambda backend, op, variant="": f"{backend} as it is")
    monkeypatch.setattr(device_tables, "gpu", lambda device: GPU)
    monkeypatch.setattr(device_tables, "card", lambda device: cards.named("rtx4090"))
    monkeypatch.setattr(timing, "CudaStopwatch", Stopwatch)
    monkeypatch.setattr(timing.inputs, "make", lambda row, device: inputs(row, "cpu"))
    monkeypatch.setattr(timing, "lost", lambda: False)
    monkeypatch.setattr(ahead, "compile_all", lambda tasks, *rest: dict.fromkeys(range(len(tasks)), ""))
    monkeypatch.setattr(check, "refusals", lambda asked, *rest: [""] * len(asked))
    ran.clear()
