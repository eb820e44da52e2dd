"""The memory of inputs, as the process of a candidate has it: what lies at an address here comes to one address there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch

from kernelmux.candidate import memory
from kernelmux.candidate.gpu.shared_memory import GpuRegion

KEPT = 1 << 31  # bytes that stay mapped between calls


class SharedInputs:
    """Regions with what tensors hold, on the device of these. by_number: each, by the number that it has in messages."""

    def __init__(self) -> None:
        self.by_number: dict[int, memory.Region | GpuRegion] = {}
        self._places: OrderedDict[tuple[Any, ...], int] = OrderedDict()
        self._numbers = self._bytes = 0

    def place(self, storages: Sequence[torch.UntypedStorage]) -> tuple[list[int], list[int], list[int]]:
        """Copy what the storages hold into regions: the number of each, those that are new, and those that have gone."""
        used, new, gone = list[int](), list[int](), list[int]()
        for storage in storages:
            key = (storage.data_ptr(), storage.nbytes(), str(storage.device))
            if key not in self._places:
                self._numbers += 1
                self._places[key] = self._numbers
                self.by_number[self._numbers] = _region(storage)
                self._bytes += storage.nbytes()
                new.append(self._numbers)
            self._places.move_to_end(key)
            number = self._places[key]
            _fill(self.by_number[number], storage, fresh=number in new)
            used.append(number)
        while self._bytes > KEPT and len(self._places) > len(storages):
            _, number = self._places.popitem(last=False)
            region = self.by_number.pop(number)
            self._bytes -= region.size
            region.close()
            gone.append(number)
        return used, new, gone

    def take_back(self, storages: Sequence[torch.UntypedStorage], used: Sequence[int]) -> None:
        """What a call has done to its inputs is done to ours."""
        for storage, number in zip(storages, used, strict=True):
            _take(self.by_number[number], storage)

    @property
    def emulated(self) -> dict[int, memory.Region]:
        """Those that the emulator can read."""
        return {number: region for number, region in self.by_number.items() if isinstance(region, memory.Region)}

    def changed(self, storages: Sequence[torch.UntypedStorage], used: Sequence[int]) -> bool:
        """Whether a call has done something to its inputs."""
        return any(_differs(self.by_number[number], x) for x, number in zip(storages, used, strict=True))

    def close(self) -> None:
        """Give all regions back."""
        while self.by_number:
            self.by_number.popitem()[1].close()
        self._places.clear()


def _region(storage: torch.UntypedStorage) -> memory.Region | GpuRegion:
    gpu = storage.device.type == "cuda"
    return GpuRegion(storage.nbytes(), storage.device) if gpu else memory.region(storage.nbytes())


def _fill(region: memory.Region | GpuRegion, storage: torch.UntypedStorage, fresh: bool) -> None:
    if isinstance(region, GpuRegion):
        memory.whole(region.storage()).copy_(memory.whole(storage))
        torch.cuda.current_stream(storage.device).synchronize()
    else:
        memory.fill(region.bytes, memory.held(storage), fresh, region.file)


def _differs(region: memory.Region | GpuRegion, storage: torch.UntypedStorage) -> bool:
    if isinstance(region, GpuRegion):
        return not torch.equal(memory.whole(storage), memory.whole(region.storage()))
    return any(True for _ in memory.changed(region, memory.held(storage)))


def _take(region: memory.Region | GpuRegion, storage: torch.UntypedStorage) -> None:
    if isinstance(region, GpuRegion):
        own, now = memory.whole(storage), memory.whole(region.storage())
        if not torch.equal(own, now):
            own.copy_(now)
        return
    for part in memory.changed(region, memory.held(storage)):
        memory.whole(storage)[part].copy_(torch.from_numpy(region.bytes[part]))
