"""Runs defects and right kernels in full mode and says what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmux.emulator import EmulatorError, checks, time_limit
from kernelmux.emulator.validation.defects.model import Defect, DefectLaunch

LIMIT_OF_RIGHT_KERNELS = 20.0  # seconds


@dataclass(frozen=True)
class LaunchObservation:
    """What one launch showed: an error, or how the result differs from what is expected; neither: all is right."""

    error: EmulatorError | None = None
    difference: str | None = None

    @property
    def text(self) -> str:
        """One line."""
        if self.error is not None:
            line = f"line {self.error.line}: " if self.error.line else ""
            return f"{line}{self.error.kind}: {self.error.message}"
        return self.difference or "the result is right"


@dataclass(frozen=True)
class DefectVerdict:
    """The verdict on a defect.

    state  "caught": as the catalogue says. "blind": not noticed, as the catalogue says. "lost": not noticed, or not as
           the catalogue says. "stale": a blind spot that is noticed now. "false alarm": the right kernel failed.
    """

    defect: Defect
    state: str
    broken: LaunchObservation
    right: LaunchObservation

    @property
    def good(self) -> bool:
        """Whether this is what the catalogue says."""
        return self.state in ("caught", "blind")

    @property
    def text(self) -> str:
        """What to tell about it, in one line."""
        return self.right.text if self.state == "false alarm" else self.broken.text


def observe(launch: DefectLaunch, switch: str | None, limit: float) -> LaunchObservation:
    """Runs a kernel with full checks and compares what it leaves behind."""
    before = {name: _numbers(array).copy() for name, array in launch.arrays.items()}
    try:
        with checks("full"), time_limit(limit):
            launch.run(switch)
    except EmulatorError as error:
        return LaunchObservation(error=error)
    return LaunchObservation(difference=_difference(launch, before))


def _numbers(array: Any) -> np.ndarray:
    """An array or tensor as numpy has it; bf16, which numpy lacks, as fp32."""
    if not hasattr(array, "data_ptr"):
        return np.asarray(array)
    plain = array.detach()
    return np.asarray((plain.float() if plain.is_floating_point() else plain).numpy())


def _difference(launch: DefectLaunch, before: dict[str, np.ndarray]) -> str | None:
    for name, array in launch.arrays.items():
        is_output, now = name in launch.expected, _numbers(array)
        expected = np.broadcast_to(_numbers(launch.expected[name]), now.shape) if is_output else before[name]
        wrong = ~np.isclose(now, expected, rtol=0, atol=launch.tolerance if is_output else 0, equal_nan=not is_output)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            place = f"{name}[{', '.join(map(str, at))}]"
            if not is_output:
                return f"input {place} was changed from {expected[at]:g} to {now[at]:g}"
            return f"wrong result: {place} is {now[at]:g}, expected {expected[at]:g} ({wrong.sum()} of {now.size})"
    return None


def judge(defect: Defect, right: LaunchObservation) -> DefectVerdict:
    """Runs the broken kernel; `right` is what the right one showed."""
    broken = observe(defect.launch(), defect.name, defect.limit)
    return DefectVerdict(defect, _state(defect, broken, right), broken, right)


def _state(defect: Defect, broken: LaunchObservation, right: LaunchObservation) -> str:
    if right.error is not None or right.difference is not None:
        return "false alarm"
    noticed = broken.error is not None or broken.difference is not None
    if defect.blind:
        return "stale" if noticed else "blind"
    return "caught" if _as_expected(defect, broken) else "lost"


def _as_expected(defect: Defect, broken: LaunchObservation) -> bool:
    if not defect.kinds:
        return broken.error is None and broken.difference is not None
    error = broken.error
    if error is None or error.kind not in defect.kinds:
        return False
    named = {error.line, *(line for _, line in error.inlined)}
    return not defect.lines or not named.isdisjoint(defect.lines)


class DefectRunner:
    """Runs defects one after another; a right kernel that several of them share runs only once."""

    def __init__(self) -> None:
        self._right: dict[Callable[[], DefectLaunch], LaunchObservation] = {}

    def __call__(self, defect: Defect) -> DefectVerdict:
        if defect.launch not in self._right:
            self._right[defect.launch] = observe(defect.launch(), None, LIMIT_OF_RIGHT_KERNELS)
        return judge(defect, self._right[defect.launch])
