"""What a worker process does: lists the rows of its tree, prepares one, times calls of it, checks its output.

    ["where"]               the folder that the registry was imported from
    ["machine"]             the fields of a `MeasuringMachine`
    ["rows", options]       [[fields of a Row, hash of its source and spec], ...]
    ["prepare", row]        seconds of one timed call, all that is around it included
    ["time", count]         seconds of each of `count` calls, after one that does not count
    ["check"]               null; WrongOutput if a timed call computed something else

The answer is ["ok", value] or ["failed", text].
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kernelmux import registry
from kernelmux.perf.planning import plan
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.rows import machine
from kernelmux.perf.rows.codec import decode, encode
from kernelmux.perf.rows.options import PerfOptions, from_dict
from kernelmux.perf.timing import inputs, measure, reseed
from kernelmux.perf.timing.clock import VirtualClock
from kernelmux.registry import catalog
from kernelmux.registry.backend import Implementation
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.errors import KernelmuxError


class Stand:
    """One row at a time, and the inputs and references of its group. lost: the GPU answers no more."""

    def __init__(self, device: str) -> None:
        self.device, self.clock, self.lost = device, VirtualClock(), False
        self.group: tuple[str, str, str] | None = None
        self.shared: measure.Shared
        self.implementation: Implementation
        self.ready: measure.Ready

    def answer(self, request: str, *arguments: Any) -> tuple[str, Any]:
        """The answer to one request."""
        requests: dict[str, Callable[..., Any]] = {"where": where, "machine": self.machine, "rows": rows}
        requests |= {"prepare": self.prepare, "time": self.time, "check": self.check}
        try:
            return "ok", requests[request](*arguments)
        except Exception as error:
            self._recover()
            return "failed", f"{type(error).__name__}: {error}"

    def machine(self) -> dict[str, Any]:
        return encode(machine.describe(self.device))

    def prepare(self, told: dict[str, Any]) -> float:
        """Compile a row and call it; the inputs are those of the row before if that did the same work."""
        row = decode(Row, told, "row")
        if self.group != row.group:
            self._release()
            made, self.group = inputs.make(row, self.device), row.group
            self.shared = measure.Shared(made, reseed.draw(row, self.device))
        self.implementation = registered.variants(row.backend, row.op)[row.variant]
        with self._tf32():
            self.ready = measure.ready(self.shared.inputs, self.implementation, self.clock)
            self.ready.sample()
            began = time.perf_counter()
            self.ready.sample()
        return time.perf_counter() - began

    def time(self, count: int) -> list[float]:
        """Seconds of each call. The one before them finds the GPU as the other tree's process has left it."""
        with self._tf32():
            return [self._seconds() for _ in range(count + 1)][1:]

    def _seconds(self) -> float:
        before = self.clock.now
        self.ready.sample()
        return self.clock.now - before

    def check(self) -> None:
        """Check the output of one more timed call, on values that no call before it has met."""
        sample, last = self.ready.sample, self.ready.copies - 1
        sample.count = last
        new = registered.laid_out(self.shared.fresh, self.implementation)
        exchange = reseed.Exchange(self.ready.arguments[last], new)
        exchange.put()
        with self._tf32():
            sample()
        exchange.take_back()
        self.shared.oracle.check(sample.result, self.implementation)
        sample.result = None
        self._empty()

    def _tf32(self) -> Any:
        return measure.tf32(self.shared.inputs.call.arguments.get("precision") == "tf32")

    def _release(self) -> None:
        self.group = None
        for name in ("ready", "shared"):
            vars(self).pop(name, None)
        gc.collect()
        self._empty()

    def _empty(self) -> None:
        """Leave the memory to the other processes."""
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def _recover(self) -> None:
        """After a failure: release what it may have damaged, and test whether the device still answers."""
        try:
            if self.device == "cuda":
                torch.cuda.synchronize()
            self._release()
        except RuntimeError:
            self.lost = True


def where() -> str:
    """The folder of the registry that this process has imported."""
    return str(Path(str(registry.__file__)).resolve().parent)


def rows(told: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """The rows of this tree that can run or are broken, each with a hash of what it consists of."""
    return [(encode(row), "" if row.broken else source(row)) for row in _rows(from_dict(told))]


def _rows(options: PerfOptions) -> list[Row]:
    """The rows of the operators and variants that this tree knows, group by group."""
    known = tuple(op for op in options.ops or catalog.usable() if op in catalog.usable())
    found: dict[Row, None] = {}
    for label in options.backends or ("all",):
        if known:
            found |= dict.fromkeys(_of(label, replace(options, ops=known, backends=(label,))))
    first = {row.group: place for place, row in reversed([*enumerate(found)])}
    return sorted(found, key=lambda row: first[row.group])


def _of(label: str, options: PerfOptions) -> Iterator[Row]:
    """The rows of one backend, or of all; the baseline is among them only if it is asked for."""
    name = "all" if label == "all" else registered.split(label)[0]
    try:
        made = plan.rows(options)
    except KernelmuxError:  # this tree has no such variant, or workload
        return
    fit = (row for row in made if name in ("all", row.backend))
    yield from (row for row in fit if not row.problem or row.broken)


def source(row: Row) -> str:
    """Hashes of the files that a row's implementation consists of, and of its spec."""
    return f"{registered.source_hash(row.backend, row.op, row.variant)} {catalog.spec(row.op).hash}"
