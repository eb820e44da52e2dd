"""The slots of this machine: how many worker processes there are, and which GPU each has."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, replace

from kernelmux.runner import gpus
from kernelmux.runner.gpus import VisibleGpu
from kernelmux.runner.item import Slot

# Other cores are left to the other workers: a process of torch, or of its compiler, would start a thread for each.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}


def available_cores() -> int:
    """The cores that this process may use: of a container or a batch job often fewer than the machine has."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux alone has it
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@dataclass(frozen=True)
class Workers:
    """The worker processes that a suite wants of a machine.

    cpu: processes without a GPU; gpu: that share the GPUs, each with so many bytes of one, less if there is no memory for
    them; alone: one for each GPU, for items that need it alone. most: of the first two; None for one per core. timing:
    those of the CPU and those alone compute with all cores, and those that share a GPU end once nothing is left for them.
    """

    cpu: bool = False
    gpu: int = 0
    alone: bool = False
    most: int | None = None
    timing: bool = False

    def slots(self, node: str = "", card: str = "", cores: int | None = None) -> list[Slot]:
        """The slots of this machine. card: that a node without a GPU declares."""
        count = self.most or cores or available_cores()
        own = next((gpu.card for gpu in gpus.visible()), card)
        found = on_cpu(count, node, own) if self.cpu else []
        found += on_gpus(count, self.gpu, node) if self.gpu else []
        found += exclusive(node) if self.alone else []
        return [_timing(slot) for slot in found] if self.timing else found


def _timing(slot: Slot) -> Slot:
    if slot.gpus and not slot.alone:
        return replace(slot, ends=True)
    return replace(slot, environment={k: v for k, v in slot.environment.items() if k not in THREADS})


def on_cpu(count: int, node: str = "", card: str = "") -> list[Slot]:
    """So many slots without a GPU; card: for which they compile, and what the node declares."""
    environment = {**ONE_THREAD, gpus.VARIABLE: ""}
    return [Slot(f"cpu{i}", node or platform.node(), card=card, environment=environment) for i in range(count)]


def on_gpus(count: int, each: int, node: str = "") -> list[Slot]:
    """So many slots that share the GPUs of this machine in turns, less if there is no memory for them.

    each: bytes of a GPU for one of them.
    """
    found = gpus.visible()
    room = [max(1, int(gpu.memory / each)) for gpu in found]
    turns = [g for turn in range(max(room, default=0)) for g in range(len(found)) if turn < room[g]][:count]
    return [_slot(f"gpu{g}-{i}", g, found, node, alone=False) for i, g in enumerate(turns)]


def exclusive(node: str = "") -> list[Slot]:
    """A slot for each GPU, for items that need it alone."""
    found = gpus.visible()
    return [_slot(f"alone{g}", g, found, node, alone=True) for g in range(len(found))]


def _slot(name: str, number: int, found: list[VisibleGpu], node: str, alone: bool) -> Slot:
    own = found[number]
    order = tuple(gpu.uuid for gpu in [*found[number:], *found[:number]])
    environment = {**ONE_THREAD, gpus.VARIABLE: ",".join(order)}
    return Slot(name, node or platform.node(), order, own.card, alone, own.memory, environment)
