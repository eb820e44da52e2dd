"""Calls in threads take turns, and tensors that stay are counted."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from kernelmux.conformance.variations import interleaving
from kernelmux.conformance.variations.interleaving import Living, side_by_side

CPU = torch.device("cpu")


def test_threads_take_turns_between_operations() -> None:
    shared = torch.zeros(8)

    def work(value: float) -> bool:
        for _ in range(5):
            shared.fill_(value)
            if not (shared.clone() == value).all():
                return False
        return True

    found = side_by_side([lambda v=v: work(v) for v in (1.0, 2.0, 3.0, 4.0)], CPU)  # type: ignore[misc]
    assert not all(found)


def test_turns_are_the_same_each_time_whatever_else_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interleaving, "GRACE", 30)

    def order(pause: float) -> list[int]:
        seen: list[int] = []

        def work(own: int) -> None:
            for _ in range(6):
                time.sleep(pause * own)
                seen.append(own)
                torch.zeros(1)

        side_by_side([lambda i=i: work(i) for i in range(3)], CPU)  # type: ignore[misc]
        return seen

    assert order(0.0) == order(0.002) and order(0.0) != sorted(order(0.0))


def test_a_thread_may_wait_for_one_that_has_no_turn() -> None:
    lock = threading.Lock()

    def work() -> int:
        with lock:
            return int(torch.zeros(3).add(1).sum())

    assert side_by_side([work] * 4, CPU) == [3] * 4


def test_results_come_in_order_and_errors_are_raised() -> None:
    assert side_by_side([lambda i=i: i for i in range(4)], CPU) == [0, 1, 2, 3]  # type: ignore[misc]
    assert len(set(side_by_side([threading.get_ident] * 3, CPU))) == 3

    def broken() -> None:
        raise KeyError("from a thread")

    with pytest.raises(KeyError, match="from a thread"):
        side_by_side([broken, lambda: None], CPU)


def test_tensors_that_stay_are_counted() -> None:
    kept: list[torch.Tensor] = []
    with Living() as living:
        for i in range(10):
            x = torch.full((4,), float(i)) + 1
            if i % 2:
                kept.append(x)
        del x
    assert living.count() == len(kept) == 5
    kept.clear()
    assert living.count() == 0


def test_a_tensor_that_is_changed_in_place_counts_once() -> None:
    x = torch.zeros(4)
    with Living() as living:
        for _ in range(10):
            x.add_(1)
    assert living.count() == 1
