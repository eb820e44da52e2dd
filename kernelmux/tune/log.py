"""What a search has found so far: a line of JSON for each configuration, so that a search goes on where it ended."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kernelmux.registry.backend.search_space import Config
from kernelmux.tune.job import Job

LOST = "the GPU or the process did not survive it"


@dataclass(frozen=True)
class TrialResult:
    """What became of a configuration: a time in microseconds, or why there is none."""

    us: float | None = None
    problem: str = ""


class TuningLog:
    """The results of one GPU. One that begins, and of which no end is told, is what ended the search."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: dict[str, TrialResult] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            with suppress(ValueError, KeyError, TypeError):  # a line that was cut off
                row = json.loads(line)
                self._seen[row["key"]] = TrialResult(row["us"], row["problem"])

    def seen(self, job: Job, config: Config) -> TrialResult | None:
        """What is known of a configuration."""
        return self._seen.get(_key(job, config))

    def begins(self, job: Job, config: Config) -> None:
        """A configuration is about to run."""
        self._append(job, config, TrialResult(problem=LOST))

    def ends(self, job: Job, config: Config, seen: TrialResult) -> None:
        """A configuration was timed, or cannot be."""
        self._seen[_key(job, config)] = seen
        self._append(job, config, seen)

    def _append(self, job: Job, config: Config, seen: TrialResult) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        row = {"key": _key(job, config), "us": seen.us, "problem": seen.problem}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _key(job: Job, config: Config) -> str:
    return json.dumps([*job.identity, sorted(config.items())])
