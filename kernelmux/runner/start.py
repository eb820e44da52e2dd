"""What a suite calls to run its items: here, in worker processes of this machine, or over a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernelmux.runner import results
from kernelmux.runner.interrupts import interrupts
from kernelmux.runner.item import Item
from kernelmux.runner.local_pool import LocalPool
from kernelmux.runner.machine import Workers
from kernelmux.runner.run import Run, RunReport, TimeLimit, run, run_here
from kernelmux.runner.suite import Suite
from kernelmux.runner.worker import version

Items = Iterable[Item] | Callable[[Sequence[str]], Iterable[Item]]


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

    items: or a function that makes them, given the kinds of cards of the GPUs that there are. workers: None for this
    process itself. asked: what the rows are of, as JSON; with `resume` a run goes on with rows of the same plan, sources
    and `asked`. keep: the rows of all runs stay in the file. cluster: "auto" or the address of a Ray cluster, "" for this
    machine. on: kinds of cards, on each of which every item runs once (its id is then "id@card"), "all" for all that
    there are; () for any worker. ArgumentError for a folder that cannot be written to, that another run has, or that
    holds no such run to go on with.
    """
    every = items if callable(items) else list(items)
    count = {} if callable(every) else {"items": len(every)}
    head: Mapping[str, Any] = {"program": suite.name, "version": version(), "asked": asked, **count}
    with results.opened(home, head, resume, keep) as (file, done):

        def planned(cards: Iterable[str]) -> Run:
            found = every(sorted({card for card in cards if card})) if callable(every) else every
            if workers is None:  # where there is one process, it is for all
                found = [replace(item, gpus=0, alone=False, card="") for item in found]
            return Run(suite, found, file, done, limit)

        if workers is None:
            return run_here(planned(()))
        if cluster:
            from kernelmux.runner.cluster.engine import RayCluster  # the extra `cluster`

            with RayCluster(cluster, suite.serve, suite.setup, workers) as engine:
                return run(planned(engine.cards()), engine)
        slots = workers.slots()
        made = planned(slot.card for slot in slots if slot.gpus)
        with LocalPool(slots, suite.serve, suite.setup, results.folder(home / "logs")) as pool:
            interrupts.before_the_end = pool.kill
            try:
                return run(made, pool)
            finally:
                interrupts.before_the_end = bool
