"""Calls that are timed, by the clock of the judge, in memory that both processes have.

Each call has inputs of its own, so that no result is of use for another, and a place for its outputs, which are there when
the answer comes: what is not finished then is wrong. From the clock's seconds go those of an answer without a call, and
those that copying outputs to their places takes. Both are measured in a process of the judge's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from kernelmux.candidate import memory
from kernelmux.candidate.gpu.shared_memory import GpuRegion

UNIT = 512  # bytes: where a tensor in the memory may begin
DELAY = 20_000_000  # clock cycles, some 10 ms: so that copies wait for the GPU and not for the host
Kind = tuple[tuple[int, ...], torch.dtype]  # shape and dtype of an output


class Asking(Protocol):
    """How a message and a file reach the process: its answer, with the seconds that it took by the clock here."""

    def __call__(self, message: dict[str, Any], files: Sequence[int] = ()) -> tuple[dict[str, Any], float]: ...


class TimedCalls:
    """On the side of the judge. each: the arguments of every call, all alike in shape. outputs: of a call.

    empty: no function is called, as to learn what the rest takes.
    """

    def __init__(
        self,
        asking: Asking,
        each: Sequence[Sequence[Any]],
        outputs: Sequence[Kind],
        device: torch.device,
        empty: bool = False,
    ) -> None:
        self._asking, self.device = asking, device
        calls, end = _placed(each, 0)
        self._first_output = end
        results, end = _placed([[torch.empty(shape, dtype=dtype) for shape, dtype in outputs]] * len(each), end)
        self.size = end
        self._region = _region(end, device)
        self._storage = _storage(self._region)
        self.inputs = [[self._tensor(told) for told in row] for row in calls]
        self._results = results
        message = {"do": "prepare", "device": str(device), "size": end, "calls": calls, "outputs": results}
        self._asking({**message, "empty": empty}, [self._region.file])

    def fill(self, each: Sequence[Sequence[Any]]) -> None:
        """Other inputs, in their places; places of outputs hold NaN then, or -1."""
        for places, values in zip(self.inputs, each, strict=True):
            for to, value in zip(places, values, strict=True):
                if isinstance(to, torch.Tensor):
                    to.copy_(value)
        memory.whole(self._storage)[self._first_output :].fill_(255)
        _wait(self.device)

    def run(self, count: int) -> tuple[float, float, list[list[torch.Tensor]]]:
        """Make so many of the calls: seconds by the clock here, those that the process claims, and the outputs."""
        answer, seconds = self._asking({"do": "run", "count": count})
        there = memory.whole(self._storage)[self._first_output :].clone()  # what is not there by now never was
        _wait(self.device)
        taken = there.untyped_storage()
        rows = self._results[:count]
        moved = [[{**told, "offset": told["offset"] - self._first_output // _size(told)} for told in r] for r in rows]
        return seconds, float(answer["claim"]), [[memory.tensor(taken, told) for told in row] for row in moved]

    def _tensor(self, told: dict[str, Any]) -> Any:
        return memory.tensor(self._storage, told) if "dtype" in told else told["value"]

    def close(self) -> None:
        """Give the descriptor back; the memory goes with the last tensor on it."""
        self.inputs.clear()
        del self._storage
        self._region.close()


class ServedCalls:
    """In the process of the candidate."""

    def __init__(self, message: dict[str, Any], file: int, function: Callable[..., Any]) -> None:
        self.device, self.function = torch.device(message["device"]), function
        region = _region(message["size"], self.device, file)
        storage = _storage(region)
        self.calls = [
            [memory.tensor(storage, t) if "dtype" in t else t["value"] for t in row] for row in message["calls"]
        ]
        self.places = [[memory.tensor(storage, told) for told in row] for row in message["outputs"]]
        self.ready = [torch.empty_like(x) for x in self.places[0]] if message["empty"] else None
        region.close()

    def run(self, count: int) -> float:
        """Seconds by a clock of this process; of empty calls those in which the GPU copies."""
        with torch.no_grad():
            if self.ready is not None:
                return self._copies(self.ready, count)
            function = self.function
            begun = time.perf_counter()
            for values, places in zip(self.calls[:count], self.places[:count], strict=True):
                result = function(*values)
                for to, out in zip(places, result if isinstance(result, tuple | list) else (result,), strict=True):
                    to.copy_(out)
            _wait(self.device)
            return time.perf_counter() - begun

    def _copies(self, ready: list[torch.Tensor], count: int) -> float:
        if self.device.type == "cpu":
            begun = time.perf_counter()
            self._copy(ready, count)
            return time.perf_counter() - begun
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(DELAY if count else 1)  # type: ignore[no-untyped-call]
        begin.record()
        self._copy(ready, count)
        end.record()
        _wait(self.device)
        return 1e-3 * float(begin.elapsed_time(end)) if count else 0.0

    def _copy(self, ready: list[torch.Tensor], count: int) -> None:
        for places in self.places[:count]:
            for to, out in zip(places, ready, strict=True):
                to.copy_(out)


def _placed(each: Sequence[Sequence[Any]], end: int) -> tuple[list[list[dict[str, Any]]], int]:
    """Arguments as JSON, dense in their own order of axes, one after another, and where the next may begin."""
    known = dict[int, dict[str, Any]]()  # by the tensor: calls may have the same
    rows = list[list[dict[str, Any]]]()
    for values in each:
        row = list[dict[str, Any]]()
        for value in values:
            if not isinstance(value, torch.Tensor):
                row.append({"value": value})
                continue
            if id(value) not in known:  # memory that is not touched; "meta" would import what torch compiles with
                known[id(value)] = memory.described(torch.empty_like(value, device="cpu"))
            row.append({**known[id(value)], "offset": end // value.itemsize})
            end += -(-max(value.nbytes, 1) // UNIT) * UNIT
        rows.append(row)
    return rows, end


def _size(told: dict[str, Any]) -> int:
    return memory.DTYPES[told["dtype"]].itemsize


def _region(size: int, device: torch.device, file: int | None = None) -> memory.Region | GpuRegion:
    if device.type == "cuda":
        return GpuRegion(size, device, file)
    return memory.region(size) if file is None else memory.Region(file, size)


def _storage(region: memory.Region | GpuRegion) -> torch.UntypedStorage:
    return region.storage() if isinstance(region, GpuRegion) else memory.storage_of(region.bytes)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
