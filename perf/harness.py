"""What lives in a worker process: the plan, the ceilings, the current group of inputs, and the file of results."""

from __future__ import annotations

import gc
import json
import time
from pathlib import Path
from typing import Any

import torch

from kernelmux.perf import ceilings, inputs, machine, measure
from kernelmux.perf.clock import VirtualClock
from kernelmux.perf.options import Options, from_dict
from kernelmux.perf.plan import Row
from kernelmux.perf.roofline import Ceilings
from kernelmux.registry import backend as registered
from kernelmux.registry import catalog

PLAN, EVENTS = "plan.json", "events.jsonl"


class Harness:
    """Runs rows and writes an event for each before and after."""

    def __init__(self, folder: Path, clock: VirtualClock) -> None:
        told = json.loads((folder / PLAN).read_text())
        self.options: Options = from_dict(told["options"])
        self.rows = [Row(**fields) for fields in told["rows"]]
        self.events, self.clock = folder / EVENTS, clock
        self.ceilings: Ceilings | None = None
        self.group: tuple[tuple[str, str, str], measure.Group] | None = None
        self.lost = False

    def start(self) -> None:
        """Say what this machine is, and measure its ceilings."""
        self.tell("machine", **machine.describe(self.options.device))
        if self.options.device == "cuda":
            self.ceilings = ceilings.measure()
            torch.cuda.empty_cache()
            self.tell("ceilings", **self.ceilings.as_dict())

    def tell(self, event: str, **fields: Any) -> None:
        """Append one event; it is on disk whatever happens to this process next."""
        with self.events.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, **fields}) + "\n")

    def run(self, row: Row, benchmark: Any) -> None:
        """Time a row; its failure is an event as well, and raised."""
        self.tell("start", id=row.id)
        start = time.perf_counter()
        fields = row.as_dict() | {"id": row.id}
        try:
            fields |= self._measured(row, benchmark)
            fields["status"] = "ok"
        except Exception as error:
            fields |= {"status": "failed", "error": f"{type(error).__name__}: {error}"}
            self._recover()
            raise
        finally:
            self.tell("row", **fields, seconds=time.perf_counter() - start)

    def _measured(self, row: Row, benchmark: Any) -> dict[str, Any]:
        benchmark.group = " ".join(row.group)
        implementation = registered.variants(row.backend, row.op)[row.variant]
        fields: dict[str, Any] = {
            "idea": implementation.idea,
            "spec": catalog.spec(row.op).hash,
            "source": registered.source_hash(row.backend, row.op),
        }
        found = measure.row(implementation, self._group(row), benchmark, self.clock, self.options, self.ceilings)
        benchmark.extra_info.update({**row.as_dict(), **fields, **found})
        return fields | found

    def _group(self, row: Row) -> measure.Group:
        """The inputs of the row; those of the group before are given up first."""
        if self.group is None or self.group[0] != row.group:
            self.group = None
            gc.collect()
            if self.options.device == "cuda":
                torch.cuda.empty_cache()
            self.group = (row.group, measure.Group(inputs.make(row, self.options.device), {}))
        return self.group[1]

    def _recover(self) -> None:
        """After a failure: give up what it may have spoilt, and find out whether the device still answers."""
        self.group = None
        if self.options.device != "cuda":
            return
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except RuntimeError:
            self.lost = True
            self.tell("lost")
