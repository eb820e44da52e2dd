"""What `returned` says of results: of another class, in one memory, or not finished."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from kernelmux.conformance.judging import returned
from kernelmux.registry import catalog

SPEC = catalog.spec("silu")


@pytest.fixture
def left_behind(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[torch.Tensor]]:
    """A call whose thread works once the call has returned and been looked at: while `unfinished` waits."""
    looked, threads = threading.Event(), list[threading.Thread]()

    def call(x: torch.Tensor, change: bool) -> tuple[torch.Tensor]:
        y = torch.nn.functional.silu(x)

        def work() -> None:
            looked.wait(60)
            if change:
                y.zero_()

        threads.append(threading.Thread(target=work, name="left behind"))
        threads[0].start()
        return (y,)

    def wait(seconds: float) -> None:
        looked.set()
        threads[0].join()

    monkeypatch.setattr(returned.time, "sleep", wait)
    return call


def test_a_finished_call_is_fine() -> None:
    x = torch.randn(5)
    assert returned.unfinished(SPEC, lambda: (torch.nn.functional.silu(x),), (x,)) == ""


def test_a_result_that_changes_behind_the_call_is_named(left_behind: Callable[..., tuple[torch.Tensor]]) -> None:
    x = torch.randn(5)
    problem = returned.unfinished(SPEC, lambda: left_behind(x, change=True), (x,))
    assert problem == "y changed after the call had returned"


def test_a_thread_that_goes_on_is_named(left_behind: Callable[..., tuple[torch.Tensor]]) -> None:
    x = torch.randn(5)
    problem = returned.unfinished(SPEC, lambda: left_behind(x, change=False), (x,))
    assert problem == "the call left 1 threads running: left behind"


def test_a_subclass_and_a_parameter_are_no_plain_tensors() -> None:
    x = torch.randn(5)
    assert returned.odd(SPEC, (x,)) == ""
    assert "torch.nn.parameter.Parameter" in returned.odd(SPEC, (torch.nn.Parameter(x),))
    assert "plain torch.Tensor" in returned.odd(SPEC, (x.as_subclass(type("Own", (torch.Tensor,), {})),))


def test_two_outputs_in_one_memory_are_named() -> None:
    spec = catalog.spec("swiglu_backward")
    both, values = torch.randn(2, 5), tuple(torch.randn(5) for _ in range(3))
    assert returned.shared(spec, (both[0], both[1]), values) == "grad_a shares its memory with grad_b"
    assert returned.shared(spec, (values[1], both[1]), values) == "grad_a shares its memory with the input a"
    assert returned.shared(spec, (both[0].clone(), both[1]), values) == ""
