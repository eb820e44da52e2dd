"""Ranges in the timeline of a profiler: every call as `softmax[cuda/rows]`, for nsys (NVTX) and for torch.profiler.

    with kernelmux.ranges():
        model(x)

or KERNELMUX_NVTX=1 for a whole program. Whether a call has a range is settled when its variant is chosen: while ranges
are off, nothing is added to any call. A bound call has one if it was bound while they were on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import record_function

from kernelmux.registry.choice import scope

VARIABLE = "KERNELMUX_NVTX"
_C: Any = torch._C
_lock = threading.Lock()
opened = 0  # how many `with` there are


@contextmanager
def ranges() -> Iterator[None]:
    """Inside, calls of operators in the whole process are ranges of NVTX and of torch.profiler, `op[backend/variant]`.

    They take some microseconds of host time each. Entering and leaving makes every call choose its variant anew, once.
    """
    _change(1)
    try:
        yield
    finally:
        _change(-1)


def _change(step: int) -> None:
    global opened
    with _lock:
        opened += step
    scope.renew()


class Ranged:
    """A function inside of a range; where torch traces the call, without one: it would be a step of the graph."""

    __slots__ = ("_fn", "_label", "_nvtx")

    def __init__(self, fn: Callable[..., Any], label: str) -> None:
        self._fn, self._label, self._nvtx = fn, label, torch.cuda.is_available()

    def __call__(self, *values: Any) -> Any:
        if _C._len_torch_dispatch_stack() or _C._get_tracing_state() is not None:
            return self._fn(*values)
        if not self._nvtx:
            with record_function(self._label):
                return self._fn(*values)
        with record_function(self._label), torch.cuda.nvtx.range(self._label):
            return self._fn(*values)
