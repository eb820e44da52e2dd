"""A Chrome trace as a timeline: what the GPU did and when, what launched it, and what the host did meanwhile.

The categories are those of torch.profiler (Kineto). Times are microseconds.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from kernelmux.registry.errors import ArgumentError

KERNEL, COPY, FILL = "kernel", "gpu_memcpy", "gpu_memset"
DEVICE = (KERNEL, COPY, FILL)
RUNTIME = ("cuda_runtime", "cuda_driver")  # calls of CUDA
OPERATOR, RANGE, PYTHON = "cpu_op", "user_annotation", "python_function"
HOST = (*RUNTIME, OPERATOR, RANGE, PYTHON)
OURS = re.compile(r"\w+\[[\w.-]+/[\w.-]+\]")  # a range of kernelmux


@dataclass(frozen=True)
class Span:
    """Something that took time. lane: its stream on a GPU, its thread on the host; device: the index of the GPU."""

    name: str
    kind: str
    start: float
    duration: float
    lane: str = ""
    device: int = 0
    correlation: int | None = None
    facts: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def end(self) -> float:
        return self.start + self.duration


@dataclass(frozen=True)
class Timeline:
    """The spans by time. gpus: the names of the GPUs by their index, as far as the trace knows them."""

    spans: tuple[Span, ...]
    gpus: dict[int, str]

    @cached_property
    def work(self) -> tuple[Span, ...]:
        """Kernels, copies and fills of all GPUs."""
        return tuple(s for s in self.spans if s.kind in DEVICE)

    @cached_property
    def host(self) -> tuple[Span, ...]:
        """Calls of CUDA, operators of torch, ranges and Python functions."""
        return tuple(s for s in self.spans if s.kind in HOST)

    @cached_property
    def launches(self) -> dict[int, Span]:
        """The calls of CUDA by their correlation, which the work that they launch has too."""
        return {s.correlation: s for s in self.spans if s.kind in RUNTIME and s.correlation is not None}

    def launched(self, work: Span) -> Span | None:
        """The call that launched a kernel or a copy, if the trace knows it."""
        return None if work.correlation is None else self.launches.get(work.correlation)

    def on(self, device: int) -> list[Span]:
        """The work of one GPU."""
        return [s for s in self.work if s.device == device]

    @property
    def devices(self) -> list[int]:
        return sorted({s.device for s in self.work})


def read(path: Path) -> Timeline:
    """The timeline of a file, .json or .json.gz; ArgumentError for one that holds no trace."""
    try:
        data = path.read_bytes()
        content = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except (OSError, ValueError, EOFError) as error:
        raise ArgumentError(f"{path}: expected a Chrome trace (JSON), got {type(error).__name__}: {error}") from error
    return timeline(content, str(path))


def timeline(content: Any, name: str = "trace") -> Timeline:
    """The timeline of the JSON of a trace."""
    events = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(events, list):
        raise ArgumentError(f'{name}: expected an object with "traceEvents" or a list of events, as Chrome traces have')
    spans = sorted(_spans(events), key=lambda s: (s.start, -s.duration))
    listed = content.get("deviceProperties", []) if isinstance(content, dict) else []
    return Timeline(tuple(spans), {d.get("id", i): d.get("name", "") for i, d in enumerate(listed)})


def _spans(events: list[Any]) -> Iterator[Span]:
    for event in events:
        if isinstance(event, dict) and event.get("ph") == "X" and event.get("cat") in (*DEVICE, *HOST):
            try:
                yield _span(event)
            except (KeyError, TypeError, ValueError):  # an event without a time says nothing of time
                continue


def _span(event: dict[str, Any]) -> Span:
    facts, kind = event.get("args") or {}, event["cat"]
    lane = facts.get("stream", event.get("tid", "")) if kind in DEVICE else event.get("tid", "")
    return Span(
        name=str(event.get("name", "")),
        kind=kind,
        start=float(event["ts"]),
        duration=float(event.get("dur", 0)),
        lane=str(lane),
        device=int(facts.get("device", 0)) if kind in DEVICE else 0,
        correlation=facts.get("correlation") or None,
        facts=facts,
    )
