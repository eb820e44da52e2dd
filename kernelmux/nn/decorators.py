"""Decorators of transformers around a forward, which stay where the function inside is replaced."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

KNOWN = frozenset({"transformers.utils.deprecation"})  # modules whose decorators only rename arguments
INNER = "func"  # what such a decorator calls the function


def plain(function: Any) -> Any:
    """The function inside of the decorators that are known."""
    while _known(function):
        function = function.__wrapped__
    return function


def around(function: Any, inner: Callable[..., Any]) -> Callable[..., Any]:
    """`inner` in the decorators that are known of `function`."""
    if not _known(function):
        return inner
    inner = around(function.__wrapped__, inner)
    free = zip(function.__code__.co_freevars, function.__closure__, strict=True)
    cells = tuple(types.CellType(inner) if name == INNER else cell for name, cell in free)
    made = types.FunctionType(function.__code__, function.__globals__, "forward", function.__defaults__, cells)
    made.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(made, inner)


def _known(function: Any) -> bool:
    wrapped = getattr(function, "__wrapped__", None)
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    return wrapped is not None and INNER in names and function.__globals__.get("__name__") in KNOWN
