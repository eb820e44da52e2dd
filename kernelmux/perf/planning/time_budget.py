"""The minutes that a run may take, counted from the start of its process: what does not fit is named, not timed."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

BEGAN = time.monotonic()  # imported first by `__main__`: importing torch is part of the run
DEFAULT = {"cuda": 5.0, "cpu": 2.0}  # minutes of the default report
PER_OPERATOR = 0.7  # minutes of one operator on a GPU
COMPILING = 0.4  # share of what is left that compiling ahead may take
# Seconds kept for what follows the rows: the reports; on a CPU also the host time of calls.
WRITING = {"cuda": 20.0, "cpu": 8.0}
SHORT = 0.8  # share of a short run that its rows have at least
ROWS_ON_CPU = 0.4  # share of the minutes; the kernels are compiled in the rest


@dataclass(frozen=True)
class TimeBudget:
    """minutes: of the whole run; 0 for no limit. began: by time.monotonic."""

    minutes: float = 0.0
    device: str = "cuda"
    began: float = 0.0

    @property
    def end(self) -> float:
        """When everything has to be done but writing, by time.monotonic; infinite without a limit."""
        seconds = 60 * self.minutes
        return self.began + max(seconds - WRITING[self.device], SHORT * seconds) if self.minutes else math.inf

    @property
    def rows_until(self) -> float:
        """After this no further row begins; 0 without a limit, as JSON knows no infinity."""
        if not self.minutes:
            return 0.0
        return self.end if self.device == "cuda" else self.began + ROWS_ON_CPU * 60 * self.minutes


def compiling_seconds(until: float, most: float) -> float:
    """Seconds that compiling ahead may take, if rows begin until then."""
    return max(1.0, min(most, COMPILING * (until - time.monotonic()))) if until else most
