"""What a suite calls to run its items: here, in worker processes of this machine, or over a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelmux.registry.errors import ArgumentError
from kernelmux.runner import results
from kernelmux.runner.interrupts import interrupts
from kernelmux.runner.item import Item
from kernelmux.runner.local_pool import LocalPool
from kernelmux.runner.machine import Workers
from kernelmux.runner.run import Run, RunReport, TimeLimit, run, run_here
from kernelmux.runner.suite import Suite
from kernelmux.runner.worker import version


def execute(
    suite: Suite,
    items: Iterable[Item],
    workers: Workers | None,
    home: Path,
    asked: Any,
    resume: bool = False,
    limit: TimeLimit | None = None,
    cluster: str = "",
    on: Sequence[str] = (),
) -> RunReport:
    """Run the items; each row goes into `rows.jsonl` of the folder `home` as it comes.

    workers: None for this process itself. asked: what the rows are of, as JSON; with `resume` a run goes on with rows
    of the same plan, sources and `asked`. cluster: "auto" or the address of a Ray cluster, "" for this machine. on:
    kinds of cards, on each of which every item runs once (its id is then "id@card"), "all" for all that there are; ()
    for any worker. ArgumentError for a folder that cannot be written to, that another run has, or that holds no such
    run to go on with.
    """
    every = list(items)
    head: Mapping[str, Any] = {"program": suite.name, "version": version(), "asked": asked, "items": len(every)}
    with results.opened(home, head, resume) as (file, done):
        made = Run(suite, every, file, done, limit)
        if workers is None:
            return run_here(made)
        if cluster:
            from kernelmux.runner.cluster.engine import RayCluster  # the extra `cluster`

            with RayCluster(cluster, suite.serve, suite.setup, workers, home / "logs") as engine:
                return run(made, engine)
        if not (slots := workers.slots()):
            raise ArgumentError("no GPU is seen by NVML: the package nvidia-ml-py is needed, and a driver")
        (logs := home / "logs").mkdir(exist_ok=True)
        with LocalPool(slots, suite.serve, suite.setup, logs) as pool:
            interrupts.before_the_end = pool.kill
            return run(made, pool)
