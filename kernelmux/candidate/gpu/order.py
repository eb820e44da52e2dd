"""Calls whose place among other work of the GPU is asked about, in the process of a candidate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernelmux.candidate.allocations import Guard

LATE, CAPTURED = "late", "captured"
DELAY = 50_000_000  # clock cycles, some 25 ms: a launch on another stream is over by then


class Uncapturable(Exception):
    """A function cannot be captured in a CUDA graph."""


def results(function: Callable[..., Any], each: Sequence[Sequence[Any]], order: str) -> list[Any]:
    """Of each call; LATE: inputs that come late, on the current stream. CAPTURED: the first in a CUDA graph, replayed."""
    return [_late(function, values) for values in each] if order == LATE else _captured(function, each)


def _late(function: Callable[..., Any], values: Sequence[Any]) -> Any:
    """Inputs are poison until a side stream, after a delay, fills them in, and again right behind the call.

    New memory holds poison. The results are copied on the side stream as soon as the call has returned.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    placed = [torch.empty_like(v) if isinstance(v, torch.Tensor) else v for v in values]
    _poison(placed)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(DELAY)  # type: ignore[no-untyped-call]
        _fill(placed, values)
        with Guard():
            result = function(*placed)
        seen = _copied(result)
        _poison(placed)
    torch.cuda.synchronize()
    return seen


def _captured(function: Callable[..., Any], each: Sequence[Sequence[Any]]) -> list[Any]:
    placed = [torch.empty_like(v) if isinstance(v, torch.Tensor) else v for v in each[0]]
    _fill(placed, each[0])
    found = [_copied(function(*placed))]  # compiling and loading are not for captures
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            result = function(*placed)
    except Exception as error:
        raise Uncapturable(f"{type(error).__name__}: {error}") from error
    for values in each[1:]:
        _fill(placed, values)
        graph.replay()
        torch.cuda.synchronize()
        found.append(_copied(result))
    return found


def _fill(placed: Sequence[Any], values: Sequence[Any]) -> None:
    for to, value in zip(placed, values, strict=True):
        if isinstance(to, torch.Tensor):
            to.copy_(value, non_blocking=True)


def _poison(placed: Sequence[Any]) -> None:
    for x in placed:
        if isinstance(x, torch.Tensor):
            x.fill_(torch.nan if x.is_floating_point() else -1)


def _copied(result: Any) -> Any:
    if isinstance(result, tuple | list):
        return type(result)(_copied(one) for one in result)
    return result.clone() if isinstance(result, torch.Tensor) else result
