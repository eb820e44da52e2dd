"""Time per call inside a CUDA graph: several calls over rotating inputs, captured once and replayed."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from typing import Any

import torch

cuda: Any = torch.cuda  # whether its classes are typed depends on the build of torch
CALLS, LONGEST_US = 8, 20_000.0
REPLAYS, WARMUP = 5, 2


def replay_us(call: Callable[[int], Any], copies: int, expected_us: float) -> tuple[float | None, str]:
    """Microseconds per call and "", or None and why there is no graph of this call."""
    count = max(1, min(max(CALLS, copies), int(LONGEST_US / max(expected_us, 1.0))))
    try:
        graph = _capture(call, count)
        return _replay(graph) / count, ""
    except Exception as error:
        torch.cuda.synchronize()  # raises if more than the capture was lost
        note = f"cannot be captured: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    gc.collect()  # the frames of a failed call hold its tensors, and one another
    torch.cuda.empty_cache()
    return None, note


def _capture(call: Callable[[int], Any], count: int) -> Any:
    graph, stream = cuda.CUDAGraph(), cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call(0)  # whatever a first call on a new stream sets up must not be captured
        stream.synchronize()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for i in range(count):
                call(i)
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph


def _replay(graph: Any) -> float:
    times: list[float] = []
    for _ in range(WARMUP + REPLAYS):
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times[WARMUP:])
