"""What a task is, by running its reference on a CPU: a row of the table. It runs strangers' code: confine it."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from kernelmux.judge import formats
from kernelmux.judge.formats import expected, spec_mapping
from kernelmux.judge.formats.task import FormatError, Task
from kernelmux.judge.formats.trial import first_line

OK, FAILED, OUT, EMPTY = "ok", "failed", "out of scope", "tells nothing"
MOST = 1 << 20  # bytes of a row


@dataclass(frozen=True)
class TaskRow:
    """One task. judged: by the spec of which operator, "differential", or the task's own check. size: bytes of inputs.

    note: what differs from the task as written. reason: of a status that is not ok. budget: the largest share of its bound
    that the reference itself uses in its own formats, None where that was not asked.
    """

    task: str
    format: str
    status: str
    judged: str = ""
    size: int = 0
    cases: int = 0
    benchmarks: int = 0
    tolerance: str = ""
    note: str = ""
    reason: str = ""
    budget: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class TaskLimits:
    """size: bytes of the tensors of a call, beyond which sizes are reduced; seconds: for a task; memory: bytes in all."""

    size: int = 4 << 30
    seconds: float = 120.0
    memory: int = 24 << 30


def rows(tasks: Sequence[Task], check: bool, seed: int, limits: TaskLimits) -> Iterator[TaskRow]:
    """A row for each task, each in a process of its own that is ended at its limits."""
    for task in tasks:
        if task.scope:
            yield _row(task, OUT, reason=task.scope)
        else:
            yield _apart(task, check, seed, limits)


def _row(task: Task, status: str, **more: Any) -> TaskRow:
    counts = {"cases": len(task.cases), "benchmarks": len(task.benchmarks), "tolerance": task.tolerance}
    return TaskRow(task.name, task.format, status, **{**counts, **more})


def _apart(task: Task, check: bool, seed: int, limits: TaskLimits) -> TaskRow:
    """The row of a task, from a process that is forked for it: what is imported already need not be again."""
    reading, writing = os.pipe()
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _child(task, check, seed, limits, writing)
    os.close(writing)
    text = _read(reading, start + limits.seconds)
    os.close(reading)
    if text is None:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    seconds = round(time.monotonic() - start, 2)
    if text is None:
        return _row(task, FAILED, reason=f"no end within {limits.seconds:g} s", seconds=seconds)
    try:
        return TaskRow(**{**json.loads(text), "seconds": seconds})
    except (ValueError, TypeError):
        how = (
            f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"status {os.waitstatus_to_exitcode(status)}"
        )
        return _row(task, FAILED, reason=f"the process ended with {how}", seconds=seconds)


def _read(pipe: int, end: float) -> bytes | None:
    """All that comes through a pipe, None if it is not closed in time."""
    text = b""
    while len(text) < MOST:
        if not select.select([pipe], [], [], max(0.0, end - time.monotonic()))[0]:
            return None
        part = os.read(pipe, 1 << 16)
        if not part:
            break
        text += part
    return text


def _child(task: Task, check: bool, seed: int, limits: TaskLimits, writing: int) -> None:
    """Writes the row of a task and ends the process."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory, limits.memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        made = examined(task, check, seed, limits.size)
    except FormatError as error:
        made = _row(task, FAILED, reason=str(error))
    except BaseException as error:
        made = _row(task, FAILED, reason=f"{type(error).__name__}: {first_line(error)}")
    try:
        os.write(writing, json.dumps(asdict(made)).encode()[:MOST])
    finally:
        os._exit(0)


def examined(task: Task, check: bool, seed: int, size: int) -> TaskRow:
    """The row of a task, whose reference runs in this process.

    check: also make its bound, ask whether a case tells anything, and whether the reference in its own formats passes.
    """
    problem = formats.problem(task)
    trial = problem.trial(seed, 0, size)
    more: dict[str, Any] = {"size": trial.size, "note": trial.note, "cases": problem.cases}
    if not check:
        return _row(task, OK, judged=_judged(trial), **more)
    found = [expected.of(t, seed) for t in (trial, problem.trial(seed + 1, 0, size))]
    more["judged"] = found[0].op or ("differential" if found[0].bound != expected.OWN else expected.OWN)
    own = trial.evaluate()
    if wrong := found[0].wrong(own):
        return _row(task, FAILED, reason=f"its own reference is off: {wrong}", **more)
    if trial.check is None:
        more["budget"] = max(o.budget(y) for o, y in zip(found[0].outputs, own, strict=True))
    if why := expected.vacuous(found):
        return _row(task, EMPTY, reason=why, **more)
    return _row(task, OK, **more)


def _judged(trial: formats.TaskTrial) -> str:
    if trial.check is not None:
        trial.evaluate()
        return expected.OWN
    found = spec_mapping.covered(trial, trial.evaluate(exactly=True))
    return found.op if found else "differential"


def main() -> None:
    """Read the arguments of a survey from standard input, and print its rows as lines of JSON."""
    asked = json.loads(sys.stdin.readline())
    torch.set_num_threads(1)
    tasks = {task.name: task for task in formats.find(asked["format"], Path(asked["folder"]))}
    named = [tasks[name] for name in asked["tasks"]]
    if asked["format"] == formats.backendbench.NAME and any(not task.cases for task in named):
        formats.backendbench.samples()  # once, before processes are forked
    for row in rows(named, asked["check"], asked["seed"], TaskLimits(**asked["limits"])):
        print(json.dumps(asdict(row)), flush=True)


if __name__ == "__main__":
    main()
