"""What runs on each node: a pool of worker processes in a Ray actor that has all of the node's cores and GPUs."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kernelmux.runner.item import Slot, WorkItem
from kernelmux.runner.local_pool import READY, Event, LocalPool
from kernelmux.runner.machine import Workers, visible_gpus

PACKAGES = ("torch", "triton", "cupy-cuda13x", "cupy-cuda12x")
CACHES = ("TRITON_CACHE_DIR", "CUPY_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "KERNELMUX_CACHE_DIR")
GATHER = 0.01  # seconds after an event in which others are waited for: an answer costs the driver about a millisecond

Given = tuple[str, WorkItem | None, float]  # a slot, the item that it is to begin, and its seconds; None: it is to end


class Agent:
    """The actor. Its one method is asked again and again, and answers as soon as something has happened."""

    def __init__(self, serve: str, setup: Any, workers: Workers, node: str, cores: int, card: str) -> None:
        """card: what the node declares; a GPU that is there says itself what it is."""
        logs = Path(f"logs-{os.getpid()}").resolve()  # in Ray's copy of the sources, which Ray removes
        logs.mkdir()
        os.environ.update(caches())
        slots = [_named(slot, node) for slot in workers.slots(node, card, cores)]
        self.slots = {slot.id: slot for slot in slots}
        self.facts = {"driver": next((gpu.driver for gpu in visible_gpus()), ""), "versions": versions()}
        self.pool = LocalPool(slots, serve, setup, logs).__enter__()

    def exchange(self, given: Sequence[Given], wait: float) -> list[Event]:
        """Begin what is given; what has happened, at the latest after `wait` seconds."""
        for name, item, seconds in given:
            if item is None:
                self.pool.close(self.slots[name])
            else:
                self.pool.send(self.slots[name], item, seconds)
        found = self.pool.events(wait)
        if found:
            time.sleep(GATHER)
            found += self.pool.events(0.0)
        return [self._with_facts(event) for event in found]

    def _with_facts(self, event: Event) -> Event:
        if event.kind != READY:
            return event
        return Event(event.slot, READY, {**event.value, **self.facts})

    def describe(self) -> list[Slot]:
        """The slots of this node."""
        return list(self.slots.values())


def _named(slot: Slot, node: str) -> Slot:
    """The slot under a name that no other node has."""
    return replace(slot, id=f"{node[:8]}-{slot.id}", node=node)


def caches() -> dict[str, str]:
    """Folders of this node for what compilers keep, unless they are named: a home folder may be one of all nodes."""
    top = Path(tempfile.gettempdir()) / f"kernelmux-caches-{os.getuid()}"
    return {name: os.environ.get(name) or str(top / name.partition("_")[0].lower()) for name in CACHES}


def versions() -> dict[str, str]:
    """Of the packages that compile and run kernels."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
