"""Times launches of the emulator, and looks at every result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kernelmux.emulator import checks, compile_ptx, load
from kernelmux.emulator.running.launch import collector_paused
from kernelmux.emulator.validation.speed.cases import KERNELS, Case

ARCH = "sm_80"  # what the kernels of the cases need

LaunchCall = Callable[..., None]  # (grid, block, arguments, shared=0)


@dataclass
class Times:
    """Seconds of one case in one mode; wrong: what is not as it should be."""

    case: str
    mode: str
    first: float = 0.0  # compiles and launches
    each: list[float] = field(default_factory=list)
    wrong: str = ""


def measure(name: str, case: Case, mode: str, repeat: int) -> Times:
    """Run a case once, which compiles its kernels, then `repeat` times until a result is wrong."""
    times, launches = Times(name, mode), Launches(mode)
    start = time.perf_counter()
    times.wrong = _wrong(case, launches)
    times.first = time.perf_counter() - start
    for _ in range(repeat):
        if not times.wrong:
            launches.seconds = 0.0
            times.wrong = _wrong(case, launches)
            times.each.append(launches.seconds)
    return times


class Launches:
    """What a case calls to run a kernel; adds up the seconds of the launches alone."""

    def __init__(self, mode: str) -> None:
        self.mode, self.seconds = mode, 0.0
        self._compiled: dict[tuple[str, str], LaunchCall] = {}

    def __call__(self, file: str, name: str, grid: Any, block: Any, arguments: Any, shared: int = 0) -> None:
        if (file, name) not in self._compiled:
            text = (KERNELS / f"{file}.cu").read_text()
            self._compiled[file, name] = load(compile_ptx(text, arch=ARCH, filename=f"{file}.cu")).kernel(name).launch
        launch = self._compiled[file, name]
        with collector_paused(), checks(self.mode):
            start = time.perf_counter()
            launch(grid, block, arguments, shared=shared)
            self.seconds += time.perf_counter() - start


def _wrong(case: Case, launches: Launches) -> str:
    """What is wrong with the result of a case; nothing if it is right."""
    got, want, tolerance = case(launches)
    error = float(abs(got - want).max())
    return "" if error <= tolerance else f"off by {error:.2g}, {tolerance:.2g} is allowed"
