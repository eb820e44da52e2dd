"""Another process that judges, beside the one that is asked for a verdict: each takes the next item that is left.

    with SecondJudge() as second:
        verdict(source, op="softmax", pool=pool, second=second)

It has processes of its own for the candidates, of which two wait. An item is the same in both: its seed depends on that of
the verdict alone. If this process ends, what it has begun is left to the first one.
"""

from __future__ import annotations

import gc
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kernelmux.candidate.limits import Limits
from kernelmux.candidate.pool import WarmPool
from kernelmux.conformance import options
from kernelmux.conformance.options import Options
from kernelmux.conformance.session.execute import from_dict
from kernelmux.conformance.session.pytest_plugin import COLLECT
from kernelmux.judge import judged_function
from kernelmux.judge.judged_function import AskedItem
from kernelmux.judge.shared_items import SharedItems
from kernelmux.registry.errors import ArgumentError, UnknownName
from kernelmux.runner.item import Slot, WorkItem
from kernelmux.runner.local_pool import CLOSED, GONE, READY, ROW, LocalPool

SLOT = Slot("judge")
WAIT = 0.5  # seconds


class _Gone(Exception):
    """The process has ended, and another starts in its place."""


class SecondJudge:
    """A process that waits for verdicts on a CPU. limits: of each process that it has for a candidate."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._logs = tempfile.TemporaryDirectory(prefix="kernelmux-judge-", ignore_cleanup_errors=True)
        setup = {"limits": asdict(limits or Limits())}
        self._pool = LocalPool([SLOT], f"{__name__}:serve", setup, Path(self._logs.name))
        self._ready, self._turn = False, threading.Lock()
        self._pool.__enter__()

    def __enter__(self) -> SecondJudge:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, and those that it has."""
        self._pool.__exit__()
        self._logs.cleanup()

    def wait(self, seconds: float = 60.0) -> bool:
        """Until it is ready, which takes some seconds; whether it is. A verdict does not wait for it."""
        end = time.monotonic() + seconds
        while not self._ready and time.monotonic() < end:
            with self._turn:
                self._hear()
        return self._ready

    @contextmanager
    def beside(
        self, asked: Options, path: Path, name: str, limits: Limits | None, pooled: bool
    ) -> Iterator[SharedItems]:
        """Inside, what waits is shared with this process. pooled: the function gets a process that waits there."""
        share, told = SharedItems(), limits and asdict(limits)
        begin = {"options": asked.as_dict(), "path": str(path), "name": name, "limits": told, "pooled": pooled}
        share.run(partial(self._take, share, begin))
        try:
            yield share
        finally:
            share.stop()

    def _take(self, share: SharedItems, begin: dict[str, Any]) -> None:
        """Ask what is left, until nothing is; what it could not ask is left again."""
        with self._turn, suppress(_Gone):
            if not self._ready:
                self._hear()
            if not self._ready or self._answer({"begin": begin})["problem"]:
                return  # a problem meets the first judge as well
            while one := share.last():
                try:
                    told = self._answer({"ask": one.as_dict()})
                except _Gone:
                    share.waiting.append(one)
                    raise
                share.add(one.place, [from_dict(each) for each in told["outcomes"]])
            told = self._answer({"end": True})
            share.launched, share.operators = told["launched"], set(told["operators"])

    def _answer(self, work: dict[str, Any]) -> Any:
        """What the process answers; _Gone if it has ended."""
        self._pool.send(SLOT, WorkItem("", work), 0.0)
        while True:
            for kind, value in self._hear():
                if kind == ROW:
                    return value[0]
                if kind in (GONE, CLOSED):
                    raise _Gone

    def _hear(self) -> list[tuple[str, Any]]:
        found = [(event.kind, event.value) for event in self._pool.events(WAIT)]
        for kind, _ in found:
            self._ready = kind == READY or (self._ready and kind == ROW)
        return found


def serve(setup: Any, items: Iterator[tuple[Any, float]], tell: Callable[..., None]) -> None:
    """What the process does, as `runner.item.Serve` says: {"begin": a candidate}, {"ask": an item}, {"end": True}."""
    pool = WarmPool(2, Limits(**setup["limits"]))
    pool.fill()
    torch.set_num_threads(1)  # as inside of a verdict
    gc.set_threshold(*COLLECT)
    stack, judged = ExitStack(), judged_function.JudgedFunction(None)
    for work, _ in items:
        if "begin" in work:
            stack.close()  # of a verdict that was ended
            try:
                judged = stack.enter_context(_opened(work["begin"], pool))
                tell({"problem": ""})
            except (ArgumentError, UnknownName) as error:
                tell({"problem": str(error)})
        elif "ask" in work:
            outcomes = judged.ask(AskedItem.from_dict(work["ask"]))
            tell({"outcomes": [outcome.as_dict() for outcome in outcomes]})
        else:
            tell({"launched": judged.launched(), "operators": sorted(judged.operators())})
            stack.close()
            pool.fill()


def _opened(told: dict[str, Any], pool: WarmPool) -> AbstractContextManager[judged_function.JudgedFunction]:
    asked, limits = options.from_dict(told["options"]), told["limits"] and Limits(**told["limits"])
    take = pool.take if told["pooled"] else None
    return judged_function.opened(asked, Path(told["path"]), told["name"], limits, take)
