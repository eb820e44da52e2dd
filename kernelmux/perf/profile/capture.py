"""Runs an operator, or a script, under torch.profiler and writes the Chrome trace.

from kernelmux.perf.profile.capture import step      # in a script: here ends one step of the schedule
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile, schedule

from kernelmux.perf.profile.subject import WARMUP, Subject
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.observe.profiler_ranges import ranges


@dataclass(frozen=True)
class Schedule:
    """Steps that pass by, that warm the profiler up, and that are recorded."""

    wait: int = 1
    warmup: int = 3
    active: int = 10

    @property
    def steps(self) -> int:
        return self.wait + self.warmup + self.active


_steps: list[Callable[[], None]] = []  # of the profilers that are open


def step() -> None:
    """Tell the profiler that a step of the script has ended; outside of `kernelmux.perf.profile` it does nothing."""
    for ended in _steps:
        ended()


def operator(one: Subject, plan: Schedule, trace: Path) -> None:
    """Profile calls of an operator, a step each; the inputs take turns, so that none is found in the L2 cache."""
    with ranges():
        for i in range(WARMUP):  # compiles
            one.call(i)
        with _profiling(plan, trace, one.device):
            for i in range(plan.steps):
                one.call(i)
                step()
            if one.device == "cuda":
                torch.cuda.synchronize()


def script(path: Path, words: Sequence[str], plan: Schedule | None, trace: Path) -> Exception | None:
    """Run a Python file as its own program under the profiler; returns what it raised.

    plan: record these steps, which `step()` and the steps of torch's optimizers count; None: record everything.
    """
    if not path.is_file():
        raise ArgumentError(
            f"expected a Python file, got {str(path)!r}: {'a folder' if path.is_dir() else 'no such file'}"
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    raised: Exception | None = None
    with ranges(), _own_words(path, words), _profiling(plan, trace, device):
        handle = register_optimizer_step_post_hook(lambda *_: step())
        try:
            runpy.run_path(str(path), run_name="__main__")
            if device == "cuda":
                torch.cuda.synchronize()
        except SystemExit as end:
            if end.code not in (None, 0):
                print(f"{path} ended with {end.code}", file=sys.stderr)
        except Exception as error:
            raised = error
        finally:
            handle.remove()
    return raised


@contextmanager
def _own_words(path: Path, words: Sequence[str]) -> Iterator[None]:
    """The command line and the folder that the script would see by itself."""
    argv, folders = sys.argv, sys.path[:]
    sys.argv, sys.path[0:0] = [str(path), *words], [str(path.resolve().parent)]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, folders


@contextmanager
def _profiling(plan: Schedule | None, trace: Path, device: str) -> Iterator[None]:
    """A profiler that writes the trace of the recorded steps when they are over."""
    written: list[Path] = []

    def write(profiler: Any) -> None:
        if not written:  # the schedule has one cycle; what is recorded again at the end is no part of it
            profiler.export_chrome_trace(str(trace))
            written.append(trace)

    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    plans: dict[str, Any] = vars(plan) if plan else {}
    turns = schedule(**plans, repeat=1) if plan else None
    with profile(activities=kinds, schedule=turns, on_trace_ready=write, acc_events=True) as profiler:
        _steps.append(profiler.step if plan else _nothing)
        try:
            yield
        finally:
            _steps.pop()
    if not written:
        raise ArgumentError(
            f"the program ended after {profiler.step_num} steps, before one was recorded (wait {plans['wait']}, warm-up"
            f" {plans['warmup']}): call kernelmux.perf.profile.capture.step() after each, or leave --active out"
        )


def _nothing() -> None:
    pass
