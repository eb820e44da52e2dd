"""What runs in a worker process: the candidates of a job, one configuration that is compiled or timed, the finals, and
what the suite says of a winner.

Configurations are compiled in processes that see no GPU; what was compiled lies in Triton's cache, where a launch finds it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import torch

from kernelmux.registry.backend import device_tables
from kernelmux.registry.backend.device_tables import Table
from kernelmux.registry.errors import UnsupportedError
from kernelmux.tune import timing
from kernelmux.tune.check import refusal
from kernelmux.tune.job import Job, candidates, compiled, problem_of

CANDIDATES, COMPILE, TIME, FINALS, CHECK = "candidates", "compile", "time", "finals", "check"
NICE = 5  # of processes that compile: what is timed meanwhile comes first
SHOWN = 200  # characters of what went wrong
NO_GPU = "no GPU"

Row = dict[str, Any]


def serve(setup: Any, items: Iterator[tuple[Any, float]], tell: Callable[..., None]) -> None:
    """Take the steps that are asked for, and tell the row of each."""
    steps = Steps()
    for work, _ in items:
        if work["step"] == COMPILE:
            os.nice(max(0, NICE - os.nice(0)))
        tell(*steps.row(work))


class Steps:
    """The steps, and the bench of the last job that was timed here."""

    def __init__(self) -> None:
        self.bench: timing.Bench | None = None
        self.steps = {
            CANDIDATES: self._candidates,
            COMPILE: self._compile,
            TIME: self._time,
            FINALS: self._finals,
            CHECK: self._check,
        }

    def row(self, work: Row) -> tuple[Row, bool]:
        """What a step found, or its `problem`; and whether the GPU answers this process no more.

        key: of a configuration, which is not tried again: so not where the inputs of its job could not be made.
        """
        key = {"key": work["key"]} if "key" in work else {}
        try:
            return {**key, **self.steps[work["step"]](Job(**work["job"]), work)}, False
        except Exception as error:  # of a compiler, of Triton's launcher, of CUDA
            problem = f"{type(error).__name__}: {str(error).strip()}"[:SHOWN]
            known = {} if work["step"] == TIME and self.bench is None else key
            return {**known, "problem": problem}, work["device"] == "cuda" and timing.lost()

    def _candidates(self, job: Job, work: Row) -> Row:
        device = work["device"]
        if reasons := job.reasons(device):
            raise UnsupportedError("; ".join(reasons))
        found = candidates(job, problem_of(job, device), work["most"])
        name = torch.cuda.get_device_name() if device == "cuda" else NO_GPU
        head = asdict(device_tables.on_this_gpu(Table[Any](name)))
        return {"found": asdict(found), "identity": job.identity, "gpu": head}

    def _compile(self, job: Job, work: Row) -> Row:
        compiled(job, work["config"], work["kind"])
        return {}

    def _time(self, job: Job, work: Row) -> Row:
        return {"us": timing.timed(self._bench(job, work["kind"]), work["config"], work["best"])}

    def _finals(self, job: Job, work: Row) -> Row:
        found = timing.finals(self._bench(job, work["kind"]), work["rule"], work["timed"])
        self._leave()
        return {"outcome": found and asdict(found)}

    def _check(self, job: Job, work: Row) -> Row:
        try:
            return {"refusal": refusal(job, work["config"], work["kind"], work["tier"])}
        finally:
            torch.cuda.empty_cache()

    def _bench(self, job: Job, kind: str) -> timing.Bench:
        """The bench of a job, which stays until another is asked for: its inputs are made once."""
        if self.bench is None or (self.bench.job, self.bench.kind) != (job, kind):
            self._leave()
            self.bench = timing.Bench(job, kind)
        return self.bench

    def _leave(self) -> None:
        """Leave the memory of the GPU to others."""
        self.bench = None
        torch.cuda.empty_cache()
