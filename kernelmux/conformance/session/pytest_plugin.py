"""The pytest plugin: a file `plan.json` is collected as a plan, one pytest item per item of it."""

from __future__ import annotations

import atexit
import gc
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelmux.conformance import options
from kernelmux.conformance.session import expected_failures, mutation, plan, scheduling, time_budget, worker_devices
from kernelmux.conformance.session.execute import NOT, Outcome, execute
from kernelmux.conformance.session.time_budget import Share
from kernelmux.registry.backend import tamper_guard
from kernelmux.registry.call import temporary_backends

PLAN = "plan.json"
PROPERTY = "kernelmux"
WORKER = ".worker"  # a file beside the plan for each worker process, named by its id
COLLECT = (
    50_000,
    20,
    100,
)  # compilers make many objects that stay: Python's own thresholds cost 6 % of an emulated run
# In the plan: all items in order, those that are finished, what items took, the GPUs to share, the limit of time.
ITEMS, DONE, SECONDS, GPUS, BUDGET = "items", "done", "seconds", "gpus", "budget"


class Wrong(Exception):
    """An item failed; the text is the whole message."""


class Suite(pytest.File):
    """A plan. limit: of its time, if it has one."""

    limit: time_budget.WorkerTimeBudget | None = None

    def collect(self) -> Iterator[PlanItem]:
        chosen = options.load(self.path)
        registered = ExitStack()
        self.config.add_cleanup(registered.close)
        if chosen.mutants:
            registered.enter_context(mutation.registration())
        registered.enter_context(tamper_guard.watched())
        registered.enter_context(temporary_backends.joined(chosen.impl, "".join(chosen.ops)))
        if chosen.device == "cpu":
            self.config.add_cleanup(partial(gc.set_threshold, *gc.get_threshold()))
            gc.set_threshold(*COLLECT)
        found = [plan.Item(**fields) for fields in options.saved(self.path, ITEMS)]
        done, seconds = frozenset(options.saved(self.path, DONE)), options.saved(self.path, SECONDS)
        told = options.saved(self.path, BUDGET)
        self.limit = time_budget.WorkerTimeBudget(told[0], told[1], frozenset(told[2])) if told else None
        for place, item in enumerate(found):
            if item.id not in done:
                more = {"remaining": len(found) - place, "expected": scheduling.expected(item, seconds)}
                yield PlanItem.from_parent(self, name=item.id, item=item, chosen=chosen, **more)


class PlanItem(pytest.Item):
    """One item of the plan; its outcome travels in the report."""

    def __init__(
        self, *, item: plan.Item, chosen: options.Options, remaining: int, expected: float, **more: Any
    ) -> None:
        """remaining: items from this one to the end. expected: its seconds."""
        super().__init__(**more)
        self.item, self.chosen, self.remaining, self.expected = item, chosen, remaining, expected

    def runtest(self) -> None:
        if self.chosen.mutants:
            outcome = mutation.executed(self.item, self.chosen)
        else:
            outcome = expected_failures.applied(self._executed(), self.chosen)
        self.user_properties.append((PROPERTY, json.dumps(outcome.as_dict())))
        if outcome.status in ("failed", "expected"):
            self._stop_without_gpu()
        elif self.chosen.device == "cuda":
            torch.cuda.empty_cache()  # other processes share the GPU
        self._conclude(outcome)

    def _executed(self) -> Outcome:
        """What came out within the item's share of the run's time, where that has a limit."""
        suite = self.getparent(Suite)
        limit = suite.limit if suite else None
        share = limit.share(self.item, self.remaining, self.expected) if limit else Share()
        if share is None:
            return Outcome(self.item, "skipped", time_budget.not_asked(self.chosen), asked=NOT)
        return execute(self.item, self.chosen, share)

    def _conclude(self, outcome: Outcome) -> None:
        """Pass, fail or skip; a broken kernel that is caught is no failure."""
        if outcome.status == "failed" and not self.chosen.mutants:
            raise Wrong(outcome.text)
        if outcome.status in ("skipped", "expected"):
            pytest.skip(outcome.text)

    def _stop_without_gpu(self) -> None:
        """After an illegal access a CUDA context answers every call with that error: new processes run what is left."""
        if self.chosen.device == "cuda":
            try:
                torch.cuda.synchronize()
            except RuntimeError:
                self.session.shouldstop = "the CUDA context is lost"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        return str(excinfo.value) if isinstance(excinfo.value, Wrong) else super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Suite | None:
    return Suite.from_parent(parent, path=file_path) if file_path.name == PLAN else None


def _leave() -> None:
    """Ends a process in place of Python, which would take a second, and let Triton print what it did not free."""
    sys.stderr.flush()
    os._exit(0)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        atexit.register(_leave)
        torch.set_num_threads(1)  # the workers share the cores
        worker_devices.take(options.saved(config.rootpath / PLAN, GPUS), config.workerinput["workerid"])
        (config.rootpath / f"{os.getpid()}{WORKER}").touch()
