"""Trials of the cluster engine on four nodes of this machine, in a network of their own: figures for docs/cluster.md.

python -m kernelmux.runner.cluster.trial sleep --items 20000      what an item costs the driver, and how busy the slots are
python -m kernelmux.runner.cluster.trial lost --op softmax add    a conformance run in which a node is killed and one joins
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kernelmux.registry.errors import ArgumentError
from kernelmux.runner import results
from kernelmux.runner.cluster.local_cluster import ADDRESS, INSIDE, LocalCluster, inside, possible
from kernelmux.runner.item import WorkItem
from kernelmux.runner.machine import Workers
from kernelmux.runner.run import RunState

NODES = 4
JOINED = "joined"  # the file which says that the node has been added
PATIENCE = 150.0  # seconds that an item waits for that node


@dataclass
class Sleeping:
    """Items that sleep."""

    name: str = "sleeping"
    serve: str = "kernelmux.runner.cluster.trial:serve"
    setup: Any = None

    def begins(self, item: WorkItem) -> None:
        """Nothing is shown."""

    def takes(self, item: WorkItem, row: Any) -> None:
        """Nothing is shown."""

    def lost(self, item: WorkItem, reason: str) -> Any:
        return reason

    def late(self, item: WorkItem) -> Any:
        return "late"

    def failed(self, row: Any) -> bool:
        return bool(row)


def serve(setup: Any, items: Iterator[tuple[tuple[float, str, int], float]], tell: Any) -> None:
    """Sleep for as long as each item says; before it, in a folder if one is named, wait for the node that joins."""
    for (seconds, folder, processes), _ in items:
        if folder:
            _wait(Path(folder), processes)
        time.sleep(seconds)
        tell("")


def _wait(folder: Path, processes: int) -> None:
    """Until the file is there that says that a node has joined, and so many processes have come here since then."""
    _until((folder / JOINED).exists)
    (folder / f"process-{os.getpid()}").touch()
    _until(lambda: len(list(folder.glob("process-*"))) >= processes)


def _until(so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not so() and time.monotonic() < end:
        time.sleep(0.1)


def sleep(items: int, seconds: float, slots: int, disturbed: bool) -> dict[str, Any]:
    """Run so many sleeping items; what they cost. disturbed: a node is killed, and one joins, for which the last quarter
    of the items waits: they begin when one process more has come to them than the nodes that stay have.
    """
    from kernelmux.runner.cluster.engine import RayCluster

    suite, home = Sleeping(), Path(tempfile.mkdtemp(prefix="kernelmux-trial-"))
    at_once, waits = (seconds, "", 0), (seconds, str(home), (NODES - 1) * slots + 1)
    late = items * 3 // 4 if disturbed else items
    work = [WorkItem(str(n), waits if n >= late else at_once, seconds, int(n >= late)) for n in range(items)]
    with LocalCluster(slots, [""] * NODES) as cluster:
        if disturbed:
            threading.Thread(target=_disturb, args=(cluster, home / results.NAME), daemon=True).start()
        with (
            RayCluster(cluster.address, suite.serve, None, Workers(cpu=True)) as engine,
            results.opened(home, {"items": items}, resume=False) as (file, _),
        ):
            engine.cards()
            addresses = {told["NodeManagerAddress"] for told in engine.ray.nodes()}
            if addresses != {ADDRESS}:
                raise RuntimeError(f"expected nodes at {ADDRESS} alone, got {sorted(addresses)}")
            made = RunState(suite, work, file)
            began = time.process_time()
            report = made.run(engine)
            took = time.process_time() - began
    return {
        "items": items,
        "seconds of an item": seconds,
        "nodes": NODES,
        "slots": report.usage.workers,
        **_summary(home),
        "wall seconds": round(report.usage.seconds, 1),
        "efficiency": round(items * seconds / (report.usage.workers * report.usage.seconds), 4),
        "driver CPU ms an item": round(1e3 * took / items, 3),
        "driver MB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "errors": report.errors,
    }


def _summary(home: Path) -> dict[str, Any]:
    """What the rows in a folder say."""
    rows = results.read(home / results.NAME).rows
    ended = Counter(row["item"] for row in rows if "item" in row)
    return {
        "ended": len(ended),
        "twice": [item for item, count in ended.items() if count > 1],
        "run again": sum("again" in row for row in rows),
        "items by node": dict(Counter(row["node"][:8] for row in rows if "item" in row)),
    }


def lost(words: list[str], slots: int, cards: list[str]) -> dict[str, Any]:
    """Run conformance on the cluster, kill a node at a third of the items and add one at half; then in one process."""
    home = Path(tempfile.mkdtemp(prefix="kernelmux-trial-"))
    command = [sys.executable, "-m", "kernelmux", "conformance", "-q", *words]
    with LocalCluster(slots, cards) as cluster:
        watching = threading.Thread(target=_disturb, args=(cluster, home / "cluster" / results.NAME), daemon=True)
        watching.start()
        many = subprocess.run([*command, "--cluster", cluster.address, "--out", str(home / "cluster")], check=False)
        one = subprocess.run([*command, "-n", "1", "--out", str(home / "one")], check=False)
    rows = {name: results.read(home / name / results.NAME).rows for name in ("cluster", "one")}
    status = {n: {r["item"]: r["row"]["status"] for r in found if "item" in r} for n, found in rows.items()}
    return {
        "items": len(status["one"]),
        **_summary(home / "cluster"),
        "same outcomes": status["cluster"] == status["one"],
        "exit status": [many.returncode, one.returncode],
        "rows": str(home),
    }


def _disturb(cluster: LocalCluster, path: Path) -> None:
    """Kill the last node at a third of the items, and add one at half."""
    disturbances: list[tuple[int, Callable[[], None]]] = [(3, partial(cluster.kill, NODES - 1)), (2, cluster.add)]
    for share, what in disturbances:
        while True:
            time.sleep(0.1)
            with suppress(ArgumentError):  # there is no row yet
                if len((found := results.read(path)).rows) * share >= found.head["items"]:
                    break
        what()
    (path.parent / JOINED).touch()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trial", choices=("sleep", "lost"))
    parser.add_argument("--items", type=int, default=20_000, metavar="N", help="of sleep (default: 20000)")
    parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help="of an item of sleep (default: 1)")
    parser.add_argument("--slots", type=int, metavar="N", help="cores that a node declares (default: 16; of lost: 1)")
    parser.add_argument(
        "--card", nargs="+", default=[], metavar="CARD", help="of lost: the kinds that the nodes declare"
    )
    parser.add_argument("--disturbed", action="store_true", help="of sleep: a node is killed and one joins, as in lost")
    args, words = parser.parse_known_args()
    if not os.environ.get(INSIDE):
        if lack := possible():
            print(f"trial: a network of its own cannot be had here: {lack}", file=sys.stderr)
            return 2
        return subprocess.run(
            inside([sys.executable, "-m", "kernelmux.runner.cluster.trial", *sys.argv[1:]])
        ).returncode
    if args.trial == "sleep":
        found = sleep(args.items, args.seconds, args.slots or 16, args.disturbed)
    else:
        found = lost(words, args.slots or 1, args.card or [""] * NODES)
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
