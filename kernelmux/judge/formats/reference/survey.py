"""What a task is, by running its reference on a CPU: a row of the table, without any candidate."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kernelmux.judge import formats
from kernelmux.judge.formats.bounds import expected, spec_mapping
from kernelmux.judge.formats.reference.process import ReferenceProcess
from kernelmux.judge.formats.task import FormatError, Task

OK, FAILED, OUT, EMPTY = "ok", "failed", "out of scope", "tells nothing"


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


def rows(tasks: Sequence[Task], reference: ReferenceProcess, check: bool, seed: int) -> Iterator[TaskRow]:
    """A row for each task. check: also make its bound, and hold its own reference to it."""
    for task in tasks:
        if task.scope:
            yield _row(task, OUT, reason=task.scope)
            continue
        start = time.monotonic()
        try:
            reference.enter(task)
            asked = {"do": "survey", "check": check, "seed": seed, "limit": reference.limits.size}
            told = reference.ask(asked)[0]
            made = _row(task, **{name: told[name] for name in TaskRow.__dataclass_fields__ if name in told})
        except (FormatError, TypeError, KeyError) as error:
            made = _row(task, FAILED, reason=str(error))
        yield TaskRow(**{**vars(made), "seconds": round(time.monotonic() - start, 2)})


def _row(task: Task, status: str, **more: Any) -> TaskRow:
    counts = {"cases": len(task.cases), "benchmarks": len(task.benchmarks), "tolerance": task.tolerance}
    return TaskRow(task.name, task.format, status, **{**counts, **more})


def examined(problem: formats.Problem, check: bool, seed: int, size: int) -> dict[str, Any]:
    """Fields of the row of a task, whose reference runs in this process.

    check: also make its bound, ask whether a case tells anything, and whether the reference in its own formats passes.
    """
    trial = problem.trial(seed, 0, size)
    more: dict[str, Any] = {"size": trial.size, "note": trial.note, "cases": problem.cases}
    if not check:
        return {"status": OK, "judged": _judged(trial), **more}
    found = [expected.of(t, seed) for t in (trial, problem.trial(seed + 1, 0, size))]
    more["judged"] = found[0].op or ("differential" if found[0].bound != expected.OWN else expected.OWN)
    wrong, share = found[0].compared(trial.evaluate())
    if wrong:
        return {"status": FAILED, "reason": f"its own reference is off: {wrong}", **more}
    if trial.check is None:
        more["budget"] = share
    if why := expected.vacuous(found):
        return {"status": EMPTY, "reason": why, **more}
    return {"status": OK, **more}


def _judged(trial: formats.TaskTrial) -> str:
    if trial.check is not None:
        trial.evaluate()
        return expected.OWN
    found = spec_mapping.covered(trial, trial.evaluate(exactly=True))
    return found.op if found else "differential"
