"""What a worker process does with a row: compile it ahead of its time, or time it on the ceilings of this process."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch

from kernelmux.perf import peers
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.rows import machine
from kernelmux.perf.rows.codec import encode
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.perf.rows.roofline import Ceilings
from kernelmux.perf.rows.row_result import FAILED, SKIPPED, WRONG, RowResult, Timed
from kernelmux.perf.session import ahead
from kernelmux.perf.timing import ceilings, inputs, measure, reseed
from kernelmux.perf.timing.clock import VirtualClock
from kernelmux.perf.timing.verify import WrongOutput
from kernelmux.registry.backend import Implementation, tamper_guard
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import temporary_backends
from kernelmux.registry.spec import Call
from kernelmux.warm import compiling

CHECKED = {"cuda": 1 << 24, "cpu": 1 << 20}  # elements at most that the check of a quick row computes anew


class Patched(AssertionError):
    """The implementation has replaced a function that judges or times it."""


class CannotRun(Exception):
    """The card of this process refuses a row that was planned for another one."""


class Harness:
    """The state of a worker process. formats: of the matrix products whose ceilings the rows need; () for all.

    result: of the last row; lost: the GPU no longer answers. facts: of the machine, once a row has begun.
    """

    def __init__(self, options: PerfOptions, formats: tuple[str, ...], clock: VirtualClock) -> None:
        self.options, self.formats, self.clock = options, formats, clock
        if options.peers:
            peers.join()
        self.joined = ExitStack()  # for as long as the process lives
        self.joined.enter_context(tamper_guard.watched())
        self.joined.enter_context(temporary_backends.joined(options.impl, "".join(options.ops)))
        self.ceilings: Ceilings | None = None
        self.facts: dict[str, Any] = {}
        self.shared: tuple[tuple[str, str, str], measure.Shared] | None = None
        self.result: RowResult | None = None
        self.lost = False

    def begin(self) -> None:
        """Before the first row that is timed: what this machine is, and its ceilings. Nothing else runs on the GPU now."""
        if self.facts:
            return
        facts = {"machine": encode(machine.describe(self.options.device))}
        if self.options.device == "cuda":
            began = time.perf_counter()
            self.ceilings = ceilings.measure(self.formats)
            torch.cuda.empty_cache()
            facts |= {"ceilings": encode(self.ceilings), "seconds": {"ceilings": time.perf_counter() - began}}
        self.facts = facts

    def run(self, row: Row, benchmark: Any) -> None:
        """Time a row; its failure is a result as well, and raised."""
        start = time.perf_counter()
        try:
            self._end(self._timed(row, benchmark), start)
        except Exception as error:
            self._recover()
            self._end(row.not_timed(_status(row, error), _text(error)), start)
            raise

    def taken(self) -> RowResult | None:
        """The result of the last row, once."""
        result, self.result = self.result, None
        return result

    def _end(self, result: RowResult, start: float) -> None:
        self.result = replace(result, seconds=time.perf_counter() - start)

    def _timed(self, row: Row, benchmark: Any) -> Timed:
        benchmark.group = " ".join(row.group)
        implementation = registered.variants(row.backend, row.op)[row.variant]
        began = time.perf_counter()
        shared = self._shared(row)
        drawn = time.perf_counter() - began
        if self.options.elsewhere:
            _require_no_reason(row, implementation, shared.inputs.call)
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
            self._empty()
            device = self.options.device
            checked = CHECKED[device] if self.options.until_known else math.inf
            self.shared = (row.group, measure.Shared(inputs.make(row, device), reseed.draw(row, device), checked))
        return self.shared[1]

    def compile(self, row: Row) -> dict[str, Any]:
        """Make the code of a row, which the process that times it finds on disk; it reports what fails.

        By a call, or, in a process without a GPU, for that beside it.
        """
        began, error = time.perf_counter(), ""
        without_gpu = compiling.able(row.backend) and not torch.cuda.is_available()
        try:
            ahead.compile(row) if without_gpu else self._called(row)
        except Exception as raised:
            error = _text(raised)
            print(f"{row.id}: {error}", flush=True)
        if not without_gpu:
            self._recover()
        return {"compiled": time.perf_counter() - began, "error": error}

    def _called(self, row: Row) -> None:
        implementation = registered.variants(row.backend, row.op)[row.variant]
        call = inputs.one(row, self.options.device)
        implementation.fn(*inputs.Inputs((call,)).arguments(implementation)[0])

    def _recover(self) -> None:
        """Release what a row has left, and test whether the device still answers."""
        self.shared = None
        try:
            if self.options.device == "cuda":
                torch.cuda.synchronize()
            self._empty()
        except RuntimeError:
            self.lost = True

    def _empty(self) -> None:
        gc.collect()
        if self.options.device == "cuda":
            torch.cuda.empty_cache()


def _require_no_reason(row: Row, implementation: Implementation, call: Call) -> None:
    """CannotRun if the machine at hand refuses the call, which was planned on one without a GPU."""
    if reason := registered.unavailable(row.backend, call.device):
        raise CannotRun(reason)
    if reasons := implementation.reasons(call):
        raise CannotRun("; ".join(reasons))


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, CannotRun) else f"{type(error).__name__}: {error}"


def _status(row: Row, error: Exception) -> str:
    """What an error makes of a row: what another library cannot do is no failure of a run, what it gets wrong is told."""
    if isinstance(error, CannotRun):
        return SKIPPED
    if row.backend != peers.NAME:
        return FAILED
    return WRONG if isinstance(error, WrongOutput) else SKIPPED


Tell = Callable[..., None]  # a row, and whether the process is lost
