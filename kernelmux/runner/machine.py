"""The GPUs and the slots of this machine: how many worker processes there are, and which GPU each has."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernelmux.registry.util.files import file_stem
from kernelmux.runner.item import Slot

VISIBLE = "CUDA_VISIBLE_DEVICES"

# Other cores are left to the other workers: a process of torch, or of its compiler, would start a thread for each.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}


def available_cores() -> int:
    """The cores that this process may use: of a container or a batch job often fewer than the machine has."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux alone has it
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@dataclass(frozen=True)
class VisibleGpu:
    """uuid: as CUDA_VISIBLE_DEVICES takes it. memory: bytes. capability: (9, 0), or (0, 0) if unknown."""

    uuid: str
    name: str
    memory: int
    driver: str
    capability: tuple[int, int] = (0, 0)

    @property
    def card(self) -> str:
        """The kind of card, "nvidia_h200"."""
        return file_stem(self.name)

    @property
    def emulated(self) -> dict[str, str]:
        """The variable by which the emulator of a process without a GPU stands for this one; {} for an unknown one."""
        from kernelmux.registry.util import cards  # imports torch, which most runs do without here

        if self.capability not in cards.LIMITS:
            return {}
        known = cards.by_device_name(self.name, self.capability)
        return {cards.VARIABLE: self.name if known else "{}.{}".format(*self.capability)}


def visible_gpus() -> list[VisibleGpu]:
    """The GPUs that this process may use, in the order of CUDA_VISIBLE_DEVICES where that is set; [] without a driver.

    By NVML: no context on a GPU is made, and torch is not imported.
    """
    try:
        import pynvml as nvml

        nvml.nvmlInit()
    except Exception:  # of the import, of a library that is not there, of a driver that does not answer
        return []
    named, found = os.environ.get(VISIBLE), []
    try:
        names = [str(i) for i in range(nvml.nvmlDeviceGetCount())] if named is None else named.split(",")
        for name in map(str.strip, names):
            try:
                number = name.isdigit()
                handle = nvml.nvmlDeviceGetHandleByIndex(int(name)) if number else nvml.nvmlDeviceGetHandleByUUID(name)
            except nvml.NVMLError:  # CUDA, too, takes no more behind a name that it does not know
                break
            found.append(_gpu(nvml, handle))
        return found
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, handle: Any) -> VisibleGpu:
    uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
    memory, driver = nvml.nvmlDeviceGetMemoryInfo(handle).total, nvml.nvmlSystemGetDriverVersion()
    try:
        capability = tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))
    except nvml.NVMLError:  # a slice of a GPU need not tell it
        capability = (0, 0)
    return VisibleGpu(uuid, name, memory, driver, capability)


@dataclass(frozen=True)
class Workers:
    """The worker processes that a suite wants of a machine.

    cpu: processes without a GPU; gpu: that share the GPUs, each with so many bytes of one, less if there is no memory for
    them; alone: one for each GPU, for items that need it alone. most: of each of the first two; None for one per core.
    timing: those that time, alone or else on a CPU, compute with all cores; the others, which are then no more than `most`
    together, end once nothing is left for them, and those without a GPU emulate one of this machine.
    """

    cpu: bool = False
    gpu: int = 0
    alone: bool = False
    most: int | None = None
    timing: bool = False

    def slots(self, node: str = "", card: str = "", cores: int | None = None) -> list[Slot]:
        """The slots of this machine. card: that a node without a GPU declares."""
        here, node = visible_gpus(), node or platform.node()
        each, kinds = _one_each(here, node), {gpu.card: gpu for gpu in here}
        count = self.most or cores or available_cores()
        share = max(1, count // 2) if self.timing and self.cpu and self.gpu else count
        found = on_cpu(share, node, [*kinds] or [card]) if self.cpu else []
        found += _in_turns(each, share, self.gpu) if self.gpu else []
        found += [replace(slot, id=f"alone{slot.id}", alone=True) for slot in each] if self.alone else []
        return [self._timing(slot, kinds) for slot in found] if self.timing else found

    def _timing(self, slot: Slot, kinds: Mapping[str, VisibleGpu]) -> Slot:
        if slot.alone or not self.alone:
            return replace(slot, environment={k: v for k, v in slot.environment.items() if k not in THREADS})
        emulated = kinds[slot.card].emulated if slot.card in kinds and not slot.gpus else {}
        return replace(slot, ends=True, environment={**slot.environment, **emulated})


def on_cpu(count: int, node: str, cards: Sequence[str]) -> list[Slot]:
    """So many slots without a GPU, one at least for each of the kinds of cards for which they compile, or which the node
    declares."""
    environment, numbers = {**ONE_THREAD, VISIBLE: ""}, range(max(count, len(cards)))
    return [Slot(f"cpu{i}", node, card=cards[i % len(cards)], environment=environment) for i in numbers]


def _one_each(found: list[VisibleGpu], node: str) -> list[Slot]:
    """A slot for each GPU, which sees that as its first; its id is the number of the GPU."""
    slots = []
    for number, own in enumerate(found):
        order = tuple(gpu.uuid for gpu in [*found[number:], *found[:number]])
        environment = {**ONE_THREAD, VISIBLE: ",".join(order)}
        slots.append(Slot(str(number), node, order, own.card, memory=own.memory, environment=environment))
    return slots


def _in_turns(slots: list[Slot], count: int, each: int) -> list[Slot]:
    """So many slots that share the GPUs in turns, less if there is no memory for them. each: bytes of a GPU for one."""
    room = {slot: max(1, int(slot.memory / each)) for slot in slots}
    turns = [slot for turn in range(max(room.values(), default=0)) for slot in slots if turn < room[slot]][:count]
    return [replace(slot, id=f"gpu{slot.id}-{i}") for i, slot in enumerate(turns)]
