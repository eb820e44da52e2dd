"""Calls among other work of a GPU, with what torch has for that replaced: what comes when, and what is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from kernelmux.candidate.gpu import order


class GraphOfOneCall:
    """In place of a CUDA graph: a replay calls again."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def replay(self) -> None:
        for call in self.calls:
            call()


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> GraphOfOneCall:
    made = GraphOfOneCall()

    @contextmanager
    def graph(given: GraphOfOneCall) -> Iterator[None]:
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: made)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return made


def each() -> list[list[object]]:
    return [[torch.full((2, 3), float(i)), 2.0] for i in range(3)]


def test_a_replay_has_other_inputs_at_the_same_place(captures: GraphOfOneCall) -> None:
    out = torch.empty(2, 3)

    def doubled(x: torch.Tensor, times: float) -> torch.Tensor:
        captures.calls = [lambda: torch.mul(x, times, out=out)]
        return torch.mul(x, times, out=out)

    found = order.results(doubled, each(), order.CAPTURED)
    assert [float(y[0, 0]) for y in found] == [0.0, 2.0, 4.0]


def test_what_cannot_be_captured_says_so(captures: GraphOfOneCall) -> None:
    calls = []

    def once(x: torch.Tensor, times: float) -> torch.Tensor:
        calls.append(x)
        if len(calls) > 1:
            raise RuntimeError("operation not permitted when stream is capturing")
        return x * times

    with pytest.raises(order.Uncapturable, match="RuntimeError: operation not permitted"):
        order.results(once, each(), order.CAPTURED)


def test_late_inputs_are_poison_before_and_behind_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[tuple[torch.Tensor, float]]()

    @contextmanager
    def stream(given: object) -> Iterator[None]:
        yield

    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def kept(x: torch.Tensor, times: float) -> torch.Tensor:
        seen.append((x, float(x[0, 0])))
        return x * times

    (found,) = order.results(kept, [[torch.full((2, 3), 4.0), 2.0]], order.LATE)
    assert float(found[0, 0]) == 8.0 and seen[0][1] == 4.0 and seen[0][0].isnan().all()
