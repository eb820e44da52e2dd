"""What a run was asked for, in a form that travels to the worker processes as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

QUICK_SAMPLES, SAMPLES = 20, 50
REST_SECONDS = 0.35  # until an H200 that ran at its power limit has its full clock again


@dataclass(frozen=True)
class PerfOptions:
    """A selection; an empty tuple stands for the default. backends are "name" or "name/variant".

    workloads: names or patterns of the spec's workloads, "large", or a shape such as "x=4096x4096 axis=0".
    device: where the rows run, "cuda" or "cpu". budget: seconds of timed work per row, row_limit: of all its work.
    jobs: processes that compile ahead. peers: other libraries as well (`perf.peers`). rest: seconds before a row.
    brief: times after a rest alone, without the held state, the host time and the time in a CUDA graph.
    until_known: samples until the median is known (`stopping`), not a fixed number; checks on a small sample.
    until: after this no further row begins, by time.monotonic; 0 for no limit.
    impl: "path.py:function", beside torch and the variant that each backend would run.
    elsewhere: on GPUs of a cluster, of which this machine need not have one.
    """

    ops: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    quick: bool = False
    samples: int = SAMPLES
    device: str = "cpu"
    out: str = "build/perf"
    budget: float = 0.5
    row_limit: float = 120.0
    jobs: int = 0
    peers: bool = False
    rest: float = REST_SECONDS
    brief: bool = False
    until_known: bool = False
    until: float = 0.0
    impl: str = ""
    elsewhere: bool = False

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def from_dict(fields: dict[str, Any]) -> PerfOptions:
    """The inverse of `as_dict`, after a trip through JSON."""
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    return PerfOptions(**values)
