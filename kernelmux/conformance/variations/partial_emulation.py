"""Calls of which the emulator runs some blocks alone, and what can be said of the results.

New memory is zero, and zeros that should be something else count as not written. What was written must be right.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Any

import torch

from kernelmux import emulator
from kernelmux.candidate.allocations import TooLarge, Virtual
from kernelmux.conformance.failures import failure_text
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging.probe import Judge, Probe
from kernelmux.registry.call import dispatch
from kernelmux.registry.spec import numerics

FIRST, LAST = 1, 2  # blocks
FINER = 8  # times as many blocks as another launch of the call has, at most, for the same slices
UNSUITABLE = {
    "time limit": "its blocks walk over all of the rows: too many to emulate",
    "deadlock": "its blocks wait for others, which do not run",
}


class Unsuitable(Exception):
    """Nothing can be said on the emulator; the text says why."""


def call(probe: Probe, trial: Trial, seconds: float, some: bool = True) -> tuple[torch.Tensor, ...]:
    """The outputs, in memory that was zero, of some blocks or of all; without the checks that keep a record per byte.

    Raises Unsuitable where torch or the blocks would have to touch all of a large input.
    """
    with ExitStack() as stack:
        stack.enter_context(probe.environment())
        stack.enter_context(probe.noted())
        stack.enter_context(emulator.checks("fast"))
        stack.enter_context(emulator.time_limit(seconds))
        if some:
            times = _finest(probe, trial)
            stack.enter_context(emulator.only_blocks(FIRST * times, LAST * times))
        stack.enter_context(Virtual())
        try:
            result = dispatch.call(trial.spec, trial.values, probe.label)
        except TooLarge as error:
            raise Unsuitable(str(error)) from error
        except emulator.EmulatorError as error:
            if error.kind in UNSUITABLE:
                raise Unsuitable(UNSUITABLE[error.kind]) from error
            raise
    return result if isinstance(result, tuple) else (result,)


def unwritten(got: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """Elements that are zero and should not be."""
    return (got == 0) & (ref != 0)


def judged(judge: Judge, base: Trial, number: int, got: torch.Tensor, ref: torch.Tensor, limit: Any) -> None:
    """What was written of (a part of) output `number` is right; something was. limit: a bound, or None for equality."""
    missing = unwritten(got, ref)
    judge.require(not bool(missing.all()) or not missing.numel(), "nothing of it was written")
    got = torch.where(missing, ref.to(got.dtype), got)
    name = base.spec.outputs[number].name
    if limit is None:
        judge.equal(name, got, ref.to(got.dtype))
        return
    found = numerics.compare(got, ref, limit.total)
    judge.record.budget = max(judge.record.budget, found.budget)
    judge.require(found.passed, lambda: failure_text.inaccurate(name, got, ref, limit, found, None))


def set_aside(judge: Judge, reason: str) -> None:
    """The emulator can say nothing; a GPU runs it."""
    skipped(judge, reason_text(reason))


def reason_text(reason: str) -> str:
    """The reason in the words of a report."""
    return f"emulated: {reason}; a GPU runs it"


def blocks(probe: Probe, trial: Trial) -> list[int]:
    """How many blocks each launch of a call has; they do not run, and [] stands for what launches none."""
    try:
        with probe.environment(), emulator.recorder(run=False) as launches, Virtual():
            dispatch.call(trial.spec, trial.values, probe.label)
    except TooLarge:
        return []
    return [math.prod(launch.grid) for launch in launches]


def _finest(probe: Probe, trial: Trial) -> int:
    """How many blocks of one launch make what a block of another one reads: rows are padded to whole blocks in each."""
    counts = [count for count in blocks(probe, trial) if count]
    ratio = max(counts, default=1) // min(counts, default=1)
    return ratio if ratio <= FINER else 1


def skipped(judge: Judge, reason: str) -> None:
    """Nothing can be said of this call."""
    if not judge.record.assertions:
        judge.record.status, judge.record.text, judge.record.assertions = "skipped", reason, 1
