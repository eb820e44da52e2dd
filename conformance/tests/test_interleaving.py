"""Calls in threads take turns, and tensors that stay are counted."""

from __future__ import annotations

import threading

import pytest
import torch

from kernelmux.conformance.interleaving import Living, side_by_side

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
