"""Chrome traces written by hand, with something planted in each: what a profiler would have recorded of it."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from kernelmux.perf.profile import report, timeline

Event = dict[str, Any]


class Tape:
    """Writes the events of a trace one after the other, as Kineto does."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.correlation = 0

    def add(self, kind: str, name: str, start: float, duration: float, **facts: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": kind, "name": name, "ts": start, "dur": duration, "pid": 1, "tid": 1, "args": facts}
        )

    def kernel(self, name: str, start: float, duration: float, launched: float | None = None, stream: int = 7) -> None:
        """A kernel, and the launch of it that begins at `launched`."""
        self.correlation += 1
        facts = {"device": 0, "stream": stream, "grid": [132, 1, 1], "block": [256, 1, 1], "blocks per SM": 1.0}
        facts |= {"registers per thread": 32, "est. achieved occupancy %": 100}
        self.add("kernel", name, start, duration, correlation=self.correlation, **facts)
        if launched is not None:
            self.add("cuda_runtime", "cudaLaunchKernel", launched, 3.0, correlation=self.correlation)

    def copy(self, name: str, start: float, duration: float, size: int) -> None:
        self.add("gpu_memcpy", name, start, duration, device=0, stream=7, bytes=size)

    @property
    def content(self) -> Event:
        return {"traceEvents": self.events, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}]}

    def line(self) -> timeline.Timeline:
        return timeline.timeline(self.content)

    def text(self) -> str:
        """What the report says, with single spaces."""
        file = StringIO()
        report.show(Console(file=file, width=180, highlight=False), self.line())
        return " ".join(file.getvalue().split())


def busy(tape: Tape, start: float, count: int = 5) -> float:
    """Long kernels back to back, launched well ahead; returns when they end."""
    for i in range(count):
        tape.kernel("work", start + 100 * i, 100, launched=start - 50 + 5 * i)
    return start + 100 * count


def everything() -> Tape:
    """One of each: a pause behind a synchronisation, a stretch of launches, tiny kernels, a pageable copy, a range."""
    tape = Tape()
    tape.add("user_annotation", "softmax[cuda/registers]", 940, 80)
    end = busy(tape, 1000)
    tape.add("cuda_runtime", "cudaDeviceSynchronize", 1100, end - 1095)
    begin = end + 20000
    for i in range(200):
        tape.kernel("scaled", begin + 25 * i, 8, launched=begin + 25 * i - 6)
    begin += 200 * 25
    for i in range(300):
        tape.kernel("void at::native::fill<float>(int)", begin + 3 * i, 2, launched=1100 + i)
    tape.copy("Memcpy HtoD (Pageable -> Device)", begin + 900, 1200, 16_000_000)
    return tape
