"""A search: what is compiled, timed, checked and written, job by job."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from kernelmux.perf.rows import output_files
from kernelmux.registry import catalog
from kernelmux.registry.backend import device_tables, tuned_configs
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.device_tables import Table
from kernelmux.registry.backend.search_space import Config
from kernelmux.registry.backend.tuned_configs import TunedConfig
from kernelmux.registry.errors import KernelmuxError, UnsupportedError
from kernelmux.tune import ahead, check, timing
from kernelmux.tune.job import Candidates, Job, candidates, problem_of
from kernelmux.tune.log import TrialResult, TuningLog
from kernelmux.tune.progress import Progress

LATE = "not compiled in time"


@dataclass(frozen=True)
class Settings:
    """most: configurations of a job. seconds: for compiling, and again for times. processes: side by side. tier: of the
    checks."""

    most: int
    seconds: float
    processes: int
    tier: str


@dataclass
class Search:
    """What is known of a job. dropped: by place among the candidates, why; refusal: what the suite says."""

    job: Job
    found: Candidates
    dropped: dict[int, str] = field(default_factory=dict)
    seen: dict[int, TrialResult] = field(default_factory=dict)
    measured: timing.TuningOutcome | None = None
    refusal: str = ""

    @property
    def left(self) -> list[Config]:
        """The candidates that were not dropped."""
        return [config for i, config in enumerate(self.found.chosen) if i not in self.dropped]

    @property
    def problems(self) -> Counter[str]:
        """How often each reason dropped a candidate; of an error its first line."""
        told = [*self.dropped.values(), *(seen.problem for seen in self.seen.values() if seen.problem)]
        return Counter(text.splitlines()[0] for text in told)

    @property
    def wins(self) -> bool:
        """Whether there is an entry to write."""
        return self.measured is not None and self.measured.gains and not self.refusal


def begin(jobs: Iterable[Job], device: str, most: int) -> list[Search]:
    """The candidates of each job."""
    return [Search(job, candidates(job, problem_of(job, device), most)) for job in jobs]


def compile_all(searches: Sequence[Search], settings: Settings, log: TuningLog, progress: Progress) -> None:
    """Compile what the log does not know, what is nearest to the rules first; what does not compile is dropped."""
    tasks = [
        (search, i, config)
        for i in range(settings.most)
        for search in searches
        for config in search.found.chosen[i : i + 1]
        if log.seen(search.job, config) is None
    ]
    with progress.phase("compile", len(tasks)) as step:
        asked = [(search.job, config, search.found.key.kind) for search, _, config in tasks]
        ended = ahead.compile_all(asked, settings.processes, settings.seconds, step) if asked else {}
    for number, (search, i, config) in enumerate(tasks):
        problem = ended.get(number, LATE)
        if problem:
            search.dropped[i] = problem
        if problem and problem != LATE:
            log.ends(search.job, config, TrialResult(problem=problem))


def time_all(searches: Sequence[Search], settings: Settings, log: TuningLog, progress: Progress) -> None:
    """Time what is left of each job, then its finalists beside the rule; each has an equal share of the time."""
    end = time.monotonic() + settings.seconds
    with progress.phase("time", sum(len(search.left) for search in searches)) as step:
        for i, search in enumerate(searches):
            now = time.monotonic()
            try:
                _time(search, log, step, now + (end - now) / (len(searches) - i))
            except (RuntimeError, MemoryError) as error:
                if timing.lost():
                    raise UnsupportedError(
                        f"{search.job.name}: the GPU answers no more: {str(error).strip().splitlines()[0]}; "
                        f"run the command again, which goes on without that configuration"
                    ) from error
                search.refusal = f"{type(error).__name__}: {error}"
            torch.cuda.empty_cache()


def _time(search: Search, log: TuningLog, step: Progress.Step, until: float) -> None:
    bench = timing.Bench(search.job, search.found.key.kind)
    places = [i for i in range(len(search.found.chosen)) if i not in search.dropped]
    timed = timing.time_all(bench, search.left, log, until, step)
    search.seen = {places[i]: seen for i, seen in timed.items()}
    search.measured = timing.finals(bench, search.found, search.seen, bench.check)


def check_winners(searches: Sequence[Search], settings: Settings, progress: Progress) -> None:
    """Let the suite judge what is faster than the rule."""
    winners = [(search, search.measured) for search in searches if search.wins]
    asked = [(s.job, measured.config, s.found.key.kind) for s, measured in winners if measured]
    with progress.phase("check", len(asked)) as step:
        said = check.refusals(asked, settings.tier, settings.processes, step)
    for (search, _), refusal in zip(winners, said, strict=True):
        search.refusal = refusal


def entries(searches: Iterable[Search]) -> Iterator[TunedConfig]:
    """What is written of the searches that found something."""
    for search in searches:
        if search.wins and (measured := search.measured):
            job, key = search.job, search.found.key
            yield TunedConfig(
                op=job.op,
                backend=job.backend,
                variant=job.variant,
                kind=key.kind,
                sizes=key.sizes,
                config=measured.config,
                us=round(measured.us, 2),
                rule=search.found.rule,
                rule_us=round(measured.rule_us, 2),
                workload=job.workload,
                dtype=job.dtype,
                spec=catalog.spec(job.op).hash,
                source=registered.source_hash(job.backend, job.op, job.variant),
                versions=dict(device_tables.installed()),
            )


def refuted(searches: Iterable[Search]) -> set[tuple[str, ...]]:
    """The places of entries whose searches find the rule as fast."""
    stays = (s for s in searches if s.measured is not None and not s.measured.gains)
    return {(s.job.op, s.job.backend, s.job.variant, s.found.key.kind, *map(str, s.found.key.sizes)) for s in stays}


def write(found: Sequence[TunedConfig], gpu: str, folder: Path, without: Collection[tuple[str, ...]] = ()) -> Path:
    """Put entries into the table of a GPU in a folder, and take stale and older ones out whose places are in `without`.

    A table that cannot be read is replaced.
    """
    tables = tuned_configs.TABLES.at(folder)
    try:
        before = tables.of(gpu)
    except KernelmuxError:
        before = Table(gpu)
    made = device_tables.on_this_gpu(tuned_configs.merged(before, found, without))
    output_files.write(path := tables.path(gpu), tables.text(made))
    tuned_configs.forget()
    return path
