"""How often the operators are called while a test runs."""

from collections.abc import Callable
from typing import Any

import pytest

import kernelmux as kx


def counted(monkeypatch: pytest.MonkeyPatch, *ops: str) -> dict[str, int]:
    """Calls of each operator from now on; they compute what they did."""
    called = dict.fromkeys(ops, 0)

    def count(op: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            called[op] += 1
            return fn(*args, **kwargs)

        return call

    for op in ops:
        monkeypatch.setattr(kx, op, count(op, getattr(kx, op)))
    return called
