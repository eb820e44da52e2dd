"""Work that events on the current stream do not time: what is still running, on another stream, when they are over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from kernelmux.perf.rows.row_result import RooflinePoint

CALLS = 5
IDLE_US = 60.0  # waiting for an idle device takes some 10 us
# On a busy host it takes 61 us after a call of 2.8 ms, 140 after 30: less than this share of a call hides little of it.
IDLE_OF_CALL = 0.05
OF_IDLE = 4.0  # times as long as this host, which may be busy, waits for a device that is known to be idle
OF_FLOOR = 5.0  # times faster than the floor: inputs that lie in the L2 cache allow for less
UNJOINED = ("unjoined", "not joined")
ELSEWHERE = "work is on another stream"


class HiddenWork(AssertionError):
    """A call goes on after it has ended for the stream that it was made on."""


def require_none(call: Callable[[int], Any]) -> None:
    """HiddenWork if the device is busy after an event behind the call, each of several times."""
    seen = [_busy_us(call, i) for i in range(CALLS)]
    (busy, allowed, _), idle = min(seen), min(idle for _, _, idle in seen)
    if busy > max(allowed, OF_IDLE * idle):
        raise HiddenWork(f"{ELSEWHERE}: the device goes on for {busy:.0f} us after the end of the call")


def _busy_us(call: Callable[[int], Any], i: int) -> tuple[float, float, float]:
    """Microseconds: the device works on after an event behind the call, is allowed to, and is waited for when idle."""
    end: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    begin = time.perf_counter()
    kept = call(i)
    end.record()
    end.synchronize()
    over = time.perf_counter()
    torch.cuda.synchronize()
    idle = time.perf_counter()
    torch.cuda.synchronize()
    again = time.perf_counter()
    del kept  # memory of another stream is not reused before it is done
    return (idle - over) * 1e6, max(IDLE_US, IDLE_OF_CALL * (over - begin) * 1e6), (again - idle) * 1e6


def require_captured(graph_us: float | None, note: str, point: RooflinePoint) -> None:
    """HiddenWork if a CUDA graph of the call does not hold its work."""
    if any(word in note for word in UNJOINED):
        raise HiddenWork(f"{ELSEWHERE}, which is not joined to the current one: {note}")
    if graph_us is not None and graph_us * OF_FLOOR < point.floor_us:
        told = f"a graph of the call takes {graph_us:.2f} us where {point.floor_us:.1f} us are the least possible"
        raise HiddenWork(f"{ELSEWHERE}: {told}")
