"""Hooks for tools that watch kernels run, instruction by instruction. A launch that is not watched pays nothing.

A watched launch runs a version of the kernel of its own, whose code calls the watcher's hooks. See `tracing`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from kernelmux.emulator.analysis.flow import Flow, Step

# Instructions that access memory at addresses among their operands.
MEMORY = ("ld", "ldu", "st", "atom", "red", "cp", "ldmatrix", "stmatrix")


class FunctionWatch(Protocol):
    """Hooks of one function; `pc` numbers its steps, `group` holds the lanes that run it."""

    def step(self, pc: int, group: Any) -> None:
        """The lanes of the group run a step."""

    def access(self, pc: int, group: Any, mask: Any, *inputs: Any) -> None:
        """The step is one of `MEMORY`: its inputs, and which lanes run it (None: all)."""

    def branch(self, pc: int, group: Any, condition: Any) -> None:
        """The lanes where `condition` holds jump."""


class LaunchWatch(Protocol):
    """What a launch reports to."""

    def of(self, flow: Flow) -> FunctionWatch:
        """The hooks of a function."""

    def finish(self) -> None:
        """A chunk of blocks has run to its end."""


class Watcher(Protocol):
    """Asked once per launch."""

    def begin(self, kernel: Any, grid: Any, block: Any, shared: int, arguments: Any) -> LaunchWatch:
        """A launch begins."""


_watcher: ContextVar[Watcher | None] = ContextVar("kernelmux_emulator_watcher", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Lets `watcher` see the launches inside the `with`."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def begin(kernel: Any, grid: Any, block: Any, shared: int, arguments: Any) -> LaunchWatch | None:
    """Called by every launch: what it reports to, None if it is not watched."""
    watcher = _watcher.get()
    return None if watcher is None else watcher.begin(kernel, grid, block, shared, arguments)


def report(emitter: Any, step: Step, inputs: Sequence[str] = ()) -> None:
    """Adds the calls of the hooks for a step to the code of a block; `W` is the `FunctionWatch`, `G` the group."""
    if not emitter.watched:
        return
    guard = None if step.guard is None else emitter._input(step.guard, bool)
    emitter._emit(f"W.step({emitter.pc}, G)")
    if step.action is None:
        emitter._emit(f"W.branch({emitter.pc}, G, {guard})")
    elif step.name in MEMORY:
        emitter._emit(f"W.access({', '.join([str(emitter.pc), 'G', str(guard), *inputs])})")
