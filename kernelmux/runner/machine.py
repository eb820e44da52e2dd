"""The slots of this machine: how many worker processes there are, and which GPU each has."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
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
        count, kinds = self.most or cores or available_cores(), {gpu.card: gpu for gpu in gpus.visible()}
        share = max(1, count // 2) if self.timing and self.cpu and self.gpu else count
        found = on_cpu(share, node, [*kinds] or [card]) if self.cpu else []
        found += on_gpus(share, self.gpu, node) if self.gpu else []
        found += exclusive(node) if self.alone else []
        return [self._timing(slot, kinds) for slot in found] if self.timing else found

    def _timing(self, slot: Slot, kinds: Mapping[str, VisibleGpu]) -> Slot:
        if slot.alone or not self.alone:
            return replace(slot, environment={k: v for k, v in slot.environment.items() if k not in THREADS})
        emulated = kinds[slot.card].emulated if slot.card in kinds and not slot.gpus else {}
        return replace(slot, ends=True, environment={**slot.environment, **emulated})


def on_cpu(count: int, node: str = "", cards: Sequence[str] = ("",)) -> list[Slot]:
    """So many slots without a GPU, one at least for each of the kinds of cards for which they compile, or which the node
    declares."""
    environment = {**ONE_THREAD, gpus.VARIABLE: ""}
    return [
        Slot(f"cpu{i}", node or platform.node(), card=cards[i % len(cards)], environment=environment)
        for i in range(max(count, len(cards)))
    ]


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
