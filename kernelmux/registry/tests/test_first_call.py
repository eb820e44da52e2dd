"""Launches of a first call wait for one another's kernels, and for nothing that needs what they write."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from kernelmux.registry.call import first_call
from kernelmux.registry.call.launch_replay import Replayed


def left(launch: Any) -> None:
    """A launch as a backend leaves it."""
    found = first_call.launches()
    if found is None:
        launch()
    else:
        found.put(launch)


def test_launches_are_made_in_order_when_the_implementation_has_returned() -> None:
    made: list[Any] = []

    def implementation(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        for i in range(3):
            left(lambda i=i: made.append(i))
        made.append("returned")
        return y.view(2, 2)

    replayed = Replayed(implementation)
    replayed(torch.zeros(4))
    assert made == ["returned", 0, 1, 2] and first_call.launches() is None
    made.clear()
    replayed.plainly(torch.zeros(4))
    assert made == [0, 1, 2, "returned"]


def test_what_torch_computes_sees_the_launches_before_it() -> None:
    def implementation(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        left(lambda: y.fill_(2.0))
        z = y * x
        left(lambda: z.add_(1.0))
        return z

    torch.testing.assert_close(first_call.together(implementation)(torch.ones(3)), torch.full((3,), 3.0))


def test_a_reshape_that_copies_sees_the_launches_before_it() -> None:
    """In inference mode, as below autograd, torch shows it as a whole, and calls it a view."""

    def implementation(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        left(lambda: y.copy_(x))
        return y.t().reshape(-1)

    x = torch.arange(6.0).view(2, 3)
    with torch.inference_mode():
        assert torch.equal(first_call.together(implementation)(x), x.t().reshape(-1))


def test_a_call_within_a_call_leaves_its_launches_with_that() -> None:
    made: list[str] = []

    def inner() -> None:
        left(lambda: made.append("inner"))

    def outer() -> None:
        left(lambda: made.append("outer"))
        first_call.together(inner)()
        made.append("returned")

    first_call.together(outer)()
    assert made == ["returned", "outer", "inner"]


def test_launches_of_a_call_that_fails_are_not_made() -> None:
    made: list[str] = []

    def implementation() -> None:
        left(lambda: made.append("launch"))
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        first_call.together(implementation)()
    assert not made and first_call.launches() is None
    torch.ones(2) + 1  # nothing sees this


def test_another_thread_has_launches_of_its_own() -> None:
    found: list[Any] = []

    def implementation() -> None:
        thread = threading.Thread(target=lambda: found.append(first_call.launches()))
        thread.start()
        thread.join()

    first_call.together(implementation)()
    assert found == [None]
