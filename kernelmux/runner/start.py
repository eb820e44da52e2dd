"""What a suite calls to run its items: here, in worker processes of this machine, or over a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernelmux.registry.errors import ArgumentError
from kernelmux.runner import results
from kernelmux.runner.arguments import ALL
from kernelmux.runner.item import Suite, WorkItem
from kernelmux.runner.local_pool import LocalPool
from kernelmux.runner.machine import Workers
from kernelmux.runner.run import Engine, RunReport, RunState, TimeLimit
from kernelmux.runner.worker import version

Items = Iterable[WorkItem] | Callable[[Sequence[str]], Iterable[WorkItem]]


def execute(
    suite: Suite,
    items: Items,
    workers: Workers | None,
    home: Path,
    asked: Any,
    resume: bool = False,
    limit: TimeLimit | None = None,
    cluster: str = "",
    on: Sequence[str] = (),
    keep: bool = False,
) -> RunReport:
    """Run the items; each row goes into `rows.jsonl` of the folder `home` as it comes.

    items: or a function that makes them, given the kinds of cards that there are. workers: None for this process itself.
    asked: what the rows are of, as JSON; with `resume` a run goes on with rows of the same plan, sources and `asked`. keep:
    the rows of all runs stay in the file. cluster: "auto" or the address of a Ray cluster, "" for this machine. on: the
    kinds of cards, on each of which every item runs once (its id is then "id@card"), or parts of their names; by default,
    and with "all", each kind that there is. ArgumentError for a folder that cannot be written to, that another run has, or
    that holds no such run to go on with, and for cards that are not there.
    """
    home = results.folder(home)
    with _engine(suite, workers, home, cluster) if workers else nullcontext() as engine:
        cards = engine.cards() if engine else []
        if callable(items):
            every = list(items([card for card in cards if card]))
        elif engine:
            every = list(items)
            if kinds := chosen(cards, on):
                every = [replace(item, id=f"{item.id}@{card}", card=card) for card in kinds for item in every]
        else:  # one process is for all
            every = [replace(item, gpus=0, cpu=False, alone=False, card="") for item in items]
        head = {"program": suite.name, "version": version(), "asked": asked, "items": len(every)}
        with results.opened(home, head, resume, keep) as (file, done):
            made = RunState(suite, every, file, done, limit)
            report = made.run(engine)
            report.errors += getattr(engine, "problems", [])  # of a cluster: nodes that could not be used
            return report


def _engine(suite: Suite, workers: Workers, home: Path, cluster: str) -> AbstractContextManager[Engine]:
    """What has the worker processes, once it is entered."""
    if cluster:
        from kernelmux.runner.cluster.engine import RayCluster  # the extra `cluster`

        return RayCluster(cluster, suite.serve, suite.setup, workers)
    if not (slots := workers.slots()):
        raise ArgumentError("no GPU is seen by NVML: the package nvidia-ml-py is needed, and a driver")
    return LocalPool(slots, suite.serve, suite.setup, results.folder(home / "logs"))


def chosen(cards: Sequence[str], on: Sequence[str]) -> list[str]:
    """The kinds of cards that --on names, [] where all workers are alike; ArgumentError for one that is not there."""
    known = [card for card in cards if card]
    for name in on:
        if not known or (name != ALL and not any(name.lower() in card for card in known)):
            raise ArgumentError(
                f"--on {name}: expected a part of {', '.join(known) or 'a card, and none is there'}, or {ALL}"
            )
    every = not on or ALL in on
    found = [card for card in cards if every or any(name.lower() in card for name in on)]
    return found if len(cards) > 1 else []
