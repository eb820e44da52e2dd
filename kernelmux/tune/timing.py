"""Times configurations on the GPU: all of them once, then the fastest beside the rule's, in turns."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from kernelmux.perf.planning.plan import Row
from kernelmux.perf.timing import inputs
from kernelmux.perf.timing.clock import CudaStopwatch, poison
from kernelmux.perf.timing.verify import Oracle, WrongOutput
from kernelmux.registry.backend.search_space import Config, Forced
from kernelmux.tune.job import Job

SAMPLES = 7  # of a configuration; one of those that take more than HOPELESS times as long as the fastest
HOPELESS = 2.0
FINALISTS = 6
ROUNDS = 31
HOST_US = 60.0  # of a call, which the stream sleeps through
NOISE = 1.02  # a configuration has to be faster than the rule by more than 2 %


@dataclass(frozen=True)
class TuningOutcome:
    """What came out: the fastest configuration that is right, beside the rule's; wrong: why others were dropped."""

    config: Config
    us: float
    rule_us: float
    ratio: float  # median over the rounds of the rule's time over this one
    wrong: tuple[tuple[Config, str], ...] = ()

    @property
    def gains(self) -> bool:
        """Whether it is faster than the rule by more than noise."""
        return self.ratio > NOISE

    @classmethod
    def of(cls, fields: dict[str, Any]) -> TuningOutcome:
        """What `asdict` took apart, perhaps on another machine."""
        return cls(**{**fields, "wrong": tuple((config, why) for config, why in fields["wrong"])})


class Bench:
    """One call with its inputs, in as many copies as it takes to find none of them in the L2 cache."""

    def __init__(self, job: Job, kind: str) -> None:
        self.job, self.kind = job, kind
        row = Row(job.op, job.workload, job.dtype, job.backend, job.variant)
        self.inputs = inputs.make(row, "cuda")
        self.arguments = self.inputs.arguments(job.implementation)
        self.stopwatch = CudaStopwatch(HOST_US)
        self.count = 0

    @cached_property
    def oracle(self) -> Oracle:
        """The reference of the first copy."""
        return Oracle(self.inputs.call)

    def sample(self, config: Config) -> float:
        """Microseconds of a call with a configuration."""
        self.count += 1
        values = self.arguments[self.count % len(self.arguments)]
        with self.job.space.using(self._forced(config)):
            seconds, result = self.stopwatch(lambda: self.job.implementation.fn(*values))
        poison(result)
        return seconds * 1e6

    def _forced(self, config: Config) -> Forced:
        """The one choice of a configuration: plans are remembered by it."""
        key = tuple(sorted(config.items()))
        return self._choices.setdefault(key, Forced(self.job.space, config, self.kind))

    @cached_property
    def _choices(self) -> dict[Any, Forced]:
        return {}

    def check(self, config: Config) -> None:
        """WrongOutput if a call with a configuration is not what the reference says."""
        with self.job.space.using(self._forced(config)):
            result = self.job.implementation.fn(*self.arguments[0])
        self.oracle.check(result, self.job.implementation)


def timed(bench: Bench, config: Config, best: float | None) -> float:
    """The median of some samples of a configuration, in microseconds; one alone where it is hopelessly slower than the
    best so far. Raises what a compiler, Triton's launcher or CUDA does."""
    bench.sample(config)  # loads the code
    first = bench.sample(config)
    hopeless = best is not None and first >= HOPELESS * best
    more = [] if hopeless else [bench.sample(config) for _ in range(SAMPLES - 1)]
    return statistics.median([first, *more])


def lost() -> bool:
    """Whether the GPU answers no more."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def finals(bench: Bench, rule: Config, timed: Iterable[Config]) -> TuningOutcome | None:
    """The fastest that are right, beside the rule, in turns; None if there are none. timed: the fastest first."""
    chosen, wrong = _right(bench, timed)
    if not chosen:
        return None
    contest = [rule, *(c for c in chosen if c != rule)]
    times: list[list[float]] = [[] for _ in contest]
    for i in range(ROUNDS + 1):
        for place in sorted(range(len(contest)), key=lambda p: (p + i) % len(contest)):
            us = bench.sample(contest[place])
            if i:  # the first round loads what is not loaded
                times[place].append(us)
    return replace(_winner(contest, times), wrong=tuple(wrong))


def _right(bench: Bench, timed: Iterable[Config]) -> tuple[list[Config], list[tuple[Config, str]]]:
    """The fastest whose result is right, and those that were passed over because theirs is not."""
    chosen: list[Config] = []
    wrong: list[tuple[Config, str]] = []
    for config in timed:
        if len(chosen) == FINALISTS:
            break
        try:
            bench.check(config)
            chosen.append(config)
        except WrongOutput as error:
            wrong.append((config, str(error)))
    return chosen, wrong


def _winner(contest: Sequence[Config], times: Sequence[Sequence[float]]) -> TuningOutcome:
    """The first is the rule's."""
    ratios = [statistics.median(r / t for r, t in zip(times[0], mine, strict=True)) for mine in times]
    best = max(range(len(contest)), key=lambda place: ratios[place])
    medians = [statistics.median(mine) for mine in times]
    return TuningOutcome(contest[best], medians[best], medians[0], ratios[best])
