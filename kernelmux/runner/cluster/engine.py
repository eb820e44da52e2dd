"""The driver's side of a Ray cluster: an actor on each node, nodes that join and nodes that go."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.util.files import file_stem
from kernelmux.runner.cluster import shipping
from kernelmux.runner.cluster.agent import Agent, Given
from kernelmux.runner.item import Slot, WorkItem
from kernelmux.runner.local_pool import CLOSED, READY, Event
from kernelmux.runner.machine import Workers

LOOK = 2.0  # seconds between two looks for nodes that have joined
WAIT = 0.1  # seconds that a node waits for something to tell
FIRST, OTHERS = (
    120.0,
    20.0,
)  # seconds for the first node to be ready, and for others, which another program may keep long
TRIES = 2  # to start an actor on a node
GRACE = 60.0  # seconds in which another node may take the place of one that is gone
DECLARED = "accelerator_type:"  # what Ray calls a kind of card


@dataclass
class _Node:
    """A node. slots: once it has said which it has; asked: the answer that is awaited. declares: a GPU, in Ray's resources,
    or "".
    """

    id: str
    actor: Any
    slots: list[Slot] = field(default_factory=list)
    asked: Any = None
    given: list[Given] = field(default_factory=list)
    declares: str = ""


class RayCluster:
    """An engine (`run.Engine`) whose slots are those of all nodes of a Ray cluster."""

    def __init__(self, address: str, serve: str, setup: Any, workers: Workers) -> None:
        """address: "auto", or that of a cluster's head."""
        self.address, self.serve, self.setup, self.workers = address, serve, setup, workers
        self.nodes: dict[str, _Node] = {}
        self.failed: Counter[str] = Counter()  # by node, how often its actor could not be started
        self.problems: list[str] = []
        self.ready: set[str] = set()  # slots
        self.lost_at = -GRACE
        self.looked = -LOOK

    def __enter__(self) -> RayCluster:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            import ray
        except ImportError:
            raise ArgumentError("--cluster: needs Ray: pip install ray") from None
        self.ray = ray
        self._reach()
        with tempfile.TemporaryDirectory(prefix="kernelmux-cluster-") as folder:
            told = shipping.environment(Path(folder))
            try:
                ray.init(address=self.address, runtime_env=told, log_to_driver=False, logging_level="error")
            except Exception as error:  # of the connection, of an address, of a token: Ray has a class for each
                raise self._no_cluster(error) from None
        return self

    def _reach(self) -> None:
        """ArgumentError if nothing listens at the address: Ray would try for minutes."""
        host, _, port = self.address.rpartition(":")
        if host and port.isdigit():
            try:
                socket.create_connection((host, int(port)), timeout=10).close()
            except OSError as error:
                raise self._no_cluster(error) from None

    def _no_cluster(self, error: Exception) -> ArgumentError:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return ArgumentError(f"--cluster {self.address}: expected a running Ray cluster (`ray start --head`): {why}")

    def __exit__(self, *details: object) -> None:
        for node in self.nodes.values():
            with suppress(Exception):
                self.ray.kill(node.actor)  # its worker processes end with it
        self.ray.shutdown()

    def cards(self) -> list[str]:
        """The kinds of cards of the nodes that are ready, after waiting for them; ArgumentError if none gets ready."""
        began = time.monotonic()
        while not (self.nodes and all(node.slots for node in self.nodes.values())):
            ready = any(node.slots for node in self.nodes.values())
            given_up = not self.nodes and self.failed and min(self.failed.values()) >= TRIES
            if time.monotonic() - began > (OTHERS if ready else FIRST) or given_up:
                break
            self._look()
            self._learn(0.5)
        if not (found := [slot for node in self.nodes.values() for slot in node.slots]):
            told = "; ".join(self.problems) or "other programs have them, or they have neither a core nor a GPU"
            raise ArgumentError(f"--cluster {self.address}: no node of it could be used: {told}")
        return sorted({slot.card for slot in found})

    def send(self, slot: Slot, item: WorkItem, seconds: float) -> None:
        self._give(slot, item, seconds)

    def close(self, slot: Slot) -> None:
        self._give(slot, None, 0.0)

    def _give(self, slot: Slot, item: WorkItem | None, seconds: float) -> None:
        if node := self.nodes.get(slot.node):
            node.given.append((slot.id, item, seconds))

    def events(self, timeout: float) -> list[Event]:
        self._look()
        self._learn(0)
        asked = {self._asked(node): node for node in self.nodes.values() if node.slots}
        if not asked:
            time.sleep(min(timeout, WAIT))
            return []
        done, _ = self.ray.wait(list(asked), num_returns=1, timeout=timeout)
        if rest := [answer for answer in asked if answer not in done]:
            done += self.ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        return [event for answer in done for event in self._answer(asked[answer], answer)]

    def starting(self) -> bool:
        """Whether a slot that is not ready may still become so, of a node that joins too."""
        told = [slot.id in self.ready for node in self.nodes.values() for slot in node.slots]
        waits = not all(told) or not all(node.slots for node in self.nodes.values())
        return waits or time.monotonic() - self.lost_at < GRACE

    def _asked(self, node: _Node) -> Any:
        if node.asked is None:
            node.asked = node.actor.exchange.remote(node.given, WAIT)
            node.given = []
        return node.asked

    def _answer(self, node: _Node, answer: Any) -> list[Event]:
        """What a node tells; if it is gone, that."""
        node.asked = None
        try:
            found: list[Event] = self.ray.get(answer)
            self.ready.update(event.slot.id for event in found if event.kind in (READY, CLOSED))
            return found
        except self.ray.exceptions.RayError as error:
            return self._lost(node, error)

    def _lost(self, node: _Node, error: Exception) -> list[Event]:
        """A node, or its actor, is gone; where it is still there, it is tried again."""
        self.nodes.pop(node.id, None)
        self.lost_at = time.monotonic()
        self.failed[node.id] += 1
        told = f"node {node.id[:8]}: {type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1]}"
        if self.failed[node.id] == TRIES:
            self.problems.append(told)
        with suppress(Exception):
            self.ray.kill(node.actor)
        return [Event(slot, CLOSED, told, outside=True) for slot in node.slots]

    def _leave(self, node: _Node) -> None:
        """A node has no worker that the run needs: no GPU. One that declares a GPU or a card is told of."""
        del self.nodes[node.id]
        self.failed[node.id] = TRIES
        self.ray.kill(node.actor)
        if node.declares:
            self.problems.append(f"node {node.id[:8]} declares {node.declares}, and NVML names no GPU there")

    def _look(self) -> None:
        """Start an actor on each node that has joined."""
        if time.monotonic() - self.looked < LOOK:
            return
        self.looked = time.monotonic()
        for told in self.ray.nodes():
            name = told["NodeID"]
            if told["Alive"] and name not in self.nodes and self.failed[name] < TRIES:
                known = told["Resources"]
                declares = declared(known) or ("a GPU" if known.get("GPU") else "")
                self.nodes[name] = _Node(name, self._actor(name, known), declares=declares)

    def _actor(self, node: str, resources: dict[str, float]) -> Any:
        """The actor of a node, which takes all of its cores and GPUs: it starts once others have left them."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        cores, gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
        options = {
            "num_cpus": cores,
            "num_gpus": gpus,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
        }
        made = self.ray.remote(**options)(Agent)
        return made.remote(self.serve, self.setup, self.workers, node, max(1, cores), declared(resources))

    def _learn(self, wait: float) -> None:
        """Which slots the nodes have whose actors have started meanwhile."""
        new = {n.asked or n.actor.describe.remote(): n for n in self.nodes.values() if not n.slots}
        for asked, node in new.items():
            node.asked = asked
        for answer in self.ray.wait(list(new), num_returns=len(new), timeout=wait)[0] if new else ():
            node = new[answer]
            node.asked = None
            try:
                node.slots = self.ray.get(answer)
            except self.ray.exceptions.RayError as error:
                self._lost(node, error)
                continue
            if not node.slots:
                self._leave(node)


def declared(resources: Iterable[str]) -> str:
    """What a node without a GPU counts as: "h100-declared" for accelerator_type:H100; "" where it declares no card."""
    found = (f"{file_stem(name.removeprefix(DECLARED))}-declared" for name in resources if name.startswith(DECLARED))
    return next(found, "")
