"""The state of a worker process: the plan, the ceilings, the current group of inputs, and the file of results."""

from __future__ import annotations

import gc
import json
import math
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kernelmux.perf import peers
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.rows import machine
from kernelmux.perf.rows.codec import decode, encode
from kernelmux.perf.rows.options import PerfOptions, from_dict
from kernelmux.perf.rows.roofline import Ceilings
from kernelmux.perf.rows.row_result import FAILED, LATE, SKIPPED, WRONG, RowResult, Timed
from kernelmux.perf.timing import ceilings, inputs, measure, reseed
from kernelmux.perf.timing.clock import VirtualClock
from kernelmux.perf.timing.verify import WrongOutput
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend import tamper_guard
from kernelmux.registry.call import temporary_backends

PLAN, EVENTS = "plan.json", "events.jsonl"
CHECKED = {"cuda": 1 << 24, "cpu": 1 << 20}  # elements at most that the check of a quick row computes anew
TIME_UP = "the minutes of this run were over"


class Patched(AssertionError):
    """The implementation has replaced a function that judges or times it."""


class Harness:
    """Runs rows and writes an event for each before and after."""

    def __init__(self, folder: Path, clock: VirtualClock) -> None:
        told = json.loads((folder / PLAN).read_text())
        self.options: PerfOptions = from_dict(told["options"])
        if self.options.peers:
            peers.join()
        self.joined = ExitStack()  # for as long as the process lives
        self.joined.enter_context(tamper_guard.watched())
        self.joined.enter_context(temporary_backends.joined(self.options.impl, "".join(self.options.ops)))
        self.rows = [decode(Row, fields, PLAN) for fields in told["rows"]]
        self.events, self.clock = folder / EVENTS, clock
        self.ceilings: Ceilings | None = None
        self.shared: tuple[tuple[str, str, str], measure.Shared] | None = None
        self.lost = False

    def start(self) -> None:
        """Say what this machine is, and measure its ceilings."""
        self.tell("machine", encode(machine.describe(self.options.device)))
        if self.options.device == "cuda":
            began = time.perf_counter()
            self.ceilings = ceilings.measure(self._formats())
            self.tell("seconds", {"ceilings": time.perf_counter() - began})
            torch.cuda.empty_cache()
            self.tell("ceilings", encode(self.ceilings))

    def tell(self, event: str, told: Any = None) -> None:
        """Append one event; it is on disk whatever happens to this process next."""
        with self.events.open("a", encoding="utf-8") as file:
            file.write(json.dumps([event, told]) + "\n")

    def _formats(self) -> tuple[str, ...]:
        """The matrix products whose ceilings the rows need, if the run is brief; else all, which is ()."""
        if not self.options.until_known:
            return ()
        return tuple(dict.fromkeys(inputs.planned(row).matrix_format for row in self.rows if not row.problem))

    def run(self, row: Row, benchmark: Any) -> None:
        """Time a row; its failure is an event as well, and raised."""
        if self.options.until and time.time() > self.options.until:
            self.tell("row", encode(row.not_timed(LATE, TIME_UP)))
            return
        self.tell("start", row.id)
        start = time.perf_counter()
        try:
            self._end(self._timed(row, benchmark), start)
        except Exception as error:
            self._recover()
            self._end(row.not_timed(_status(row, error), f"{type(error).__name__}: {error}"), start)
            raise

    def _end(self, result: RowResult, start: float) -> None:
        self.tell("row", encode(replace(result, seconds=time.perf_counter() - start)))

    def _timed(self, row: Row, benchmark: Any) -> Timed:
        benchmark.group = " ".join(row.group)
        implementation = registered.variants(row.backend, row.op)[row.variant]
        began = time.perf_counter()
        shared = self._shared(row)
        drawn = time.perf_counter() - began
        try:
            result = measure.time_row(row, implementation, shared, benchmark, self.clock, self.options, self.ceilings)
        finally:
            found = tamper_guard.patched(row.backend)
            if found:
                raise Patched(f"patches {', '.join(found)}: what judges and times a call must stay as it is")
        result = replace(result, parts={"inputs": drawn} | result.parts)
        benchmark.extra_info.update(encode(result))
        return result

    def _shared(self, row: Row) -> measure.Shared:
        """What the rows of a group share; what the group before shared is released first."""
        if self.shared is None or self.shared[0] != row.group:
            self.shared = None
            gc.collect()
            if self.options.device == "cuda":
                torch.cuda.empty_cache()
            device = self.options.device
            checked = CHECKED[device] if self.options.until_known else math.inf
            self.shared = (row.group, measure.Shared(inputs.make(row, device), reseed.draw(row, device), checked))
        return self.shared[1]

    def _recover(self) -> None:
        """After a failure: release what it may have damaged, and test whether the device still answers."""
        self.shared = None
        gc.collect()
        if self.options.device != "cuda":
            return
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except RuntimeError:
            self.lost = True
            self.tell("lost")


def _status(row: Row, error: Exception) -> str:
    """What an error makes of a row: what another library cannot do is no failure of a run, what it gets wrong is told."""
    if row.backend != peers.NAME:
        return FAILED
    return WRONG if isinstance(error, WrongOutput) else SKIPPED
