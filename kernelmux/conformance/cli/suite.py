"""What the suite brings to the runner: its items in their order, and what becomes of their rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kernelmux.conformance.options import Options
from kernelmux.conformance.report.progress import Reporter
from kernelmux.conformance.session import plan, pytest_plugin, scheduling, time_budget
from kernelmux.conformance.session.execute import NOT, Outcome, from_dict
from kernelmux.runner.item import WorkItem
from kernelmux.runner.run import EndRun


class ConformanceSuite:
    """The driver's side, as `runner.item.Suite` says: a row is an `Outcome`, and goes to the reporter.

    maxfail: failures that end the run, 0 for any number. setup: what `pytest_plugin.serve` gets.
    """

    name, serve = "conformance", pytest_plugin.SERVE

    def __init__(self, chosen: Options, reporter: Reporter, maxfail: int, setup: Any) -> None:
        self.chosen, self.reporter, self.maxfail, self.setup = chosen, reporter, maxfail, setup
        self.begun = False

    def begins(self, item: WorkItem) -> None:
        """Nothing is shown of it, but before the first how many the run before has done."""
        if not self.begun and self.reporter.outcomes:
            self.reporter.resumes()
        self.begun = True

    def takes(self, item: WorkItem, row: Any) -> None:
        """Show and keep an outcome; `EndRun` at the last failure that the run waits for."""
        self.reporter.take(replace(from_dict(row), card=item.card))
        if 0 < self.maxfail <= self.reporter.failed:
            raise EndRun

    def lost(self, item: WorkItem, reason: str) -> Any:
        """An item that did not survive its process has failed."""
        own = _own(item)
        return Outcome(own, "failed", f"{own.id}: {reason}").as_dict()

    def late(self, item: WorkItem) -> Any:
        """An item for which there was no time is a skip that says so."""
        return Outcome(_own(item), "skipped", time_budget.not_asked(self.chosen), asked=NOT).as_dict()

    def failed(self, row: Any) -> bool:
        """Whether what happened beside it may have been the cause."""
        return bool(row["status"] == "failed")


def _own(item: WorkItem) -> plan.Item:
    return plan.Item(**item.work["item"])


def planned(
    chosen: Options,
    items: Sequence[plan.Item],
    seconds: Mapping[str, float],
    workers: int,
    gpus: int = 0,
    memory: int = 0,
) -> tuple[list[WorkItem], int]:
    """The items for the runner, and the last rank of those that are asked in any case, -1 for none.

    seconds: of items in earlier runs. workers: processes; 1 for this process itself, which runs the items in their order.
    gpus: how many an item may have, 0 for a run without; memory: bytes of each. Ranks keep the order of the plan: without a
    GPU the items of a variant stay together in the place of the first.
    """
    less = chosen.minutes or chosen.verified
    first = time_budget.required(items, dict(seconds), chosen.elsewhere) if less else set()
    if chosen.minutes:
        order: Iterable[plan.Item] = time_budget.ordered(items, chosen, first, dict(seconds))
    else:
        order = scheduling.ordered(items, seconds, chosen.device, in_parts=chosen.records)
    together = chosen.device == "cpu" and workers > 1 and scheduling.pays(items, workers)
    ranks: dict[str, int] = {}
    made, required = list[WorkItem](), -1
    for place, item in enumerate(order):
        group = f"{scheduling.group(item)}{' first' * (item.id in first)}" if together else ""
        rank = ranks.setdefault(group or item.id, place)
        required = rank if item.id in first else required
        usual = scheduling.expected(item, seconds)
        made.append(
            WorkItem(
                item.id,
                pytest_plugin.work(item, required=item.id in first),
                usual,
                rank,
                group,
                gpus=scheduling.gpus(item, gpus),
                memory=scheduling.memory(item, memory),
                limit=scheduling.limit(usual, chosen.tier),
            )
        )
    return made, required
