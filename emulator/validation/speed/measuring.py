"""Times launches of several implementations in turns, and looks at every result."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from kernelmux.emulator.running.launch import collector_paused
from kernelmux.emulator.validation.speed.cases import Case
from kernelmux.emulator.validation.speed.implementations import LaunchCall, Side


@dataclass
class Times:
    """Seconds of one case, mode and implementation; wrong: what is not as it should be."""

    case: str
    mode: str
    implementation: str
    first: float = 0.0  # compiles and launches
    each: list[float] = field(default_factory=list)
    wrong: str = ""

    @property
    def best(self) -> float:
        """Of the launches after the first one; NaN if there is none."""
        return min(self.each, default=float("nan"))

    @property
    def median(self) -> float:
        return median(self.each) if self.each else float("nan")


class Runner:
    """One implementation on one case, in one mode."""

    def __init__(self, name: str, case: Case, mode: str, kernels: Path, implementation: Side) -> None:
        self.case, self.mode, self.kernels, self.implementation = case, mode, kernels, implementation
        self.times = Times(name, mode, implementation.name)
        self._compiled: dict[tuple[str, str], LaunchCall] = {}
        self._seconds = 0.0

    def warm_up(self) -> None:
        """The first run, with all that is compiled on the way."""
        start = time.perf_counter()
        self._checked()
        self.times.first = time.perf_counter() - start

    def repeat(self) -> None:
        """One more run; the time of its launches alone counts."""
        if self.times.wrong:
            return
        self._seconds = 0.0
        self._checked()
        self.times.each.append(self._seconds)

    def _checked(self) -> None:
        try:
            got, want, tolerance = self.case(self._run)
            error = float(abs(got - want).max())
        except Exception as problem:  # an implementation may fail in any way; the table says so
            self.times.wrong = f"{type(problem).__name__}: {problem}"
            return
        if not error <= tolerance:
            self.times.wrong = f"off by {error:.2g}, {tolerance:.2g} is allowed"

    def _run(self, file: str, name: str, grid: Any, block: Any, arguments: Any, **options: Any) -> None:
        if (file, name) not in self._compiled:
            source = self.kernels / f"{file}.cu"
            self._compiled[file, name] = self.implementation.kernel(source, name, self.mode)
        launch = self._compiled[file, name]
        with collector_paused():
            start = time.perf_counter()
            launch(grid, block, arguments, **options)
            self._seconds += time.perf_counter() - start


def measure(
    name: str, case: Case, mode: str, kernels: Path, implementations: Sequence[Side], repeat: int
) -> list[Times]:
    """Runs a case once with each implementation, then `repeat` times in turns; every second turn begins with the last."""
    runners = [Runner(name, case, mode, kernels, implementation) for implementation in implementations]
    for runner in runners:
        runner.warm_up()
    for turn in range(repeat):
        for runner in runners[:: -1 if turn % 2 else 1]:
            runner.repeat()
    return [runner.times for runner in runners]
