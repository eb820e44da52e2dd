"""The first call of a kind, whose kernels are compiled side by side.

An implementation launches one kernel after another, and compiling the first would hold up the second. A backend whose
compiler takes long begins to compile when it is asked for a launch, and leaves the launch with the call
(`WaitingLaunches`), which makes all of them in order when the implementation has returned, or does anything else than
allocate memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_Mode: Any = TorchDispatchMode
_aten = torch.ops.aten
ALLOCATING = (
    _aten.empty.memory_format,
    _aten.empty_like.default,
    _aten.empty_strided.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
)
_local = threading.local()


@cache
def _copies_nothing(func: Any) -> bool:
    """Whether an operator of torch gives a view and touches no memory. One composed of others may copy: in
    inference mode and below autograd `reshape` is seen as a whole, and torch calls it a view."""
    composed = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    return func in ALLOCATING or (func.is_view and not composed)


class WaitingLaunches(_Mode):  # type: ignore[misc]
    """Those of a call that wait. shared: what a backend keeps for the call."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Callable[[], None]] = []
        self.shared: dict[str, Any] = {}
        self._watches = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as LaunchRecorder

    def put(self, launch: Callable[[], None]) -> None:
        """Leave a launch. From then on this sees what the implementation has torch do."""
        if not self._watches:
            self._watches = True
            self.__enter__()
        self.waiting.append(launch)

    def make(self) -> None:
        """Make all launches that wait."""
        waiting, self.waiting = self.waiting, []
        for launch in waiting:
            launch()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not _copies_nothing(func):
            self.make()
        return func(*args, **(kwargs or {}))


def launches() -> WaitingLaunches | None:
    """Those of the first call that runs in this thread."""
    return getattr(_local, "launches", None)


def together(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called for the first time."""

    def first(*values: Any) -> Any:
        if launches():
            return fn(*values)
        own = _local.launches = WaitingLaunches()
        try:
            result = fn(*values)
        finally:
            _local.launches = None
            if own._watches:
                own.__exit__(None, None, None)
        own.make()
        return result

    return first
