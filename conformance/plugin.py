"""The pytest plugin: a file `plan.json` is collected as a plan, one pytest item per item of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelmux.conformance import expected, options, plan
from kernelmux.conformance.execute import execute

PLAN = "plan.json"
PROPERTY = "kernelmux"


class Wrong(Exception):
    """An item failed; the text is the whole message."""


class Suite(pytest.File):
    """A plan."""

    def collect(self) -> Iterator[PlanItem]:
        chosen, done = options.load(self.path), options.done(self.path)
        known = durations(self.path.parent)
        found = sorted(plan.items(chosen), key=lambda i: -known.get(i.id, 1e9 if known else 0))
        for item in (i for i in found if i.id not in done):
            yield PlanItem.from_parent(self, name=item.id, item=item, chosen=chosen)


class PlanItem(pytest.Item):
    """One item of the plan; its outcome travels in the report."""

    def __init__(self, *, item: plan.Item, chosen: options.Options, **more: Any) -> None:
        super().__init__(**more)
        self.item, self.chosen = item, chosen

    def runtest(self) -> None:
        outcome = expected.applied(execute(self.item, self.chosen), self.chosen)
        self.user_properties.append((PROPERTY, json.dumps(outcome.as_dict())))
        if outcome.status == "failed":
            self._stop_without_gpu()
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


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        torch.set_num_threads(1)  # the workers share the cores


def durations(folder: Path) -> dict[str, float]:
    """Seconds per item in earlier runs: the longest start first."""
    path = folder / "durations.json"
    return json.loads(path.read_text()) if path.exists() else {}
