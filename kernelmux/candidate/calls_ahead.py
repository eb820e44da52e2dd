"""Calls of a candidate that were sent before their results are asked for, several in one message.

The process computes while its caller judges earlier results, or prepares later ones. What goes wrong in such a message is
told by no result of it: each call is made again by itself, and if none of them shows an error, `CallsAhead.error` is left.
Warnings come where the first result is taken, which is where they would have come.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernelmux.candidate.errors import CandidateError


class Collected(BaseException):
    """Ends a call of which the arguments alone are wanted."""


class CallsAhead:
    """Calls in a row. receive: gets the results of all of them, or raises; called once.

    error: what went wrong on the way, until a call that is made again shows it.
    """

    def __init__(self, each: Sequence[Sequence[Any]], receive: Callable[[], list[Any]]) -> None:
        self.each, self.settled = list(each), False
        self._receive, self._results, self._taken = receive, list[Any](), set[int]()
        self.error: Exception | None = None
        self._heard = list[warnings.WarningMessage]()

    def settle(self) -> None:
        """Wait for the results."""
        if self.settled:
            return
        self.settled = True
        with warnings.catch_warnings(record=True) as self._heard:
            try:
                self._results = self._receive()
            except Exception as error:
                self.error = error

    def take(self, values: Sequence[Any], call: Callable[[Sequence[Any]], Any]) -> Any:
        """The result for these arguments, each once; of others, and of all in a message that failed, by `call`."""
        while self._heard:
            one = self._heard.pop(0)
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno, source=one.source)
        own = next((i for i, one in enumerate(self.each) if i not in self._taken and _same(one, values)), None)
        if own is not None:
            self._taken.add(own)
            if self._results:
                return self._results[own]
        try:
            return call(values)
        except (CandidateError, RuntimeError):
            self.error = None
            raise


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether arguments are the very same tensors, and equal scalars."""
    return len(one) == len(other) and all(
        x is y or (not isinstance(x, torch.Tensor) and type(x) is type(y) and x == y)
        for x, y in zip(one, other, strict=True)
    )
