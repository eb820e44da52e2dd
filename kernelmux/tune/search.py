"""What is known of each job, and what earlier searches have found."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from kernelmux.registry.backend.device_tables import Table
from kernelmux.registry.backend.search_space import Config
from kernelmux.registry.backend.tuned_configs import TunedConfig
from kernelmux.runner import results
from kernelmux.tune.job import Candidates, Job
from kernelmux.tune.timing import TuningOutcome


@dataclass(frozen=True)
class TrialResult:
    """What became of a configuration: a time in microseconds, or why there is none."""

    us: float | None = None
    problem: str = ""


@dataclass(eq=False)
class Search:
    """What is known of a job.

    found, identity, gpu (the head of its table): once candidates were asked for. dropped: by place among the candidates,
    why. left: items of its configurations that have not ended; expected: items of the whole search. problem: why the job
    was not searched, or has no winner. refusal: what the suite says against the winner, "" for nothing, None before it
    was asked.
    """

    job: Job
    found: Candidates | None = None
    identity: tuple[str, ...] = ()
    gpu: Table[TunedConfig] = field(default_factory=lambda: Table(""))
    dropped: dict[int, str] = field(default_factory=dict)
    seen: dict[int, TrialResult] = field(default_factory=dict)
    left: int = 0
    expected: int = 1
    measured: TuningOutcome | None = None
    problem: str = ""
    refusal: str | None = None

    @property
    def problems(self) -> Counter[str]:
        """How often each reason dropped a candidate; of an error its first line."""
        told = [*self.dropped.values(), *(seen.problem for seen in self.seen.values() if seen.problem)]
        return Counter(text.splitlines()[0] for text in told)

    @property
    def wins(self) -> bool:
        """Whether there is an entry to write."""
        return self.measured is not None and self.measured.gains and self.refusal == ""

    @property
    def best(self) -> float | None:
        """Microseconds of the fastest so far."""
        return min((seen.us for seen in self.seen.values() if seen.us is not None), default=None)

    @property
    def timed(self) -> list[Config]:
        """The configurations with a time, the fastest first."""
        times = sorted((seen.us, i) for i, seen in self.seen.items() if seen.us is not None)
        return [self.found.chosen[i] for _, i in times] if self.found else []

    def key(self, config: Config) -> str:
        """What the result of a configuration is remembered by: the GPU, the job, and what kernels are made of."""
        return json.dumps([self.gpu.gpu, *self.identity, sorted(config.items())])


def known(home: Path) -> dict[str, TrialResult]:
    """What the searches whose rows are in a folder have timed, or could not run, by `Search.key`."""
    rows = [line["row"] for line in results.kept(home).rows if "item" in line]
    ended = [row for row in rows if "key" in row and (row.get("us") or row.get("problem"))]
    return {row["key"]: TrialResult(row.get("us"), row.get("problem", "")) for row in ended}
