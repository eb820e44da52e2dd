"""The items of a run as items of pytest: a process runs pytest once, which takes one item after another from the runner."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelmux.candidate import limits, packages
from kernelmux.candidate.implementation import opening
from kernelmux.conformance import options
from kernelmux.conformance.coverage import launcher_marks
from kernelmux.conformance.judging import exclusive_memory
from kernelmux.conformance.options import Options
from kernelmux.conformance.session import expected_failures, mutation, plan, worker_facts
from kernelmux.conformance.session.execute import Outcome, execute
from kernelmux.conformance.session.expected_failures import Book
from kernelmux.conformance.session.time_budget import Share
from kernelmux.registry.backend import tamper_guard
from kernelmux.registry.call import temporary_backends
from kernelmux.registry.cli import target_device

SERVE = f"{__name__}:serve"
ALONE = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"
# Compilers make many objects that stay: Python's own thresholds cost 6 % of an emulated run.
COLLECT = (50_000, 20, 100)
# Of a whole tier ci on two cores a process came to 15 GiB in an hour, and the machine to a standstill.
MOST_ROOM, LEAST_ROOM = 3 << 30, 1 << 30
# No configuration, no terminal, no files; `unraisableexception` collects garbage five times as the process ends.
WITHOUT = ("no:terminal", "no:cacheprovider", "no:unraisableexception")
ARGUMENTS = ["-c", os.devnull, "--noconftest", *(word for name in WITHOUT for word in ("-p", name))]


class Wrong(Exception):
    """An item failed; the text is the whole message."""


def setup(chosen: Options, sharers: int = 1, captured: bool = True) -> dict[str, Any]:
    """What `serve` gets. sharers: processes on each GPU. captured: what items print is not shown."""
    return {"options": chosen.as_dict(), "sharers": sharers, "captured": captured}


def work(item: plan.Item, required: bool = False) -> dict[str, Any]:
    """What `serve` gets of an item. required: it is asked even if a GPU has verified it."""
    return {"item": vars(item), "required": required}


def serve(given: Any, items: Iterator[tuple[Any, float]], tell: Callable[..., None]) -> None:
    """Run items under pytest, as `runner.item.Serve` says; a row is `Outcome.as_dict()`."""
    chosen = options.from_dict(given["options"])
    worker_facts.facts(chosen)  # before a kernel can have taken the context with it
    exclusive_memory.shared_by(given["sharers"])
    with ExitStack() as until_the_end:
        until_the_end.enter_context(target_device.standing(chosen.card or None, "--card", gpu=chosen.device == "cuda"))
        if chosen.mutants:
            until_the_end.enter_context(mutation.registration())
        until_the_end.enter_context(packages.apart(chosen.device, chosen.in_process))
        until_the_end.enter_context(tamper_guard.watched())
        until_the_end.enter_context(temporary_backends.joined(chosen.impl, "".join(chosen.ops), opening(chosen.device)))
        if chosen.device == "cpu":
            until_the_end.callback(gc.set_threshold, *gc.get_threshold())
            gc.set_threshold(*COLLECT)
        if chosen.coverage:
            until_the_end.callback(launcher_marks.restore)
        until_the_end.enter_context(no_other_plugins())
        loop = ItemLoop(chosen, items, tell)
        pytest.main([*ARGUMENTS, *(() if given["captured"] else ("-s",))], plugins=[loop])
    if loop.raised:
        raise loop.raised


def room() -> int:
    """Bytes that a process which emulates may keep: beside one on each core, half of this machine's memory."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(LEAST_ROOM, min(MOST_ROOM, whole // (2 * (os.cpu_count() or 1))))


@contextmanager
def no_other_plugins() -> Iterator[None]:
    """Inside, plugins that happen to be installed stay out of pytest."""
    before = os.environ.get(ALONE)
    os.environ[ALONE] = "1"
    try:
        yield
    finally:
        os.environ.pop(ALONE) if before is None else os.environ.update({ALONE: before})


class ItemLoop:
    """The plugin: in place of tests that are collected, pytest runs what the runner gives.

    raised: what ended the loop, KeyboardInterrupt or an error of the runner; pytest would print it.
    """

    def __init__(self, chosen: Options, items: Iterator[tuple[Any, float]], tell: Callable[..., None]) -> None:
        self.chosen, self.items, self.tell = chosen, items, tell
        self.books = expected_failures.books(chosen)
        self.raised: BaseException | None = None
        self.outside = ""  # what went wrong in pytest itself

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        """There is nothing to collect."""
        session.items = []
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run items until there are no more."""
        try:
            for given, seconds in self.items:
                self._run(session, given, seconds)
        except BaseException as error:
            self.raised = error
        return True

    def _run(self, session: pytest.Session, given: Any, seconds: float) -> None:
        item, self.outside = plan.Item(**given["item"]), ""
        share = Share(seconds, given["required"])
        test = PlanItem.from_parent(session, name=item.id, item=item, chosen=self.chosen, share=share, books=self.books)
        test.ihook.pytest_runtest_protocol(item=test, nextitem=None)
        outcome = test.outcome or Outcome(item, "failed", f"{item.id}: {self.outside}")
        outcome.machine = worker_facts.facts(self.chosen)
        self.tell(outcome.as_dict(), lost=self._lost(outcome))

    def _lost(self, outcome: Outcome) -> bool:
        """Whether the process has to be replaced.

        The CUDA context has gone: after an illegal access it answers every call with that error. Or the emulator keeps
        more kernels than this machine has room for; what was compiled lies on the disk as well.
        """
        if self.chosen.device != "cuda":
            return limits.in_use(os.getpid()).memory > room()
        try:
            if outcome.status in ("failed", "expected"):
                torch.cuda.synchronize()
            else:
                torch.cuda.empty_cache()  # other processes share the GPU
        except RuntimeError:
            return True
        return False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.outside = report.longreprtext


class PlanItem(pytest.Item):
    """One item of the plan. outcome: None until it has run."""

    def __init__(self, *, item: plan.Item, chosen: Options, share: Share, books: list[Book], **more: Any) -> None:
        super().__init__(**more)
        self.item, self.chosen, self.share, self.books = item, chosen, share, books
        self.outcome: Outcome | None = None

    def runtest(self) -> None:
        """Pass, fail or skip; a broken kernel that is caught is no failure."""
        if self.chosen.mutants:
            self.outcome = mutation.executed(self.item, self.chosen)
        else:
            found = execute(self.item, self.chosen, self.share)
            self.outcome = expected_failures.applied(found, self.chosen, self.books)
        if self.outcome.status == "failed" and not self.chosen.mutants:
            raise Wrong(self.outcome.text)
        if self.outcome.status in ("skipped", "expected"):
            pytest.skip(self.outcome.text)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        return str(excinfo.value) if isinstance(excinfo.value, Wrong) else super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name
