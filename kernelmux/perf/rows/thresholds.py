"""What counts as good and as poor: the thresholds of practice, for every tool here that judges a kernel or a timeline.

The hints of `perf`, its reading of timelines and its table of ncu's counters ask here. What is good of `OCCUPANCY` and
`TRAFFIC` is what the emulator's pictures and sentences call so (`kernelmux.emulator.traces`).
"""

from __future__ import annotations

from typing import NamedTuple

GOOD, FAIR, POOR = "good", "fair", "poor"


class Level(NamedTuple):
    """From where on a number is good, and where poor begins; with good below poor, less is better."""

    good: float
    poor: float

    def verdict(self, value: float) -> str:
        """good, fair or poor."""
        if self.good > self.poor:
            return GOOD if value >= self.good else POOR if value < self.poor else FAIR
        return GOOD if value <= self.good else POOR if value >= self.poor else FAIR


BANDWIDTH = Level(0.60, 0.30)  # share of the memory's rate, where memory binds
COMPUTE = Level(0.80, 0.50)  # share of the peak of the units in use, where arithmetic binds
OCCUPANCY = Level(0.50, 0.25)  # share of the warps that a multiprocessor can hold
LAST_WAVE = Level(0.90, 0.70)  # waves over waves rounded up: how full the GPU is on average over whole waves of blocks
USED = Level(0.80, 0.50)  # share of the bytes in the sectors of a request that some lane uses
CONFLICTS = Level(0.05, 0.50)  # passes over the banks above the least, per pass that is needed
TRAFFIC = Level(1.5, 4.0)  # bytes that requests move, in units of what the call has to move
SPILLED = Level(0, 1)  # bytes per thread that do not fit in registers
BUSY = Level(0.95, 0.80)  # share of a timeline in which the GPU has work

LAUNCH_US = 10.0  # a call below this is mostly launch latency and ramp-up of the blocks
TINY_US = 5.0  # a kernel below this takes less time than its launch takes the host
IDLE_US = 200.0  # a pause of the GPU from here on is no launch, even under a profiler: the host did something else
