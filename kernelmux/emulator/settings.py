"""Level of checking, time limit and order of blocks: context variables, so each thread and task has its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

LEVELS = ("fast", "full")
ORDERS = ("forward", "reverse")

_checks: ContextVar[str] = ContextVar("kernelmux_emulator_checks", default="fast")
_time_limit: ContextVar[float] = ContextVar("kernelmux_emulator_time_limit", default=60.0)
_block_order: ContextVar[str | int] = ContextVar("kernelmux_emulator_block_order", default=ORDERS[0])
_only_blocks: ContextVar[tuple[int, int] | None] = ContextVar("kernelmux_emulator_only_blocks", default=None)
_compiled_scratch: ContextVar[bool] = ContextVar("kernelmux_emulator_compiled_scratch", default=False)


@contextmanager
def checks(level: str) -> Iterator[None]:
    """Sets the level of checking.

    "fast": bounds, alignment, barriers. "full": also races, uninitialised reads, missing fences and waits.
    """
    if level not in LEVELS:
        raise ValueError(f"checks: expected one of {LEVELS}, got {level!r}")
    token = _checks.set(level)
    try:
        yield
    finally:
        _checks.reset(token)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Sets how long one launch may take (60 by default); more than 0, infinity is none.

    In seconds of processor time of the launching thread: a loaded machine refuses no launch that a quiet one runs.
    """
    if not seconds > 0:
        raise ValueError(f"time_limit: expected seconds, more than 0, got {seconds!r}")
    token = _time_limit.set(float(seconds))
    try:
        yield
    finally:
        _time_limit.reset(token)


@contextmanager
def block_order(order: str | int) -> Iterator[None]:
    """Sets the order in which blocks run: "forward" (the default), "reverse", or a seed for one by chance.

    Clusters stay together. A grid whose blocks may wait for one another and do not all fit side by side runs forward.
    """
    if isinstance(order, bool) or not (isinstance(order, int) or order in ORDERS):
        raise ValueError(f"block_order: expected one of {ORDERS} or a seed, got {order!r}")
    token = _block_order.set(order)
    try:
        yield
    finally:
        _block_order.reset(token)


@contextmanager
def only_blocks(first: int = 0, last: int = 0) -> Iterator[None]:
    """Runs but the `first` and the `last` blocks of every launch, whole clusters: for grids too large to emulate."""
    if first < 0 or last < 0 or first + last == 0:
        raise ValueError(f"only_blocks: expected at least one block, got first={first}, last={last}")
    token = _only_blocks.set((first, last))
    try:
        yield
    finally:
        _only_blocks.reset(token)


@contextmanager
def compiled_scratch() -> Iterator[None]:
    """Says that the shared memory of a launch is working memory of the compiler: no line of its author writes there."""
    token = _compiled_scratch.set(True)
    try:
        yield
    finally:
        _compiled_scratch.reset(token)


def current_compiled_scratch() -> bool:
    """Whether shared memory belongs to the compiler."""
    return _compiled_scratch.get()


def current_block_order() -> str | int:
    """The order in force: "forward", "reverse" or a seed."""
    return _block_order.get()


def current_only_blocks() -> tuple[int, int] | None:
    """How many of the first and of the last blocks run; None: all blocks."""
    return _only_blocks.get()


def current_checks() -> str:
    """The level in force: "fast" or "full"."""
    return _checks.get()


def current_time_limit() -> float:
    """The limit in force, seconds per launch."""
    return _time_limit.get()


class Deadline:
    """The end of the time of one launch; `done` counts its blocks that have ended."""

    def __init__(self, blocks: int) -> None:
        self.blocks, self.done = blocks, 0
        self.limit = current_time_limit()
        self._begun, self._used = time.perf_counter(), time.thread_time()

    @property
    def passed(self) -> bool:
        """A thread has used no more than has gone by, and that clock takes an eighth of the time to read."""
        return time.perf_counter() - self._begun > self.limit and time.thread_time() - self._used > self.limit

    def __str__(self) -> str:
        return (
            f"the launch did not end within its limit of {self.limit:g} s, {self.done:,} of {self.blocks:,} blocks are"
            " done: a loop that does not end, or a launch too large to emulate (emulator.time_limit sets the limit)"
        )
