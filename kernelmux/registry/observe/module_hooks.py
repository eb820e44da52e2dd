"""In the forward of which module of a model a call runs: hooks that keep a stack of names per thread."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import torch

OUTSIDE = "(outside of the model)"
BACKWARD = "(in the backward pass)"
_C: Any = torch._C


def only_follow(hooks: Iterable[Any]) -> bool:
    """Whether all of these hooks are those of `Modules`, which change nothing: a module may do without them for once."""
    return all(getattr(hook, "follows", False) for hook in hooks)


class Modules:
    """The modules of a model by qualified name, followed by hooks until `close`.

    order: their names in the order of the model, then `OUTSIDE` and `BACKWARD`.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        names = [(name, module) for name, module in model.named_modules()]
        self.order = {name: i for i, name in enumerate([*(name for name, _ in names), OUTSIDE, BACKWARD])}
        self._here = threading.local()
        self._handles = [handle for name, module in names for handle in self._hooks(name, module)]

    def _hooks(self, name: str, module: torch.nn.Module) -> tuple[Any, ...]:
        def enter(*_: Any) -> None:
            self._stack().append(name)

        def leave(*_: Any) -> None:
            stack = self._stack()
            if stack:  # a forward that began before the hooks were there has not entered
                stack.pop()

        enter.follows = leave.follows = True  # type: ignore[attr-defined]
        # First in and last out, so that what other hooks call belongs to the module as well.
        before = module.register_forward_pre_hook(enter, prepend=True)
        return before, module.register_forward_hook(leave, always_call=True)

    def _stack(self) -> list[str]:
        found: list[str] | None = getattr(self._here, "stack", None)
        if found is None:
            found = self._here.stack = []
        return found

    def current(self) -> str:
        """The innermost module whose forward runs in this thread, `BACKWARD` or `OUTSIDE`."""
        if stack := self._stack():
            return stack[-1]
        return BACKWARD if _C._current_graph_task_id() != -1 else OUTSIDE

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
