"""The driver's side of the toy suite, and runs of it."""

import json
import os
import time
from collections import Counter
from pathlib import Path

from kernelmux.runner import results
from kernelmux.runner.item import Slot, WorkItem
from kernelmux.runner.local_pool import LocalPool
from kernelmux.runner.run import RunState

SERVE = f"{Path(__file__).with_name('toy_serve.py')}:serve"
HEAD = {"program": "toy"}


class Toy:
    """A suite whose rows are {"status": ...}; `begun` and `taken` are the ids in their order."""

    name, serve = "toy", SERVE

    def __init__(self, **setup):
        self.setup, self.begun, self.taken = setup, [], []

    def begins(self, item):
        self.begun.append(item.id)

    def takes(self, item, row):
        self.taken.append(item.id)

    def lost(self, item, reason):
        return {"status": "lost", "why": reason}

    def late(self, item):
        return {"status": "late"}

    def failed(self, row):
        return row["status"] == "failed"


def items(number, seconds=0.0, **details):
    """So many items that pass."""
    return [WorkItem(f"passes{i}", ["passes", seconds], **details) for i in range(number)]


def slots(number, gpu="", **details):
    """Slots without a GPU, or with one that no driver knows."""
    return [Slot(f"{gpu}worker{i}", "node", (gpu,) if gpu else (), **details) for i in range(number)]


def go(home, every, workers=2, suite=None, resume=False, limit=None):
    """RunState items; the report and the rows of the file. workers: slots, or how many."""
    suite = suite or Toy()
    chosen = slots(workers) if isinstance(workers, int) else workers
    with results.opened(results.folder(home), HEAD, resume) as (file, done):
        made = RunState(suite, every, file, done, limit)
        with LocalPool(chosen, suite.serve, suite.setup, home) as pool:
            report = made.run(pool)
    return report, rows(home)


def rows(home):
    """What the file of rows holds, by item; each ended once."""
    found = results.read(home / results.NAME).rows
    times = Counter(row["item"] for row in found if "item" in row)
    assert set(times.values()) <= {1}, times
    return {row["item"]: row["row"] for row in found if "item" in row}


def lines(home, kind):
    """The lines of the file that are of something else than a row."""
    return [row for row in results.read(home / results.NAME).rows if kind in row]


def alive(pid):
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def workers_of(home):
    """The numbers of all worker processes that a file of rows tells of."""
    return [row["pid"] for row in lines(home, "worker")]


def wait_until(holds, seconds=60.0):
    """Whether it holds within so many seconds."""
    end = time.monotonic() + seconds
    while not (held := holds()) and time.monotonic() < end:
        time.sleep(0.01)
    return held


def descendants(pid):
    """All processes that a process has started, and those of them."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(stat[1]), []).append(int(name))
    found = list(parents.get(pid, ()))
    for child in found:
        found += parents.get(child, ())
    return found


def written(home):
    """The number of rows that are in the file so far."""
    path = home / results.NAME
    return path.read_bytes().count(b'\n{"item"') if path.exists() else 0


def text_of(rows):
    """Rows without what differs from run to run."""
    return {name: json.dumps({k: v for k, v in row.items() if k != "pid"}) for name, row in rows.items()}
